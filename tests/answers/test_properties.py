"""What holds for every answer: inputs untouched, any memory layout and batch order, float32 results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import solutions.answers as answers
from tests.answers.numerics import near, random

N, T, V = 6, 5, 7  # N is a multiple of the group size 3


@dataclass(frozen=True)
class Case:
    """An answer with inputs: `call(**tensors)`. `rows` says which output goes with the rows."""

    call: Callable[..., Any]
    tensors: dict[str, torch.Tensor]
    rows: bool = False  # one output row a batch row; else one number for the batch
    padded: tuple[str, ...] = ()  # inputs that may grow by padding on the right
    floats: bool = True  # takes log-probs, logits or rewards, of any precision


def lengths_mask(width: int) -> torch.Tensor:
    """Rows of 5, 3, 0, 1, 4 and 2 tokens (or as many as fit)."""
    return torch.arange(width) < torch.tensor([5, 3, 0, 1, 4, 2])[:, None]


def cases() -> dict[str, Case]:
    """One for every answer on tensors."""
    logits, ids = random(N, T, V), torch.arange(N * T).view(N, T) % V
    logp, old, ref = (-random(N, T, seed=seed).abs() for seed in (1, 2, 3))
    mask, scores = lengths_mask(T), [random(N, seed=seed) for seed in (4, 5, 6, 7)]
    pairs = dict(zip(("chosen_rewards", "rejected_rewards"), scores, strict=False))
    sums = dict(zip(("policy_chosen", "policy_rejected", "ref_chosen", "ref_rejected"), scores, strict=True))
    grpo = {"logprobs": logp, "old_logprobs": old, "ref_logprobs": ref, "advantages": scores[0], "mask": mask}
    kl = {"logprobs": logp, "ref_logprobs": ref, "mask": mask}
    gae = {"rewards": old, "values": logp, "mask": mask}
    policy = {"logprobs": logp, "old_logprobs": old, "advantages": random(N, T, seed=8), "mask": mask}
    value = {"values": logp, "old_values": old, "returns": ref, "mask": mask}
    prompts = {"prompt_lengths": torch.tensor([1, 0, 2, 4, 5, 3]), "attention_mask": mask.long()}
    return {
        "response_mask": Case(answers.response_mask, prompts, True, ("attention_mask",), False),
        "token_logprobs": Case(answers.token_logprobs, {"logits": logits, "input_ids": ids}, True),
        "token_entropy": Case(answers.token_entropy, {"logits": logits}, True),
        "sft_loss": Case(
            answers.sft_loss,
            {"logits": logits, "input_ids": ids, "mask": mask},
            padded=("logits", "input_ids", "mask"),
        ),
        "perplexity": Case(answers.perplexity, {"logprobs": logp, "mask": mask}, padded=("logprobs", "mask")),
        "last_token_index": Case(
            answers.last_token_index, {"attention_mask": mask.long()}, True, ("attention_mask",), False
        ),
        "bradley_terry_loss": Case(answers.bradley_terry_loss, pairs | {"margin": scores[2].abs()}),
        "pair_accuracy": Case(answers.pair_accuracy, pairs),
        "dpo_loss": Case(lambda **t: answers.dpo_loss(**t, beta=0.3), sums),
        "ipo_loss": Case(lambda **t: answers.ipo_loss(**t, beta=0.3), sums),
        "aot_loss": Case(lambda **t: answers.aot_loss(**t, beta=0.3), sums),
        "approx_kl": Case(answers.approx_kl, kl, padded=tuple(kl)),
        "kl_shaped_rewards": Case(
            lambda **t: answers.kl_shaped_rewards(**t, kl_coef=0.1),
            {"scores": scores[0], **kl},
            True,
            tuple(kl),
        ),
        "gae": Case(
            lambda **t: torch.stack(answers.gae(**t, gamma=0.9, lam=0.8), dim=2), gae, True, tuple(gae)
        ),
        # It looks at all rows together, so its rows have no meaning of their own.
        "whiten": Case(
            lambda **t: answers.whiten(**t).pow(3).sum(), {"x": ref, "mask": mask}, padded=("x", "mask")
        ),
        "ppo_policy_loss": Case(
            lambda **t: answers.ppo_policy_loss(**t, clip_eps=0.2), policy, padded=tuple(policy)
        ),
        "ppo_value_loss": Case(
            lambda **t: answers.ppo_value_loss(**t, clip_eps=0.2), value, padded=tuple(value)
        ),
        "group_advantages": Case(
            lambda rewards: answers.group_advantages(rewards, 3), {"rewards": scores[0]}, True
        ),
        "grpo_loss": Case(
            lambda **t: answers.grpo_loss(**t, clip_eps=0.2, kl_coef=0.1),
            grpo,
            padded=("logprobs", "old_logprobs", "ref_logprobs", "mask"),
        ),
        "dr_grpo_loss": Case(
            lambda **t: answers.dr_grpo_loss(**t, clip_eps=0.2, kl_coef=0.1, max_new_tokens=9),
            grpo,
            padded=("logprobs", "old_logprobs", "ref_logprobs", "mask"),
        ),
        "gspo_loss": Case(
            lambda **t: answers.gspo_loss(**t, clip_eps=0.2, kl_coef=0.1),
            grpo,
            padded=("logprobs", "old_logprobs", "ref_logprobs", "mask"),
        ),
    }


CASES = cases()
EVERY = pytest.mark.parametrize("name", CASES)
IN_FLOATS = pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.floats])


def scattered(tensor: torch.Tensor) -> torch.Tensor:
    """The same values with strides of another order."""
    spread = torch.stack([tensor, tensor], dim=-1)[..., 0]
    return spread.transpose(0, -1).contiguous().transpose(0, -1) if tensor.dim() > 1 else spread


def with_dtype(tensors: dict[str, torch.Tensor], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The floating-point inputs in another precision."""
    return {name: t.to(dtype) if t.is_floating_point() else t for name, t in tensors.items()}


