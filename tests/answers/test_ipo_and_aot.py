"""Lessons 04 and 05: IPO aims at a fixed gap, AOT compares two distributions."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from solutions.answers import aot_loss, dpo_loss, ipo_loss
from tests.answers.numerics import finite_difference, gradient_of, near, random, separates

Loss = Callable[..., torch.Tensor]


def problem(pairs: int = 5) -> list[torch.Tensor]:
    """Summed log-probs of `pairs` pairs: policy and reference, chosen and rejected."""
    return [-20.0 + random(pairs, seed=seed, scale=4.0) for seed in range(4)]


def ratios(chosen: list[float], rejected: list[float]) -> list[torch.Tensor]:
    """The four inputs that have these log-ratios."""
    zero = torch.zeros(len(chosen))
    return [torch.tensor(chosen), torch.tensor(rejected), zero, zero]


def ipo_by_hand(
    w: torch.Tensor,
    z: torch.Tensor,
    ref_w: torch.Tensor,
    ref_l: torch.Tensor,
    beta: float,
) -> float:
    """Pair by pair in float64."""
    differences = [float(w[i]) - float(ref_w[i]) - (float(z[i]) - float(ref_l[i])) for i in range(len(w))]
    return sum((h - 1 / (2 * beta)) ** 2 for h in differences) / len(differences)


def aot_by_hand(
    w: torch.Tensor,
    z: torch.Tensor,
    ref_w: torch.Tensor,
    ref_l: torch.Tensor,
    beta: float,
) -> float:
    """Quantile by quantile in float64, with Python's own sort."""
    chosen = sorted(float(w[i]) - float(ref_w[i]) for i in range(len(w)))
    rejected = sorted(float(z[i]) - float(ref_l[i]) for i in range(len(z)))
    return sum(math.log1p(math.exp(-beta * (c - r))) for c, r in zip(chosen, rejected, strict=True)) / len(w)


BOTH = pytest.mark.parametrize(
    ("loss", "by_hand"), [(ipo_loss, ipo_by_hand), (aot_loss, aot_by_hand)], ids=["ipo", "aot"]
)


@BOTH
@pytest.mark.parametrize("beta", [0.02, 0.1, 1.0, 5.0])
def test_the_loss_is_its_definition(loss: Loss, by_hand: Callable[..., float], beta: float) -> None:
    near(loss(*problem(), beta), by_hand(*problem(), beta))


@BOTH
@pytest.mark.parametrize("which", range(4), ids=["chosen", "rejected", "ref_chosen", "ref_rejected"])
def test_the_gradient_of_the_loss(loss: Loss, by_hand: Callable[..., float], which: int) -> None:
    tensors = problem()

    def put(x: torch.Tensor) -> list[torch.Tensor]:
        return [x if i == which else tensor for i, tensor in enumerate(tensors)]

    right = finite_difference(lambda x: by_hand(*put(x), 0.3), tensors[which])
    near(gradient_of(lambda x: loss(*put(x), 0.3), tensors[which]), right, 1e-4)


def test_where_policy_and_reference_agree_ipo_is_the_squared_target_and_aot_ln_2() -> None:
    chosen, rejected, *_ = problem()
    for beta in (0.05, 0.1, 2.0):
        near(ipo_loss(chosen, rejected, chosen, rejected, beta), (1 / (2 * beta)) ** 2)
        near(aot_loss(chosen, rejected, chosen, rejected, beta), math.log(2), 1e-7)


# ---------------------------------------------------------------- IPO
def test_ipo_is_zero_at_its_target_and_pulls_back_what_went_beyond_it() -> None:
    near(ipo_loss(*ratios([4.0], [-1.0]), 0.1), 0.0)
    for chosen, sign in ((3.0, -1.0), (5.0, 1.0)):  # one nat short of the target, one beyond
        given = ratios([chosen], [-1.0])
        near(gradient_of(lambda x, g=given: ipo_loss(x, *g[1:], 0.1), given[0]), 2.0 * sign)


