"""Online training: the first ratio, the temperature, accumulation, resumption and what is skipped."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import solutions.answers as answers
from helpers.errors import CourseError
from helpers.text.groups import Group
from helpers.training.configs import OnlineConfig, RewardConfig
from helpers.training.online import train_online
from helpers.training.reward import train_reward_model
from helpers.training.rollouts import abstain, prompt_indices, shuffled
from tests.support import adapter_weights, assert_equal_weights, metric_rows


class EvenIds:
    """A reward that can be computed by hand: the share of even token ids."""

    def __init__(self, bad_at: int | None = None) -> None:
        self.calls, self.bad_at = 0, bad_at

    def score_groups(self, groups: Sequence[Group], *, batch_size: int = 16) -> list[list[float]]:
        """A random model already gets mixed rewards."""
        self.calls += 1
        bad = self.calls == self.bad_at
        return [
            [
                math.nan if bad and i == 0 else sum(t % 2 == 0 for t in r) / len(r)
                for i, r in enumerate(g.responses)
            ]
            for g in groups
        ]


def train(config: OnlineConfig, **options: Any) -> Any:
    """Train with the hand-made reward."""
    return train_online(
        config, options.pop("answers", answers), scorer=options.pop("scorer", EvenIds()), **options
    )


def training_rows(run: Any) -> list[dict[str, str]]:
    """Rows of training steps."""
    return [row for row in metric_rows(run.run_dir) if row.get("loss")]


def test_the_first_ratio_of_every_step_is_exactly_one(settings: Any) -> None:
    """TRL #454: old and new log-probs from different code paths differ."""
    run = train(settings(OnlineConfig, max_steps=4, temperature=0.7))
    assert [float(row["first_ratio_error"]) for row in training_rows(run)] == [0.0] * 4


def test_the_kl_estimate_is_zero_at_first_and_never_negative(settings: Any) -> None:
    run = train(settings(OnlineConfig, max_steps=4))
    values = [float(row["kl"]) for row in training_rows(run)]
    assert values[0] == pytest.approx(0.0, abs=1e-6)
    assert min(values) >= 0 and values[-1] > 0


def test_the_reward_rises(settings: Any) -> None:
    batch = {"per_device_train_batch_size": 8, "group_size": 4, "minibatch_size": 32}
    config = settings(OnlineConfig, max_steps=30, learning_rate=5e-2, kl_coef=0.0, eval_steps=0, **batch)
    rows = training_rows(train(config))
    early, late = (sum(float(r["reward"]) for r in part) / 5 for part in (rows[:5], rows[-5:]))
    assert late > early + 0.15


def test_minibatches_of_two_accumulated_twice_equal_one_of_four(settings: Any) -> None:
    one = train(settings(OnlineConfig, "one", minibatch_size=4, gradient_accumulation_steps=1, max_steps=2))
    two = train(settings(OnlineConfig, "two", minibatch_size=2, gradient_accumulation_steps=2, max_steps=2))
    assert_equal_weights(adapter_weights(one.final), adapter_weights(two.final), atol=2e-4)


def test_packed_and_padded_layouts_train_alike(settings: Any) -> None:
    packed = train(settings(OnlineConfig, "packed", layout="packed", max_steps=2))
    padded = train(settings(OnlineConfig, "padded", layout="padded", max_steps=2))
    assert_equal_weights(adapter_weights(packed.final), adapter_weights(padded.final), atol=2e-4)


def test_an_interrupted_run_resumes_bit_for_bit(settings: Any) -> None:
    whole = train(settings(OnlineConfig, "whole", max_steps=7))
    train(settings(OnlineConfig, "parts", max_steps=7), stop_at_step=5)  # last checkpoint: step 3
    parts = train(settings(OnlineConfig, "parts", max_steps=7, resume=True))
    assert_equal_weights(adapter_weights(whole.final), adapter_weights(parts.final))
    assert metric_rows(whole.run_dir) == metric_rows(parts.run_dir)
    assert (whole.run_dir / "samples.jsonl").read_text() == (parts.run_dir / "samples.jsonl").read_text()


