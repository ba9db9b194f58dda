"""Lesson 07: a response is worth what it scores above its siblings."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
import torch

from solutions.answers import group_advantages, grpo_loss
from tests.answers.numerics import finite_difference, gradient_of, near, random, separates


# ---------------------------------------------------------------- group_advantages
def advantages_by_hand(rewards: list[float], size: int, scale: bool, eps: float = 1e-4) -> list[float]:
    """Group by group with Python's statistics."""
    result: list[float] = []
    for start in range(0, len(rewards), size):
        group = rewards[start : start + size]
        mean = statistics.fmean(group)
        divisor = statistics.stdev(group) + eps if scale and size > 1 else 1.0
        result += [(reward - mean) / divisor for reward in group]
    return result


@pytest.mark.parametrize("scale", [True, False])
@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_an_advantage_is_the_reward_less_the_groups_mean_over_its_deviation(size: int, scale: bool) -> None:
    rewards = random(6, scale=2.0)
    ours = group_advantages(rewards, size, scale_by_std=scale)
    near(ours, torch.tensor(advantages_by_hand(rewards.tolist(), size, scale)))
    assert ours.shape == (6,) and ours.dtype == torch.float32


def test_every_group_sums_to_zero() -> None:
    near(group_advantages(random(12), 4).view(3, 4).sum(dim=1), 0.0)


@pytest.mark.parametrize("value", [0.0, 1.0, 0.1, -1e4, 1e4, 1 / 3])
@pytest.mark.parametrize("scale", [True, False])
def test_equal_rewards_give_exactly_0_whatever_rounding_left_of_their_mean(value: float, scale: bool) -> None:
    """The slip adv_flat_group_nan gives 0/0."""
    for size in (1, 3, 7):
        assert (
            group_advantages(torch.full((2 * size,), value), size, scale_by_std=scale).tolist()
            == [0.0] * 2 * size
        )


def test_a_flat_group_does_not_silence_its_neighbour() -> None:
    ours = group_advantages(torch.tensor([1.0, 1.0, 0.0, 1.0]), 2)
    near(ours, torch.tensor([0.0, 0.0, -0.7070, 0.7070]), 1e-3)


def test_rewards_of_ten_thousand_stay_finite() -> None:
    ours = group_advantages(torch.tensor([1e4, -1e4, 1e4, 1e4 + 1]), 2)
    near(ours, torch.tensor([2**-0.5, -(2**-0.5), -(2**-0.5), 2**-0.5]), 1e-3)


def test_a_shift_of_all_rewards_changes_nothing_and_a_scale_only_without_the_deviation() -> None:
    rewards = random(8, scale=3.0)
    near(group_advantages(rewards + 100, 4), group_advantages(rewards, 4), 1e-4)
    near(group_advantages(rewards * 50, 4), group_advantages(rewards, 4), 1e-3)
    near(
        group_advantages(rewards * 50, 4, scale_by_std=False),
        50 * group_advantages(rewards, 4, scale_by_std=False),
    )


def test_advantages_follow_their_responses_when_siblings_change_places() -> None:
    rewards, order = random(8), torch.tensor([3, 1, 0, 2])
    ours = group_advantages(rewards, 4).view(2, 4)
    moved = group_advantages(rewards.view(2, 4)[:, order].reshape(-1), 4).view(2, 4)
    near(moved, ours[:, order])


def test_rewards_that_fill_no_whole_group_are_refused() -> None:
    with pytest.raises(RuntimeError):
        group_advantages(torch.zeros(5), 2)


