"""Oracles of lessons 03 to 05: direct preference optimisation, IPO and AOT."""

from __future__ import annotations

from typing import Any

import torch

from solutions.oracles.base import Given, Properties, in_bfloat16, matter, noise, oracle, row, softplus, zero

NAMES = ("policy_chosen", "policy_rejected", "ref_chosen", "ref_rejected")
INPUTS: dict[str, dict[str, Any]] = {
    "policy_chosen": {"kind": "normal", "shape": "B", "scale": 4.0, "mean": -20.0},
    "policy_rejected": {"kind": "normal", "shape": "B", "scale": 4.0, "mean": -20.0},
    "ref_chosen": {"kind": "near", "of": "policy_chosen", "scale": 2.0},
    "ref_rejected": {"kind": "near", "of": "policy_rejected", "scale": 2.0},
    "beta": {"kind": "choice", "of": [0.05, 0.1, 0.3, 1.0]},
}
ROWS = list(NAMES)


def pairs(*columns: Any, beta: float) -> dict[str, Any]:
    """The arguments of the four-argument losses."""
    return {**dict(zip(NAMES, columns, strict=True)), "beta": beta}


def drawn(seed: int, size: int, beta: float) -> dict[str, Any]:
    """Pairs of realistic size."""
    policy = [noise(seed + i, size, scale=5.0, mean=-20.0) for i in range(2)]
    reference = [noise(seed + 2 + i, size, scale=2.0) + policy[i] for i in range(2)]
    return pairs(*policy, *reference, beta=beta)


def cases() -> list[Given]:
    """Pairs by number, size and agreement with the reference."""
    agree = [row(-12.0, -30.0, -7.5), row(-15.0, -22.0, -7.0)]
    big, far = row(1e4, 0.0), row(-1e4, 0.0)
    halves = pairs(row(-8.0, -4.5), row(-6.0, -5.0), row(-9.0, -6.0), row(-5.0, -3.0), beta=0.5)
    return [
        Given("one pair", pairs(row(-10.0), row(-13.0), row(-11.0), row(-12.5), beta=0.1)),
        Given("two pairs", drawn(10, 2, 0.3)),
        Given("several pairs", drawn(20, 5, 0.1)),
        Given("policy and reference agree", pairs(*agree, *agree, beta=0.1)),
        Given("a large beta", drawn(30, 3, 5.0)),
        Given("a small beta", drawn(40, 3, 0.01)),
        Given("log-ratios of ten thousand", pairs(far, big, big, far, beta=1.0)),
        Given("inputs that are not contiguous", drawn(50, 4, 0.2), layout="sliced"),
        Given("inputs in bfloat16", in_bfloat16(halves), tolerance=2e-2),
    ]


def mean_over_pairs(losses: list[torch.Tensor]) -> torch.Tensor:
    """The mean of a list of scalars."""
    return sum(losses, start=zero()) / len(losses)


AT_REST = {"ref_chosen": "policy_chosen", "ref_rejected": "policy_rejected"}
SHARED: Properties = (
    ("repeatable", {}),
    ("batch_order", {"rows": ROWS, "result": "same"}),
    (
        "unchanged_by_shift",
        {
            "together": ["policy_chosen", "policy_rejected"],
            "hint": "a number added to both of the policy's log-probabilities must change nothing",
        },
    ),
    (
        "unchanged_by_shift",
        {
            "together": ["policy_rejected", "ref_rejected"],
            "hint": "a number added to both log-probabilities of the rejected answer must change nothing",
        },
    ),
    *matter(*ROWS),
    ("depends_on_number", {"name": "beta", "values": [0.1, 0.4]}),
    ("gradient_reaches", {}),
    ("finite_when_huge", {"inputs": ROWS, "factor": 1e3}),
    ("between", {"low": 0.0, "high": None}),
)
LOGISTIC: Properties = (
    (
        "known_value",
        {
            "equate": AT_REST,
            "value": 0.69314718,
            "hint": "where policy and reference agree the loss must be ln 2",
        },
    ),
    ("falls_with", {"name": "policy_chosen", "hint": "a likelier chosen answer must lower the loss"}),
)


