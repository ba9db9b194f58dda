"""Other ways to write kl_shaped_rewards, ppo_policy_loss and ppo_value_loss."""

import torch

ZERO = torch.zeros(())


def kl_shaped_rewards_by_rows(scores, logprobs, ref_logprobs, mask, kl_coef):
    result = torch.zeros(mask.shape)
    for i in range(len(mask)):
        places = mask[i].nonzero()[:, 0]
        if len(places):
            result[i, places] = -kl_coef * (logprobs[i, places].float() - ref_logprobs[i, places].float())
            result[i, places[-1]] += scores[i].float()
    return result


def kl_shaped_rewards_by_largest_position(scores, logprobs, ref_logprobs, mask, kl_coef):
    places = torch.arange(mask.shape[1])
    last = torch.where(mask, places, -1).amax(dim=1, keepdim=True)
    rewards = torch.where(mask, kl_coef * (ref_logprobs.float() - logprobs.float()), ZERO)
    return rewards + torch.where(places == last, scores.float()[:, None], ZERO)


def kl_shaped_rewards_by_scatter(scores, logprobs, ref_logprobs, mask, kl_coef):
    rewards = ((ref_logprobs.double() - logprobs.double()) * kl_coef).masked_fill(~mask, 0.0)
    last = mask.shape[1] - 1 - mask.flip(1).long().argmax(dim=1, keepdim=True)
    paid = (scores.double() * mask.any(dim=1)).unsqueeze(1)
    return rewards.scatter_add(1, last, paid).float()


def kl_shaped_rewards_by_selection(scores, logprobs, ref_logprobs, mask, kl_coef):
    rows, places = mask.nonzero(as_tuple=True)
    result = torch.zeros(mask.shape)
    result[rows, places] = kl_coef * (ref_logprobs[rows, places].float() - logprobs[rows, places].float())
    for row, place in dict(zip(rows.tolist(), places.tolist(), strict=True)).items():  # the last one stays
        result[row, place] = result[row, place] + scores[row].float()
    return result


def kl_shaped_rewards_by_one_hot(scores, logprobs, ref_logprobs, mask, kl_coef):
    behind = mask.flip(1).cumsum(dim=1).flip(1)  # tokens from here on
    charge = -kl_coef * torch.where(mask, logprobs.float() - ref_logprobs.float(), ZERO)
    return torch.einsum("b,bt->bt", scores.float(), ((behind == 1) & mask).float()) + charge


def ppo_policy_loss_by_maximum(logprobs, old_logprobs, advantages, mask, clip_eps, clip_eps_high=None):
    ratio = torch.where(mask, logprobs.float() - old_logprobs.float(), ZERO).exp()
    minus, high = (
        -torch.where(mask, advantages.float(), ZERO),
        clip_eps if clip_eps_high is None else clip_eps_high,
    )
    loss = torch.max(minus * ratio, minus * torch.clamp(ratio, 1 - clip_eps, 1 + high))
    return (loss * mask).sum() / mask.sum().clamp(min=1)


def ppo_policy_loss_by_selection(logprobs, old_logprobs, advantages, mask, clip_eps, clip_eps_high=None):
    ratio, worth = (logprobs[mask].float() - old_logprobs[mask].float()).exp(), advantages[mask].float()
    high = 1 + (clip_eps_high if clip_eps_high is not None else clip_eps)
    gain = torch.minimum(ratio * worth, ratio.clamp(1 - clip_eps, high) * worth)
    return -gain.sum() / max(gain.numel(), 1)


def ppo_policy_loss_by_sign(logprobs, old_logprobs, advantages, mask, clip_eps, clip_eps_high=None):
    ratio = torch.where(mask, logprobs.float() - old_logprobs.float(), ZERO).exp()
    high, worth = clip_eps if clip_eps_high is None else clip_eps_high, advantages.float()
    bounded = torch.where(worth >= 0, ratio.clamp(max=1 + high), ratio.clamp(min=1 - clip_eps))
    return -torch.where(mask, bounded * worth, ZERO).sum() / mask.sum().clamp(min=1)


def ppo_policy_loss_by_tokens(logprobs, old_logprobs, advantages, mask, clip_eps, clip_eps_high=None):
    losses, high = [0.0 * logprobs[mask].float().sum()], clip_eps if clip_eps_high is None else clip_eps_high
    for i, t in mask.nonzero().tolist():
        ratio, worth = (logprobs[i, t].float() - old_logprobs[i, t].float()).exp(), advantages[i, t].float()
        losses.append(-torch.minimum(ratio * worth, ratio.clamp(1 - clip_eps, 1 + high) * worth))
    return torch.stack(losses).sum() / max(len(losses) - 1, 1)


def ppo_policy_loss_in_float64(logprobs, old_logprobs, advantages, mask, clip_eps, clip_eps_high=None):
    lp, old, worth = (x.double().masked_fill(~mask, 0.0) for x in (logprobs, old_logprobs, advantages))
    ratio, high = (lp - old).exp(), clip_eps if clip_eps_high is None else clip_eps_high
    gain = torch.minimum(ratio * worth, ratio.clip(1 - clip_eps, 1 + high) * worth)
    return -torch.einsum("bt,bt->", gain, mask.double() / mask.sum().clamp(min=1)).float()


def ppo_value_loss_by_clamping_between(values, old_values, returns, mask, clip_eps):
    now, old, target = (torch.where(mask, x.float(), ZERO) for x in (values, old_values, returns))
    near = torch.clamp(now, old - clip_eps, old + clip_eps)
    return torch.max((now - target) ** 2, (near - target) ** 2).mul(mask).sum() / (
        2 * mask.sum().clamp(min=1)
    )


def ppo_value_loss_by_selection(values, old_values, returns, mask, clip_eps):
    now, old, target = (x[mask].float() for x in (values, old_values, returns))
    near = old + (now - old).clamp(-clip_eps, clip_eps)
    larger = torch.maximum((now - target).abs(), (near - target).abs())
    return larger.square().sum() / max(len(now), 1) / 2


def ppo_value_loss_by_tokens(values, old_values, returns, mask, clip_eps):
    losses = [0.0 * values[mask].float().sum()]
    for i, t in mask.nonzero().tolist():
        now, old, target = values[i, t].float(), old_values[i, t].float(), returns[i, t].float()
        near = old + torch.clamp(now - old, min=-clip_eps, max=clip_eps)
        losses.append(torch.maximum((now - target) ** 2, (near - target) ** 2) / 2)
    return torch.stack(losses).sum() / max(len(losses) - 1, 1)


def ppo_value_loss_by_where(values, old_values, returns, mask, clip_eps):
    now, old, target = (torch.where(mask, x.float(), ZERO) for x in (values, old_values, returns))
    plain, clipped = now - target, old + torch.clip(now - old, -clip_eps, clip_eps) - target
    error = torch.where(plain.square() >= clipped.square(), plain, clipped)
    return 0.5 * torch.where(mask, error * error, ZERO).sum() / mask.sum().clamp(min=1)


def ppo_value_loss_in_float64(values, old_values, returns, mask, clip_eps):
    now, old, target = (x.double().masked_fill(~mask, 0.0) for x in (values, old_values, returns))
    near = torch.minimum(torch.maximum(now, old - clip_eps), old + clip_eps)
    error = torch.maximum((now - target).square(), (near - target).square())
    return (torch.einsum("bt,bt->", mask.double(), error) / mask.sum().clamp(min=1) / 2).float()
