"""Whole online runs: TRL's GRPOTrainer on our responses and rewards takes the adapter to the same place."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.training.configs import OnlineConfig
from tests.parity.replay import Curves, furthest, our_run, trl_run

pytest.importorskip("trl", minversion="1.16")
pytestmark = pytest.mark.filterwarnings("ignore:You are using 'rollout_func'")

SETTINGS = {
    "per_device_train_batch_size": 4,
    "group_size": 4,
    "minibatch_size": 8,
    "gradient_accumulation_steps": 2,
    "temperature": 0.8,
    "min_new_tokens": 1,
}
METHODS = pytest.mark.parametrize("algo", ["grpo", "dr_grpo", "gspo"])


def assert_same_run(ours: Curves, theirs: Curves) -> None:
    """20 updates: losses, gradient norms, and weights, which differ by less than a hundredth of their way."""
    assert len(ours.losses) == len(theirs.losses) == 20
    assert ours.losses == pytest.approx(theirs.losses, abs=1e-5)
    assert ours.norms == pytest.approx(theirs.norms, rel=1e-3)
    assert furthest(ours.weights, theirs.weights) < 1e-4
    assert furthest(theirs.weights, theirs.start) > 1e-2


@METHODS
def test_twenty_steps_on_fresh_responses_follow_trls(
    configure: Any, monkeypatch: pytest.MonkeyPatch, algo: str
) -> None:
    """One update a rollout: every ratio is 1, and the loss is near 0 while its gradient is not."""
    config = configure(OnlineConfig, algo=algo, num_epochs=1, kl_coef=0.04, **SETTINGS)
    ours, recorder = our_run(config, monkeypatch)
    assert min(ours.norms) > 0.1
    assert_same_run(ours, trl_run(config, recorder))


@METHODS
def test_ten_rollouts_of_two_updates_follow_trls(
    configure: Any, monkeypatch: pytest.MonkeyPatch, algo: str
) -> None:
    """The second update of each rollout meets ratios off 1, some of them clipped."""
    clip = {"grpo": 0.02, "dr_grpo": 0.02, "gspo": 0.01}[algo]
    batch = {**SETTINGS, "num_epochs": 2, "max_steps": 10}
    config = configure(OnlineConfig, algo=algo, clip_eps=clip, kl_coef=0.04, **batch)
    ours, recorder = our_run(config, monkeypatch)
    assert any(float(row["clip_fraction"]) > 0 for row in ours.rows)
    assert_same_run(ours, trl_run(config, recorder))


@pytest.mark.parametrize(
    ("algo", "change"),
    [
        ("grpo", {"loss_type": "dr_grpo"}),
        ("dr_grpo", {"scale_rewards": "group"}),
        ("gspo", {"importance_sampling_level": "token"}),
        ("grpo", {"num_iterations": 1, "max_steps": 10}),
    ],
)
def test_another_method_goes_elsewhere(
    configure: Any, monkeypatch: pytest.MonkeyPatch, algo: str, change: dict[str, Any]
) -> None:
    """What the comparison can tell apart: one setting of TRL's changed, on the same responses."""
    batch = {**SETTINGS, "num_epochs": 2, "max_steps": 10}
    config = configure(OnlineConfig, algo=algo, clip_eps=0.01, kl_coef=0.04, **batch)
    ours, recorder = our_run(config, monkeypatch)
    theirs = trl_run(config, recorder, **change)
    assert furthest(ours.weights, theirs.weights) > 1e-3
