"""Weights & Biases (a stand-in): off by default, never interactive, complete when asked for."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

import solutions.answers as answers
from helpers.errors import CourseError
from helpers.training.configs import OnlineConfig, SFTConfig
from helpers.training.online import train_online
from helpers.training.sft import train_sft
from tests.training.test_online import EvenIds


class FakeWandb:
    """Records what W&B would have been told; `login` would be the interactive question."""

    def __init__(self) -> None:
        self.started: list[dict[str, Any]] = []
        self.logged: list[dict[str, Any]] = []

    def init(self, **options: Any) -> Any:
        """Start a run."""
        self.started.append(options)
        return SimpleNamespace(log=lambda metrics, step=None: self.logged.append({"step": step, **metrics}))

    def Table(self, columns: list[str], data: list[list[Any]]) -> dict[str, Any]:
        """A table."""
        return {"columns": columns, "data": data}

    def Html(self, text: str) -> str:
        """A panel."""
        return text

    def login(self, *_: Any, **__: Any) -> None:
        """The account wall."""
        raise AssertionError("asked for an account")


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    """The stand-in, importable as wandb; no key in the environment."""
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return fake


def test_nothing_is_tracked_unless_asked_for(settings: Any, wandb: FakeWandb) -> None:
    """smol-course #164: training hangs asking for a key."""
    train_sft(settings(SFTConfig, max_steps=1), answers)
    assert wandb.started == [] and wandb.logged == []


def test_without_a_key_the_run_is_kept_offline(settings: Any, wandb: FakeWandb) -> None:
    train_sft(settings(SFTConfig, max_steps=1, report_to="wandb"), answers)
    assert wandb.started[0]["mode"] == "offline"


def test_samples_become_a_table_with_prompt_reference_response_and_reward(
    settings: Any, wandb: FakeWandb
) -> None:
    config = settings(OnlineConfig, max_steps=3, report_to="wandb")
    train_online(config, answers, scorer=EvenIds())
    tables = [row["samples/generation_table"] for row in wandb.logged if "samples/generation_table" in row]
    assert tables[0]["columns"] == ["prompt", "reference_response", "response", "reward"]
    assert len(tables[0]["data"]) == config.eval_samples
    assert any("reward" in row and "kl" in row for row in wandb.logged)


def test_asking_for_a_package_that_is_missing_says_how_to_get_it(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(CourseError, match="pip install wandb"):
        train_sft(settings(SFTConfig, max_steps=1, report_to="wandb"), answers)
