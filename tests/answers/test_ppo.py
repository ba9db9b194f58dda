"""Lesson 06: shaped rewards, advantages from a value, and the two clipped losses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from solutions.answers import (
    approx_kl,
    gae,
    grpo_loss,
    kl_shaped_rewards,
    ppo_policy_loss,
    ppo_value_loss,
    whiten,
)
from tests.answers.numerics import finite_difference, gradient_of, near, random, separates

B, T = 5, 6
LEFT = torch.arange(T) < torch.tensor([6, 1, 3, 0, 4])[:, None]  # responses begin at column 0
RIGHT = LEFT.flip(1)  # and end at the last column
RAGGED = torch.tensor([[0, 1, 1, 1, 0, 0], [1, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1], [0] * 6, [1] * 6]).bool()
MASKS = pytest.mark.parametrize("mask", [LEFT, RIGHT, RAGGED], ids=["left", "right", "ragged"])
ALL = torch.ones(B, T, dtype=torch.bool)


def row(*values: float) -> torch.Tensor:
    """One sequence."""
    return torch.tensor([values])


def poisoned(x: torch.Tensor, mask: torch.Tensor, value: float = math.nan) -> torch.Tensor:
    """Something that is no number outside the mask."""
    return torch.where(mask, x, value)


# ---------------------------------------------------------------- kl_shaped_rewards
@MASKS
def test_each_token_is_charged_its_own_drift_and_the_last_earns_the_score(mask: torch.Tensor) -> None:
    scores, logp, ref = random(B), random(B, T, seed=1), random(B, T, seed=2)
    ours = kl_shaped_rewards(scores, logp, ref, mask, 0.3)
    for b in range(B):
        places = [t for t in range(T) if mask[b, t]]
        for t in range(T):
            wanted = -0.3 * (logp[b, t] - ref[b, t]) if t in places else torch.tensor(0.0)
            wanted = wanted + (scores[b] if places and t == places[-1] else 0.0)
            near(ours[b, t], wanted)
    assert ours.dtype == torch.float32


@MASKS
def test_without_a_price_a_row_sums_to_its_score(mask: torch.Tensor) -> None:
    scores = random(B)
    total = kl_shaped_rewards(scores, random(B, T), random(B, T, seed=1), mask, 0.0).sum(dim=1)
    near(total, torch.where(mask.any(dim=1), scores, 0.0))


@MASKS
def test_the_charges_of_all_tokens_are_the_k1_estimate_times_the_price(mask: torch.Tensor) -> None:
    logp, ref = random(B, T), random(B, T, seed=1)
    paid = kl_shaped_rewards(torch.zeros(B), logp, ref, mask, 0.5).sum() / mask.sum()
    near(paid, -0.5 * approx_kl(logp, ref, mask, "k1"))


def test_the_score_is_paid_once_at_the_rows_own_end() -> None:
    """The slips reward_at_first_pad, reward_on_last_column and reward_on_every_token."""
    mask = torch.tensor([[True, True, False, False]])
    ours = kl_shaped_rewards(torch.ones(1), row(0, 0, 0, 0), row(0, 0, 0, 0), mask, 0.1)
    for slip, wrong in {
        "reward_at_first_pad": row(0, 0, 1, 0),
        "reward_on_last_column": row(0, 0, 0, 1),
        "reward_on_every_token": row(1, 1, 0, 0),
    }.items():
        separates(slip, ours, row(0, 1, 0, 0), wrong)


def test_a_drift_is_charged_where_it_happens() -> None:
    """The slip kl_as_scalar_shift."""
    ours = kl_shaped_rewards(torch.ones(1), row(0, 0.4, 0), row(0, 0, 0), torch.ones(1, 3).bool(), 1.0)
    separates("kl_as_scalar_shift", ours, row(0, -0.4, 1), row(0, 0, 0.6))


def test_nothing_in_the_padding_is_read() -> None:
    logp, ref = random(B, T), random(B, T, seed=1)
    dirty = kl_shaped_rewards(random(B), poisoned(logp, LEFT), poisoned(ref, LEFT, math.inf), LEFT, 0.1)
    near(dirty, kl_shaped_rewards(random(B), logp, ref, LEFT, 0.1))


# ---------------------------------------------------------------- gae
def gae_by_definition(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, gamma: float, lam: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """A_t as the double sum of (gamma lam)^l delta_(t+l) over the response's own tokens, in float64."""
    advantages, returns = torch.zeros(B, T, dtype=torch.float64), torch.zeros(B, T, dtype=torch.float64)
    for b in range(B):
        places = [t for t in range(T) if mask[b, t]]
        r, v = rewards[b, places].double(), torch.cat([values[b, places].double(), torch.zeros(1).double()])
        for i, t in enumerate(places):
            for j in range(i, len(places)):
                delta = r[j] + gamma * v[j + 1] - v[j]
                advantages[b, t] += (gamma * lam) ** (j - i) * delta
            returns[b, t] = advantages[b, t] + v[i]
    return advantages, returns


