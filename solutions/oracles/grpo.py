"""Oracles of lesson 07: advantages among siblings, and the clipped surrogate with its KL term."""

from __future__ import annotations

import math
from typing import Any

import torch

from solutions.oracles.base import (
    Given,
    Properties,
    flags,
    in_bfloat16,
    matter,
    noise,
    oracle,
    row,
    rows,
    zero,
)

ROWS = ["logprobs", "old_logprobs", "ref_logprobs", "advantages", "mask"]
TOKENS = ["logprobs", "old_logprobs", "ref_logprobs"]


INPUTS: dict[str, dict[str, Any]] = {
    "logprobs": {"kind": "logprob", "shape": "BT"},
    "old_logprobs": {"kind": "near", "of": "logprobs", "scale": 0.3},
    "ref_logprobs": {"kind": "near", "of": "logprobs", "scale": 0.5},
    "advantages": {"kind": "normal", "shape": "B"},
    "mask": {"kind": "mask", "shape": "BT", "shortest": 0},
    "clip_eps": {"kind": "choice", "of": [0.1, 0.2, 0.3]},
    "kl_coef": {"kind": "choice", "of": [0.04, 0.2, 1.0]},
    "clip_eps_high": {"kind": "choice", "of": [0.15, 0.28, 0.4], "absent": 0.5},
}
PROPERTIES: Properties = (
    ("repeatable", {}),
    ("batch_order", {"rows": ROWS, "result": "same"}),
    ("doubled_batch", {"rows": ROWS}),
    ("padding", {"columns": {**dict.fromkeys(TOKENS, -3.0), "mask": 0}, "result": "same"}),
    ("padding", {"columns": {**dict.fromkeys(TOKENS, "nan"), "mask": 0}, "result": "same"}),
    (
        "unchanged_by_shift",
        {"together": TOKENS, "hint": "a number added to all log-probabilities must change nothing"},
    ),
    *matter(*ROWS),
    ("depends_on_number", {"name": "kl_coef", "values": [0.0, 1.0]}),
    ("depends_on_number", {"name": "clip_eps", "values": [0.05, 0.5]}),
    ("depends_on_number", {"name": "clip_eps_high", "values": [0.05, 0.5]}),
    ("gradient_reaches", {}),
    ("finite_when_huge", {"inputs": ["advantages"], "factor": 1e4}),
)


# ---------------------------------------------------------------- group_advantages
def group(rewards: torch.Tensor, size: int, **rest: Any) -> dict[str, Any]:
    """The arguments of `group_advantages`."""
    return {"rewards": rewards, "group_size": size, **rest}


def advantage_cases() -> list[Given]:
    """Groups of every size, with equal and unequal rewards."""
    two_by_two, rare = row(0.0, 1.0, 10.0, 11.5), row(0.0, 0.0, 0.0, 1.0)
    six = noise(1, 6, scale=2.0)
    return [
        Given("one group of two", group(row(0.0, 1.0), 2)),
        Given("as many groups as siblings", group(two_by_two, 2)),
        Given("one success in four", group(rare, 4)),
        Given("two groups of three", group(six, 3)),
        Given("three groups of two", group(six, 2)),
        Given("a group of equal rewards", group(row(1.0, 1.0, 1.0, 1.0), 4)),
        Given("a flat group beside another", group(row(2.0, 2.0, 0.0, 1.0), 2)),
        Given("without the deviation", group(two_by_two, 2, scale_by_std=False)),
        Given("equal rewards without the deviation", group(row(0.5, 0.5), 2, scale_by_std=False)),
        Given("a large eps", group(six, 3, eps=0.5)),
        Given("a large eps without the deviation", group(six, 3, scale_by_std=False, eps=0.5)),
        Given("rewards that hardly differ", group(row(0.0, 0.001, 0.002, 0.0), 4), tolerance=1e-4),
        Given("groups of one", group(row(1.0, -2.0), 1)),
        Given("rewards of ten thousand", group(row(1e4, -1e4, 0.0, 5000.0), 2)),
        Given("inputs that are not contiguous", group(noise(2, 6), 3), layout="sliced"),
        Given("inputs in bfloat16", in_bfloat16(group(row(0.5, 1.0, -2.0, 0.25), 2)), tolerance=2e-2),
    ]


