"""Oracles of lesson 00: which tokens count, and how likely the model finds them."""

from __future__ import annotations

from typing import Any

import torch

from solutions.oracles.base import Given, flags, in_bfloat16, matter, noise, oracle, rows, words, zero


# ---------------------------------------------------------------- response_mask
def masks(prompts: list[int], *lines: str) -> dict[str, Any]:
    """The arguments of `response_mask`."""
    return {"prompt_lengths": torch.tensor(prompts), "attention_mask": flags(*lines).long()}


def mask_cases() -> list[Given]:
    """Prompts of every length, with and without padding."""
    padded = masks([2, 1, 4, 3], "111110", "111000", "111111", "111100")
    return [
        Given("one row without padding", masks([2], "1111")),
        Given("rows of unequal length", padded),
        Given("a prompt of 0 tokens", masks([0, 2], "11110", "11111")),
        Given("a prompt that fills its row", masks([3, 1], "11100", "11111")),
        Given("a prompt as wide as the batch", masks([4, 2], "1111", "1110")),
        Given("as many rows as positions", masks([0, 1, 2], "111", "110", "111")),
        Given("equal prompts", masks([5, 5], "11111110", "11111111")),
        Given("rows of one token", masks([0, 1], "1000", "1000")),
        Given("a row of padding only", masks([0, 1], "000", "111")),
        Given("inputs that are not contiguous", padded, layout="transposed"),
    ]


