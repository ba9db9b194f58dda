"""Lesson 01: one mean over all response tokens of the batch."""

from __future__ import annotations

import math

import pytest
import torch

from solutions.answers import perplexity, sft_loss, token_logprobs
from tests.answers.numerics import finite_difference, gradient_of, near, random, separates


def mean_nll(logits: torch.Tensor, ids: torch.Tensor, mask: torch.Tensor) -> float:
    """Mean negative log-likelihood of the masked tokens, token by token in float64."""
    losses = []
    for b, t in mask.nonzero().tolist():
        if t > 0:
            row = logits[b, t - 1].double()
            losses.append(float(torch.logsumexp(row, 0) - row[ids[b, t]]))
    return sum(losses) / len(losses) if losses else 0.0


def problem(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows of 5, 2 and 0 response tokens."""
    ids = torch.randint(6, (3, 7), generator=torch.Generator().manual_seed(seed))
    mask = torch.zeros(3, 7, dtype=torch.bool)
    mask[0, 2:], mask[1, 3:5] = True, True
    return random(3, 7, 6, seed=seed, scale=2.0), ids, mask


def nll_logits(*losses: float) -> torch.Tensor:
    """(1, T, 2) logits under which token 0 costs the given nats at each position after the first."""
    odds = [-math.log(math.expm1(loss)) if loss else 60.0 for loss in losses]
    return torch.tensor([[[value, 0.0] for value in [*odds, 0.0]]])


def test_the_loss_is_the_mean_over_all_masked_tokens_of_the_batch() -> None:
    logits, ids, mask = problem()
    near(sft_loss(logits, ids, mask), mean_nll(logits, ids, mask))


def test_the_gradient_of_the_loss() -> None:
    logits, ids, mask = problem()
    ours = gradient_of(lambda x: sft_loss(x, ids, mask), logits)
    near(ours, finite_difference(lambda x: mean_nll(x, ids, mask), logits), 1e-4)


def test_the_loss_agrees_with_token_logprobs() -> None:
    logits, ids, mask = problem()
    near(sft_loss(logits, ids, mask), -token_logprobs(logits, ids)[mask[:, 1:]].mean())


def test_the_first_token_has_no_prediction_and_is_never_learnt() -> None:
    logits, ids, mask = problem()
    everything = torch.ones_like(mask)
    near(sft_loss(logits, ids, everything), -token_logprobs(logits, ids).mean())
    only_first = torch.zeros_like(mask)
    only_first[:, 0] = True
    assert sft_loss(logits, ids, only_first) == 0.0


def test_masked_places_may_hold_nan_infinity_or_no_token_at_all() -> None:
    """The slip nan_survives_mask multiplies by the mask; gather_on_ignore_index looks up −100."""
    logits, ids, mask = problem()
    right, clean = mean_nll(logits, ids, mask), gradient_of(lambda x: sft_loss(x, ids, mask), logits)
    predicts = torch.zeros_like(mask)
    predicts[:, :-1] = mask[:, 1:]
    for rubbish in (math.nan, math.inf, -math.inf):
        spoilt = logits.masked_fill(~predicts[..., None], rubbish)
        labels = ids.masked_fill(~mask, -100)
        near(sft_loss(spoilt, labels, mask), right)
        near(gradient_of(lambda x, labels=labels: sft_loss(x, labels, mask), spoilt), clean)


def test_slips_of_sft_loss() -> None:
    ids = torch.zeros(1, 4, dtype=torch.long)
    answer = torch.tensor([[False, False, True, True]])
    logits = nll_logits(3.0, 0.0, 0.0)  # poor on the prompt, perfect on the answer
    whole = sft_loss(logits, ids, torch.ones(1, 4, dtype=torch.bool))
    separates("sft_loss_on_prompt", sft_loss(logits, ids, answer), 0.0, whole)

    logits = nll_logits(0.0, 2.0, 0.5)
    late = torch.tensor([[False, False, False, True]])
    separates(
        "sft_label_boundary_off_by_one", sft_loss(logits, ids, answer), 1.25, sft_loss(logits, ids, late)
    )

    three = nll_logits(1.0).expand(3, -1, -1)
    ids3, mask3 = torch.zeros(3, 2, dtype=torch.long), torch.tensor([[False, True]] * 3)
    separates("hardcoded_batch_size", sft_loss(three, ids3, mask3), 1.0, 3 / 2)

    logp, mask = torch.tensor([[-1.0, -1.0]]), torch.tensor([[1.0, 1.0]])
    wrong = torch.nn.functional.cross_entropy(logp, mask)
    ours = sft_loss(
        nll_logits(1.0, 1.0), torch.zeros(1, 3, dtype=torch.long), torch.tensor([[False, True, True]])
    )
    separates("sft_ce_on_logprobs_or_mask_target", ours, 1.0, wrong)

    rows = torch.cat([nll_logits(3.0, 0.0, 0.0), nll_logits(1.0, 1.0, 1.0)])
    mask = torch.tensor([[False, True, False, False], [False, True, True, True]])
    ours = sft_loss(rows, torch.zeros(2, 4, dtype=torch.long), mask)
    separates("accum_mean_of_means", ours, 1.5, 2.0)
    separates("mean_over_padded_width", ours, 1.5, 6.0 / 6)
    separates("normalise_twice", ours, 1.5, 1.5 / 2)


def test_an_empty_mask_gives_0_and_a_gradient_of_zeros() -> None:
    """The slip empty_mask_zero_division gives NaN."""
    logits, ids, mask = problem()
    gradient = gradient_of(lambda x: sft_loss(x, ids, torch.zeros_like(mask)), logits)
    assert sft_loss(logits, ids, torch.zeros_like(mask)) == 0.0
    near(gradient, 0.0)


# ---------------------------------------------------------------- perplexity
def test_perplexity_is_the_exponential_of_the_mean_surprise() -> None:
    logp, mask = -random(3, 5).abs(), random(3, 5, seed=1) > 0
    kept = [float(value) for value in logp[mask]]
    assert perplexity(logp.float(), mask) == pytest.approx(math.exp(-sum(kept) / len(kept)), rel=1e-5)


def test_a_uniform_model_is_as_perplexed_as_its_vocabulary_is_large() -> None:
    logp = token_logprobs(torch.zeros(2, 4, 11), torch.zeros(2, 4, dtype=torch.long))
    assert perplexity(logp, torch.ones(2, 3, dtype=torch.bool)) == pytest.approx(11.0, rel=1e-6)


def test_perplexity_of_no_token_is_1_and_of_an_impossible_one_infinite() -> None:
    assert perplexity(torch.tensor([[-3.0]]), torch.tensor([[False]])) == 1.0
    assert perplexity(torch.tensor([[-math.inf]]), torch.tensor([[True]])) == math.inf
    assert perplexity(torch.tensor([[-2000.0]]), torch.tensor([[True]])) == math.inf


def test_perplexity_ignores_what_is_masked() -> None:
    logp = torch.tensor([[-1.0, math.nan, -math.inf]])
    assert perplexity(logp, torch.tensor([[True, False, False]])) == pytest.approx(math.e)


def test_slips_of_perplexity() -> None:
    logp = torch.tensor([[-3.0, 0.0, 0.0], [-1.0, -1.0, -1.0]])
    mask = torch.tensor([[True, False, False], [True, True, True]])
    separates("ppl_mean_of_batch_means", perplexity(logp, mask), 4.4817, 7.3891)
    ours = perplexity(torch.tensor([[-1.0, -1.0]]), torch.tensor([[True, True]]))
    separates("ppl_counts_padding_or_T", ours, 2.7183, 1.9477)
