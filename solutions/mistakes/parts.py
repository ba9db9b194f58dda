"""The clipped surrogate cut into right parts, to be put together wrongly."""

from collections.abc import Callable
from typing import Any

import torch

from solutions.mistakes.base import mistake


def wrong(name: str, hint: str, *exercises: str) -> Callable[..., Any]:
    """A mistake of clipped losses on tokens (default: GRPO's and Dr.GRPO's), written with short names.

    The function gets the tensors, clip_eps, kl_coef, clip_eps_high, and the right reduction over tokens.
    """

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        for exercise in exercises or SIGNATURES:
            mistake(exercise, name, hint)(SIGNATURES[exercise](function))
        return function

    return enter


def as_grpo_loss(function: Callable[..., Any]) -> Callable[..., Any]:
    """With the signature of grpo_loss."""

    def grpo_loss(
        logprobs, old_logprobs, ref_logprobs, advantages, mask, clip_eps, kl_coef, clip_eps_high=None
    ):
        tensors = (logprobs, old_logprobs, ref_logprobs, advantages, mask)
        return function(*tensors, clip_eps, kl_coef, clip_eps_high, two_means)

    return grpo_loss


def as_dr_grpo_loss(function: Callable[..., Any]) -> Callable[..., Any]:
    """With the signature of dr_grpo_loss."""

    def dr_grpo_loss(
        logprobs,
        old_logprobs,
        ref_logprobs,
        advantages,
        mask,
        clip_eps,
        kl_coef,
        clip_eps_high=None,
        *,
        max_new_tokens,
    ):
        def constant(per_token, mask):
            return torch.where(mask, per_token, 0.0).sum(dim=1).mean() / max_new_tokens

        tensors = (logprobs, old_logprobs, ref_logprobs, advantages, mask)
        return function(*tensors, clip_eps, kl_coef, clip_eps_high, constant)

    return dr_grpo_loss


SIGNATURES = {"grpo_loss": as_grpo_loss, "dr_grpo_loss": as_dr_grpo_loss}


def difference(a, b, mask):
    """a - b on tokens, 0 elsewhere."""
    return torch.where(mask, a - b, 0.0).float()


def smaller_gain(ratio, worth, clip_eps, high=None):
    """The clipped objective."""
    upper = clip_eps if high is None else high
    return torch.minimum(ratio * worth, ratio.clamp(1 - clip_eps, 1 + upper) * worth)


def k3(drift):
    """Schulman's estimator."""
    return (-drift).exp() - 1 + drift


def two_means(per_token, mask):
    """Within each response, then over responses."""
    per_token = torch.where(mask, per_token, 0.0)
    return (per_token.sum(dim=1) / mask.sum(dim=1).clamp(min=1)).mean()


def assembled(
    lp, old, ref, adv, mask, eps, kl_coef, high, reduction, *, gain=smaller_gain, kl=k3, reduce=None
):
    """The whole loss with one part replaced."""
    ratio, drift = difference(lp, old, mask).exp(), difference(lp, ref, mask)
    objective = gain(ratio, adv.float()[:, None], eps, high)
    return (reduce or reduction)(kl_coef * kl(drift) - objective, mask)
