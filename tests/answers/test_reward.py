"""Lesson 02: where a reward is read, and how preferences are fitted."""

from __future__ import annotations

import math

import pytest
import torch

from solutions.answers import bradley_terry_loss, last_token_index, pair_accuracy
from tests.answers.numerics import finite_difference, gradient_of, near, random, separates


def mean_minus_log_sigmoid(gap: torch.Tensor) -> float:
    """Mean of log(1 + exp(−gap)) in float64, by the definition and without overflow."""
    each = [max(-g, 0.0) + math.log1p(math.exp(-abs(g))) for g in gap.double().tolist()]
    return sum(each) / len(each)


# ---------------------------------------------------------------- last_token_index
@pytest.mark.parametrize(
    ("mask", "last"),
    [
        ([1, 1, 1, 0, 0], 2),
        ([0, 0, 1, 1, 1], 4),
        ([1, 1, 1, 1, 1], 4),
        ([1, 0, 0, 0, 0], 0),
        ([0, 0, 0, 0, 1], 4),
        ([1, 1, 0, 1, 0], 3),
        ([0, 0, 0, 0, 0], 0),
    ],
    ids=["right-padded", "left-padded", "full", "length 1, right", "length 1, left", "a hole", "empty"],
)
def test_the_last_real_token_is_found_on_either_side_of_the_padding(mask: list[int], last: int) -> None:
    for kind in (torch.int64, torch.bool, torch.float32):
        index = last_token_index(torch.tensor([mask]).to(kind))
        assert index.tolist() == [last] and index.dtype == torch.int64


def test_slips_of_last_token_index() -> None:
    left, full = torch.tensor([[0, 0, 1, 1]]), torch.tensor([[1, 1, 1, 1]])
    first_pad = [(row == 0).int().argmax(dim=1) - 1 for row in (left, full)]
    separates("pool_first_pad_minus_one", last_token_index(left), 3, first_pad[0])
    separates("pool_first_pad_minus_one", last_token_index(full), 3, first_pad[1])
    separates("pool_count_minus_one_left_pad", last_token_index(left), 3, left.sum(dim=1) - 1)

    scores, real = torch.tensor([[1.0, 2.0, 3.0]]), torch.ones(1, 3)
    read = scores[0, last_token_index(real)]
    separates("pool_before_eos", read, 3.0, 2.0)
    separates("pool_mean_over_tokens", torch.tensor([0.0, 0, 3])[last_token_index(real)], 3.0, 1.0)


# ---------------------------------------------------------------- bradley_terry_loss
def test_the_loss_is_the_mean_surprise_at_the_observed_preference() -> None:
    chosen, rejected = random(6, scale=3.0), random(6, seed=1, scale=3.0)
    near(bradley_terry_loss(chosen, rejected), mean_minus_log_sigmoid(chosen - rejected))
    margin = random(6, seed=2).abs()
    near(bradley_terry_loss(chosen, rejected, margin), mean_minus_log_sigmoid(chosen - rejected - margin))
    near(bradley_terry_loss(chosen, rejected, 0.7), mean_minus_log_sigmoid(chosen - rejected - 0.7))


def test_equal_rewards_cost_ln_2() -> None:
    near(bradley_terry_loss(torch.full((3,), 5.0), torch.full((3,), 5.0)), math.log(2), 1e-7)


def test_the_gradient_of_the_loss_in_both_rewards() -> None:
    chosen, rejected, margin = random(4), random(4, seed=1), random(4, seed=2).abs()
    ours = gradient_of(lambda x: bradley_terry_loss(x, rejected, margin), chosen)
    near(ours, finite_difference(lambda x: mean_minus_log_sigmoid(x - rejected - margin), chosen), 1e-4)
    ours = gradient_of(lambda x: bradley_terry_loss(chosen, x, margin), rejected)
    near(ours, finite_difference(lambda x: mean_minus_log_sigmoid(chosen - x - margin), rejected), 1e-4)


@pytest.mark.parametrize("gap", [1e4, -1e4, 2e4, -2e4])
def test_rewards_of_ten_thousand_stay_finite_in_value_and_gradient(gap: float) -> None:
    """log(sigmoid(x)) is −∞ below −104 in float32, and its gradient NaN."""
    chosen, rejected = torch.tensor([gap / 2]), torch.tensor([-gap / 2])
    near(bradley_terry_loss(chosen, rejected), max(-gap, 0.0))
    near(gradient_of(lambda x: bradley_terry_loss(x, rejected), chosen), -1.0 if gap < 0 else 0.0)


def test_only_the_difference_of_rewards_matters() -> None:
    chosen, rejected = random(5), random(5, seed=1)
    near(bradley_terry_loss(chosen + 3, rejected + 3), bradley_terry_loss(chosen, rejected))


def test_slips_of_the_bradley_terry_loss() -> None:
    two, zero = torch.tensor([2.0]), torch.tensor([0.0])
    ours = bradley_terry_loss(two, zero)
    separates("bt_margin_reversed", ours, 0.1269, bradley_terry_loss(zero, two))
    each = -torch.nn.functional.logsigmoid(torch.tensor([2.0, -1.0]))
    ours = bradley_terry_loss(torch.tensor([2.0, -1.0]), torch.zeros(2))
    separates("bt_not_reduced", ours, (0.126928 + 1.313262) / 2, each)


# ---------------------------------------------------------------- pair_accuracy
def test_accuracy_counts_strictly_better_pairs() -> None:
    accuracy = pair_accuracy(torch.tensor([1.0, 0.0, 3.0, 2.0]), torch.tensor([0.0, 1.0, 2.5, -2.0]))
    assert accuracy == 0.75 and isinstance(accuracy, float)


def test_a_tie_is_no_success() -> None:
    """A model that scores everything alike has learnt nothing: 0, and not 1 by `>=`."""
    assert pair_accuracy(torch.zeros(4), torch.zeros(4)) == 0.0


def test_no_pairs_give_0_and_a_nan_is_no_success() -> None:
    assert pair_accuracy(torch.zeros(0), torch.zeros(0)) == 0.0
    assert pair_accuracy(torch.tensor([math.nan, 1.0]), torch.tensor([0.0, 0.0])) == 0.5


def test_the_accuracy_of_an_implicit_reward_uses_the_sums_that_the_loss_uses() -> None:
    chosen, rejected = torch.full((4,), 0.5), torch.tensor([0.8])  # log-ratios, token by token
    ours = pair_accuracy(chosen.sum()[None], rejected.sum()[None])
    by_means = float(chosen.mean() > rejected.mean())
    separates("pair_accuracy_sum_vs_mean_mismatch", ours, 1.0, by_means)
