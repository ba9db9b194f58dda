"""Dr.GRPO and GSPO in the online loop, and responses that were cut off."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import solutions.answers as answers
from helpers.text.groups import Group, make_batch
from helpers.training.algorithms import ALGORITHMS
from helpers.training.configs import OnlineConfig
from helpers.training.rollouts import MicroBatch
from helpers.training.updates import RatioWatch
from tests.support import adapter_weights, assert_equal_weights, metric_rows
from tests.training.test_online import train, training_rows

EVERY = pytest.mark.parametrize("name", ["dr_grpo", "gspo"])


def spied(name: str, spy: Any) -> SimpleNamespace:
    """The answers with one function watched."""
    return SimpleNamespace(**{n: getattr(answers, n) for n in answers.__all__} | {name: spy})


@EVERY
def test_the_first_ratio_is_one_and_minibatches_add_up(name: str, settings: Any) -> None:
    common = {"algo": name, "max_steps": 2, "eval_steps": 0}
    one = train(settings(OnlineConfig, "one", minibatch_size=4, **common))
    two = train(settings(OnlineConfig, "two", minibatch_size=2, gradient_accumulation_steps=2, **common))
    assert [float(row["first_ratio_error"]) for row in training_rows(one)] == [0.0] * 2
    assert_equal_weights(adapter_weights(one.final), adapter_weights(two.final), atol=2e-4)


@EVERY
def test_an_interrupted_run_resumes_bit_for_bit(name: str, settings: Any) -> None:
    common = {"algo": name, "max_steps": 5}
    whole = train(settings(OnlineConfig, "whole", **common))
    train(settings(OnlineConfig, "parts", **common), stop_at_step=4)  # last checkpoint: step 3
    parts = train(settings(OnlineConfig, "parts", resume=True, **common))
    assert_equal_weights(adapter_weights(whole.final), adapter_weights(parts.final))
    assert metric_rows(whole.run_dir) == metric_rows(parts.run_dir)


def test_dr_grpo_divides_by_the_budget_and_not_by_a_deviation(settings: Any) -> None:
    budgets, scaled = set(), set()

    def loss(*given: Any, max_new_tokens: int) -> torch.Tensor:
        budgets.add(max_new_tokens)
        return answers.dr_grpo_loss(*given, max_new_tokens=max_new_tokens)

    def advantages(rewards: torch.Tensor, size: int, scale_by_std: bool = True) -> torch.Tensor:
        scaled.add(scale_by_std)
        return answers.group_advantages(rewards, size, scale_by_std)

    namespace = spied("dr_grpo_loss", loss)
    namespace.group_advantages = advantages
    config = settings(OnlineConfig, algo="dr_grpo", max_steps=1, max_new_tokens=7, eval_steps=0)
    train(config, answers=namespace)
    assert (budgets, scaled) == ({7}, {False})


def test_gspo_and_grpo_keep_the_deviation(settings: Any) -> None:
    for name in ("grpo", "gspo"):
        rewards = torch.tensor([0.0, 1.0, 0.0, 5.0])
        near_one = ALGORITHMS[name].advantages(answers, rewards, 2).abs()
        assert near_one.tolist() == pytest.approx([2**-0.5] * 4, abs=1e-3)
    assert ALGORITHMS["dr_grpo"].advantages(answers, rewards, 2).tolist() == [-0.5, 0.5, -2.5, 2.5]


# ---------------------------------------------------------------- what is logged
def micro_batch(ratios: list[list[float]], advantages: list[float]) -> tuple[torch.Tensor, MicroBatch]:
    """Log-probs of the given ratios to the old ones; responses may differ in length."""
    batch = make_batch([Group([1], [[2] * len(row) for row in ratios])], 0, "packed")
    logprobs = torch.zeros(batch.mask.shape)
    for i, row in enumerate(ratios):
        logprobs[i, : len(row)] = torch.tensor(row).log()
    zeros = torch.zeros_like(logprobs)
    return logprobs, MicroBatch(batch, zeros, zeros, zeros, torch.tensor(advantages), torch.arange(2))


def test_gspo_counts_clipped_responses_where_the_others_count_tokens() -> None:
    logprobs, micro = micro_batch([[1.5, 1 / 1.5], [1.2, 1.2, 1.2]], [1.0, 1.0])
    config = OnlineConfig(clip_eps=0.1)
    tokens, responses = RatioWatch(config), RatioWatch(config, by_response=True)
    for watch in (tokens, responses):
        watch.see(logprobs, micro)
    assert tokens.metrics()["clip_fraction"] == pytest.approx(4 / 5)
    assert tokens.metrics()["ratio_max"] == pytest.approx(1.5)
    row = responses.metrics()
    assert row["clip_fraction"] == pytest.approx(1 / 2)
    assert row["ratio_max"] == pytest.approx(1.2) and row["ratio_min"] == 1.0
    assert row["token_ratio_max"] == pytest.approx(1.5) and row["token_ratio_min"] == pytest.approx(1 / 1.5)


def test_the_papers_clip_is_felt_by_gspo_where_0_2_is_not(settings: Any) -> None:
    common = {"algo": "gspo", "max_steps": 2, "eval_steps": 0, "num_epochs": 3, "learning_rate": 2e-4}
    narrow = train(settings(OnlineConfig, "narrow", clip_eps=3e-4, clip_eps_high=4e-4, **common))
    wide = train(settings(OnlineConfig, "wide", clip_eps=0.2, **common))
    assert max(float(row["clip_fraction"]) for row in training_rows(narrow)) > 0.1
    assert all(float(row["clip_fraction"]) == 0 for row in training_rows(wide))


# ---------------------------------------------------------------- cut off
CUT = {"max_new_tokens": 12, "eval_steps": 0, "max_steps": 2, "temperature": 1.0}


def test_responses_that_were_cut_off_are_left_out_of_every_mean(settings: Any) -> None:
    """TRL #6369: one mask for numerator and denominator. What the loss sees is what it divides by."""
    rows: list[int] = []

    def spy(logprobs: torch.Tensor, *rest: Any) -> torch.Tensor:
        rows.append(len(logprobs))
        return answers.grpo_loss(logprobs, *rest)

    config = settings(OnlineConfig, mask_truncated=True, num_epochs=1, **{**CUT, "max_steps": 6})
    run = train(config, answers=spied("grpo_loss", spy))
    logged = training_rows(run)
    left_out = [int(float(row["left_out"])) for row in logged]
    assert left_out == [round(8 * float(row["truncated"])) for row in logged]
    assert sum(rows) == 8 * 6 - sum(left_out)
    assert all(math.isfinite(float(row["loss"])) for row in logged)


