"""Oracles of lesson 02: where a reward is read, and how preferences are fitted."""

from __future__ import annotations

from typing import Any

import torch

from solutions.oracles.base import Given, flags, in_bfloat16, matter, noise, oracle, row, softplus, zero

PAIR = ["chosen_rewards", "rejected_rewards"]


# ---------------------------------------------------------------- last_token_index
def attention(*lines: str) -> dict[str, Any]:
    """The argument of `last_token_index`."""
    return {"attention_mask": flags(*lines).long()}


def index_cases() -> list[Given]:
    """Padding on either side."""
    return [
        Given("one row, padded on the right", attention("1110")),
        Given("one row, padded on the left", attention("0111")),
        Given("a full row", attention("11111")),
        Given("rows padded on the right", attention("11100", "11111", "10000")),
        Given("rows padded on the left", attention("00111", "11111", "00001")),
        Given("both sides in one batch", attention("1100", "0011", "1111", "1000")),
        Given("as many rows as positions", attention("110", "011", "100")),
        Given("a row without real tokens", attention("0000", "1100")),
        Given("rows of one position", attention("1", "1")),
        Given("inputs that are not contiguous", attention("11000", "00011"), layout="transposed"),
    ]


@oracle(
    cases=index_cases,
    inputs={"attention_mask": {"kind": "either_side", "shape": "BL"}},
    properties=(
        ("repeatable", {}),
        ("batch_order", {"rows": ["attention_mask"], "result": "rows"}),
        ("rows_alone", {"rows": ["attention_mask"]}),
        ("padding", {"columns": {"attention_mask": 0}, "result": "same"}),
        *matter("attention_mask"),
        ("between", {"low": 0.0, "high": None}),
    ),
)
def last_token_index(attention_mask: torch.Tensor) -> torch.Tensor:
    """Walk along the row and remember the last real token."""
    found = []
    for line in attention_mask.tolist():
        last = 0
        for position, real in enumerate(line):
            if real == 1:
                last = position
        found.append(last)
    return torch.tensor(found, dtype=torch.long)


# ---------------------------------------------------------------- bradley_terry_loss
def rewards(chosen: torch.Tensor, rejected: torch.Tensor, margin: Any = None) -> dict[str, Any]:
    """The arguments of the losses on pairs."""
    given = {"chosen_rewards": chosen, "rejected_rewards": rejected}
    return given if margin is None else {**given, "margin": margin}


def loss_cases() -> list[Given]:
    """With and without margin, from equal to far apart."""
    a, b = noise(1, 4, scale=2.0), noise(2, 4, scale=2.0)
    exact = rewards(row(1.5, -0.5, 2.0), row(0.5, 1.0, 2.5), row(0.25, 0.5, 1.0))
    return [
        Given("one pair", rewards(row(2.0), row(0.0))),
        Given("several pairs", rewards(a, b)),
        Given("three pairs", rewards(a[:3] * 2, b[:3])),
        Given("equal rewards", rewards(row(5.0, -1.0, 0.0), row(5.0, -1.0, 0.0))),
        Given("a margin for each pair", rewards(a, b, row(0.5, 1.0, 0.0, 2.0))),
        Given("one margin for all", rewards(a, b, 0.7)),
        Given("a margin of one pair", rewards(row(1.0), row(0.5), row(1.5))),
        Given("rewards of ten thousand", rewards(row(1e4, -1e4), row(-1e4, 1e4))),
        Given(
            "inputs that are not contiguous",
            rewards(noise(3, 3), noise(4, 3), row(0.5, 0.2, 1.0)),
            layout="sliced",
        ),
        Given("inputs in bfloat16", in_bfloat16(exact), tolerance=2e-2),
    ]


