"""Lesson 06: how far the policy has moved, estimated from its own samples."""

import torch


def approx_kl(
    logprobs: torch.Tensor, ref_logprobs: torch.Tensor, mask: torch.Tensor, estimator: str = "k3"
) -> torch.Tensor:
    """Estimate KL(policy || reference) per token from tokens drawn from the policy (Schulman, 2020).

    With d = log pi - log ref: k1 = d (unbiased, may be negative), k2 = d^2 / 2 (biased, small variance),
    k3 = exp(-d) - 1 + d (unbiased and never negative).

    Args:
        logprobs, ref_logprobs: (B, T) log-probabilities of the sampled tokens.
        mask: (B, T) bool, true on response tokens.
        estimator: "k1", "k2" or "k3".

    Returns:
        Scalar float32: the mean over all masked tokens of the batch; 0 if there are none.

    Raises:
        ValueError: for another estimator.
    """
    keep = mask.bool()
    d = torch.where(keep, logprobs - ref_logprobs, 0.0).float()
    if estimator == "k1":
        per_token = d
    elif estimator == "k2":
        per_token = 0.5 * d.square()
    elif estimator == "k3":
        per_token = torch.expm1(-d) + d
    else:
        raise ValueError(f"estimator is 'k1', 'k2' or 'k3', not {estimator!r}")
    return per_token.sum() / keep.sum().clamp(min=1)
