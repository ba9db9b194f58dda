"""Other ways to write dr_grpo_loss and gspo_loss."""

import torch
from torch import logsumexp, where


def parts(logprobs, old_logprobs, ref_logprobs, mask):
    """Log-ratio and drift, 0 where masked."""
    zero = torch.zeros(())
    return (
        where(mask, logprobs.float() - old_logprobs.float(), zero),
        where(mask, logprobs.float() - ref_logprobs.float(), zero),
    )


def k3(drift):
    """Schulman's estimator."""
    return torch.exp(-drift) + drift - 1


def bounds(clip_eps, clip_eps_high):
    """The two clips."""
    return 1 - clip_eps, 1 + (clip_eps if clip_eps_high is None else clip_eps_high)


def dr_grpo_loss_by_flat_sum(
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
    log_ratio, drift = parts(logprobs, old_logprobs, ref_logprobs, mask)
    ratio, worth = log_ratio.exp(), advantages.float().unsqueeze(-1)
    gain = torch.min(ratio * worth, ratio.clamp(*bounds(clip_eps, clip_eps_high)) * worth)
    per_token = where(mask, kl_coef * k3(drift) - gain, torch.zeros(()))
    return per_token.sum() / (mask.shape[0] * max_new_tokens)


def dr_grpo_loss_by_selection(
    logprobs,
    old_logprobs,
    ref_logprobs,
    advantages,
    mask,
    clip_eps,
    kl_coef,
    clip_eps_high=None,
    max_new_tokens=1,
):
    lp, old, ref = (x[mask].float() for x in (logprobs, old_logprobs, ref_logprobs))
    worth, ratio = advantages.float()[mask.nonzero()[:, 0]], (lp - old).exp()
    gain = torch.minimum(ratio * worth, ratio.clamp(*bounds(clip_eps, clip_eps_high)) * worth)
    return (kl_coef * k3(lp - ref) - gain).sum() / max_new_tokens / len(mask)


def dr_grpo_loss_by_rows(
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
    rows = []
    for lp, old, ref, worth, keep in zip(logprobs, old_logprobs, ref_logprobs, advantages, mask, strict=True):
        lp, old, ref, worth = lp[keep].float(), old[keep].float(), ref[keep].float(), worth.float()
        ratio = (lp - old).exp()
        gain = torch.min(ratio * worth, ratio.clamp(*bounds(clip_eps, clip_eps_high)) * worth)
        rows.append((kl_coef * k3(lp - ref) - gain).sum())
    return torch.stack(rows).mean() / max_new_tokens


def dr_grpo_loss_by_maximum(
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
    log_ratio, drift = parts(logprobs, old_logprobs, ref_logprobs, mask)
    ratio, minus = log_ratio.exp(), -advantages.float()[:, None]
    loss = torch.maximum(ratio * minus, ratio.clamp(*bounds(clip_eps, clip_eps_high)) * minus)
    return ((loss + kl_coef * k3(drift)) * mask).sum(dim=1).div(max_new_tokens).mean()


def dr_grpo_loss_in_float64(
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
    lp, old, ref = (x.double().masked_fill(~mask, 0.0) for x in (logprobs, old_logprobs, ref_logprobs))
    ratio, worth = (lp - old).exp(), advantages.double()[:, None]
    gain = torch.minimum(ratio * worth, ratio.clamp(*bounds(clip_eps, clip_eps_high)) * worth)
    weights = mask.double() / max_new_tokens / mask.shape[0]
    return torch.einsum("bt,bt->", weights, kl_coef * k3(lp - ref) - gain).float()


def gspo_loss_by_roots(
    logprobs, old_logprobs, ref_logprobs, advantages, mask, clip_eps, kl_coef, clip_eps_high=None
):
    log_ratio, drift = parts(logprobs, old_logprobs, ref_logprobs, mask)
    count, some = mask.sum(-1).clamp(min=1), mask.any(-1)
    ratio = log_ratio.sum(-1).double().div(count).exp().float()
    worth = advantages.float() * some
    gain = torch.min(ratio * worth, ratio.clamp(*bounds(clip_eps, clip_eps_high)) * worth)
    return (kl_coef * k3(drift).sum(-1) / count - gain).mean()


def gspo_loss_by_rows(
    logprobs, old_logprobs, ref_logprobs, advantages, mask, clip_eps, kl_coef, clip_eps_high=None
):
    total = 0.0 * logprobs[mask].float().sum()
    for lp, old, ref, worth, keep in zip(logprobs, old_logprobs, ref_logprobs, advantages, mask, strict=True):
        if keep.any():
            lp, old, ref, worth = lp[keep].float(), old[keep].float(), ref[keep].float(), worth.float()
            ratio = (lp - old).mean().exp()
            gain = torch.min(ratio * worth, ratio.clamp(*bounds(clip_eps, clip_eps_high)) * worth)
            total = total + kl_coef * k3(lp - ref).mean() - gain
    return total / len(mask)


def gspo_loss_by_weights(
    logprobs, old_logprobs, ref_logprobs, advantages, mask, clip_eps, kl_coef, clip_eps_high=None
):
    log_ratio, drift = parts(logprobs, old_logprobs, ref_logprobs, mask)
    weights = mask / mask.sum(1, keepdim=True).clamp(min=1)
    ratio, kl = (
        torch.einsum("bt,bt->b", weights, log_ratio).exp(),
        torch.einsum("bt,bt->b", weights, k3(drift)),
    )
    minus = -where(mask.any(1), advantages.float(), torch.zeros(()))
    loss = torch.maximum(ratio * minus, ratio.clamp(*bounds(clip_eps, clip_eps_high)) * minus)
    return torch.mean(loss + kl_coef * kl)


def gspo_loss_by_sign(
    logprobs, old_logprobs, ref_logprobs, advantages, mask, clip_eps, kl_coef, clip_eps_high=None
):
    log_ratio, drift = parts(logprobs, old_logprobs, ref_logprobs, mask)
    count, (low, high) = mask.sum(1).clamp(min=1), bounds(clip_eps, clip_eps_high)
    ratio, worth = (log_ratio.sum(1) / count).exp(), advantages.float()
    bounded = where(worth >= 0, ratio.clamp(max=high), ratio.clamp(min=low))
    per_response = kl_coef * k3(drift).sum(1) / count - bounded * worth
    return where(mask.any(1), per_response, torch.zeros(())).sum() / mask.shape[0]


def gspo_loss_in_float64(
    logprobs, old_logprobs, ref_logprobs, advantages, mask, clip_eps, kl_coef, clip_eps_high=None
):
    lp, old, ref = (x.double().masked_fill(~mask, 0.0) for x in (logprobs, old_logprobs, ref_logprobs))
    count = mask.sum(1).clamp(min=1)
    mean = (lp.sum(1) - old.sum(1)) / count
    ratio = logsumexp(mean[:, None], dim=1).exp()
    worth = advantages.double().masked_fill(~mask.any(1), 0.0)
    gain = torch.minimum(ratio * worth, ratio.clamp(*bounds(clip_eps, clip_eps_high)) * worth)
    return (kl_coef * k3(lp - ref).sum(1) / count - gain).mean().float()
