"""Lessons 07 and 08: group-relative policy optimisation, with and without its length bias."""

import torch


def group_advantages(
    rewards: torch.Tensor, group_size: int, scale_by_std: bool = True, eps: float = 1e-4
) -> torch.Tensor:
    """How much better each response is than its siblings (Shao et al., 2024, arXiv 2402.03300, section 4.1).

    A_i = (r_i - mean of the group) / (std of the group + eps).

    Args:
        rewards: (N,), responses to the same prompt side by side; N is a multiple of `group_size`.
        group_size: G, responses a prompt.
        scale_by_std: divide by the unbiased standard deviation; Dr.GRPO (arXiv 2503.20783) does not.
        eps: keeps the division finite.

    Returns:
        (N,) float32, zero in a group of equal rewards (and in groups of one).
    """
    groups = rewards.float().view(-1, group_size)
    centred = groups - groups.mean(dim=1, keepdim=True)
    # A group of equal rewards is exactly zero, whatever rounding left of its mean.
    equal = (groups == groups[:, :1]).all(dim=1, keepdim=True)
    centred = centred.masked_fill(equal, 0.0)
    if scale_by_std and group_size > 1:
        centred = centred / (groups.std(dim=1, keepdim=True) + eps)
    return centred.reshape(-1)


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
    """GRPO's clipped surrogate with its KL term (Shao et al., 2024, arXiv 2402.03300, eq. 3 and 4).

    Per token, with rho = exp(log pi - log pi_old) and d = log pi - log ref:
    -min(rho A, clip(rho, 1 - clip_eps, 1 + clip_eps_high) A) + kl_coef * (exp(-d) - 1 + d).
    The mean is taken within each response, then over responses.

    Args:
        logprobs: (N, T) under the policy, with gradient.
        old_logprobs, ref_logprobs: (N, T) under the sampling policy and the reference, without.
        advantages: (N,), one a response.
        mask: (N, T) bool. Masked-out places may hold NaN: select, do not multiply.
        clip_eps: how far the ratio may fall below 1.
        clip_eps_high: how far it may rise above 1; `clip_eps` if None.
        kl_coef: weight of the KL term.

    Returns:
        Scalar float32. A response without tokens contributes 0 and still counts in the mean.
    """
    keep = mask.bool()
    high = clip_eps if clip_eps_high is None else clip_eps_high
    log_ratio = torch.where(keep, logprobs - old_logprobs, 0.0).float()
    drift = torch.where(keep, logprobs - ref_logprobs, 0.0).float()
    worth = advantages.float()[:, None]  # (N, 1): one advantage for all tokens of a response
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 - clip_eps, 1.0 + high)
    gain = torch.minimum(ratio * worth, clipped * worth)
    kl = torch.expm1(-drift) + drift
    per_token = torch.where(keep, kl_coef * kl - gain, 0.0)
    per_response = per_token.sum(dim=1) / keep.sum(dim=1).clamp(min=1)
    return per_response.mean()


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
    """GRPO without its length bias (Liu et al., 2025, arXiv 2503.20783, section 3).

    The token terms are GRPO's, -min(rho A, clip(rho) A) + kl_coef * k3. They are summed within each response
    and divided by a constant, where GRPO divides by the response's own length and so lets long bad answers
    off lightly. The advantages that belong to it are not divided by the group's standard deviation.

    Args:
        logprobs: (N, T) under the policy, with gradient.
        old_logprobs, ref_logprobs: (N, T) under the sampling policy and the reference, without.
        advantages: (N,), one a response.
        mask: (N, T) bool. Masked-out places may hold NaN: select, do not multiply.
        clip_eps: how far the ratio may fall below 1.
        clip_eps_high: how far it may rise above 1; `clip_eps` if None.
        kl_coef: weight of the KL term.
        max_new_tokens: the constant: the budget of a response, known before any batch is seen.

    Returns:
        Scalar float32: the mean over responses, of which one without tokens contributes 0.
    """
    keep = mask.bool()
    high = clip_eps if clip_eps_high is None else clip_eps_high
    log_ratio = torch.where(keep, logprobs - old_logprobs, 0.0).float()
    drift = torch.where(keep, logprobs - ref_logprobs, 0.0).float()
    worth = advantages.float()[:, None]  # (N, 1)
    ratio = log_ratio.exp()
    gain = torch.minimum(ratio * worth, ratio.clamp(1.0 - clip_eps, 1.0 + high) * worth)
    kl = torch.expm1(-drift) + drift
    per_token = torch.where(keep, kl_coef * kl - gain, 0.0)
    return (per_token.sum(dim=1) / max_new_tokens).mean()