@MASKS
@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.0])
@pytest.mark.parametrize("lam", [1.0, 0.95, 0.5, 0.0])
def test_the_recursion_is_the_double_sum(mask: torch.Tensor, gamma: float, lam: float) -> None:
    rewards, values = random(B, T), random(B, T, seed=1)
    for ours, wanted in zip(
        gae(rewards, values, mask, gamma, lam),
        gae_by_definition(rewards, values, mask, gamma, lam),
        strict=True,
    ):
        near(ours, wanted)
        assert ours.dtype == torch.float32 and not ours[~mask].any()


@MASKS
def test_with_lam_and_gamma_1_an_advantage_is_the_return_to_go_less_the_value(mask: torch.Tensor) -> None:
    rewards, values = random(B, T), random(B, T, seed=1)
    advantages, returns = gae(rewards, values, mask, 1.0, 1.0)
    kept = torch.where(mask, rewards, 0.0)
    to_go = torch.where(mask, kept.flip(1).cumsum(1).flip(1), 0.0)
    near(advantages, torch.where(mask, to_go - values, 0.0))
    near(returns, to_go)


def test_with_lam_0_an_advantage_is_the_td_error_and_the_value_after_the_last_token_is_0() -> None:
    rewards, values = random(B, T), random(B, T, seed=1)
    after = torch.where(LEFT.roll(-1, 1) & (torch.arange(T) < T - 1), values.roll(-1, 1), 0.0)
    near(gae(rewards, values, LEFT, 0.9, 0.0)[0], torch.where(LEFT, rewards + 0.9 * after - values, 0.0))


def test_true_values_leave_no_advantage() -> None:
    """Where V is the return-to-go, every TD error is zero, whatever lam."""
    rewards = random(B, T)
    values = rewards.flip(1).cumsum(1).flip(1)
    for lam in (0.0, 0.5, 1.0):
        near(gae(rewards, values, ALL, 1.0, lam)[0], 0.0)


def test_the_slips_of_gae() -> None:
    two = torch.ones(1, 2).bool()
    ours = gae(row(0, 1), row(0.5, 0.5), two, 1.0, 0.5)[0]
    separates("gae_forward_recursion", ours, row(0.25, 0.5), row(0.0, 0.5))
    separates("gae_missing_lambda", ours, row(0.25, 0.5), row(0.5, 0.5))
    bootstrapped = row(0.25 + 0.5 * 0.8, 0.5 + 0.8)
    separates("gae_terminal_vs_truncated", ours, row(0.25, 0.5), bootstrapped)
    returns = gae(row(0, 1), row(0.2, 0.6), two, 1.0, 1.0)[1]
    white = whiten(gae(row(0, 1), row(0.2, 0.6), two, 1.0, 1.0)[0], two)
    separates("returns_from_whitened_advantages", returns, row(1.0, 1.0), row(0.2, 0.6) + white)


