"""Lesson 03: DPO is Bradley–Terry on implicit rewards, relative to a reference."""

from __future__ import annotations

import math

import pytest
import torch

from solutions.answers import bradley_terry_loss, dpo_loss, response_mask, token_logprobs
from tests.answers.numerics import finite_difference, gradient_of, near, random, separates

ONE = torch.tensor([1.0])


def definition(
    chosen: torch.Tensor,
    rejected: torch.Tensor,
    ref_chosen: torch.Tensor,
    ref_rejected: torch.Tensor,
    beta: float,
) -> float:
    """Mean of −log of the Bradley–Terry probability of implicit rewards β log(π/π_ref), pair by pair."""
    losses = []
    for w, l, rw, rl in zip(chosen, rejected, ref_chosen, ref_rejected, strict=True):  # noqa: E741
        reward_w, reward_l = beta * (float(w) - float(rw)), beta * (float(l) - float(rl))
        losses.append(-math.log(1.0 / (1.0 + math.exp(reward_l - reward_w))))
    return sum(losses) / len(losses)


def problem(pairs: int = 5) -> list[torch.Tensor]:
    """Summed log-probs of `pairs` pairs: policy and reference, chosen and rejected."""
    return [-20.0 + random(pairs, seed=seed, scale=4.0) for seed in range(4)]


@pytest.mark.parametrize("beta", [0.01, 0.1, 1.0, 5.0])
def test_the_loss_is_bradley_terry_on_implicit_rewards(beta: float) -> None:
    near(dpo_loss(*problem(), beta), definition(*problem(), beta))
    chosen, rejected, ref_chosen, ref_rejected = problem()
    near(
        dpo_loss(*problem(), beta),
        bradley_terry_loss(beta * (chosen - ref_chosen), beta * (rejected - ref_rejected)),
    )


@pytest.mark.parametrize("which", [0, 1], ids=["chosen", "rejected"])
def test_the_gradient_of_the_loss(which: int) -> None:
    tensors = problem()

    def put(x: torch.Tensor) -> list[torch.Tensor]:
        return [x if i == which else tensor for i, tensor in enumerate(tensors)]

    ours = gradient_of(lambda x: dpo_loss(*put(x), 0.3), tensors[which])
    near(ours, finite_difference(lambda x: definition(*put(x), 0.3), tensors[which]), 1e-4)
    assert (ours < 0).all() if which == 0 else (ours > 0).all()  # chosen goes up, rejected goes down


def test_where_policy_and_reference_agree_the_loss_is_ln_2_for_every_beta() -> None:
    chosen, rejected, *_ = problem()
    for beta in (0.01, 0.1, 10.0):
        near(dpo_loss(chosen, rejected, chosen, rejected, beta), math.log(2), 1e-7)


def test_log_ratios_of_ten_thousand_stay_finite() -> None:
    big = torch.tensor([1e4])
    near(dpo_loss(-big, big, big, -big, 1.0), 4e4)
    near(gradient_of(lambda x: dpo_loss(x, big, big, -big, 1.0), -big), -1.0)
    near(dpo_loss(big, -big, -big, big, 1.0), 0.0)


def test_a_common_shift_of_policy_and_reference_changes_nothing() -> None:
    """A prompt's log-probability, counted by mistake in both, cancels."""
    chosen, rejected, ref_chosen, ref_rejected = problem()
    near(dpo_loss(chosen - 7, rejected - 7, ref_chosen, ref_rejected, 0.1), definition(*problem(), 0.1))


def test_slips_of_the_reference() -> None:
    policy, reference = (ONE * 2, ONE * 0), (ONE, ONE * 0)  # margins 2 and 1
    ours = dpo_loss(*policy, *reference, 1.0)
    separates("dpo_reference_is_policy", ours, 0.3133, dpo_loss(*policy, *policy, 1.0))
    separates(
        "dpo_missing_reference",
        dpo_loss(*policy, *policy, 1.0),
        0.6931,
        dpo_loss(*policy, 0 * ONE, 0 * ONE, 1.0),
    )
    added = bradley_terry_loss(policy[0] + reference[0], policy[1] + reference[1])
    separates("dpo_reference_sign_swapped", ours, 0.3133, added)
    separates("dpo_reference_sign_swapped", ours, 0.3133, dpo_loss(*reference, *policy, 1.0))


def test_a_more_likely_chosen_answer_lowers_the_loss() -> None:
    less, more = (dpo_loss(ONE * chosen, ONE * -5, ONE * -5, ONE * -5, 0.1) for chosen in (-5.0, -4.0))
    as_nll = dpo_loss(ONE * 4.0, ONE * 5, ONE * 5, ONE * 5, 0.1)  # a positive NLL taken for a log-likelihood
    separates("dpo_nll_taken_as_loglik", more - less, -0.0487, as_nll - math.log(2))


def sums(logits: torch.Tensor, ids: torch.Tensor, prompt: int, length: int) -> torch.Tensor:
    """(1,) summed log-probs of the response tokens, as a trainer hands them to the loss."""
    attention = (torch.arange(ids.shape[1]) < length).long()[None]
    mask = response_mask(torch.tensor([prompt]), attention)[:, 1:]
    return torch.where(mask, token_logprobs(logits, ids), 0.0).sum(dim=1)


def test_slips_of_the_sum_over_a_response() -> None:
    ids, logits = torch.tensor([[0, 1, 2, 3]]), random(1, 4, 5)
    logp = token_logprobs(logits, ids)
    total = sums(logits, ids, 1, 4)
    for wrong in (0, 1, 4):  # len of a 2-D batch of one, less one; itself; T
        separates("dpo_wrong_length_multiplier", total, logp.sum(dim=1), logp.mean(dim=1) * wrong)

    wide_ids = torch.cat([ids, torch.zeros(1, 2, dtype=torch.long)], dim=1)
    wide_logits = torch.cat([logits, random(1, 2, 5, seed=1)], dim=1)
    padded = sums(wide_logits, wide_ids, 1, 4)
    separates("dpo_mean_over_padded_width", padded, total, 0.6 * total)  # 3 tokens over a width of 5

    chosen, rejected = sums(logits, ids, 2, 4), sums(logits, ids, 2, 4)
    unmasked = logp.sum(dim=1)
    separates("sft_rejected_prompt_unmasked", chosen - rejected, torch.zeros(1), chosen - unmasked)

    assert (sums(logits, ids, 2, 4) - sums(logits, ids, 1, 4)).shape == (1,)
    with pytest.raises(RuntimeError):  # dpo_token_by_token_difference: responses of 2 and 3 tokens
        logp[:, 1:] - logp