@oracle(
    cases=loss_cases,
    inputs={
        "chosen_rewards": {"kind": "normal", "shape": "B", "scale": 2.0},
        "rejected_rewards": {"kind": "normal", "shape": "B", "scale": 2.0},
        "margin": {"kind": "normal", "shape": "B", "mean": 1.0, "scale": 0.5, "absent": 0.5},
    },
    gradients=("chosen_rewards", "rejected_rewards"),
    optional=("margin",),
    properties=(
        ("repeatable", {}),
        ("batch_order", {"rows": [*PAIR, "margin"], "result": "same"}),
        ("doubled_batch", {"rows": [*PAIR, "margin"]}),
        (
            "unchanged_by_shift",
            {"together": PAIR, "hint": "a number added to both rewards must change nothing"},
        ),
        (
            "known_value",
            {
                "equate": {"rejected_rewards": "chosen_rewards"},
                "value": 0.69314718,
                "hint": "equal rewards must cost ln 2",
                "without": "margin",
            },
        ),
        *matter(*PAIR),
        ("falls_with", {"name": "chosen_rewards", "hint": "a better chosen answer must lower the loss"}),
        ("gradient_reaches", {}),
        ("finite_when_huge", {"inputs": PAIR, "factor": 1e4}),
        ("between", {"low": 0.0, "high": None}),
    ),
)
def bradley_terry_loss(
    chosen_rewards: torch.Tensor, rejected_rewards: torch.Tensor, margin: Any = None
) -> torch.Tensor:
    """Bradley and Terry, 1952; with the margin of arXiv 2307.09288, eq. 2: pair by pair."""
    total, pairs = zero(), len(chosen_rewards)
    for i in range(pairs):
        lead: Any = 0.0 if margin is None else margin
        if isinstance(lead, torch.Tensor):
            lead = lead[i]
        total = total + softplus(-(chosen_rewards[i] - rejected_rewards[i] - lead))
    return total / pairs


# ---------------------------------------------------------------- pair_accuracy
def accuracy_cases() -> list[Given]:
    """Wins, losses, ties and none of them."""
    return [
        Given("one pair, won", rewards(row(1.0), row(0.0))),
        Given("one pair, lost", rewards(row(-1.0), row(0.5))),
        Given("one tie", rewards(row(2.0), row(2.0))),
        Given("three of four", rewards(row(1.0, 0.0, 3.0, 2.0), row(0.0, 1.0, 2.5, -2.0))),
        Given("wins, losses and ties", rewards(row(1.0, 2.0, 0.0, -1.0, 4.0), row(0.5, 2.0, 1.0, -1.0, 3.0))),
        Given("negative rewards", rewards(row(-3.0, -0.5, -2.0), row(-4.0, -0.75, -1.0))),
        Given("equal rewards everywhere", rewards(row(0.0, 0.0, 0.0), row(0.0, 0.0, 0.0))),
        Given("a narrow lead at a large size", rewards(row(10001.0, 1e4), row(1e4, 10001.0))),
        Given("no pairs", rewards(row(), row())),
        Given("inputs that are not contiguous", rewards(noise(1, 4), noise(2, 4)), layout="sliced"),
    ]


@oracle(
    cases=accuracy_cases,
    inputs={
        "chosen_rewards": {"kind": "normal", "shape": "B"},
        "rejected_rewards": {"kind": "normal", "shape": "B"},
    },
    properties=(
        ("repeatable", {}),
        ("batch_order", {"rows": PAIR, "result": "same"}),
        ("doubled_batch", {"rows": PAIR}),
        (
            "unchanged_by_shift",
            {"together": PAIR, "hint": "a number added to both rewards must change nothing"},
        ),
        ("sides_sum_to_one", {"left": PAIR[0], "right": PAIR[1]}),
        *matter(*PAIR),
        ("between", {"low": 0.0, "high": 1.0}),
    ),
)
def pair_accuracy(chosen_rewards: torch.Tensor, rejected_rewards: torch.Tensor) -> float:
    """Count the pairs that are strictly right."""
    pairs = list(zip(chosen_rewards.tolist(), rejected_rewards.tolist(), strict=True))
    return sum(1 for chosen, rejected in pairs if chosen > rejected) / len(pairs) if pairs else 0.0
