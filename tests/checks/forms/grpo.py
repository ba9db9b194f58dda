"""Other ways to write group_advantages and grpo_loss."""

import statistics

import torch


def group_advantages_by_view(rewards, group_size, scale_by_std=True, eps=1e-4):
    groups = rewards.float().reshape(-1, group_size)
    result = groups - groups.mean(1, keepdim=True)
    if scale_by_std and group_size > 1:
        result = result / (groups.std(1, keepdim=True) + eps)
    return result.flatten()


def group_advantages_by_repeating(rewards, group_size, scale_by_std=True, eps=1e-4):
    values = rewards.double()
    groups = values.reshape(-1, group_size)
    result = values - groups.mean(1).repeat_interleave(group_size)
    if scale_by_std:
        result = result / (groups.std(1).nan_to_num(0.0).repeat_interleave(group_size) + eps)
    return result.float()


def group_advantages_by_statistics(rewards, group_size, scale_by_std=True, eps=1e-4):
    values, result = rewards.tolist(), []
    for start in range(0, len(values), group_size):
        group = values[start : start + group_size]
        unit = statistics.stdev(group) + eps if scale_by_std and group_size > 1 else 1.0
        result += [(value - statistics.fmean(group)) / unit for value in group]
    return torch.tensor(result, dtype=torch.float32)


def group_advantages_by_chunks(rewards, group_size, scale_by_std=True, eps=1e-4):
    parts = []
    for group in rewards.float().split(group_size):
        centred = group - group.mean()
        deviation = (centred.square().sum() / max(group_size - 1, 1)).sqrt()
        parts.append(centred / (deviation + eps) if scale_by_std else centred)
    return torch.cat(parts)


def group_advantages_by_projection(rewards, group_size, scale_by_std=True, eps=1e-4):
    centring = torch.eye(group_size, dtype=torch.float64) - 1.0 / group_size
    centred = rewards.double().reshape(-1, group_size) @ centring
    if scale_by_std:
        centred = centred / (centred.norm(dim=1, keepdim=True) / max(group_size - 1, 1) ** 0.5 + eps)
    return centred.reshape(-1).float()


def parts(logprobs, old_logprobs, ref_logprobs, mask):
    """Log-ratio and drift, 0 where masked."""
    zero = torch.zeros(())
    return (
        torch.where(mask, logprobs.float() - old_logprobs.float(), zero),
        torch.where(mask, logprobs.float() - ref_logprobs.float(), zero),
    )


def grpo_loss_by_maximum(
    logprobs, old_logprobs, ref_logprobs, advantages, mask, clip_eps, kl_coef, clip_eps_high=None
):
    log_ratio, drift = parts(logprobs, old_logprobs, ref_logprobs, mask)
    ratio = torch.exp(log_ratio)
    high = 1 + (clip_eps_high if clip_eps_high is not None else clip_eps)
    minus = -advantages.float().unsqueeze(1)
    loss = torch.max(ratio * minus, torch.clamp(ratio, 1 - clip_eps, high) * minus)
    loss = loss + kl_coef * (torch.exp(-drift) + drift - 1)
    rows = (loss * mask).sum(-1) / mask.sum(-1).clamp(min=1)
    return rows.mean()


def grpo_loss_by_rows(
    logprobs, old_logprobs, ref_logprobs, advantages, mask, clip_eps, kl_coef, clip_eps_high=None
):
    high = clip_eps if clip_eps_high is None else clip_eps_high
    total = torch.zeros(()) + 0 * logprobs[mask].float().sum()
    for lp, old, ref, worth, keep in zip(logprobs, old_logprobs, ref_logprobs, advantages, mask, strict=True):
        if keep.any():
            lp, old, ref = lp[keep].float(), old[keep].float(), ref[keep].float()
            ratio = (lp - old).exp()
            gain = torch.min(ratio * worth.float(), ratio.clamp(1 - clip_eps, 1 + high) * worth.float())
            total = total + (kl_coef * ((ref - lp).exp() - (ref - lp) - 1) - gain).mean()
    return total / len(mask)


def grpo_loss_by_weights(
    logprobs, old_logprobs, ref_logprobs, advantages, mask, clip_eps, kl_coef, clip_eps_high=None
):
    log_ratio, drift = parts(logprobs, old_logprobs, ref_logprobs, mask)
    weights = mask / mask.sum(1, keepdim=True).clamp(min=1) / mask.shape[0]
    ratio, high = log_ratio.exp(), clip_eps if clip_eps_high is None else clip_eps_high
    worth = torch.where(mask, advantages.float()[:, None].expand(mask.shape), 0.0)
    gain = torch.minimum(ratio * worth, ratio.clip(1 - clip_eps, 1 + high) * worth)
    return torch.einsum("bt,bt->", weights, kl_coef * (torch.expm1(-drift) + drift) - gain)


def grpo_loss_by_sign(
    logprobs, old_logprobs, ref_logprobs, advantages, mask, clip_eps, kl_coef, clip_eps_high=None
):
    log_ratio, drift = parts(logprobs, old_logprobs, ref_logprobs, mask)
    ratio, high = log_ratio.exp(), 1 + (clip_eps if clip_eps_high is None else clip_eps_high)
    worth = advantages.float()[:, None].expand(mask.shape)
    bounded = torch.where(worth >= 0, ratio.clamp(max=high), ratio.clamp(min=1 - clip_eps))
    per_token = torch.where(mask, kl_coef * ((-drift).exp() - 1 + drift) - bounded * worth, 0.0)
    return (per_token.sum(1) / mask.sum(1).clamp(min=1)).mean()


def grpo_loss_in_float64(
    logprobs, old_logprobs, ref_logprobs, advantages, mask, clip_eps, kl_coef, clip_eps_high=None
):
    lp, old, ref = (x.double().masked_fill(~mask, 0.0) for x in (logprobs, old_logprobs, ref_logprobs))
    high, worth = clip_eps if clip_eps_high is None else clip_eps_high, advantages.double().unsqueeze(-1)
    ratio = (lp - old).exp()
    gain = torch.minimum(ratio * worth, ratio.clamp(1 - clip_eps, 1 + high) * worth)
    kl = (ref - lp).exp() - (ref - lp) - 1
    per_token = (kl_coef * kl - gain).masked_fill(~mask, 0.0)
    return (per_token.sum(1) / mask.sum(1).clamp(min=1)).mean().float()