def test_one_token_has_the_advantage_reward_less_value() -> None:
    advantages, returns = gae(row(2.0), row(0.5), torch.ones(1, 1).bool(), 0.9, 0.9)
    assert advantages.item() == 1.5 and returns.item() == 2.0


def test_gae_reads_nothing_in_the_padding() -> None:
    rewards, values = random(B, T), random(B, T, seed=1)
    dirty = gae(poisoned(rewards, RAGGED), poisoned(values, RAGGED, math.inf), RAGGED, 0.9, 0.8)
    for ours, clean in zip(dirty, gae(rewards, values, RAGGED, 0.9, 0.8), strict=True):
        near(ours, clean)


@MASKS
def test_a_reward_and_a_value_move_the_advantages_before_them_by_powers_of_gamma_lam(
    mask: torch.Tensor,
) -> None:
    """The derivatives of all advantages together, by finite differences of the definition."""
    rewards, values, weight = random(B, T), random(B, T, seed=1), random(B, T, seed=2)

    def ours(r: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (weight.float() * gae(r, v, mask, 0.9, 0.8)[0]).sum()

    def oracle(r: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (weight * gae_by_definition(r, v, mask, 0.9, 0.8)[0]).sum()

    to_rewards = finite_difference(lambda x: oracle(x, values), rewards)
    to_values = finite_difference(lambda x: oracle(rewards, x), values)
    near(gradient_of(lambda x: ours(x, values), rewards), to_rewards, 1e-4)
    near(gradient_of(lambda x: ours(rewards, x), values), to_values, 1e-4)
    last = row(0, 0, 1)
    advantages = gae(last, 0 * last, torch.ones(1, 3).bool(), 0.9, 0.8)[0]
    near(advantages, row(0.72**2, 0.72, 1))


def test_with_lam_1_a_wrong_value_moves_its_own_advantage_alone_and_below_1_those_before_it_too() -> None:
    """Why lam 1 has no bias, whatever the values: they are a baseline and nothing else."""
    rewards, values = random(B, T), random(B, T, seed=1)
    wrong = values.clone()
    wrong[:, 3] += 1.0

    def shift(lam: float) -> torch.Tensor:
        return gae(rewards, wrong, ALL, 1.0, lam)[0] - gae(rewards, values, ALL, 1.0, lam)[0]

    near(shift(1.0), row(0, 0, 0, -1, 0, 0))
    near(shift(0.5), row(0.125, 0.25, 0.5, -1, 0, 0))


# ---------------------------------------------------------------- whiten
@MASKS
@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e5])
def test_masked_entries_get_mean_0_and_unbiased_deviation_1(mask: torch.Tensor, scale: float) -> None:
    ours = whiten(poisoned(random(B, T, scale=scale) + 3 * scale, mask), mask)
    near(ours[mask].mean(), 0.0, 1e-5)
    near(ours[mask].std(), 1.0, 1e-4)
    assert not ours[~mask].any() and ours.dtype == torch.float32


def test_the_slip_whiten_over_padding() -> None:
    mask = torch.tensor([[True, True, False, False]])
    half = 0.5**0.5
    separates(
        "whiten_over_padding", whiten(row(1, 3, 0, 0), mask), row(-half, half, 0, 0), row(0, 1.41, 0, 0)
    )


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, -1e4])
def test_entries_without_variance_become_0(value: float) -> None:
    for mask in (ALL, LEFT, ~ALL, torch.eye(B, T).bool() & (torch.arange(B)[:, None] == 1)):
        assert not whiten(torch.full((B, T), value), mask).any()


def test_whitening_ignores_shift_and_scale_and_keeps_the_order() -> None:
    x = random(B, T)
    near(whiten(5 * x - 2, LEFT), whiten(x, LEFT), 1e-4)
    assert torch.equal(x[LEFT].argsort(), whiten(x, LEFT)[LEFT].argsort())


