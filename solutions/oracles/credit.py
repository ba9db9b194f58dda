"""Oracles of lesson 06: advantages over time, and whitening."""

from __future__ import annotations

import math
from typing import Any

import torch

from solutions.oracles.base import Given, flags, in_bfloat16, matter, noise, oracle, row, rows
from solutions.oracles.ppo import spoilt

GAE_ROWS = ["rewards", "values", "mask"]


# ---------------------------------------------------------------- gae
def credit(seed: int, *lines: str, gamma: float = 0.95, lam: float = 0.9) -> dict[str, Any]:
    """The arguments of `gae`."""
    mask = flags(*lines)
    given = {"rewards": noise(seed, *mask.shape), "values": noise(seed + 1, *mask.shape), "mask": mask}
    return {**given, "gamma": gamma, "lam": lam}


def gae_cases() -> list[Given]:
    """Rows that end everywhere, and every corner of gamma and lambda."""
    two = {"rewards": rows([0.0, 1.0]), "values": rows([0.5, 0.5]), "mask": flags("11")}
    halves = {"rewards": rows([0.5, 1.0]), "values": rows([-0.5, 0.25]), "mask": flags("11")}
    return [
        Given("one token", credit(1, "1")),
        Given("two tokens, gamma 1 and lambda 0.5", {**two, "gamma": 1.0, "lam": 0.5}),
        Given("rows of unequal length", credit(5, "1110", "1000")),
        Given("four tokens, padded", credit(10, "11110", "11111")),
        Given("as many rows as positions", credit(15, "111", "110", "100")),
        Given("padding on the left", credit(20, "0111", "0011")),
        Given("lambda 0, which trusts the values", credit(25, "1110", "1100", lam=0.0)),
        Given("lambda 1, which trusts the rewards", credit(30, "1110", "1100", lam=1.0, gamma=1.0)),
        Given("a short sight", credit(35, "1110", gamma=0.5, lam=0.5)),
        Given("a row without tokens", credit(40, "000", "110")),
        Given("NaN at masked places", spoilt(credit(45, "110", "100"), "rewards", "values")),
        Given("inputs that are not contiguous", credit(50, "1110", "1000"), layout="transposed"),
        Given("inputs in bfloat16", in_bfloat16({**halves, "gamma": 1.0, "lam": 0.5}), tolerance=2e-2),
    ]


@oracle(
    cases=gae_cases,
    inputs={
        "rewards": {"kind": "normal", "shape": "BT"},
        "values": {"kind": "normal", "shape": "BT"},
        "mask": {"kind": "mask", "shape": "BT", "shortest": 0},
        "gamma": {"kind": "choice", "of": [1.0, 0.99, 0.9]},
        "lam": {"kind": "choice", "of": [1.0, 0.95, 0.5]},
    },
    properties=(
        ("repeatable", {}),
        ("batch_order", {"rows": GAE_ROWS, "result": "rows"}),
        ("rows_alone", {"rows": GAE_ROWS}),
        ("padding", {"columns": {"rewards": 5.0, "values": 3.0, "mask": 0}, "result": "columns"}),
        ("padding", {"columns": {"rewards": "nan", "values": "nan", "mask": 0}, "result": "columns"}),
        *matter(*GAE_ROWS),
        ("depends_on_number", {"name": "gamma", "values": [1.0, 0.5]}),
        ("depends_on_number", {"name": "lam", "values": [1.0, 0.5]}),
    ),
)
def gae(
    rewards: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, gamma: float, lam: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Schulman et al., 2015, arXiv 1506.02438, eq. 16: from each token, the sum over all later TD errors."""
    advantages, returns = (torch.zeros(mask.shape, dtype=torch.float64) for _ in range(2))
    for i in range(len(mask)):
        places = [t for t in range(mask.shape[1]) if bool(mask[i, t])]
        errors = []
        for k, t in enumerate(places):
            following = float(values[i, places[k + 1]]) if k + 1 < len(places) else 0.0
            errors.append(float(rewards[i, t]) + gamma * following - float(values[i, t]))
        for k, t in enumerate(places):
            advantage = math.fsum((gamma * lam) ** later * error for later, error in enumerate(errors[k:]))
            advantages[i, t], returns[i, t] = advantage, advantage + float(values[i, t])
    return advantages, returns


# ---------------------------------------------------------------- whiten
def whiten_cases() -> list[Given]:
    """Entries in few and many rows."""
    x = noise(60, 2, 4, scale=2.0)
    hidden = {"x": x, "mask": flags("1110", "1000")}
    return [
        Given("two entries", {"x": row(1.0, 3.0), "mask": flags("11")[0]}),
        Given("two entries and padding", {"x": rows([1.0, 3.0, 0.0, 0.0]), "mask": flags("1100")}),
        Given("rows of unequal length", hidden),
        Given("three rows", {"x": noise(61, 3, 3) + 5, "mask": flags("111", "100", "110")}),
        Given("all entries", {"x": noise(62, 2, 3, scale=30.0), "mask": flags("111", "111")}),
        Given("equal entries", {"x": rows([2.0, 2.0, 5.0]), "mask": flags("110")}),
        Given("one entry", {"x": rows([3.0, 1.0]), "mask": flags("10")}),
        Given("no entry", {"x": rows([3.0, 1.0]), "mask": flags("00")}),
        Given("NaN at masked places", spoilt(hidden, "x")),
        Given("inputs that are not contiguous", hidden, layout="transposed"),
        Given("inputs in bfloat16", in_bfloat16({"x": rows([0.5, 1.0, -2.0]), "mask": flags("111")}), 2e-2),
    ]


@oracle(
    cases=whiten_cases,
    inputs={
        "x": {"kind": "normal", "shape": "BT", "scale": 3.0},
        "mask": {"kind": "mask", "shape": "BT"},
    },
    properties=(
        ("repeatable", {}),
        ("batch_order", {"rows": ["x", "mask"], "result": "rows"}),
        ("padding", {"columns": {"x": 50.0, "mask": 0}, "result": "columns"}),
        ("padding", {"columns": {"x": "nan", "mask": 0}, "result": "columns"}),
        (
            "unchanged_by_shift",
            {"together": ["x"], "hint": "a number added to all entries must change nothing"},
        ),
        ("flat_gives_zero", {"name": "x"}),
        *matter("x", "mask"),
    ),
)
def whiten(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean 0 and unbiased variance 1 over the masked entries, one at a time."""
    kept = [float(value) for value, counts in zip(x.reshape(-1), mask.reshape(-1), strict=True) if counts]
    mean = math.fsum(kept) / max(len(kept), 1)
    squares = math.fsum((value - mean) ** 2 for value in kept)
    unit = math.sqrt(squares / (len(kept) - 1)) if len(kept) > 1 and squares > 0 else 1.0
    flat = [
        (float(v) - mean) / unit if m else 0.0 for v, m in zip(x.reshape(-1), mask.reshape(-1), strict=True)
    ]
    return torch.tensor(flat, dtype=torch.float64).view(x.shape)
