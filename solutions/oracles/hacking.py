"""Oracles of lesson 11: what a length costs, and how much of a response repeats itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from solutions.oracles.base import Given, in_bfloat16, matter, noise, oracle, row

PAIR = ["rewards", "lengths"]


def priced(rewards: torch.Tensor, lengths: list[int] | torch.Tensor, coef: float) -> dict[str, Any]:
    """The arguments of `length_penalty`."""
    return {"rewards": rewards, "lengths": torch.as_tensor(lengths), "coef": coef}


@oracle(
    cases=lambda: [
        Given("one response", priced(row(1.0), [10], 0.01)),
        Given("two lengths", priced(row(1.0, 1.0), [10, 20], 0.1)),
        Given("no price", priced(row(0.5, -1.0), [3, 40], 0.0)),
        Given("several responses", priced(noise(0, 5), [3, 12, 7, 1, 25], 0.05)),
        Given("an empty response", priced(row(0.25, 2.0), [0, 8], 0.2)),
        Given("a price for being short", priced(row(1.0, 2.0), [4, 6], -0.1)),
        Given("lengths as floats", priced(noise(1, 3), row(2.0, 5.0, 11.0), 0.03)),
        Given("rewards of ten thousand", priced(row(1e4, -1e4), [5, 9], 0.5)),
        Given("inputs that are not contiguous", priced(noise(2, 3), [1, 2, 3], 0.1), layout="sliced"),
        Given("inputs in bfloat16", in_bfloat16(priced(row(1.5, -0.5), [8, 16], 0.125)), tolerance=2e-2),
    ],
    inputs={
        "rewards": {"kind": "normal", "shape": "B"},
        "lengths": {"kind": "lengths", "shape": "B"},
        "coef": {"kind": "choice", "of": [0.05, 0.2, 0.7]},
    },
    properties=(
        ("repeatable", {}),
        ("batch_order", {"rows": PAIR, "result": "rows"}),
        ("rows_alone", {"rows": PAIR}),
        *matter(*PAIR),
        ("depends_on_number", {"name": "coef", "values": [0.1, 0.4]}),
    ),
)
def length_penalty(rewards: torch.Tensor, lengths: torch.Tensor, coef: float) -> torch.Tensor:
    """Pay token by token."""
    paid = []
    for reward, length in zip(rewards.tolist(), lengths.tolist(), strict=True):
        for _ in range(int(length)):
            reward -= coef
        paid.append(reward)
    return torch.tensor(paid, dtype=torch.float64)


# ---------------------------------------------------------------- repetition_fraction
def response(*tokens: int, **rest: int) -> dict[str, Any]:
    """The arguments of `repetition_fraction`."""
    return {"token_ids": list(tokens), **rest}


@oracle(
    cases=lambda: [
        Given("no tokens", response()),
        Given("fewer tokens than an n-gram has", response(4, 4)),
        Given("as many tokens as an n-gram has", response(4, 4, 4)),
        Given("nothing repeats", response(1, 2, 3, 4, 5, 6)),
        Given("tokens repeat, n-grams do not", response(1, 2, 1, 3, 1, 4)),
        Given("one token over and over", response(7, 7, 7, 7, 7, 7)),
        Given("a phrase said twice", response(1, 2, 3, 4, 1, 2, 3, 9)),
        Given("a phrase said three times", response(1, 2, 3, 1, 2, 3, 1, 2, 3)),
        Given("pairs", response(1, 2, 3, 1, 2, 5, 1, 2, n=2)),
        Given("single tokens", response(1, 2, 1, 1, 5, n=1)),
        Given("four at a time", response(1, 2, 3, 4, 5, 1, 2, 3, 4, 6, n=4)),
        Given("the same tokens in another order", response(1, 2, 3, 3, 2, 1, 2, 3, 1)),
        Given("tokens whose digits run together", response(1, 23, 4, 12, 3, 4)),
    ],
    inputs={
        "token_ids": {"kind": "words", "of": [1, 2, 3]},
        "n": {"kind": "choice", "of": [1, 2, 3], "absent": 0.3},
    },
    optional=("n",),
    properties=(
        ("repeatable", {}),
        *matter("token_ids"),
        ("depends_on_number", {"name": "n", "values": [1, 3]}),
        ("between", {"low": 0.0, "high": 1.0}),
    ),
)
def repetition_fraction(token_ids: Sequence[int], n: int = 3) -> float:
    """Read along and count the n-grams that were met before."""
    met, again, total = [], 0, 0
    for end in range(n, len(token_ids) + 1):
        gram = list(token_ids[end - n : end])
        again += gram in met
        met.append(gram)
        total += 1
    return again / total if total else 0.0