@oracle(
    cases=advantage_cases,
    inputs={
        "group_size": {"kind": "group_size"},
        "rewards": {"kind": "normal", "shape": "N", "scale": 2.0},
        "scale_by_std": {"kind": "choice", "of": [True, False], "absent": 0.4},
        "eps": {"kind": "choice", "of": [1e-4, 0.1], "absent": 0.5},
    },
    optional=("scale_by_std", "eps"),
    properties=(
        ("repeatable", {}),
        ("batch_order", {"rows": ["rewards"], "result": "rows", "block": "group_size"}),
        ("rows_alone", {"rows": ["rewards"], "block": "group_size"}),
        ("groups_balance", {"size": "group_size"}),
        ("flat_gives_zero", {"name": "rewards"}),
        (
            "unchanged_by_shift",
            {"together": ["rewards"], "hint": "a number added to all rewards must change nothing"},
        ),
        *matter("rewards"),
        ("depends_on_number", {"name": "scale_by_std", "values": [True, False]}),
    ),
)
def group_advantages(
    rewards: torch.Tensor, group_size: int, scale_by_std: bool = True, eps: float = 1e-4
) -> torch.Tensor:
    """Shao et al., 2024, arXiv 2402.03300, section 4.1.2; without the division arXiv 2503.20783, eq. 2."""
    found = []
    values = [float(reward) for reward in rewards]
    for i, value in enumerate(values):
        start = i - i % group_size
        siblings = values[start : start + group_size]
        mean = math.fsum(siblings) / group_size
        squares = math.fsum((sibling - mean) ** 2 for sibling in siblings)
        deviation = math.sqrt(squares / (group_size - 1)) if group_size > 1 else 0.0
        found.append((value - mean) / (deviation + eps) if scale_by_std else value - mean)
    return torch.tensor(found, dtype=torch.float64)


# ---------------------------------------------------------------- grpo_loss
def surrogate(
    log_ratio: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    drift: torch.Tensor | None = None,
    clip: float = 0.2,
    kl: float = 0.0,
    **rest: Any,
) -> dict[str, Any]:
    """The arguments of the clipped losses, from log pi - log pi_old and log pi - log ref."""
    logprobs = -1.0 - torch.arange(log_ratio.numel()).view_as(log_ratio) * 0.07
    return {
        "logprobs": logprobs,
        "old_logprobs": logprobs - log_ratio,
        "ref_logprobs": logprobs - (torch.zeros_like(log_ratio) if drift is None else drift),
        "advantages": advantages,
        "mask": mask,
        "clip_eps": clip,
        "kl_coef": kl,
        **rest,
    }


def typical(seed: int, *lines: str, kl: float = 0.1, **rest: Any) -> dict[str, Any]:
    """Ratios and drifts of an update or two."""
    mask = flags(*lines)
    ratio, drift = (noise(seed + i, *mask.shape, scale=scale) for i, scale in ((0, 0.3), (1, 0.5)))
    return surrogate(ratio, noise(seed + 2, len(mask)), mask, drift=drift, kl=kl, **rest)


def hidden(given: dict[str, Any], rubbish: float) -> dict[str, Any]:
    """Rubbish in the log-probs of masked places."""
    return {**given, **{name: given[name].masked_fill(~given["mask"], rubbish) for name in TOKENS}}


