"""A real OpenAI-compatible server on loopback, with a real model, judged through the real client."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.errors import CourseError
from helpers.judging.registry import JudgeSettings, make_judge

pytestmark = pytest.mark.slow
COMMAND = shutil.which("transformers", path=str(Path(sys.executable).parent))


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], str]]:
    """Starts `transformers serve` on a directory of weights; returns the base URL."""
    pytest.importorskip("uvicorn", reason="needs transformers[serving]")
    if COMMAND is None:
        pytest.skip("the command `transformers` is not installed")
    for name in ("OPENAI_API_KEY", "JUDGE_API_KEY", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    started: list[subprocess.Popen] = []

    def start(model: Path) -> str:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        words = ["serve", str(model), "--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1"]
        log = (tmp_path / "serve.log").open("w")
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        process = subprocess.Popen(
            [str(COMMAND), *words, "--port", str(port)], stdout=log, stderr=log, env=environment
        )
        started.append(process)
        wait_for(f"http://127.0.0.1:{port}/health", process, tmp_path / "serve.log")
        return f"http://127.0.0.1:{port}/v1"

    yield start
    for process in started:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def wait_for(address: str, process: subprocess.Popen, log: Path, seconds: float = 180) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-2000:]
        try:
            with urllib.request.urlopen(address, timeout=2):
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(log.read_text()[-2000:])


def judged(serve, model: Path, tmp_path: Path, make_pair, rows: int):
    settings = JudgeSettings(
        judge_base_url=serve(model), judge_model=str(model), judge_format="letter", judge_concurrency=1,
        judge_cache=str(tmp_path / "cache"), judge_timeout=120.0,
    )  # fmt: skip
    pairs = [make_pair(number) for number in range(rows)]
    judge = make_judge("openai", settings)
    return judge, judge.compare(pairs)


def check(judge, verdicts) -> None:
    """Whatever such a model says is a letter or no verdict; its tokens are counted, and cost nothing."""
    for verdict in verdicts:
        assert verdict.winner in ("A", "B") or verdict.detail["status"] in ("unparsed", "missing")
    usage = judge.client.budget.usage
    assert usage.input_tokens > 100 * len(verdicts) and 0 < usage.output_tokens <= len(verdicts)
    assert judge.client.budget.spent == 0


def test_the_bundled_model_behind_a_real_server(serve, tiny_dir, tmp_path, make_pair):
    check(*judged(serve, tiny_dir / "model", tmp_path, make_pair, 2))


@pytest.mark.smol
def test_smollm2_behind_a_real_server(serve, tmp_path, make_pair):
    from helpers.models import smol

    try:
        place = smol.local_copy(lambda: False)
    except CourseError as problem:
        pytest.skip(str(problem))
    if place is None:
        from huggingface_hub import snapshot_download

        place = Path(snapshot_download(smol.HUB_ID, local_files_only=True))
    judge, verdicts = judged(serve, place, tmp_path, make_pair, 4)
    check(judge, verdicts)
    assert any(verdict.winner for verdict in verdicts), "it answers with a letter"