def test_by_default_they_are_learned_from_and_counted(settings: Any) -> None:
    logged = training_rows(train(settings(OnlineConfig, **CUT)))
    assert all(float(row["left_out"]) == 0 and float(row["truncated"]) > 0 for row in logged)


def test_a_step_in_which_all_were_cut_off_changes_nothing_and_is_counted(settings: Any) -> None:
    config = settings(OnlineConfig, mask_truncated=True, max_new_tokens=1, eval_steps=0, max_steps=1)
    run = train(config)
    row = training_rows(run)[0]
    if float(row["left_out"]) == 8:
        assert run.metrics["skipped_steps"] == 4  # two windows, two epochs
        assert all(v.abs().max() == 0 for k, v in adapter_weights(run.final).items() if "lora_B" in k)


def test_every_step_logs_what_a_run_is_judged_by(settings: Any) -> None:
    row = training_rows(train(settings(OnlineConfig, algo="gspo", max_steps=1, eval_steps=0)))[0]
    wanted = {"loss", "kl", "kl_k1", "entropy", "reward", "reward_std", "reward_std_group"}
    wanted |= {"reward_group_min", "reward_group_max", "groups_without_variance", "clip_fraction"}
    wanted |= {"ratio_min", "ratio_max", "token_ratio_min", "token_ratio_max", "tokens", "tokens_min"}
    wanted |= {"tokens_max", "truncated", "grad_norm", "skipped_steps", "abstained", "left_out"}
    assert {name for name in wanted if row.get(name) in (None, "")} == set()