def test_ipo_keeps_pulling_where_dpo_has_long_lost_interest() -> None:
    """DPO's gradient dies out along a pair that is ranked right; IPO's is linear in the distance."""
    far = ratios([-200.0], [0.0])
    near(gradient_of(lambda x: ipo_loss(x, *far[1:], 0.1), far[0]), -2 * 205.0)
    beyond = ratios([200.0], [0.0])
    near(gradient_of(lambda x: dpo_loss(x, *beyond[1:], 0.1), beyond[0]), 0.0)
    near(gradient_of(lambda x: ipo_loss(x, *beyond[1:], 0.1), beyond[0]), 2 * 195.0)


def test_slips_of_ipo() -> None:
    given, h, beta = ratios([3.0], [-2.0]), 5.0, 0.1
    ours = ipo_loss(*given, beta)
    separates("ipo_beta_inside", ours, 0.0, (beta * h - 1 / (2 * beta)) ** 2)
    for wrong in (1 / beta, beta / 2, 0.5):
        separates("ipo_wrong_target", ours, 0.0, (h - wrong) ** 2)
    lengths = torch.tensor([4.0]), torch.tensor([2.0])
    sums = ratios([0.5 * 4], [0.5 * 2])
    means = ipo_loss(sums[0] / lengths[0], sums[1] / lengths[1], *sums[2:], 0.5)
    separates("ipo_sum_or_mean_convention", ipo_loss(*sums, 0.5), 0.0, means)


# ---------------------------------------------------------------- AOT
def test_aot_of_one_pair_is_dpo() -> None:
    for i in range(5):
        one = [tensor[i : i + 1] for tensor in problem()]
        near(aot_loss(*one, 0.3), dpo_loss(*one, 0.3), 1e-7)


def test_aot_of_a_batch_is_not_the_mean_over_its_pairs() -> None:
    each = torch.stack([aot_loss(*(t[i : i + 1] for t in problem()), 0.3) for i in range(5)])
    assert (aot_loss(*problem(), 0.3) - each.mean()).abs() > 1e-2


def test_aot_does_not_know_which_rejected_answer_belongs_to_which_chosen_one() -> None:
    chosen, rejected, ref_chosen, ref_rejected = problem()
    order = torch.tensor([3, 0, 4, 1, 2])
    moved = aot_loss(chosen, rejected[order], ref_chosen, ref_rejected[order], 0.3)
    near(moved, aot_loss(*problem(), 0.3), 1e-7)
    near(aot_loss(*(t[order] for t in problem()), 0.3), aot_loss(*problem(), 0.3), 1e-7)


def test_called_on_margins_aot_is_its_paired_form() -> None:
    """sort(policy margins) against sort(reference margins): the same function of other inputs."""
    chosen, rejected, ref_chosen, ref_rejected = (
        torch.tensor(values) for values in ([-1.0, -5], [-3.0, -4], [-2.0, -2], [-2.0, -5])
    )
    zero = torch.zeros(2)
    paired = aot_loss(chosen - rejected, ref_chosen - ref_rejected, zero, zero, 1.0)
    unpaired = aot_loss(chosen, rejected, ref_chosen, ref_rejected, 1.0)
    near(paired, 1.3133, 1e-4)
    separates("aot_paired_for_unpaired", unpaired, 1.41, paired, 1e-3)


def test_log_ratios_of_ten_thousand_stay_finite() -> None:
    near(aot_loss(*ratios([-1e4], [1e4]), 1.0), 2e4)
    near(aot_loss(*ratios([1e4], [-1e4]), 1.0), 0.0)


def test_slips_of_aot() -> None:
    given = ratios([3.0, 1.0], [0.0, 2.0])
    one_side = -torch.nn.functional.logsigmoid(torch.tensor([1.0 - 0, 3 - 2.0]))  # right: both ascending
    ours = aot_loss(*given, 1.0)
    near(ours, one_side.mean())
    crossed = -torch.nn.functional.logsigmoid(torch.tensor([1.0 - 2, 3 - 0.0])).mean()
    separates("aot_sort_one_side", ours, 0.3133, crossed)
    lengths = torch.tensor([4.0]), torch.tensor([2.0])
    sums = ratios([2.0], [1.0])
    means = aot_loss(sums[0] / lengths[0], sums[1] / lengths[1], *sums[2:], 1.0)
    separates("aot_mean_logprobs", aot_loss(*sums, 1.0), 0.3133, means)