def test_slips_of_group_advantages() -> None:
    def plain(*rewards: float, size: int = 2) -> torch.Tensor:
        return group_advantages(torch.tensor(rewards), size, scale_by_std=False)

    def scaled(*rewards: float, size: int = 2) -> torch.Tensor:
        return group_advantages(torch.tensor(rewards), size)

    separates("adv_flat_group_nan", scaled(1, 1, 1, size=3), torch.zeros(3), torch.full((3,), math.nan))
    sample, population = torch.tensor([-0.5, -0.5, -0.5, 1.5]), torch.tensor([-0.577, -0.577, -0.577, 1.732])
    separates("adv_ddof", scaled(0, 0, 0, 1, size=4), sample, population)
    near_siblings = torch.tensor([-0.7070, 0.7070, -0.7070, 0.7070])
    separates(
        "adv_reshape_order", scaled(0, 1, 10, 11), near_siblings, torch.tensor([-1.0, -1, 1, 1]) * 0.7071
    )
    separates(
        "adv_missing_keepdim",
        plain(0, 1, 10, 11),
        torch.tensor([-0.5, 0.5, -0.5, 0.5]),
        torch.tensor([-0.5, -9.5, 9.5, 0.5]),
    )
    for wrong in ([-5e5, 5e5], [-0.5 / (1 + 1e-4), 0.5 / (1 + 1e-4)]):
        separates("adv_eps_as_divisor", plain(0, 1), torch.tensor([-0.5, 0.5]), torch.tensor(wrong), 1e-6)
    separates("adv_std_switch_on_wrong_algorithm", scaled(0, 1), torch.tensor([-0.7070, 0.7070]), plain(0, 1))
    separates("adv_std_switch_on_wrong_algorithm", plain(0, 1), torch.tensor([-0.5, 0.5]), scaled(0, 1))
    separates("adv_remainder_duplicated", torch.tensor(len(scaled(0, 1, 2, 3))), 4, 8)
    separates("adv_rank_breaks_ties", scaled(1, 1, 1, size=3), torch.zeros(3), torch.tensor([-1.0, 0, 1]))
    separates("adv_max_as_baseline", plain(0, 1), torch.tensor([-0.5, 0.5]), torch.tensor([-1.0, 0.0]))
    rewards = torch.tensor([0.0, 1.0])
    group_advantages(rewards, 2)
    separates("adv_raw_rewards_overwritten", rewards, torch.tensor([0.0, 1.0]), torch.tensor([-0.5, 0.5]))


# ---------------------------------------------------------------- grpo_loss
def by_hand(
    logp: torch.Tensor,
    old: torch.Tensor,
    ref: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    clip_eps: float,
    kl_coef: float,
    clip_eps_high: float | None = None,
) -> float:
    """GRPO's loss token by token, in float64."""
    high = clip_eps if clip_eps_high is None else clip_eps_high
    means = []
    for i in range(len(logp)):
        tokens = []
        for t in mask[i].nonzero()[:, 0].tolist():
            ratio = math.exp(float(logp[i, t]) - float(old[i, t]))
            advantage = float(advantages[i])
            gain = min(ratio * advantage, min(max(ratio, 1 - clip_eps), 1 + high) * advantage)
            drift = float(logp[i, t]) - float(ref[i, t])
            tokens.append(-gain + kl_coef * (math.exp(-drift) - 1 + drift))
        means.append(sum(tokens) / len(tokens) if tokens else 0.0)
    return sum(means) / len(means)


def problem() -> dict[str, torch.Tensor]:
    """Five responses of 4, 2, 1, 0 and 3 tokens, with ratios on both sides of the clip."""
    logp = -2.0 + random(5, 4)
    lengths = torch.tensor([4, 2, 1, 0, 3])
    return {
        "logprobs": logp,
        "old_logprobs": logp + random(5, 4, seed=1, scale=0.3),
        "ref_logprobs": logp + random(5, 4, seed=2, scale=0.5),
        "advantages": torch.tensor([1.0, -0.5, 2.0, -1.0, -1.5], dtype=torch.float64),
        "mask": torch.arange(4) < lengths[:, None],
    }


def loss(
    log_ratio: Any, advantages: Any, mask: Any = None, *, eps: float = 0.2, **changes: Any
) -> torch.Tensor:
    """The loss of given log-ratios, without KL unless `ref_logprobs` and `kl_coef` are given."""
    log_ratio = torch.as_tensor(log_ratio, dtype=torch.float32)
    keep = torch.ones_like(log_ratio, dtype=torch.bool) if mask is None else torch.as_tensor(mask).bool()
    arguments = {"ref_logprobs": log_ratio, "kl_coef": 0.0, "clip_eps": eps, **changes}
    return grpo_loss(
        log_ratio, torch.zeros_like(log_ratio), advantages=torch.as_tensor(advantages), mask=keep, **arguments
    )


def ratio(*values: float) -> torch.Tensor:
    """(1, T) log-ratios of the given ratios."""
    return torch.tensor([values]).log()


SETTINGS = [(0.2, 0.0, None), (0.2, 0.04, None), (0.1, 1.0, 0.4), (0.3, 0.5, 0.1)]