@MASKS
def test_whitening_equals_the_definition_and_its_derivative_the_finite_difference(mask: torch.Tensor) -> None:
    """Training takes no gradient here; the derivative tells a formula from one that agrees at a point."""
    x, weight = random(B, T), random(B, T, seed=1)

    def by_hand(y: torch.Tensor) -> torch.Tensor:
        kept = [float(v) for v in y[mask]]
        mean = sum(kept) / len(kept)
        deviation = math.sqrt(sum((v - mean) ** 2 for v in kept) / (len(kept) - 1))
        return torch.where(mask, (y.double() - mean) / deviation, 0.0)

    near(whiten(x, mask), by_hand(x))
    wanted = finite_difference(lambda y: (weight * by_hand(y)).sum(), x)
    near(gradient_of(lambda y: (weight.float() * whiten(y, mask)).sum(), x), wanted, 1e-4)


# ---------------------------------------------------------------- ppo_policy_loss
def policy_loss_by_hand(
    logp: torch.Tensor, old: torch.Tensor, worth: torch.Tensor, mask: torch.Tensor, low: float, high: float
) -> float:
    """Token by token with Python floats."""
    total, count = 0.0, 0
    for b in range(B):
        for t in range(T):
            if mask[b, t]:
                ratio, a = math.exp(float(logp[b, t]) - float(old[b, t])), float(worth[b, t])
                total -= min(ratio * a, min(max(ratio, 1 - low), 1 + high) * a)
                count += 1
    return total / max(count, 1)


@MASKS
@pytest.mark.parametrize("high", [None, 0.28])
def test_the_policy_loss_is_the_mean_clipped_surrogate_over_all_tokens(
    mask: torch.Tensor, high: float | None
) -> None:
    logp, old, worth = (random(B, T, seed=seed, scale=0.4) for seed in range(3))
    ours = ppo_policy_loss(logp, old, worth, mask, 0.2, high)
    near(ours, policy_loss_by_hand(logp, old, worth, mask, 0.2, 0.2 if high is None else high))


@MASKS
@pytest.mark.parametrize("high", [None, 0.28])
def test_the_policy_gradient_is_the_finite_difference(mask: torch.Tensor, high: float | None) -> None:
    logp, old, worth = (random(B, T, seed=seed, scale=0.4) for seed in (3, 4, 5))
    top = 0.2 if high is None else high
    wanted = finite_difference(lambda x: policy_loss_by_hand(x, old, worth, mask, 0.2, top), logp)
    near(gradient_of(lambda x: ppo_policy_loss(x, old, worth, mask, 0.2, high), logp), wanted, 1e-4)


def test_on_policy_the_loss_is_minus_the_mean_advantage_and_its_gradient_is_not_zero() -> None:
    logp, worth = random(B, T), whiten(random(B, T, seed=1), LEFT)
    near(ppo_policy_loss(logp, logp, worth, LEFT, 0.2), 0.0)
    near(gradient_of(lambda x: ppo_policy_loss(x, logp, worth, LEFT, 0.2), logp), -worth / LEFT.sum())


def test_clipping_is_pessimistic() -> None:
    """Beyond the range a gain pays no more, and a loss goes on costing."""
    mask = torch.ones(1, 1).bool()

    def at(ratio: float, worth: float) -> tuple[float, float]:
        x = row(math.log(ratio))
        loss = ppo_policy_loss(x, row(0.0), row(worth), mask, 0.2)
        return loss.item(), gradient_of(
            lambda y: ppo_policy_loss(y, row(0.0), row(worth), mask, 0.2), x
        ).item()

    near(torch.tensor(at(1.5, 1.0)), torch.tensor([-1.2, 0.0]))
    near(torch.tensor(at(0.5, 1.0)), torch.tensor([-0.5, -0.5]))
    near(torch.tensor(at(0.5, -1.0)), torch.tensor([0.8, 0.0]))
    near(torch.tensor(at(1.5, -1.0)), torch.tensor([1.5, 1.5]))