@oracle(
    cases=mask_cases,
    inputs={
        "prompt_lengths": {"kind": "lengths", "shape": "B"},
        "attention_mask": {"kind": "attention", "shape": "BL"},
    },
    properties=(
        ("repeatable", {}),
        ("batch_order", {"rows": ["prompt_lengths", "attention_mask"], "result": "rows"}),
        ("rows_alone", {"rows": ["prompt_lengths", "attention_mask"]}),
        ("padding", {"columns": {"attention_mask": 0}, "result": "columns"}),
        *matter("prompt_lengths"),
    ),
)
def response_mask(prompt_lengths: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """Token by token: in the response if it is real and stands behind the prompt."""
    result = torch.zeros(attention_mask.shape, dtype=torch.bool)
    for b in range(attention_mask.shape[0]):
        for t in range(attention_mask.shape[1]):
            result[b, t] = int(attention_mask[b, t]) == 1 and t >= int(prompt_lengths[b])
    return result


# ---------------------------------------------------------------- token_logprobs
def logprob(logits: torch.Tensor, token: int) -> torch.Tensor:
    """log p(token) under one position's logits: a ratio of exponentials, moved so that none overflows."""
    top = logits.detach().max()
    total = zero()
    for value in logits:
        total = total + torch.exp(value - top)
    return logits[token] - top - torch.log(total)


def scored(seed: int, b: int, t: int, v: int, scale: float = 2.0) -> dict[str, Any]:
    """Logits and ids."""
    return {"logits": noise(seed, b, t, v, scale=scale), "input_ids": words(seed, v, b, t)}


def logprob_cases() -> list[Given]:
    """Batches of every shape, and logits of every size."""
    quarter = {"logits": rows([1.0986123, 0.0], [0.0, 0.0])[None], "input_ids": torch.tensor([[1, 0]])}
    far = {"logits": rows([0.0, 200.0, 0.0], [150.0, 0.0, 0.0])[None].repeat(1, 1, 1)}
    far["logits"] = torch.cat([far["logits"], torch.zeros(1, 1, 3)], dim=1)
    far["input_ids"] = torch.tensor([[2, 0, 0]])
    walk = torch.tensor([[0, 1, 2, 0, 1]])
    sure = 6.0 * torch.nn.functional.one_hot(walk.roll(-1, 1), 3).float()
    return [
        Given("one prediction of a vocabulary of two", quarter),
        Given("a batch of one", scored(1, 1, 4, 5)),
        Given("two rows", scored(2, 2, 4, 5)),
        Given("one prediction a row", scored(3, 3, 2, 4)),
        Given("as many rows as positions as words", scored(4, 3, 3, 3)),
        Given("a model that is sure of the next token", {"logits": sure, "input_ids": walk}),
        Given("logits far apart", far),
        Given("logits that are all large", {**scored(5, 2, 3, 4), "logits": noise(5, 2, 3, 4) + 40}, 1e-4),
        Given("rows of one token, which has no prediction", scored(6, 2, 1, 3)),
        Given("inputs that are not contiguous", scored(7, 2, 4, 3), layout="transposed"),
        Given("inputs in bfloat16", in_bfloat16(scored(8, 2, 3, 4)), tolerance=2e-2),
    ]


@oracle(
    cases=logprob_cases,
    inputs={
        "logits": {"kind": "normal", "shape": "BTV", "scale": 2.0},
        "input_ids": {"kind": "ids", "shape": "BT"},
    },
    gradients=("logits",),
    properties=(
        ("repeatable", {}),
        ("batch_order", {"rows": ["logits", "input_ids"], "result": "rows"}),
        ("rows_alone", {"rows": ["logits", "input_ids"]}),
        ("between", {"low": None, "high": 0.0}),
        (
            "unchanged_by_shift",
            {"together": ["logits"], "hint": "a constant added to all logits must change nothing"},
        ),
        ("probabilities_sum_to_one", {"logits": "logits", "ids": "input_ids"}),
        *matter("logits", "input_ids"),
        ("gradient_reaches", {}),
        ("finite_when_huge", {"inputs": ["logits"], "factor": 1e4}),
    ),
)
def token_logprobs(logits: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
    """The chain rule of an autoregressive model: position t speaks about token t + 1."""
    batch, width = input_ids.shape
    found = [
        [logprob(logits[b, t], int(input_ids[b, t + 1])) for t in range(width - 1)] for b in range(batch)
    ]
    if width == 1:
        return logits[:, :0, 0]
    return torch.stack([torch.stack(line) for line in found])


# ---------------------------------------------------------------- token_entropy
def entropy_cases() -> list[Given]:
    """From certainty to none."""
    banned = rows([0.0, 0.0, -torch.inf], [1.0, -torch.inf, -torch.inf])[None]
    return [
        Given("one position, p = 0.9 and 0.1", {"logits": rows([2.1972246, 0.0])[None]}),
        Given("uniform over four", {"logits": torch.zeros(1, 2, 4)}, tolerance=1e-5, floor=1e-6),
        Given("two rows", {"logits": noise(21, 2, 3, 5, scale=2.0)}),
        Given("one row", {"logits": noise(22, 1, 4, 3)}),
        Given("as many rows as positions as words", {"logits": noise(23, 3, 3, 3)}),
        Given("logits of a thousand", {"logits": rows([1000.0, 0.0], [-1000.0, -999.0])[None]}, 1e-4, 1e-6),
        Given("words of probability zero", {"logits": banned}, floor=1e-6),
        Given("inputs that are not contiguous", {"logits": noise(24, 2, 4, 3)}, layout="transposed"),
        Given("inputs in bfloat16", in_bfloat16({"logits": noise(25, 2, 3, 4)}), tolerance=2e-2),
    ]


@oracle(
    cases=entropy_cases,
    inputs={"logits": {"kind": "normal", "shape": "BTV", "scale": 2.0}},
    gradients=("logits",),
    properties=(
        ("repeatable", {}),
        ("batch_order", {"rows": ["logits"], "result": "rows"}),
        ("rows_alone", {"rows": ["logits"]}),
        ("between", {"low": 0.0, "high": 2.0794415}),
        (
            "unchanged_by_shift",
            {"together": ["logits"], "hint": "a constant added to all logits must change nothing"},
        ),
        *matter("logits"),
        ("gradient_reaches", {}),
        ("finite_when_huge", {"inputs": ["logits"], "factor": 1e4}),
    ),
)
def token_entropy(logits: torch.Tensor) -> torch.Tensor:
    """Shannon, 1948: the expected surprise, word by word; a word of probability 0 adds nothing."""
    found = []
    for row_of_logits in logits:
        line = []
        for position in row_of_logits:
            total = zero()
            for word in range(len(position)):
                if position[word].item() != -torch.inf:
                    surprise = -logprob(position, word)
                    total = total + torch.exp(-surprise) * surprise
            line.append(total)
        found.append(torch.stack(line))
    return torch.stack(found)
