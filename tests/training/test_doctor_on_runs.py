"""The run doctor on runs that were really made: it reads what the trainers write."""

from __future__ import annotations

from typing import Any

import pytest

import solutions.answers as answers
from helpers.course.doctor import diagnose
from helpers.training.configs import OnlineConfig, PreferenceConfig, SFTConfig
from helpers.training.preference import train_preference
from helpers.training.sft import train_sft
from tests.training.test_online import train


def test_a_dpo_run_that_learns(settings: Any) -> None:
    run = train_preference(settings(PreferenceConfig, max_steps=20, learning_rate=2e-2), answers)
    found = diagnose(run.run_dir)
    assert {"start", "loss", "held-out pairs"} <= {f.topic for f in found.findings}
    assert "plateau" not in found.render()


def test_a_dpo_run_with_a_tiny_learning_rate(settings: Any) -> None:
    run = train_preference(settings(PreferenceConfig, max_steps=10, learning_rate=1e-9), answers)
    found = diagnose(run.run_dir)
    assert {"plateau"} <= {f.topic for f in found.findings if f.level == "warning"}


@pytest.mark.parametrize("algo", ["grpo", "gspo"])
def test_an_online_run(algo: str, settings: Any) -> None:
    found = diagnose(train(settings(OnlineConfig, algo=algo, max_steps=10, eval_steps=0)).run_dir)
    assert {"reward", "KL", "entropy"} <= {f.topic for f in found.findings}
    assert "cut off" in {f.topic for f in found.findings if f.level == "warning"}  # six tokens are not enough


def test_an_sft_run(settings: Any) -> None:
    assert diagnose(train_sft(settings(SFTConfig, max_steps=9), answers).run_dir).record.algo == "sft"