@pytest.mark.parametrize(("clip_eps", "kl_coef", "high"), SETTINGS)
def test_the_loss_is_the_mean_within_responses_then_over_them(
    clip_eps: float, kl_coef: float, high: float | None
) -> None:
    near(
        grpo_loss(**problem(), clip_eps=clip_eps, kl_coef=kl_coef, clip_eps_high=high),
        by_hand(*problem().values(), clip_eps, kl_coef, high),
    )


@pytest.mark.parametrize(("clip_eps", "kl_coef", "high"), SETTINGS)
def test_the_gradient_of_the_loss(clip_eps: float, kl_coef: float, high: float | None) -> None:
    given = problem()
    rest = {"clip_eps": clip_eps, "kl_coef": kl_coef, "clip_eps_high": high}
    ours = gradient_of(lambda x: grpo_loss(**{**given, "logprobs": x}, **rest), given["logprobs"])
    right = finite_difference(lambda x: by_hand(x, *list(given.values())[1:], **rest), given["logprobs"])
    near(ours, right, 1e-4)
    assert (ours[~given["mask"]] == 0).all()


def test_on_policy_the_loss_is_minus_the_mean_advantage_and_still_teaches() -> None:
    """Centred advantages: a loss of 0 with a gradient that is not."""
    given = problem()
    mask = torch.ones(4, 4, dtype=torch.bool)
    logp, advantages = given["logprobs"][:4], torch.tensor([1.0, -1.0, 0.5, -0.5])

    def f(x: torch.Tensor) -> torch.Tensor:
        return grpo_loss(x, x.detach(), x.detach(), advantages, mask, 0.2, 0.1)

    near(f(logp.float()), 0.0)
    near(gradient_of(f, logp), (-advantages / 16)[:, None].expand(4, 4))  # −A/T, averaged over 4 responses


def test_the_kl_term_pulls_towards_the_reference_and_its_weight_is_linear() -> None:
    given = problem() | {"advantages": torch.zeros(5)}
    terms = [grpo_loss(**given, clip_eps=0.2, kl_coef=coef) for coef in (0.0, 0.5, 1.0)]
    assert terms[0] == 0.0 and terms[1] > 0
    near(terms[2], 2 * terms[1])


def test_a_clipped_token_has_no_gradient_and_a_bad_move_keeps_its_own() -> None:
    def slope(r: float, advantage: float) -> float:
        return gradient_of(lambda x: loss(x, [advantage]), ratio(r)).item()

    assert slope(1.5, 1.0) == 0.0 and slope(0.5, -1.0) == 0.0  # far enough already
    assert slope(1.5, -1.0) == pytest.approx(1.5) and slope(0.5, 1.0) == pytest.approx(-0.5)
    assert slope(1.1, 1.0) == pytest.approx(-1.1)


def test_the_upper_clip_may_be_wider_than_the_lower() -> None:
    near(loss(ratio(1.5), [1.0], clip_eps_high=0.28), -1.28)
    near(loss(ratio(0.5), [-1.0], clip_eps_high=0.28), 0.8)


def test_responses_without_tokens_count_in_the_mean_and_add_nothing() -> None:
    none = torch.zeros(2, 3, dtype=torch.bool)
    logp = random(2, 3).float()
    assert loss(logp, [1.0, -1.0], none) == 0.0
    near(gradient_of(lambda x: loss(x, [1.0, -1.0], none), logp), 0.0)
    near(loss(torch.zeros(2, 1), [1.0, 1.0], [[True], [False]]), -0.5)


def test_masked_places_may_hold_nan_or_infinity() -> None:
    given = problem()
    right = by_hand(*given.values(), 0.2, 0.1)
    clean = gradient_of(
        lambda x: grpo_loss(**{**given, "logprobs": x}, clip_eps=0.2, kl_coef=0.1), given["logprobs"]
    )
    for rubbish in (math.nan, math.inf, -math.inf):
        names = ("logprobs", "old_logprobs", "ref_logprobs")
        spoilt = given | {name: given[name].masked_fill(~given["mask"], rubbish) for name in names}
        spoilt["advantages"] = given["advantages"].clone()
        spoilt["advantages"][3] = rubbish  # of the response without tokens
        near(grpo_loss(**spoilt, clip_eps=0.2, kl_coef=0.1), right)
        ours = gradient_of(
            lambda x, s=spoilt: grpo_loss(**{**s, "logprobs": x}, clip_eps=0.2, kl_coef=0.1),
            spoilt["logprobs"],
        )
        near(ours, clean)