@EVERY
def test_inputs_are_not_changed(name: str) -> None:
    case = CASES[name]
    before = {key: value.clone() for key, value in case.tensors.items()}
    case.call(**case.tensors)
    assert all(torch.equal(before[key], value) for key, value in case.tensors.items())


@EVERY
def test_inputs_need_not_be_contiguous(name: str) -> None:
    case = CASES[name]
    given = {key: scattered(value) for key, value in case.tensors.items()}
    assert not all(value.is_contiguous() for value in given.values())
    near(case.call(**given), case.call(**case.tensors))


@EVERY
def test_the_order_of_the_batch_does_not_matter(name: str) -> None:
    """Groups of siblings stay together."""
    case, order = CASES[name], torch.tensor([3, 4, 5, 2, 0, 1])
    moved = case.call(**{key: value[order] for key, value in case.tensors.items()})
    plain = case.call(**case.tensors)
    near(moved, plain[order] if case.rows else plain)


@EVERY
def test_a_batch_of_one(name: str) -> None:
    case = CASES[name]
    if name == "group_advantages":
        case = Case(lambda rewards: answers.group_advantages(rewards, 1), case.tensors, True)
        near(case.call(rewards=case.tensors["rewards"][:1]), 0.0)
        return
    one = case.call(**{key: value[:1] for key, value in case.tensors.items()})
    if case.rows:
        near(one, case.call(**case.tensors)[:1])
        assert one.shape[0] == 1
    else:
        assert torch.isfinite(torch.as_tensor(one)).all()


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.padded])
def test_padding_on_the_right_changes_nothing(name: str) -> None:
    case = CASES[name]
    grown = dict(case.tensors)
    for key in case.padded:
        value = case.tensors[key]
        shape = (value.shape[0], 3, *value.shape[2:])
        grown[key] = torch.cat(
            [value, torch.full(shape, 0 if key.endswith("mask") else 3).to(value.dtype)], dim=1
        )
    result, plain = case.call(**grown), case.call(**case.tensors)
    near(result[:, :T] if case.rows and getattr(result, "ndim", 0) > 1 else result, plain)


@IN_FLOATS
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_results_are_float32_whatever_the_precision_of_the_inputs(name: str, dtype: torch.dtype) -> None:
    case = CASES[name]
    given = with_dtype(case.tensors, dtype)
    result = case.call(**given)
    assert isinstance(result, float) or result.dtype == torch.float32
    # What half precision has lost before the call is lost; nothing more may be.
    near(result, case.call(**with_dtype(given, torch.float32)), 0.02 if dtype.itemsize == 2 else 1e-5)


LOSSES = ["sft_loss", "approx_kl", "bradley_terry_loss", "dpo_loss", "grpo_loss"]
LOSSES += ["ppo_policy_loss", "ppo_value_loss", "ipo_loss", "aot_loss", "dr_grpo_loss", "gspo_loss"]


@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_scalars_with_a_gradient(name: str) -> None:
    case = CASES[name]
    first = next(iter(case.tensors))
    leaf = case.tensors[first].float().requires_grad_()
    loss = case.call(**{**case.tensors, first: leaf})
    loss.backward()
    assert loss.shape == () and leaf.grad is not None and leaf.grad.abs().sum() > 0


@pytest.mark.parametrize(
    "name", ["sft_loss", "perplexity", "approx_kl", "grpo_loss", "gspo_loss", "gae", "whiten"]
)
@pytest.mark.parametrize("kind", [torch.int64, torch.float32, torch.uint8], ids=str)
def test_a_mask_may_be_of_numbers(name: str, kind: torch.dtype) -> None:
    case = CASES[name]
    near(case.call(**{**case.tensors, "mask": case.tensors["mask"].to(kind)}), case.call(**case.tensors))


def test_every_answer_is_tested_here_or_is_not_about_tensors() -> None:
    assert set(answers.__all__) - set(CASES) == {
        "bootstrap_ci",
        "combine_orders",
        "length_controlled_win_rate",
        "win_rate",
        "best_of_n",
        "length_penalty",
        "nf4_dequantize",
        "nf4_quantize",
        "qlora_memory_gib",
        "repetition_fraction",
    }
