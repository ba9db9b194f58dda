"""Oracles of lesson 06: how far the policy has moved."""

from __future__ import annotations

import math
from typing import Any

import torch

from solutions.oracles.base import Given, flags, in_bfloat16, matter, noise, oracle, rows, zero

PAIR = ["logprobs", "ref_logprobs", "mask"]


def drift(d: torch.Tensor, *lines: str, **rest: Any) -> dict[str, Any]:
    """The arguments of `approx_kl`, from log pi - log ref."""
    logprobs = -1.0 - torch.arange(d.numel()).view_as(d) * 0.07
    return {"logprobs": logprobs, "ref_logprobs": logprobs - d, "mask": flags(*lines), **rest}


def spoilt(given: dict[str, Any], rubbish: float) -> dict[str, Any]:
    """Rubbish at masked places."""
    return {**given, **{name: given[name].masked_fill(~given["mask"], rubbish) for name in PAIR[:2]}}


def kl_cases() -> list[Given]:
    """Each estimator on rows of unequal length."""
    uneven = noise(1, 2, 3, scale=0.5)
    square, mixed = noise(2, 3, 3, scale=0.5), rows([0.5, -0.8, 0.3], [-0.4, 0.2, 1.0])
    found = [
        Given("one token", drift(rows([0.5]), "1")),
        Given("a token that the reference likes better", drift(rows([-1.5]), "1")),
        Given("no estimator named", drift(uneven, "111", "100")),
        Given("a batch of three", drift(noise(3, 3, 4, scale=0.5), "1110", "1000", "1100")),
        Given("as many rows as positions", drift(square, "111", "110", "100")),
        Given("policy and reference agree", drift(torch.zeros(2, 2), "11", "10"), floor=1e-6),
        Given("a row without tokens", drift(uneven, "000", "110")),
        Given("no token at all", drift(uneven, "000", "000")),
        Given("NaN at masked places", spoilt(drift(uneven, "110", "100"), math.nan), gradients=False),
        Given("infinity at masked places", spoilt(drift(uneven, "110", "100"), -math.inf), gradients=False),
        Given("inputs that are not contiguous", drift(noise(4, 2, 4), "1110", "0100"), layout="transposed"),
        Given("inputs in bfloat16", in_bfloat16(drift(rows([0.5, -0.5]), "11")), tolerance=5e-2),
    ]
    for name in ("k1", "k2", "k3"):
        found.append(Given(f"{name}, rows of unequal length", drift(mixed, "111", "100", estimator=name)))
    return found


@oracle(
    cases=kl_cases,
    inputs={
        "logprobs": {"kind": "logprob", "shape": "BT"},
        "ref_logprobs": {"kind": "near", "of": "logprobs", "scale": 0.5},
        "mask": {"kind": "mask", "shape": "BT", "shortest": 0},
        "estimator": {"kind": "choice", "of": ["k1", "k2", "k3"], "absent": 0.3},
    },
    gradients=("logprobs",),
    optional=("estimator",),
    properties=(
        ("repeatable", {}),
        ("batch_order", {"rows": PAIR, "result": "same"}),
        ("doubled_batch", {"rows": PAIR}),
        ("padding", {"columns": {"logprobs": -3.0, "ref_logprobs": -1.0, "mask": 0}, "result": "same"}),
        ("padding", {"columns": {"logprobs": "nan", "ref_logprobs": "nan", "mask": 0}, "result": "same"}),
        (
            "unchanged_by_shift",
            {"together": PAIR[:2], "hint": "a number added to both log-probabilities must change nothing"},
        ),
        (
            "known_value",
            {
                "equate": {"ref_logprobs": "logprobs"},
                "value": 0.0,
                "hint": "the divergence of a policy from itself must be 0",
            },
        ),
        *matter(*PAIR),
        ("depends_on_number", {"name": "estimator", "values": ["k1", "k2"]}),
        ("depends_on_number", {"name": "estimator", "values": ["k2", "k3"]}),
        ("gradient_reaches", {}),
    ),
)
def approx_kl(
    logprobs: torch.Tensor, ref_logprobs: torch.Tensor, mask: torch.Tensor, estimator: str = "k3"
) -> torch.Tensor:
    """Schulman, 2020, "Approximating KL divergence", with r = ref / pi, token by token."""
    total, count = zero() + 0.0 * torch.nan_to_num(logprobs, 0.0, 0.0, 0.0).sum(), 0
    for i, t in mask.nonzero().tolist():
        log_r = ref_logprobs[i, t] - logprobs[i, t]
        each = {"k1": -log_r, "k2": log_r**2 / 2, "k3": torch.exp(log_r) - 1 - log_r}
        total, count = total + each[estimator], count + 1
    return total / max(count, 1)