def surrogate_cases() -> list[Given]:
    """Ratios on both sides of the clip, masks of every shape, with and without KL."""
    moves = rows([1.5, 0.5], [1.5, 0.5], [1.1, 0.95]).log()
    far = surrogate(rows([0.1, -0.1]), row(1.0), flags("11"))
    far = {**far, **{name: far[name] - 2000.0 for name in TOKENS}}
    halves = surrogate(rows([0.5, -0.5], [0.25, 0.0]), row(1.0, -0.5), flags("11", "10"), kl=0.5)
    even = {**typical(11, "111", "111"), "ref_logprobs": noise(14, 2, 3) - 1}
    return [
        Given("one token", surrogate(rows([0.1]), row(0.5), flags("1"))),
        Given(
            "no update yet, lengths 1 and 3",
            surrogate(torch.zeros(2, 3), row(1.0, -1.0), flags("100", "111")),
        ),
        Given(
            "moves beyond the clip, good and bad",
            surrogate(moves, row(1.0, -1.0, 0.5), flags("11", "11", "11")),
        ),
        Given(
            "two small moves of one response", surrogate(rows([0.1, 0.1]), row(1.0), flags("11"), clip=0.15)
        ),
        Given(
            "a higher upper clip",
            surrogate(moves, row(1.0, -1.0, 0.5), flags("11", "11", "10"), clip_eps_high=0.35),
        ),
        Given("KL alone", typical(4, "1110", "1000") | {"advantages": row(0.0, 0.0)}),
        Given("KL and surrogate, rows of unequal length", typical(7, "1111", "1100", "1000")),
        Given("equal lengths", even),
        Given("as many rows as positions", typical(15, "111", "110", "100")),
        Given("a response without tokens", typical(20, "110", "000", "111")),
        Given("no tokens at all", typical(25, "00", "00")),
        Given("masks that begin late", typical(30, "0110", "0011")),
        Given("very unlikely tokens", far, tolerance=1e-3),
        Given("NaN at masked places", hidden(typical(35, "110", "100"), math.nan), gradients=False),
        Given("infinity at masked places", hidden(typical(40, "110", "100"), -math.inf), gradients=False),
        Given("inputs that are not contiguous", typical(45, "1110", "1000"), layout="transposed"),
        Given("inputs in bfloat16", in_bfloat16(halves), tolerance=2e-2),
    ]


def clipped_gain(ratio: torch.Tensor, advantage: torch.Tensor, low: float, high: float) -> torch.Tensor:
    """PPO's pessimistic choice: the smaller of the plain and the clipped objective."""
    plain = ratio * advantage
    at = ratio.item()
    clipped = (low if at < low else high if at > high else ratio) * advantage
    return plain if plain.item() <= clipped.item() else clipped


@oracle(
    cases=surrogate_cases,
    inputs=INPUTS,
    gradients=("logprobs",),
    optional=("clip_eps_high",),
    properties=PROPERTIES,
)
def grpo_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    ref_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    clip_eps: float,
    kl_coef: float,
    clip_eps_high: float | None = None,
) -> torch.Tensor:
    """Shao et al., 2024, arXiv 2402.03300, eq. 3 and 4: within each response, then over responses.

    The upper clip of its own is that of arXiv 2503.14476, eq. 8.
    """
    high = clip_eps if clip_eps_high is None else clip_eps_high
    total = zero() + 0.0 * torch.nan_to_num(logprobs, 0.0, 0.0, 0.0).sum()
    for i in range(mask.shape[0]):
        per_token = []
        for t in range(mask.shape[1]):
            if bool(mask[i, t]):
                ratio = torch.exp(logprobs[i, t] - old_logprobs[i, t])
                gain = clipped_gain(ratio, advantages[i], 1 - clip_eps, 1 + high)
                inverse = torch.exp(ref_logprobs[i, t] - logprobs[i, t])  # pi_ref / pi
                divergence = inverse - torch.log(inverse) - 1
                per_token.append(kl_coef * divergence - gain)
        if per_token:
            total = total + sum(per_token, start=zero()) / len(per_token)
    return total / mask.shape[0]
