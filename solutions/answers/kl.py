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
        mask: (B, T) bool, true on response tokens. Masked-out places may hold NaN: select, do not multiply.
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


def kl_shaped_rewards(
    scores: torch.Tensor,
    logprobs: torch.Tensor,
    ref_logprobs: torch.Tensor,
    mask: torch.Tensor,
    kl_coef: float,
) -> torch.Tensor:
    """Rewards a token: each is charged its own drift from the reference, the last also earns the score.

    r_t = -kl_coef (log pi - log ref), and the score on the last response token (Ziegler et al., 2019,
    arXiv 1909.08593, eq. 2, spread over the tokens).

    Args:
        scores: (B,), one a response.
        logprobs, ref_logprobs: (B, T) of the sampled tokens under the sampling policy and the reference.
        mask: (B, T) bool, true on response tokens; padding may be on either side.
        kl_coef: price of one nat.

    Returns:
        (B, T) float32, zeros outside the mask. With kl_coef 0 a row sums to its score, if it has a token.
    """
    keep = mask.bool()
    charge = torch.where(keep, kl_coef * (ref_logprobs - logprobs), 0.0).float()
    from_here = keep.long().flip(1).cumsum(1).flip(1)  # response tokens at or after each place
    is_last = keep & (from_here == 1)
    return torch.where(is_last, charge + scores.float()[:, None], charge)
