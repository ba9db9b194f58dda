"""Lessons 08 and 09: one constant for all lengths, and one ratio for a whole response."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from solutions.answers import dr_grpo_loss, grpo_loss, gspo_loss
from tests.answers.numerics import finite_difference, gradient_of, near, random, separates
from tests.answers.test_grpo import SETTINGS, problem

BUDGET = 8
Loss = Callable[..., torch.Tensor]
dr_grpo: Loss = partial(dr_grpo_loss, max_new_tokens=BUDGET)
ONE = torch.tensor([1.0])


def surrogate(ratio: float, advantage: float, low: float, high: float | None) -> float:
    """The clipped gain of one ratio."""
    top = 1 + (low if high is None else high)
    return min(ratio * advantage, min(max(ratio, 1 - low), top) * advantage)


def rows(given: dict[str, torch.Tensor]) -> list[tuple[list[float], list[float], float]]:
    """Of each response: log-ratios to the old policy, to the reference, and the advantage, in float64."""
    logp, old, ref, advantages, mask = given.values()
    return [
        (
            [float(logp[i, t]) - float(old[i, t]) for t in mask[i].nonzero()[:, 0]],
            [float(logp[i, t]) - float(ref[i, t]) for t in mask[i].nonzero()[:, 0]],
            float(advantages[i]),
        )
        for i in range(len(logp))
    ]


def k3(d: float) -> float:
    return math.exp(-d) - 1 + d


def dr_grpo_by_hand(
    given: dict[str, torch.Tensor], clip_eps: float, kl_coef: float, clip_eps_high: float | None
) -> float:
    """Token by token; the divisor is the budget."""
    total = 0.0
    for old, ref, advantage in rows(given):
        for r, d in zip(old, ref, strict=True):
            total += kl_coef * k3(d) - surrogate(math.exp(r), advantage, clip_eps, clip_eps_high)
    return total / BUDGET / len(given["mask"])


def gspo_by_hand(
    given: dict[str, torch.Tensor], clip_eps: float, kl_coef: float, clip_eps_high: float | None
) -> float:
    """Response by response."""
    total = 0.0
    for old, ref, advantage in rows(given):
        if old:
            ratio = math.exp(sum(old) / len(old))
            total -= surrogate(ratio, advantage, clip_eps, clip_eps_high)
            total += kl_coef * sum(map(k3, ref)) / len(ref)
    return total / len(given["mask"])


BOTH = pytest.mark.parametrize(
    ("loss", "by_hand"), [(dr_grpo, dr_grpo_by_hand), (gspo_loss, gspo_by_hand)], ids=["dr_grpo", "gspo"]
)
LOSS = pytest.mark.parametrize("loss", [dr_grpo, gspo_loss], ids=["dr_grpo", "gspo"])
SMALL = [*SETTINGS, (0.02, 0.0, 0.03)]


@BOTH
@pytest.mark.parametrize(("clip_eps", "kl_coef", "high"), SMALL)
def test_the_loss_is_its_definition(
    loss: Loss, by_hand: Any, clip_eps: float, kl_coef: float, high: float | None
) -> None:
    ours = loss(**problem(), clip_eps=clip_eps, kl_coef=kl_coef, clip_eps_high=high)
    near(ours, by_hand(problem(), clip_eps, kl_coef, high))


@BOTH
@pytest.mark.parametrize(("clip_eps", "kl_coef", "high"), SMALL)
def test_the_gradient_of_the_loss(
    loss: Loss, by_hand: Any, clip_eps: float, kl_coef: float, high: float | None
) -> None:
    given = problem()
    rest = {"clip_eps": clip_eps, "kl_coef": kl_coef, "clip_eps_high": high}
    ours = gradient_of(lambda x: loss(**{**given, "logprobs": x}, **rest), given["logprobs"])
    right = finite_difference(lambda x: by_hand({**given, "logprobs": x}, **rest), given["logprobs"])
    near(ours, right, 1e-4)
    assert (ours[~given["mask"]] == 0).all()


@LOSS
def test_on_policy_centred_advantages_give_no_loss_and_a_gradient(loss: Loss) -> None:
    logp, mask = random(4, 4), torch.ones(4, 4, dtype=torch.bool)
    advantages = torch.tensor([1.0, -1.0, 0.5, -0.5])

    def f(x: torch.Tensor) -> torch.Tensor:
        return loss(x, x.detach(), x.detach(), advantages, mask, 0.2, 0.1)

    near(f(logp.float()), 0.0)
    length = BUDGET if loss is dr_grpo else 4
    near(gradient_of(f, logp), (-advantages / length / 4)[:, None].expand(4, 4))


@LOSS
def test_masked_places_may_hold_nan_or_infinity(loss: Loss) -> None:
    given = problem()
    rest = {"clip_eps": 0.2, "kl_coef": 0.1}
    right = loss(**given, **rest)
    clean = gradient_of(lambda x: loss(**{**given, "logprobs": x}, **rest), given["logprobs"])
    for rubbish in (math.nan, math.inf, -math.inf):
        names = ("logprobs", "old_logprobs", "ref_logprobs")
        spoilt = given | {name: given[name].masked_fill(~given["mask"], rubbish) for name in names}
        spoilt["advantages"] = given["advantages"].clone()
        spoilt["advantages"][3] = rubbish  # of the response without tokens
        near(loss(**spoilt, **rest), right)
        near(gradient_of(lambda x, s=spoilt: loss(**{**s, "logprobs": x}, **rest), spoilt["logprobs"]), clean)


@LOSS
def test_responses_without_tokens_add_nothing_and_count_in_the_mean(loss: Loss) -> None:
    none, zero = torch.zeros(2, 3, dtype=torch.bool), torch.zeros(2, 3)
    assert loss(zero, zero, zero, torch.tensor([1.0, -1.0]), none, 0.2, 0.1) == 0.0
    near(gradient_of(lambda x: loss(x, zero, zero, torch.ones(2), none, 0.2, 0.1), zero), 0.0)
    half = torch.tensor([[True], [False]])
    one, two = (
        loss(torch.zeros(n, 1), torch.zeros(n, 1), torch.zeros(n, 1), torch.ones(n), half[:n], 0.2, 0.0)
        for n in (1, 2)
    )
    near(two, one / 2)


# ---------------------------------------------------------------- identities
@pytest.mark.parametrize(("clip_eps", "kl_coef", "high"), SETTINGS)
def test_at_equal_lengths_dr_grpo_is_grpo_times_length_over_budget(
    clip_eps: float, kl_coef: float, high: float | None
) -> None:
    given = problem() | {"mask": torch.tensor([True, True, True, False]).expand(5, 4)}
    rest = {"clip_eps": clip_eps, "kl_coef": kl_coef, "clip_eps_high": high}
    near(dr_grpo(**given, **rest), grpo_loss(**given, **rest) * 3 / BUDGET)


@pytest.mark.parametrize(("clip_eps", "kl_coef", "high"), SETTINGS)
def test_responses_of_one_token_make_gspo_grpo(clip_eps: float, kl_coef: float, high: float | None) -> None:
    given = problem() | {"mask": torch.tensor([False, True, False, False]).expand(5, 4)}
    rest = {"clip_eps": clip_eps, "kl_coef": kl_coef, "clip_eps_high": high}
    near(gspo_loss(**given, **rest), grpo_loss(**given, **rest), 1e-6)
    ours, theirs = (
        gradient_of(lambda x, f=f: f(**{**given, "logprobs": x}, **rest), given["logprobs"])
        for f in (gspo_loss, grpo_loss)
    )
    near(ours, theirs, 1e-6)


def test_dr_grpo_pushes_every_token_alike_where_grpo_spares_the_tokens_of_a_long_answer() -> None:
    logp, mask = torch.zeros(2, 6), torch.arange(6) < torch.tensor([[2], [6]])
    bad = -torch.ones(2)

    def slopes(loss: Loss) -> torch.Tensor:
        return gradient_of(lambda x: loss(x, logp, logp, bad, mask, 0.2, 0.0), logp)[:, 0]

    near(slopes(dr_grpo)[0], slopes(dr_grpo)[1])
    near(slopes(grpo_loss)[0], 3 * slopes(grpo_loss)[1])


def test_gspo_gives_every_token_of_a_response_the_same_gradient() -> None:
    given = problem()
    slope = gradient_of(
        lambda x: gspo_loss(**{**given, "logprobs": x}, clip_eps=5.0, kl_coef=0.0), given["logprobs"]
    )
    for row, keep in zip(slope, given["mask"], strict=True):
        near(row[keep], row[keep].mean() if keep.any() else 0.0, 1e-6)


# ---------------------------------------------------------------- slips
def call(loss: Loss, log_ratio: Any, advantages: Any, mask: Any = None, eps: float = 0.2) -> torch.Tensor:
    """The loss of given log-ratios, without KL."""
    log_ratio = torch.as_tensor(log_ratio, dtype=torch.float32)
    keep = torch.ones_like(log_ratio, dtype=torch.bool) if mask is None else torch.as_tensor(mask)
    return loss(
        log_ratio, torch.zeros_like(log_ratio), log_ratio.detach(), torch.tensor(advantages), keep, eps, 0.0
    )


def test_slips_of_dr_grpo() -> None:
    mask = torch.tensor([[True, False, False], [True, True, True]])
    ours = call(dr_grpo, torch.zeros(2, 3), [1.0, -1.0], mask)
    right = -(1 - 3) / BUDGET / 2
    separates("drgrpo_row_mean", ours, right, 0.0)
    wide = torch.nn.functional.pad(mask, (0, 3))
    longer = torch.cat([wide, torch.ones(1, 6, dtype=torch.bool)])
    short = call(dr_grpo, torch.zeros(2, 6), [1.0, -1.0], wide) * 2
    long = call(dr_grpo, torch.zeros(3, 6), [1.0, -1.0, 0.0], longer) * 3
    separates("drgrpo_batch_max_length", long, short, short * 3 / 6)


def test_slips_of_gspo() -> None:
    separates("gspo_mean_of_ratios", -call(gspo_loss, [[-2.0, 2.0]], [1.0], eps=9.0), 1.0, 3.76)
    apart = call(gspo_loss, [[math.log(1.1)], [math.log(0.9)]], [1.0, -1.0])
    separates("gspo_bxb_broadcast", -apart, 0.1, 0.0)
    ours = -call(gspo_loss, [[0.4, 0.0, 0.0, 0.0]], [1.0], [[True, False, False, False]], eps=9.0)
    separates("gspo_unmasked_mean", ours, 1.4918, 1.1052)
    far = torch.tensor([[math.log(1.5)]])
    slope = gradient_of(lambda x: gspo_loss(x, 0 * far, far, ONE, torch.ones(1, 1).bool(), 0.2, 0.0), far)
    separates("gspo_stop_gradient_leak", slope, 0.0, torch.tensor([[-1.2]]))
    mask = torch.tensor([[True, False, False], [True, True, True]])
    ours = -call(gspo_loss, torch.zeros(2, 3), [1.0, -1.0], mask)
    separates("gspo_per_token_objective_averaged_by_length", ours, 0.0, -0.5)
    log_sum = -call(gspo_loss, [[0.1, 0.1]], [1.0], eps=9.0)
    separates("ratio_of_whole_sequence", log_sum, math.exp(0.1), math.exp(0.2))
