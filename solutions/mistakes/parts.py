"""The clipped surrogate cut into right parts, to be put together wrongly."""

from collections.abc import Callable
from typing import Any

import torch

from solutions.mistakes.base import mistake


def wrong(name: str, hint: str) -> Callable[..., Any]:
    """A mistake of grpo_loss, written with short names."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        def grpo_loss(
            logprobs, old_logprobs, ref_logprobs, advantages, mask, clip_eps, kl_coef, clip_eps_high=None
        ):
            tensors = (logprobs, old_logprobs, ref_logprobs, advantages, mask)
            return function(*tensors, clip_eps, kl_coef, clip_eps_high)

        return mistake("grpo_loss", name, hint)(grpo_loss)

    return enter


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


def assembled(lp, old, ref, adv, mask, eps, kl_coef, high=None, *, gain=None, kl=None, reduce=two_means):
    """The whole loss with one part replaced."""
    ratio, drift = difference(lp, old, mask).exp(), difference(lp, ref, mask)
    objective = (gain or smaller_gain)(ratio, adv.float()[:, None], eps, high)
    return reduce(kl_coef * (kl or k3)(drift) - objective, mask)