def test_kill_9_loses_at_most_the_steps_since_the_last_save(
    settings: Any, tmp_path: Path, root: Path
) -> None:
    config = settings(OnlineConfig, "killed", max_steps=40, save_steps=2, eval_steps=0)
    whole = train(settings(OnlineConfig, "whole", max_steps=40, save_steps=2, eval_steps=0))
    (tmp_path / "config.json").write_text(json.dumps(vars(config)))
    script = (
        "import json\n"
        "import solutions.answers as a\nfrom helpers.training.configs import OnlineConfig\n"
        "from tests.training.test_online import EvenIds\nfrom helpers.training.online import train_online\n"
        f"settings = json.load(open({str(tmp_path / 'config.json')!r}))\n"
        "train_online(OnlineConfig(**settings), a, scorer=EvenIds())\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(root)}
    process = subprocess.Popen(
        [sys.executable, "-c", script], cwd=root, env=environment, stderr=subprocess.DEVNULL
    )
    place, deadline = Path(config.output_dir) / "checkpoints", time.monotonic() + 90
    while time.monotonic() < deadline and process.poll() is None and not list(place.glob("step_*")):
        time.sleep(0.02)
    time.sleep(0.15)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (Path(config.output_dir) / "finished.json").exists(), "the run ended before it was killed"
    resumed = train(config)  # the same settings: it goes on by itself
    assert_equal_weights(adapter_weights(whole.final), adapter_weights(resumed.final))
    assert metric_rows(whole.run_dir) == metric_rows(resumed.run_dir)


def test_every_log_probability_uses_the_sampling_temperature(
    settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL #3029: at T other than 1 a log-prob without the temperature describes another policy."""
    from helpers.training import online, rollouts

    seen: list[float] = []
    honest = online.response_logprobs

    def spy(*args: Any, temperature: float = 1.0, **options: Any) -> Any:
        seen.append(temperature)
        return honest(*args, temperature=temperature, **options)

    monkeypatch.setattr(online, "response_logprobs", spy)
    monkeypatch.setattr(rollouts, "response_logprobs", spy)
    train(settings(OnlineConfig, max_steps=1, temperature=0.6, eval_steps=0))
    assert set(seen) == {0.6} and len(seen) >= 6  # old, reference and new


def test_a_loss_that_is_not_finite_skips_the_step_and_is_counted(settings: Any) -> None:
    calls = []

    def poisoned(*args: Any) -> torch.Tensor:
        calls.append(1)
        return answers.grpo_loss(*args) * (float("inf") if len(calls) == 2 else 1.0)

    namespace = SimpleNamespace(
        **{name: getattr(answers, name) for name in answers.__all__} | {"grpo_loss": poisoned}
    )
    run = train(settings(OnlineConfig, max_steps=2), answers=namespace)
    assert run.metrics["skipped_steps"] == 1
    assert all(torch.isfinite(value).all() for value in adapter_weights(run.final).values())


def test_a_response_without_reward_abstains_and_is_counted(settings: Any) -> None:
    run = train(settings(OnlineConfig, max_steps=2, eval_steps=0), scorer=EvenIds(bad_at=2))
    rows = training_rows(run)
    assert sum(float(row["abstained"]) for row in rows) == 4  # one of each of the four groups
    assert all(math.isfinite(float(row["loss"])) for row in rows)


def test_an_abstaining_response_leaves_its_siblings_baseline_alone() -> None:
    rewards, out = abstain(torch.tensor([1.0, math.nan, 3.0, 5.0, math.inf, 5.0]), 3)
    assert rewards.tolist() == [1.0, 2.0, 3.0, 5.0, 5.0, 5.0]
    assert out.tolist() == [False, True, False, False, True, False]
    lonely, _ = abstain(torch.tensor([math.nan, math.nan]), 2)
    assert lonely.tolist() == [0.0, 0.0]


def test_the_prompt_stream_visits_every_prompt_once_a_turn() -> None:
    stream = [index for step in range(10) for index in prompt_indices(step, 3, 10, seed=1)]
    assert [sorted(stream[i : i + 10]) for i in (0, 10, 20)] == [list(range(10))] * 3
    assert stream[:10] != stream[10:20]
    assert prompt_indices(4, 3, 10, seed=1) == stream[12:15]


def test_a_shuffle_depends_on_its_parts_only() -> None:
    torch.manual_seed(1)
    first = shuffled(50, 0, "windows", 3)
    torch.manual_seed(2)
    assert shuffled(50, 0, "windows", 3) == first != shuffled(50, 0, "windows", 4)


def test_the_reward_model_shares_the_policys_base(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from helpers.models import loading
    from helpers.training import online

    loads: list[str] = []
    honest = loading.load_base
    monkeypatch.setattr(loading, "load_base", lambda *a, **k: loads.append("base") or honest(*a, **k))
    reward = train_reward_model(settings(RewardConfig, "rm", max_steps=2), answers)
    kept: dict[str, Any] = {}
    attach = online.attach_reward_model

    def watch(space: Any, model: Any, given: Any) -> Any:
        kept["model"], kept["reward"] = model, attach(space, model, given)
        return kept["reward"]

    monkeypatch.setattr(online, "attach_reward_model", watch)
    loads.clear()
    config = settings(OnlineConfig, "grpo", max_steps=2, reward_model=str(reward.final))
    run = train_online(config, answers)
    assert loads == ["base"]
    assert loading.count_bases([kept["model"], kept["reward"]]) == 1
    assert run.metrics["steps"] == 2


def test_scoring_leaves_the_policy_adapter_active_and_trainable(settings: Any) -> None:
    reward = train_reward_model(settings(RewardConfig, "rm", max_steps=2), answers)
    run = train_online(settings(OnlineConfig, "grpo", max_steps=3, reward_model=str(reward.final)), answers)
    weights = adapter_weights(run.final)
    assert all(value.abs().max() > 0 for name, value in weights.items() if "lora_B" in name)


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"group_size": 1, "minibatch_size": 4}, "--group_size"),
        ({"minibatch_size": 3}, "--minibatch_size"),
        ({"min_new_tokens": 9}, "--min_new_tokens"),
        ({"top_p": 0.0}, "--top_p"),
        ({"temperature": 0.0}, "--temperature"),
    ],
)
def test_numbers_that_do_not_fit_together_name_their_flag(
    changes: dict[str, Any], flag: str, settings: Any
) -> None:
    with pytest.raises(CourseError, match=flag):
        train(settings(OnlineConfig, **changes))


def test_online_training_without_a_reward_model_says_what_it_needs(settings: Any) -> None:
    with pytest.raises(CourseError, match="--reward_model"):
        train_online(settings(OnlineConfig), answers)
