"""Lesson 00: which tokens count, how likely the model finds them, and how undecided it is."""

from __future__ import annotations

import math

import pytest
import torch

from solutions.answers import response_mask, token_entropy, token_logprobs
from tests.answers.numerics import finite_difference, gradient_of, near, random, separates


def logprob(logits: torch.Tensor, token: int) -> float:
    """log p(token) under one position's logits, in float64 and by the definition."""
    row = [float(value) for value in logits]
    top = max(row)
    return row[token] - top - math.log(sum(math.exp(value - top) for value in row))


def walk(ids: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """Logits of a model that is sure of every next token of `ids`."""
    following = torch.cat([ids[:, 1:], ids[:, -1:]], dim=1)
    return 50.0 * torch.nn.functional.one_hot(following, vocabulary).double()


# ---------------------------------------------------------------- response_mask
def test_the_mask_holds_exactly_the_tokens_after_the_prompt_and_before_the_padding() -> None:
    attention = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
    prompts = torch.tensor([2, 1, 5])
    mask = response_mask(prompts, attention)
    by_hand = [
        [t >= int(p) and int(row[t]) == 1 for t in range(6)]
        for p, row in zip(prompts, attention, strict=True)
    ]
    assert mask.tolist() == by_hand
    assert mask.dtype == torch.bool


@pytest.mark.parametrize("prompt", [0, 3, 4, 9])
def test_a_mask_starts_anywhere_even_at_0_or_past_the_end(prompt: int) -> None:
    mask = response_mask(torch.tensor([prompt]), torch.tensor([[1, 1, 1, 1]]))
    assert mask.sum() == max(4 - prompt, 0)


def test_padding_may_be_of_any_number_type() -> None:
    kinds = (torch.bool, torch.int32, torch.int64, torch.float32)
    masks = [response_mask(torch.tensor([1]), torch.tensor([[1, 1, 0]]).to(kind)) for kind in kinds]
    assert all(mask.tolist() == [[False, True, False]] for mask in masks)


def test_slips_of_the_response_mask() -> None:
    attention = torch.ones(1, 4, dtype=torch.long)
    shifted = response_mask(torch.tensor([2]), attention)[0, 1:]
    separates("mask_off_by_one_late", shifted.float(), torch.tensor([0.0, 1, 1]), torch.tensor([0.0, 0, 1]))

    shifted = response_mask(torch.tensor([3]), torch.ones(1, 5, dtype=torch.long))[0, 1:]
    separates("mask_whole_sequence", shifted.sum(), 2, 4)

    attention = torch.tensor([[1, 1, 1, 1, 1, 0, 0, 0]])
    separates("mask_includes_padding", response_mask(torch.tensor([3]), attention).sum(), 2, 5)

    eos, ids = 7, torch.tensor([[1, 2, 7, 7]])  # prompt, a, end-of-turn, padding of the same id
    attention = torch.tensor([[1, 1, 1, 0]])
    ours = response_mask(torch.tensor([1]), attention)
    by_id = response_mask(torch.tensor([1]), (ids != eos).long())
    separates("mask_by_pad_id_drops_eos", ours.sum(), 2, by_id.sum())
    separates("eos_excluded_from_mask", ours[0, 2].float(), 1, 0)

    two_prompts = response_mask(torch.tensor([5, 5]), torch.ones(2, 8, dtype=torch.long))
    separates("prompt_len_is_batch_size", two_prompts[0].int().argmax(), 5, 2)

    whole = response_mask(torch.tensor([0]), torch.ones(1, 3, dtype=torch.long))
    wiped = torch.ones(1, 3)
    wiped[:, : 0 - 1] = 0  # a slice up to P - 1
    separates("prompt_len_zero_negative_slice", whole.float(), torch.ones(1, 3), wiped)

    # `and` between whole tensors raises for a batch of two, and for one keeps its second operand.
    both = response_mask(torch.tensor([1, 2]), torch.ones(2, 3, dtype=torch.long))
    separates("mask_dtype_or_batch_truthiness", both.sum(dim=1), torch.tensor([2, 1]), torch.tensor([2, 2]))


# ---------------------------------------------------------------- token_logprobs
def test_every_entry_is_the_next_tokens_log_probability() -> None:
    logits, ids = random(2, 5, 7, scale=3.0), torch.tensor([[0, 3, 6, 2, 2], [5, 5, 1, 0, 4]])
    right = torch.tensor([[logprob(logits[b, t], int(ids[b, t + 1])) for t in range(4)] for b in range(2)])
    result = token_logprobs(logits, ids)
    near(result, right)
    assert result.shape == (2, 4)


def test_over_the_whole_vocabulary_the_probabilities_sum_to_1() -> None:
    logits = random(1, 2, 9, scale=4.0)
    each = [token_logprobs(logits, torch.tensor([[0, v]])).exp().item() for v in range(9)]
    assert sum(each) == pytest.approx(1.0, abs=1e-6)


def test_a_sequence_of_one_token_has_no_prediction() -> None:
    assert token_logprobs(random(3, 1, 5), torch.zeros(3, 1, dtype=torch.long)).shape == (3, 0)


def test_log_probabilities_survive_logits_of_10_000() -> None:
    result = token_logprobs(torch.tensor([[[1e4, -1e4], [0.0, 0.0]]]), torch.tensor([[0, 1]]))
    near(result, torch.tensor([[-2e4]]))


def test_the_gradient_of_log_probabilities_is_one_hot_minus_softmax() -> None:
    logits, ids = random(2, 4, 5), torch.tensor([[0, 3, 4, 2], [1, 1, 0, 4]])
    share = torch.linspace(0.5, 2.0, 6).double()

    def oracle(x: torch.Tensor) -> float:
        each = [logprob(x[b, t], int(ids[b, t + 1])) for b in range(2) for t in range(3)]
        return sum(w * value for w, value in zip(share.tolist(), each, strict=True))

    ours = gradient_of(lambda x: (share.float() * token_logprobs(x, ids).reshape(-1)).sum(), logits)
    near(ours, finite_difference(oracle, logits), 1e-4)


def test_slips_of_token_logprobs() -> None:
    three_quarters = torch.tensor([[[math.log(3.0), 0.0], [0.0, 0.0]]])
    ours = token_logprobs(three_quarters, torch.tensor([[1, 0]]))
    separates("logprob_sign_flipped", ours, torch.tensor([[-0.2877]]), torch.tensor([[0.2877]]))

    ids = torch.tensor([[0, 1, 0, 1]])  # a is followed by b, b by a
    logits = 50.0 * torch.nn.functional.one_hot(1 - ids, 2).float()
    unshifted = logits.log_softmax(-1).gather(-1, ids[..., None])[..., 0]
    separates("logprob_no_shift", token_logprobs(logits, ids), torch.zeros(1, 3), unshifted[:, :3])

    ids = torch.tensor([[0, 1, 2, 0, 1]])  # a → b → c → a
    logits = walk(ids, 3)
    twice = logits[:, :-2].log_softmax(-1).gather(-1, ids[:, 2:, None])[..., 0]
    separates("logprob_double_shift", token_logprobs(logits, ids)[:, :3], torch.zeros(1, 3), twice)

    logits, ids = random(1, 3, 4), torch.tensor([[0, 1, 2]])
    right = torch.tensor([[logprob(logits[0, t], t + 1) for t in range(2)]])
    over_batch = logits.log_softmax(0)[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    separates("logsoftmax_wrong_or_missing_dim", token_logprobs(logits, ids), right, over_batch)

    raw = (logits + 7)[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    separates("raw_logits_as_logprobs", token_logprobs(logits + 7, ids), right, raw)

    batch = random(2, 3, 5)
    shape = torch.tensor(token_logprobs(batch, torch.ones(2, 3, dtype=torch.long)).shape)
    separates("logprob_wrong_gather_axis", shape, torch.tensor([2, 2]), torch.tensor([2, 3, 5]))
    shape = torch.tensor(token_logprobs(batch[:1, :2], torch.ones(1, 2, dtype=torch.long)).shape)
    separates("squeeze_all_axes", shape, torch.tensor([1, 1]), torch.tensor([]))

    far = torch.tensor([[[0.0, 200.0], [0.0, 0.0]]])
    wrong = far.softmax(-1).log()[:, :1, 0]
    separates("log_of_softmax", token_logprobs(far, torch.tensor([[0, 0]])), torch.tensor([[-200.0]]), wrong)


def test_the_policys_log_probabilities_carry_a_gradient_or_nothing_is_learnt() -> None:
    """The slip logprob_under_no_grad returns a constant."""
    logits = random(1, 3, 4).float().requires_grad_()
    assert token_logprobs(logits, torch.tensor([[0, 1, 2]])).requires_grad


def test_temperature_divides_logits_before_the_softmax() -> None:
    logits, ids = torch.tensor([[[2.0, 0.0], [0.0, 0.0]]]), torch.tensor([[1, 0]])
    ours, untempered = token_logprobs(logits / 0.5, ids), token_logprobs(logits, ids)
    right = torch.tensor([[-0.0181]])
    separates("temperature_ignored_in_logprob", ours, right, untempered)
    separates("temperature_on_logprobs", ours, right, untempered / 0.5)
    separates("temperature_on_logprobs", ours, right, token_logprobs(logits * 0.5, ids))
    ratio = (ours - token_logprobs(logits / 0.5, ids)).exp()
    separates("temperature_one_side_only", ratio, torch.ones(1, 1), (ours - untempered).exp())


# ---------------------------------------------------------------- token_entropy
def entropy(logits: torch.Tensor) -> float:
    """−Σ p log p of one position, by the definition."""
    each = [logprob(logits, v) for v in range(len(logits))]
    return -sum(math.exp(value) * value for value in each)


def test_the_entropy_is_minus_the_sum_of_p_log_p() -> None:
    logits = random(2, 3, 6, scale=2.0)
    near(token_entropy(logits), torch.tensor([[entropy(position) for position in row] for row in logits]))


def test_the_entropy_lies_between_0_and_log_v_and_reaches_both() -> None:
    assert token_entropy(torch.zeros(1, 1, 4)).item() == pytest.approx(math.log(4))
    assert token_entropy(torch.tensor([[[1e4, 0.0, 0.0]]])).item() == 0.0


def test_a_token_of_probability_0_adds_nothing_to_value_or_gradient() -> None:
    logits = torch.tensor([[[0.0, 0.0, -torch.inf]]], requires_grad=True)
    result = token_entropy(logits)
    result.sum().backward()
    assert result.item() == pytest.approx(math.log(2))
    assert logits.grad is not None and torch.isfinite(logits.grad).all()


def test_the_gradient_of_the_entropy() -> None:
    logits = random(1, 3, 5)
    share = [0.5, 1.0, 2.0]
    ours = gradient_of(lambda x: (torch.tensor(share) * token_entropy(x)[0]).sum(), logits)
    right = finite_difference(lambda x: sum(w * entropy(x[0, t]) for t, w in enumerate(share)), logits)
    near(ours, right, 1e-4)


def test_slips_of_token_entropy() -> None:
    logits = torch.tensor([[[math.log(9.0), 0.0]]])
    for sampled in (0, 1):
        surprise = -logits.log_softmax(-1)[..., sampled]
        separates("entropy_minus_logp", token_entropy(logits), torch.tensor([[0.3251]]), surprise)

    far = torch.tensor([[[1000.0, 0.0]]])
    p = far.exp() / far.exp().sum(-1, keepdim=True)
    separates("entropy_exp_overflow", token_entropy(far), torch.zeros(1, 1), -(p * p.log()).sum(-1))

    uniform = torch.zeros(1, 2, 4)
    p, logp = uniform.softmax(-1), uniform.log_softmax(-1)
    over_time, one_factor = -(p * logp).sum(1), -p * logp.sum(-1, keepdim=True)
    for wrong in (over_time, one_factor):
        separates(
            "entropy_wrong_axis_or_precedence", token_entropy(uniform), torch.full((1, 2), 1.3863), wrong
        )


def test_a_bonus_on_entropy_lowers_the_loss() -> None:
    """The slip entropy_sign punishes randomness."""
    bonus = -0.1 * token_entropy(torch.tensor([[[math.log(9.0), 0.0]]]))
    separates("entropy_sign", bonus, torch.tensor([[-0.03251]]), torch.tensor([[0.03251]]), 1e-4)
