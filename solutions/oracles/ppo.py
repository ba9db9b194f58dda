"""Oracles of lesson 06: rewards a token, advantages, and the two losses of PPO."""

from __future__ import annotations

import math
from typing import Any

import torch

from solutions.oracles.base import (
    Given,
    flags,
    in_bfloat16,
    matter,
    noise,
    oracle,
    row,
    rows,
    zero,
)
from solutions.oracles.grpo import clipped_gain

RUBBISH = ("NaN at masked places", math.nan)


def spoilt(given: dict[str, Any], *names: str) -> dict[str, Any]:
    """NaN at masked places."""
    return {**given, **{name: given[name].masked_fill(~given["mask"], math.nan) for name in names}}


def unless_masked(x: torch.Tensor) -> torch.Tensor:
    """0 with a graph to `x`, so that gradients exist without tokens."""
    return zero() + 0.0 * torch.nan_to_num(x, 0.0, 0.0, 0.0).sum()


# ---------------------------------------------------------------- kl_shaped_rewards
def shaped(seed: int, *lines: str, kl: float = 0.1) -> dict[str, Any]:
    """The arguments of `kl_shaped_rewards`."""
    mask = flags(*lines)
    logprobs = -noise(seed, *mask.shape).abs()
    return {
        "scores": noise(seed + 1, len(mask)),
        "logprobs": logprobs,
        "ref_logprobs": logprobs + noise(seed + 2, *mask.shape, scale=0.4),
        "mask": mask,
        "kl_coef": kl,
    }


def shaped_cases() -> list[Given]:
    """Responses that end everywhere."""
    uneven = shaped(1, "1110", "1000")
    halves = {**shaped(60, "11", "10", kl=0.5), "logprobs": rows([-0.5, -1.0], [-2.0, -1.0])}
    halves |= {"ref_logprobs": rows([-1.0, -0.5], [-1.5, -1.0]), "scores": row(1.0, -0.5)}
    return [
        Given("one token", shaped(5, "1")),
        Given("rows of unequal length", uneven),
        Given("without KL", {**uneven, "kl_coef": 0.0}),
        Given("padding on the left", shaped(10, "0011", "0111")),
        Given("one token behind padding on the left", shaped(45, "0001", "0010")),
        Given("full rows", shaped(15, "111", "111")),
        Given("as many rows as positions", shaped(20, "111", "110", "100")),
        Given("a row without tokens", shaped(25, "000", "110")),
        Given("a large price", shaped(30, "1110", "1100", kl=2.0)),
        Given(RUBBISH[0], spoilt(shaped(35, "110", "100"), "logprobs", "ref_logprobs")),
        Given("inputs that are not contiguous", shaped(40, "1110", "1000"), layout="transposed"),
        Given("inputs in bfloat16", in_bfloat16(halves), tolerance=2e-2),
    ]


SHAPED_ROWS = ["scores", "logprobs", "ref_logprobs", "mask"]


@oracle(
    cases=shaped_cases,
    inputs={
        "scores": {"kind": "normal", "shape": "B"},
        "logprobs": {"kind": "logprob", "shape": "BT"},
        "ref_logprobs": {"kind": "near", "of": "logprobs", "scale": 0.5},
        "mask": {"kind": "mask", "shape": "BT", "shortest": 0},
        "kl_coef": {"kind": "choice", "of": [0.05, 0.2, 1.0]},
    },
    properties=(
        ("repeatable", {}),
        ("batch_order", {"rows": SHAPED_ROWS, "result": "rows"}),
        ("rows_alone", {"rows": SHAPED_ROWS}),
        (
            "padding",
            {"columns": {"logprobs": "nan", "ref_logprobs": "nan", "mask": 0}, "result": "columns"},
        ),
        (
            "unchanged_by_shift",
            {
                "together": ["logprobs", "ref_logprobs"],
                "hint": "a number added to both log-probabilities must change nothing",
            },
        ),
        *matter(*SHAPED_ROWS),
        ("depends_on_number", {"name": "kl_coef", "values": [0.1, 0.5]}),
    ),
)
def kl_shaped_rewards(
    scores: torch.Tensor,
    logprobs: torch.Tensor,
    ref_logprobs: torch.Tensor,
    mask: torch.Tensor,
    kl_coef: float,
) -> torch.Tensor:
    """Ziegler et al., 2019, arXiv 1909.08593, eq. 2, token by token; the score where the response ends."""
    result = torch.zeros(mask.shape, dtype=torch.float64)
    for i in range(len(mask)):
        places = [t for t in range(mask.shape[1]) if bool(mask[i, t])]
        for t in places:
            result[i, t] = kl_coef * (ref_logprobs[i, t] - logprobs[i, t])
        if places:
            result[i, places[-1]] += scores[i]
    return result


