"""A build whose judge sits behind a server: what is asked, what is paid once, what stops it."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.apps.cli import main
from helpers.files import read_json
from helpers.judging import llm_client
from tests.dataset_build.conftest import contents

ANSWER = re.compile(r"<<<ANSWER ([AB]) [^\n]*\n(.*?)\n<<<", re.DOTALL)


def longer(request: Any) -> str:
    """The letter of the longer answer."""
    sizes = {letter: len(text) for letter, text in ANSWER.findall(request.user)}
    return max(sorted(sizes), key=lambda letter: sizes[letter])


@pytest.fixture
def server(root: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The server of the judges' tests, preferring the longer answer."""
    place = root / "tests" / "judging" / "server.py"
    spec = importlib.util.spec_from_file_location("judging_server", place)
    assert spec and spec.loader
    module = sys.modules.setdefault(spec.name, importlib.util.module_from_spec(spec))
    spec.loader.exec_module(module)
    for name in ("OPENAI_API_KEY", "JUDGE_API_KEY", "OPENAI_BASE_URL", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(llm_client, "FIRST_WAIT", 0.02)
    with module.FakeOpenAI(longer) as running:
        yield running


@pytest.fixture
def build(server: Any, settings: Any, tmp_path: Path) -> Callable[..., int]:
    """`build("first", "--max_cost", "1")`: twelve prompts, judged by letters; the exit status."""

    def run(name: str, *words: str) -> int:
        chosen = vars(settings(limit=12, output_dir=str(tmp_path / name)))
        flags = [f"--{k}={v}" for k, v in chosen.items() if v not in (None, False)]
        judge = f"--judge openai --judge_base_url {server.url} --judge_model local --judge_format letter"
        cache = ["--judge_cache", str(tmp_path / "cache")]
        return main(["data", "build", *flags, *judge.split(), *cache, *words])

    return run


def test_both_orders_are_asked_once_and_the_longer_answer_is_chosen(
    build: Any, server: Any, tmp_path: Path, capsys: Any
):
    assert build("first") == 0
    manifest = read_json(tmp_path / "first" / "manifest.json")
    judged, pairs = manifest["verdicts"]["prompts_judged"], manifest["pairs"]
    assert len(server.requests) == 2 * judged
    assert pairs["chosen_longer_share"] == 1.0
    # Of answers of equal length it names the first in each order: no pair.
    assert set(pairs["dropped"]) <= {"the orders disagree on the best", "fewer than two different answers"}
    assert manifest["judge"]["model"] == "local" and manifest["judge"]["is_proxy"] is True
    assert server.url.split("//")[1].split("/")[0] not in (tmp_path / "first" / "manifest.json").read_text()
    assert "pairs kept" in capsys.readouterr().out
    asked = len(server.requests)
    assert build("second") == 0
    assert len(server.requests) == asked, "the cache of verdicts serves the second build"
    assert contents(tmp_path / "first") == contents(tmp_path / "second")


def test_a_cost_cap_stops_before_it_is_passed(build: Any, server: Any, capsys: Any):
    assert build("poor", "--max_cost", "0.01", "--price_in", "5", "--price_out", "5") == 2
    assert "--max_cost $0.01 would be passed" in capsys.readouterr().err
    paid = len(server.requests)
    assert build("poor") == 0, "and the rest is asked without a cap"
    assert len(server.requests) >= paid


def test_a_server_that_fails_is_asked_again_the_next_time(
    build: Any, server: Any, tmp_path: Path, capsys: Any
):
    server.default = "500"
    assert build("down", "--judge_retries", "0") == 2
    assert "gave no answer" in capsys.readouterr().err
    server.default = "ok"
    assert build("down") == 0
    assert read_json(tmp_path / "down" / "manifest.json")["verdicts"]["stopped"] == ""