@oracle(
    cases=cases,
    inputs=INPUTS,
    gradients=("policy_chosen", "policy_rejected"),
    properties=(*SHARED, *LOGISTIC, ("doubled_batch", {"rows": ROWS})),
)
def dpo_loss(
    policy_chosen: torch.Tensor,
    policy_rejected: torch.Tensor,
    ref_chosen: torch.Tensor,
    ref_rejected: torch.Tensor,
    beta: float,
) -> torch.Tensor:
    """Rafailov et al., 2023, arXiv 2305.18290, eq. 7: pair by pair, implicit rewards in a logistic model."""
    losses = []
    for i in range(len(policy_chosen)):
        reward_of_chosen = beta * (policy_chosen[i] - ref_chosen[i])
        reward_of_rejected = beta * (policy_rejected[i] - ref_rejected[i])
        losses.append(softplus(reward_of_rejected - reward_of_chosen))
    return mean_over_pairs(losses)


# ---------------------------------------------------------------- ipo_loss and aot_loss
@oracle(
    cases=cases,
    inputs=INPUTS,
    gradients=("policy_chosen", "policy_rejected"),
    properties=(*SHARED, ("doubled_batch", {"rows": ROWS})),
)
def ipo_loss(
    policy_chosen: torch.Tensor,
    policy_rejected: torch.Tensor,
    ref_chosen: torch.Tensor,
    ref_rejected: torch.Tensor,
    beta: float,
) -> torch.Tensor:
    """Azar et al., 2023, arXiv 2310.12036, eq. 17: the log of a ratio of ratios is regressed on 1/(2 tau)."""
    losses = []
    for i in range(len(policy_chosen)):
        odds = policy_chosen[i] + ref_rejected[i] - policy_rejected[i] - ref_chosen[i]
        losses.append((odds - 0.5 / beta) ** 2)
    return mean_over_pairs(losses)


def sorted_cases() -> list[Given]:
    """DPO's, and batches in which sorting matters in each of its ways."""
    mixed = pairs(row(-1.0, -5.0), row(-3.0, -4.0), row(-2.0, -2.0), row(-2.0, -5.0), beta=1.0)
    crossing = pairs(
        row(-4.0, -9.0, -6.0), row(-8.0, -2.0, -7.0), row(-5.0, -4.0, -9.0), row(-3.0, -6.0, -7.5), beta=0.4
    )
    return [
        *cases(),
        Given("pairs whose order differs from side to side", mixed),
        Given("three pairs out of order", crossing),
    ]


@oracle(
    cases=sorted_cases,
    inputs=INPUTS,
    gradients=("policy_chosen", "policy_rejected"),
    properties=(*SHARED, *LOGISTIC, ("doubled_batch", {"rows": ROWS}), ("sides_apart", {"rows": ROWS[::2]})),
)
def aot_loss(
    policy_chosen: torch.Tensor,
    policy_rejected: torch.Tensor,
    ref_chosen: torch.Tensor,
    ref_rejected: torch.Tensor,
    beta: float,
) -> torch.Tensor:
    """Melnyk et al., 2024, arXiv 2406.05882, section 3.2: quantile by quantile, by counting ranks."""
    good = [policy_chosen[i] - ref_chosen[i] for i in range(len(policy_chosen))]
    bad = [policy_rejected[i] - ref_rejected[i] for i in range(len(policy_rejected))]
    order_of_good = sorted(range(len(good)), key=lambda i: good[i].item())
    order_of_bad = sorted(range(len(bad)), key=lambda i: bad[i].item())
    places = zip(order_of_good, order_of_bad, strict=True)
    return mean_over_pairs([softplus(beta * (bad[j] - good[i])) for i, j in places])
