"""Oracles of lessons 08 and 09: GRPO without length bias, and with one ratio a response."""

from __future__ import annotations

from typing import Any

import torch

from solutions.oracles.base import Given, flags, noise, oracle, row, rows, zero
from solutions.oracles.grpo import INPUTS, PROPERTIES, clipped_gain, surrogate, surrogate_cases, typical


def divergence(logprob: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """GRPO's estimate, eq. 4 of arXiv 2402.03300, from pi_ref / pi."""
    inverse = torch.exp(reference - logprob)
    return inverse - torch.log(inverse) - 1


# ---------------------------------------------------------------- dr_grpo_loss
def constant_cases() -> list[Given]:
    """GRPO's, with budgets that no batch shows."""
    budgets = [1, 8, 4, 5, 7, 6, 16, 9, 10, 11, 3, 12, 13, 6, 5, 9, 8]
    found = []
    for given, budget in zip(surrogate_cases(), budgets, strict=True):
        arguments = {**given.arguments, "max_new_tokens": budget}
        found.append(Given(given.why, arguments, given.tolerance, given.floor, given.layout, given.gradients))
    return found


@oracle(
    cases=constant_cases,
    inputs={**INPUTS, "max_new_tokens": {"kind": "choice", "of": [8, 16, 100]}},
    gradients=("logprobs",),
    optional=("clip_eps_high", "max_new_tokens"),
    properties=(*PROPERTIES, ("depends_on_number", {"name": "max_new_tokens", "values": [8, 9]})),
)
def dr_grpo_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    ref_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    clip_eps: float,
    kl_coef: float,
    clip_eps_high: float | None = None,
    *,
    max_new_tokens: int,
) -> torch.Tensor:
    """Liu et al., 2025, arXiv 2503.20783, section 3.2: GRPO's tokens over a constant."""
    high = clip_eps if clip_eps_high is None else clip_eps_high
    total = zero() + 0.0 * torch.nan_to_num(logprobs, 0.0, 0.0, 0.0).sum()
    for i, t in mask.nonzero().tolist():
        ratio = torch.exp(logprobs[i, t] - old_logprobs[i, t])
        gain = clipped_gain(ratio, advantages[i], 1 - clip_eps, 1 + high)
        total = total + kl_coef * divergence(logprobs[i, t], ref_logprobs[i, t]) - gain
    return total / max_new_tokens / mask.shape[0]


# ---------------------------------------------------------------- gspo_loss
def sequence_cases() -> list[Given]:
    """GRPO's cases, and responses whose mean ratio is beyond the clip."""
    far = rows([0.5, 0.3, 0.4], [-0.6, -0.3, 0.0], [0.4, 0.5, 0.0], [-0.5, -0.4, -0.3])
    mask = flags("111", "110", "110", "111")
    clipped = surrogate(far, row(1.0, -1.0, -0.5, 0.7), mask)
    apart = surrogate(rows([-2.0, 2.0], [0.1, 0.3]), row(1.0, -0.5), flags("11", "11"), clip=0.4)
    return [
        *surrogate_cases(),
        Given("mean ratios beyond the clip", clipped),
        Given("a higher upper clip that is reached", {**clipped, "clip_eps_high": 0.3}),
        Given("moves that cancel within a response", apart),
        Given("ratios that nothing clips", typical(50, "1110", "1100", clip=5.0)),
        Given("a clip as small as the paper's", typical(55, "1110", "1100", clip=3e-4, clip_eps_high=4e-4)),
        Given("advantages of one size", {**clipped, "advantages": noise(9, 4) * 0 + 1.0}),
    ]


@oracle(
    cases=sequence_cases,
    inputs={**INPUTS, "old_logprobs": {"kind": "near", "of": "logprobs", "scale": 0.7}},
    gradients=("logprobs",),
    optional=("clip_eps_high",),
    properties=PROPERTIES,
)
def gspo_loss(
    logprobs: torch.Tensor,
    old_logprobs: torch.Tensor,
    ref_logprobs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    clip_eps: float,
    kl_coef: float,
    clip_eps_high: float | None = None,
) -> torch.Tensor:
    """Zheng et al., 2025, arXiv 2507.18071, eq. 5 and 7: a geometric mean of token ratios a response."""
    high = clip_eps if clip_eps_high is None else clip_eps_high
    total = zero() + 0.0 * torch.nan_to_num(logprobs, 0.0, 0.0, 0.0).sum()
    for i in range(mask.shape[0]):
        places: list[Any] = [t for t in range(mask.shape[1]) if bool(mask[i, t])]
        if not places:
            continue
        log_ratio, kl = zero(), zero()
        for t in places:
            log_ratio = log_ratio + (logprobs[i, t] - old_logprobs[i, t]) / len(places)
            kl = kl + divergence(logprobs[i, t], ref_logprobs[i, t]) / len(places)
        gain = clipped_gain(torch.exp(log_ratio), advantages[i], 1 - clip_eps, 1 + high)
        total = total + kl_coef * kl - gain
    return total / mask.shape[0]
