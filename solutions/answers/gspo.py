"""Lesson 09: group sequence policy optimisation."""

import torch


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
    """GRPO with one ratio a response (Zheng et al., 2025, arXiv 2507.18071, eq. 5 and 7).

    s = exp(mean over the response's tokens of log pi - log pi_old), and per response
    -min(s A, clip(s, 1 - clip_eps, 1 + clip_eps_high) A) + kl_coef * (mean over its tokens of k3).
    A clipped response has no gradient but the KL term's, which the paper leaves out: kl_coef 0.

    Args:
        logprobs: (N, T) under the policy, with gradient.
        old_logprobs, ref_logprobs: (N, T) under the sampling policy and the reference, without.
        advantages: (N,), one a response.
        mask: (N, T) bool. Masked-out places may hold NaN: select, do not multiply.
        clip_eps: how far s may fall below 1. The mean keeps it near 1: the paper has 3e-4 (and 4e-4 above),
            and GRPO's 0.2 hardly ever clips.
        clip_eps_high: how far it may rise above 1; `clip_eps` if None.
        kl_coef: weight of the KL term.

    Returns:
        Scalar float32: the mean over responses, of which one without tokens contributes 0.
    """
    keep = mask.bool()
    high = clip_eps if clip_eps_high is None else clip_eps_high
    lengths = keep.sum(dim=1)
    log_ratio = torch.where(keep, logprobs - old_logprobs, 0.0).float()
    drift = torch.where(keep, logprobs - ref_logprobs, 0.0).float()
    ratio = (log_ratio.sum(dim=1) / lengths.clamp(min=1)).exp()  # (N,), as are the advantages
    worth = torch.where(lengths > 0, advantages, 0.0).float()
    gain = torch.minimum(ratio * worth, ratio.clamp(1.0 - clip_eps, 1.0 + high) * worth)
    kl = (torch.expm1(-drift) + drift).sum(dim=1) / lengths.clamp(min=1)
    return (kl_coef * kl - gain).mean()