# ---------------------------------------------------------------- ppo_policy_loss
POLICY_ROWS = ["logprobs", "old_logprobs", "advantages", "mask"]


def moved(log_ratio: torch.Tensor, advantages: torch.Tensor, *lines: str, clip: float = 0.2, **rest: Any):
    """The arguments of `ppo_policy_loss`, from log-ratios."""
    logprobs = -1.0 - torch.arange(log_ratio.numel()).view_as(log_ratio) * 0.07
    given = {"logprobs": logprobs, "old_logprobs": logprobs - log_ratio, "advantages": advantages}
    return {**given, "mask": flags(*lines), "clip_eps": clip, **rest}


def updated(seed: int, *lines: str, **rest: Any) -> dict[str, Any]:
    """Ratios of an update or two."""
    shape = flags(*lines).shape
    return moved(noise(seed, *shape, scale=0.3), noise(seed + 1, *shape), *lines, **rest)


def policy_cases() -> list[Given]:
    """Ratios on both sides of the clip, one advantage a token."""
    sides = moved(rows([1.5, 0.5], [1.5, 0.5]).log(), rows([1.0, 1.0], [-1.0, -1.0]), "11", "11")
    far = updated(70, "11")
    far = {**far, "logprobs": far["logprobs"] - 2000.0, "old_logprobs": far["old_logprobs"] - 2000.0}
    halves = moved(rows([0.5, -0.5], [0.25, 0.0]), rows([1.0, -0.5], [2.0, 1.0]), "11", "10")
    return [
        Given("one token", moved(rows([0.1]), rows([0.5]), "1")),
        Given("moves beyond the clip, good and bad", sides),
        Given("a higher upper clip", {**sides, "clip_eps_high": 0.35}),
        Given("no update yet", moved(torch.zeros(2, 3), noise(75, 2, 3), "111", "100")),
        Given("rows of unequal length", updated(80, "1110", "1000")),
        Given("three rows", updated(85, "1100", "1110", "1000")),
        Given("as many rows as positions", updated(90, "111", "110", "100")),
        Given("a row without tokens", updated(95, "000", "110")),
        Given("no tokens at all", updated(100, "00", "00")),
        Given("very unlikely tokens", far, tolerance=1e-3),
        Given(
            RUBBISH[0],
            spoilt(updated(105, "110", "100"), "logprobs", "old_logprobs", "advantages"),
            gradients=False,
        ),
        Given("inputs that are not contiguous", updated(110, "1110", "1000"), layout="transposed"),
        Given("inputs in bfloat16", in_bfloat16(halves), tolerance=2e-2),
    ]


@oracle(
    cases=policy_cases,
    inputs={
        "logprobs": {"kind": "logprob", "shape": "BT"},
        "old_logprobs": {"kind": "near", "of": "logprobs", "scale": 0.3},
        "advantages": {"kind": "normal", "shape": "BT"},
        "mask": {"kind": "mask", "shape": "BT", "shortest": 0},
        "clip_eps": {"kind": "choice", "of": [0.1, 0.2, 0.3]},
        "clip_eps_high": {"kind": "choice", "of": [0.15, 0.28, 0.4], "absent": 0.5},
    },
    gradients=("logprobs",),
    optional=("clip_eps_high",),
    properties=(
        ("repeatable", {}),
        ("batch_order", {"rows": POLICY_ROWS, "result": "same"}),
        ("doubled_batch", {"rows": POLICY_ROWS}),
        ("padding", {"columns": {**dict.fromkeys(POLICY_ROWS[:3], -3.0), "mask": 0}, "result": "same"}),
        ("padding", {"columns": {**dict.fromkeys(POLICY_ROWS[:3], "nan"), "mask": 0}, "result": "same"}),
        (
            "unchanged_by_shift",
            {
                "together": POLICY_ROWS[:2],
                "hint": "a number added to both log-probabilities must change nothing",
            },
        ),
        *matter(*POLICY_ROWS),
        ("depends_on_number", {"name": "clip_eps", "values": [0.05, 0.5]}),
        ("depends_on_number", {"name": "clip_eps_high", "values": [0.05, 0.5]}),
        ("gradient_reaches", {}),
        ("finite_when_huge", {"inputs": ["advantages"], "factor": 1e4}),
    ),
)
def ppo_policy_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    clip_eps: float,
    clip_eps_high: float | None = None,
) -> torch.Tensor:
    """Schulman et al., 2017, arXiv 1707.06347, eq. 7, token by token."""
    high = clip_eps if clip_eps_high is None else clip_eps_high
    total, count = unless_masked(logprobs), 0
    for i, t in mask.nonzero().tolist():
        ratio = torch.exp(logprobs[i, t] - old_logprobs[i, t])
        total = total - clipped_gain(ratio, advantages[i, t], 1 - clip_eps, 1 + high)
        count += 1
    return total / max(count, 1)


