"""Judges on a scripted server, in either API."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers.judging import llm_client
from helpers.judging.judge import Comparison
from helpers.judging.registry import JudgeSettings, make_judge
from helpers.text.datasets import Example


def load_server() -> Any:
    """server.py beside this file; with importlib import mode it is no module that tests could import."""
    spec = importlib.util.spec_from_file_location("judging_server", Path(__file__).with_name("server.py"))
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def fake() -> Any:
    """The module server.py."""
    return load_server()


@pytest.fixture
def server(fake: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A running server that answers "A"; no key of the machine's own is in the environment."""
    for name in ("OPENAI_API_KEY", "JUDGE_API_KEY", "OPENAI_BASE_URL", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(llm_client, "FIRST_WAIT", 0.02)
    with fake.FakeOpenAI() as running:
        yield running


@pytest.fixture(params=["responses", "chat"])
def api(request: pytest.FixtureRequest) -> str:
    """Both APIs in turn."""
    return str(request.param)


@pytest.fixture
def judge_of(server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """A judge at the server: judge_of(api, **settings)."""

    def make(api: str = "chat", **settings: Any) -> Any:
        flags = {"judge_cache": str(tmp_path / "cache"), "judge_timeout": 5.0, "judge_retries": 2, **settings}
        if api == "chat":
            flags = {"judge_base_url": server.url, "judge_model": "local", **flags}
        else:
            monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
            monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        return make_judge("openai", JudgeSettings(judge="openai", **flags))

    return make


def pair(number: int = 0, a: str = "Paris.", b: str = "I do not know.") -> Comparison:
    """A comparison that differs from others by its number."""
    turns = ({"role": "user", "content": f"Question {number}: the capital of France?"},)
    return Comparison(Example(f"row{number}", turns, (), {}), a, b)


@pytest.fixture(scope="session")
def make_pair() -> Callable[..., Comparison]:
    """The function `pair`."""
    return pair