def test_at_equal_lengths_and_one_advantage_a_response_ppo_is_grpo_without_kl() -> None:
    logp, old, worth = random(B, T, scale=0.3), random(B, T, seed=1, scale=0.3), random(B, seed=2)
    ours = ppo_policy_loss(logp, old, worth[:, None].expand(B, T), ALL, 0.2)
    near(ours, grpo_loss(logp, old, old, worth, ALL, 0.2, 0.0))


# ---------------------------------------------------------------- ppo_value_loss
def value_loss_by_hand(
    values: torch.Tensor, old: torch.Tensor, returns: torch.Tensor, mask: torch.Tensor, eps: float
) -> float:
    """Token by token with Python floats."""
    errors = []
    for v, o, r, here in zip(*(x.flatten().tolist() for x in (values, old, returns, mask)), strict=True):
        if here:
            near_old = o + min(max(v - o, -eps), eps)
            errors.append(max((v - r) ** 2, (near_old - r) ** 2))
    return 0.5 * sum(errors) / max(len(errors), 1)


@MASKS
def test_the_value_loss_is_half_the_mean_larger_square_and_so_is_its_gradient(mask: torch.Tensor) -> None:
    values, old, returns = (random(B, T, seed=seed, scale=0.5) for seed in range(3))
    near(ppo_value_loss(values, old, returns, mask, 0.2), value_loss_by_hand(values, old, returns, mask, 0.2))
    wanted = finite_difference(lambda x: value_loss_by_hand(x, old, returns, mask, 0.2), values)
    near(gradient_of(lambda x: ppo_value_loss(x, old, returns, mask, 0.2), values), wanted, 1e-4)


def test_the_slip_value_clip_min() -> None:
    ours = ppo_value_loss(row(1.0), row(0.0), row(1.0), torch.ones(1, 1).bool(), 0.2)
    separates("value_clip_min", ours, 0.32, 0.0)


def test_at_the_old_values_the_gradient_is_the_plain_error() -> None:
    values, returns = random(B, T), random(B, T, seed=1)
    gradient = gradient_of(lambda x: ppo_value_loss(x, values, returns, LEFT, 0.2), values)
    near(gradient, torch.where(LEFT, values - returns, 0.0) / LEFT.sum())


# ---------------------------------------------------------------- both losses
def losses() -> dict[str, Any]:
    """Loss functions of (first, old, target, mask)."""
    return {
        "policy": lambda x, o, a, m: ppo_policy_loss(x, o, a, m, 0.2),
        "value": lambda x, o, r, m: ppo_value_loss(x, o, r, m, 0.2),
    }


@pytest.mark.parametrize("name", ["policy", "value"])
def test_an_empty_mask_gives_0_with_a_gradient_of_0(name: str) -> None:
    loss, x = losses()[name], random(B, T)
    assert loss(x, x, x, ~ALL).item() == 0.0
    assert not gradient_of(lambda y: loss(y, x, x, ~ALL), x).any()


@pytest.mark.parametrize("name", ["policy", "value"])
def test_what_lies_in_the_padding_reaches_neither_value_nor_gradient(name: str) -> None:
    loss = losses()[name]
    x, old, target = (random(B, T, seed=seed, scale=0.3) for seed in range(3))
    dirty = [poisoned(x, LEFT), poisoned(old, LEFT, math.inf), poisoned(target, LEFT)]
    near(loss(*dirty, LEFT), loss(x, old, target, LEFT))
    near(
        gradient_of(lambda y: loss(y, *dirty[1:], LEFT), dirty[0]),
        gradient_of(lambda y: loss(y, old, target, LEFT), x),
    )
