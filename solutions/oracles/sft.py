"""Oracles of lesson 01: one mean over all response tokens of the batch."""

from __future__ import annotations

import math
from typing import Any

import torch

from solutions.oracles.base import Given, flags, in_bfloat16, matter, noise, oracle, row, rows, words, zero
from solutions.oracles.logprobs import logprob

LOSS_INPUTS = ["logits", "input_ids", "mask"]


def batch(seed: int, vocabulary: int, *lines: str) -> dict[str, Any]:
    """Logits, ids and a mask of these lines."""
    mask = flags(*lines)
    shape = (*mask.shape, vocabulary)
    return {
        "logits": noise(seed, *shape, scale=2.0),
        "input_ids": words(seed, vocabulary, *mask.shape),
        "mask": mask,
    }


def spoilt(given: dict[str, Any], rubbish: float) -> dict[str, Any]:
    """Rubbish in the logits that predict nothing that counts."""
    counts = torch.zeros_like(given["mask"])
    counts[:, :-1] = given["mask"][:, 1:]
    return {**given, "logits": given["logits"].masked_fill(~counts[..., None], rubbish)}


def loss_cases() -> list[Given]:
    """Masks of every shape."""
    uneven = batch(1, 4, "00111", "00100")
    far = batch(9, 3, "011")
    far["logits"] = torch.tensor([[[0.0, 200.0, 3.0], [150.0, 0.0, 1.0], [0.0, 0.0, 0.0]]])
    far["input_ids"] = torch.tensor([[0, 2, 1]])
    return [
        Given("one token to learn", batch(2, 3, "01")),
        Given("rows of unequal length", uneven),
        Given("a batch of one", batch(3, 4, "0011")),
        Given("a batch of three", batch(4, 3, "0110", "0011", "0111")),
        Given("as many rows as positions as words", batch(5, 3, "011", "001", "010")),
        Given("a first token that is masked in, and has no prediction", batch(6, 3, "1111", "1100")),
        Given("nothing to learn", batch(7, 3, "000", "000")),
        Given("a row with nothing to learn", batch(8, 3, "0000", "0110")),
        Given("logits far apart", far),
        Given("NaN in the logits of masked places", spoilt(uneven, math.nan), gradients=False),
        Given("infinite logits at masked places", spoilt(uneven, math.inf), gradients=False),
        Given("inputs that are not contiguous", batch(10, 3, "0011", "0110"), layout="transposed"),
        Given("inputs in bfloat16", in_bfloat16(batch(11, 3, "011", "001")), tolerance=2e-2),
    ]


@oracle(
    cases=loss_cases,
    inputs={
        "logits": {"kind": "normal", "shape": "BTV", "scale": 2.0},
        "input_ids": {"kind": "ids", "shape": "BT"},
        "mask": {"kind": "response", "shape": "BT"},
    },
    gradients=("logits",),
    properties=(
        ("repeatable", {}),
        ("batch_order", {"rows": LOSS_INPUTS, "result": "same"}),
        ("doubled_batch", {"rows": LOSS_INPUTS}),
        ("padding", {"columns": {"logits": 9.0, "input_ids": 0, "mask": 0}, "result": "same"}),
        ("padding", {"columns": {"logits": "nan", "input_ids": 0, "mask": 0}, "result": "same"}),
        (
            "unchanged_by_shift",
            {"together": ["logits"], "hint": "a constant added to all logits must change nothing"},
        ),
        *matter("logits", "input_ids", "mask"),
        ("gradient_reaches", {}),
        ("finite_when_huge", {"inputs": ["logits"], "factor": 1e4}),
        ("between", {"low": 0.0, "high": None}),
    ),
)
def sft_loss(logits: torch.Tensor, input_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Maximum likelihood: the surprise at every token to learn, added up and shared by their number."""
    total, count = zero() + 0.0 * torch.nan_to_num(logits, 0.0, 0.0, 0.0).sum(), 0
    for b in range(mask.shape[0]):
        for t in range(1, mask.shape[1]):
            if bool(mask[b, t]):
                total = total - logprob(logits[b, t - 1], int(input_ids[b, t]))
                count += 1
    return total / max(count, 1)


# ---------------------------------------------------------------- perplexity
def tokens(logprobs: torch.Tensor, *lines: str) -> dict[str, Any]:
    """The arguments of `perplexity`."""
    return {"logprobs": logprobs, "mask": flags(*lines)}


def perplexity_cases() -> list[Given]:
    """Rows of unequal length and surprise."""
    uneven = rows([-3.0, -0.5, -0.2], [-1.0, -1.5, -0.3])
    hidden = rows([-1.0, math.nan, -math.inf], [-2.0, -0.5, math.inf])
    square = -noise(3, 3, 3).abs()
    return [
        Given("one token", tokens(row(-1.5)[None], "1")),
        Given("two tokens of one row", tokens(rows([-1.0, -2.0]), "11")),
        Given("rows of unequal length", tokens(uneven, "100", "111")),
        Given("three rows", tokens(-noise(1, 3, 4).abs(), "1110", "1000", "1100")),
        Given("as many rows as positions", tokens(square, "110", "111", "100")),
        Given("a row without tokens", tokens(uneven, "000", "110")),
        Given("no token at all", tokens(uneven, "000", "000")),
        Given("NaN and infinity at masked places", tokens(hidden, "100", "110")),
        Given("more surprise than a float holds", tokens(rows([-900.0, -1100.0]), "11")),
        Given("a token that the model holds impossible", tokens(rows([-1.0, -math.inf]), "11")),
        Given(
            "inputs that are not contiguous", tokens(-noise(2, 2, 3).abs(), "111", "010"), layout="transposed"
        ),
        Given("inputs in bfloat16", in_bfloat16(tokens(uneven, "110", "111")), tolerance=2e-2),
    ]


@oracle(
    cases=perplexity_cases,
    inputs={
        "logprobs": {"kind": "logprob", "shape": "BT"},
        "mask": {"kind": "mask", "shape": "BT", "shortest": 0},
    },
    properties=(
        ("repeatable", {}),
        ("batch_order", {"rows": ["logprobs", "mask"], "result": "same"}),
        ("doubled_batch", {"rows": ["logprobs", "mask"]}),
        ("padding", {"columns": {"logprobs": "nan", "mask": 0}, "result": "same"}),
        ("padding", {"columns": {"logprobs": "-inf", "mask": 0}, "result": "same"}),
        *matter("logprobs", "mask"),
        ("between", {"low": 1.0, "high": None}),
    ),
)
def perplexity(logprobs: torch.Tensor, mask: torch.Tensor) -> float:
    """exp of the cross-entropy per token, in nats."""
    surprise, count = 0.0, 0
    for b in range(mask.shape[0]):
        for t in range(mask.shape[1]):
            if bool(mask[b, t]):
                surprise -= float(logprobs[b, t])
                count += 1
    if not count:
        return 1.0
    return math.exp(surprise / count) if surprise / count < 709.7 else math.inf