def test_advantages_of_ten_thousand_stay_finite() -> None:
    near(loss(ratio(1.1, 0.9), [1e4]), -1e4)
    assert torch.isfinite(gradient_of(lambda x: loss(x, [-1e4]), ratio(1.1, 0.9))).all()


def test_slips_of_the_clip() -> None:
    up, down = ratio(1.5), ratio(0.5)
    separates("clip_max_objective", -loss(up, [1.0]), 1.2, 1.5)
    separates("clip_max_objective", -loss(down, [-1.0]), -0.8, -0.5)
    separates("clip_only", -loss(up, [-1.0]), -1.5, -1.2)
    separates("clip_only", -loss(down, [1.0]), 0.5, 0.8)
    separates("clip_sign_not_negated", loss(ratio(1.0), [1.0]), -1.0, 1.0)
    separates("clip_not_wired", loss(up, [1.0]), -1.2, -1.5)


def test_slips_of_the_ratio() -> None:
    ours = -loss([[0.1, 0.1]], [1.0], eps=0.15)
    separates("ratio_of_whole_sequence", ours, math.exp(0.1), min(math.exp(0.2), 1.15))

    new, old, one = torch.tensor([[-1.0]]), torch.tensor([[-2.0]]), torch.tensor([[True]])
    ours = -grpo_loss(new, old, new, torch.tensor([1.0]), one, 10.0, 0.0)
    separates("ratio_reversed", ours, 2.718, 0.368)

    far = torch.tensor([[-200.0]])
    ours = -grpo_loss(far, far, far, torch.tensor([1.0]), one, 0.2, 0.0)
    separates("ratio_exp_then_divide", ours, 1.0, (far.exp() / far.exp()).item())

    moved = -loss([[0.1]], [1.0])
    separates("old_logprobs_recomputed", moved, math.exp(0.1), 1.0)

    def slope(f: Any) -> torch.Tensor:
        return gradient_of(f, new)

    right = slope(lambda x: -grpo_loss(x, new, new, torch.tensor([1.0]), one, 0.2, 0.0))
    undetached = slope(lambda x: -grpo_loss(x, x, x, torch.tensor([1.0]), one, 0.2, 0.0))
    separates("old_logprobs_recomputed", right, torch.ones(1, 1), undetached)
    times_logprob = slope(lambda x: ((x - new).exp() * x).sum())  # factor 1 + log π
    separates("ratio_times_logprob", right, torch.ones(1, 1), times_logprob)


def test_slips_of_shape_and_normalisation() -> None:
    square = torch.zeros(2, 2)

    def rows(x: torch.Tensor) -> torch.Tensor:
        return loss(x, [1.0, -1.0])

    wrong = gradient_of(lambda x: -(x.exp() * torch.tensor([1.0, -1.0])).mean(), square)  # along time
    separates(
        "adv_broadcast_wrong_axis", gradient_of(rows, square), torch.tensor([[-0.25] * 2, [0.25] * 2]), wrong
    )

    mask = torch.tensor([[True, False, False], [True, True, True]])
    ours = -loss(torch.zeros(2, 3), [1.0, -1.0], mask)
    separates("token_mean_for_sequence_mean", ours, 0.0, (1 - 3) / 4)

    wide = torch.nn.functional.pad(mask, (0, 2))
    separates("norm_ignores_mask_count", -loss(torch.zeros(2, 5), [1.0, 1.0], wide), 1.0, 4 / 10)

    d = 0.9283  # exp(−d) − 1 + d is about one third; advantage 0, so the loss is the KL term alone
    kl = math.exp(-d) - 1 + d
    ours = loss([[d]], [0.0], ref_logprobs=torch.zeros(1, 1), kl_coef=0.1)
    separates("kl_penalty_sign", ours, 0.1 * kl, -0.1 * kl)


def test_masked_tokens_leave_numerator_and_denominator_alike() -> None:
    """TRL #6369: a token masked in the numerator only would still thin out the mean."""
    generator = torch.Generator().manual_seed(3)
    logprobs, old, ref = (-torch.rand(2, 6, generator=generator) for _ in range(3))
    advantages = torch.tensor([1.0, -1.0])
    mask = torch.arange(6)[None] < torch.tensor([[4], [4]])
    cut = grpo_loss(logprobs[:, :4], old[:, :4], ref[:, :4], advantages, mask[:, :4], 0.2, 0.1)
    torch.testing.assert_close(grpo_loss(logprobs, old, ref, advantages, mask, 0.2, 0.1), cut)