# ---------------------------------------------------------------- ppo_value_loss
VALUE_ROWS = ["values", "old_values", "returns", "mask"]


def valued(seed: int, *lines: str, clip: float = 0.2) -> dict[str, Any]:
    """The arguments of `ppo_value_loss`: small and large steps, towards the return and away."""
    mask = flags(*lines)
    old = noise(seed, *mask.shape)
    values = old + noise(seed + 1, *mask.shape, scale=0.4)
    given = {"values": values, "old_values": old, "returns": noise(seed + 2, *mask.shape)}
    return {**given, "mask": mask, "clip_eps": clip}


def value_cases() -> list[Given]:
    """Steps within and beyond the clip."""
    one = {"values": rows([1.0]), "old_values": rows([0.0]), "returns": rows([1.0])}
    halves = {"values": rows([0.5, -1.0]), "old_values": rows([0.25, 0.5]), "returns": rows([1.5, 2.0])}
    return [
        Given("a right step that is too large", {**one, "mask": flags("1"), "clip_eps": 0.2}),
        Given("rows of unequal length", valued(1, "1110", "1000")),
        Given("three rows", valued(5, "1100", "1110", "1000")),
        Given("as many rows as positions", valued(10, "111", "110", "100")),
        Given("a wide clip", valued(15, "111", "110", clip=5.0)),
        Given("a narrow clip", valued(20, "111", "110", clip=0.01)),
        Given("a row without tokens", valued(25, "000", "110")),
        Given("no tokens at all", valued(30, "00", "00")),
        Given(RUBBISH[0], spoilt(valued(35, "110", "100"), *VALUE_ROWS[:3]), gradients=False),
        Given("inputs that are not contiguous", valued(40, "1110", "1000"), layout="transposed"),
        Given(
            "inputs in bfloat16",
            in_bfloat16({**halves, "mask": flags("11"), "clip_eps": 0.5}),
            tolerance=2e-2,
        ),
    ]


@oracle(
    cases=value_cases,
    inputs={
        "values": {"kind": "normal", "shape": "BT"},
        "old_values": {"kind": "near", "of": "values", "scale": 0.4},
        "returns": {"kind": "normal", "shape": "BT"},
        "mask": {"kind": "mask", "shape": "BT", "shortest": 0},
        "clip_eps": {"kind": "choice", "of": [0.1, 0.2, 0.5]},
    },
    gradients=("values",),
    properties=(
        ("repeatable", {}),
        ("batch_order", {"rows": VALUE_ROWS, "result": "same"}),
        ("doubled_batch", {"rows": VALUE_ROWS}),
        ("padding", {"columns": {**dict.fromkeys(VALUE_ROWS[:3], -3.0), "mask": 0}, "result": "same"}),
        ("padding", {"columns": {**dict.fromkeys(VALUE_ROWS[:3], "nan"), "mask": 0}, "result": "same"}),
        (
            "unchanged_by_shift",
            {"together": VALUE_ROWS[:3], "hint": "a number added to values and returns must change nothing"},
        ),
        *matter(*VALUE_ROWS),
        ("depends_on_number", {"name": "clip_eps", "values": [0.05, 0.8]}),
        ("gradient_reaches", {}),
        ("between", {"low": 0.0, "high": None}),
    ),
)
def ppo_value_loss(
    values: torch.Tensor,
    old_values: torch.Tensor,
    returns: torch.Tensor,
    mask: torch.Tensor,
    clip_eps: float,
) -> torch.Tensor:
    """The pessimistic squared error of OpenAI's baselines, token by token; halved."""
    total, count = unless_masked(values), 0
    for i, t in mask.nonzero().tolist():
        step = values[i, t] - old_values[i, t]
        at = step.item()
        near = old_values[i, t] + (-clip_eps if at < -clip_eps else clip_eps if at > clip_eps else step)
        plain, clipped = (values[i, t] - returns[i, t]) ** 2, (near - returns[i, t]) ** 2
        total = total + (plain if plain.item() >= clipped.item() else clipped)
        count += 1
    return total / max(count, 1) / 2
