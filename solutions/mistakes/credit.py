"""What goes wrong in gae and whiten."""

import torch

from solutions.mistakes.base import mistake


# ---------------------------------------------------------------- gae
def backwards(rewards, values, mask, gamma, lam, *, carry=None, end=0.0, next_value=None):
    """The right recursion, with parts replaced: what is carried, the value at the end, the next value."""
    r, v = (torch.where(mask, x, 0.0).float() for x in (rewards, values))
    width, columns = r.shape[1], []
    following = torch.full((len(r),), end)
    advantage = torch.zeros(len(r))
    for t in reversed(range(width)):
        seen = next_value(v, t) if next_value else following
        step = r[:, t] + gamma * seen - v[:, t] + (gamma * lam if carry is None else carry) * advantage
        advantage = torch.where(mask[:, t], step, advantage)
        following = torch.where(mask[:, t], v[:, t], following)
        columns.append(torch.where(mask[:, t], step, 0.0))
    advantages = torch.stack(columns[::-1], dim=1)
    return advantages, torch.where(mask, advantages + v, 0.0)


def credit(name, hint):
    """A mistake of gae."""
    return mistake("gae", name, hint)


@credit("gae_missing_lambda", "The carried term has gamma only. Each step back costs gamma times lam.")
def carried_by_gamma(rewards, values, mask, gamma, lam):
    return backwards(rewards, values, mask, gamma, lam, carry=gamma)


@credit("gae_missing_lambda", "The carried term has lam only. Each step back costs gamma times lam.")
def carried_by_lambda(rewards, values, mask, gamma, lam):
    return backwards(rewards, values, mask, gamma, lam, carry=lam)


@credit("gae_not_carried", "Nothing is carried back: these are TD errors, GAE with lam = 0.")
def not_carried(rewards, values, mask, gamma, lam):
    return backwards(rewards, values, mask, gamma, lam, carry=0.0)


@credit(
    "gae_forward_recursion",
    "The sum runs from first to last, so credit flows forwards: start at the end.",
)
def forwards(rewards, values, mask, gamma, lam):
    r, v = (torch.where(mask, x, 0.0).float() for x in (rewards, values))
    after = torch.cat([torch.where(mask, values, 0.0).float()[:, 1:], torch.zeros(len(r), 1)], dim=1)
    delta, running, columns = r + gamma * after - v, torch.zeros(len(r)), []
    for t in range(r.shape[1]):
        running = torch.where(mask[:, t], delta[:, t] + gamma * lam * running, running)
        columns.append(torch.where(mask[:, t], running, 0.0))
    advantages = torch.stack(columns, dim=1)
    return advantages, torch.where(mask, advantages + v, 0.0)


@credit(
    "gae_off_by_one_value",
    "The next value stands in for the value itself: delta is r + gamma V(t+1) - V(t).",
)
def value_at_next(rewards, values, mask, gamma, lam):
    def own(v, t):
        return v[:, t]

    return backwards(rewards, values, mask, gamma, lam, next_value=own)


@credit(
    "gae_terminal_vs_truncated",
    "The end is bootstrapped with the last value. After the last token it is 0.",
)
def bootstrapped(rewards, values, mask, gamma, lam):
    v = torch.where(mask, values, 0.0).float()
    last = (torch.arange(mask.shape[1]) * mask).argmax(dim=1, keepdim=True)
    return backwards(
        rewards,
        values,
        mask,
        gamma,
        lam,
        end=0.0,
        next_value=lambda x, t: torch.where(
            t == last[:, 0], v.gather(1, last)[:, 0], x[:, min(t + 1, x.shape[1] - 1)]
        ),
    )


@credit("gae_no_values", "The values are left out: this is the discounted return, not the advantage.")
def no_values(rewards, values, mask, gamma, lam):
    advantages, _ = backwards(rewards, torch.zeros_like(values), mask, gamma, lam)
    return advantages, torch.where(mask, advantages + torch.where(mask, values, 0.0).float(), 0.0)


@credit("gae_value_sign", "The value of the token itself is subtracted, that of the next one added.")
def value_sign(rewards, values, mask, gamma, lam):
    advantages, _ = backwards(rewards, -values, mask, gamma, lam)
    return advantages, torch.where(mask, advantages + torch.where(mask, values, 0.0).float(), 0.0)


@credit("gae_returns_without_value", "Returns equal the advantages here. A return is advantage plus value.")
def returns_are_advantages(rewards, values, mask, gamma, lam):
    advantages, _ = backwards(rewards, values, mask, gamma, lam)
    return advantages, advantages


@credit(
    "returns_from_whitened_advantages",
    "Returns come from whitened advantages: compute them before whitening.",
)
def returns_whitened(rewards, values, mask, gamma, lam):
    advantages, _ = backwards(rewards, values, mask, gamma, lam)
    kept = advantages[mask]
    white = torch.where(mask, (advantages - kept.mean()) / (kept.std() + 1e-8), 0.0)
    return white, torch.where(mask, white + torch.where(mask, values, 0.0).float(), 0.0)


@credit("gae_swapped", "The two results are exchanged: first advantages, then returns.")
def swapped(rewards, values, mask, gamma, lam):
    return backwards(rewards, values, mask, gamma, lam)[::-1]


@credit("gae_one_result", "Only the advantages come back. Return (advantages, returns).")
def one_result(rewards, values, mask, gamma, lam):
    return backwards(rewards, values, mask, gamma, lam)[0]


@credit("mask_ignored", "The mask has no effect: padding has rewards and values here.")
def unmasked(rewards, values, mask, gamma, lam):
    return backwards(rewards, values, torch.ones_like(mask), gamma, lam)


@credit(
    "gae_returns_outside_mask",
    "Returns are not 0 outside the mask: the values of padding shine through.",
)
def returns_outside(rewards, values, mask, gamma, lam):
    advantages, _ = backwards(rewards, values, mask, gamma, lam)
    return advantages, advantages + values.float()


# ---------------------------------------------------------------- whiten
def white(name, hint):
    """A mistake of whiten: a function of the masked-in entries, and of all."""

    def enter(function):
        def whiten(x, mask):
            kept = x[mask].float()
            return torch.zeros(x.shape).masked_scatter(mask, function(kept, x.float()))

        mistake("whiten", name, hint)(whiten)
        return function

    return enter


def guarded(centred, unit):
    """Division where there is something to divide by."""
    few = len(centred) < 2 or bool((centred == centred[:1]).all())
    return torch.zeros_like(centred) if few else centred / unit


@white(
    "whiten_over_padding",
    "Mean and deviation include masked places: take them over the masked-in entries.",
)
def over_padding(kept, every):
    return guarded(kept - every.mean(), every.std())


@white("adv_ddof", "Values are off by sqrt(n/(n-1)): the unbiased deviation is asked.")
def biased(kept, every):
    return guarded(kept - kept.mean(), kept.std(correction=0))


@white("whiten_not_centred", "The mean is not subtracted.")
def not_centred(kept, every):
    return guarded(kept, kept.std())


@white("whiten_not_scaled", "Nothing is divided by the deviation.")
def not_scaled(kept, every):
    return guarded(kept - kept.mean(), 1.0)


@white("adv_variance_for_std", "The variance divides, not the deviation: a square root is missing.")
def by_variance(kept, every):
    return guarded(kept - kept.mean(), kept.var())


@white("whiten_shifted_back", "The mean is added again at the end. It has to be 0.")
def shifted_back(kept, every):
    return guarded(kept - kept.mean(), kept.std()) + (kept.mean() if len(kept) > 1 else 0.0)


@white("adv_flat_group_nan", "Equal entries, or one alone, give 0/0: the result is 0 there.")
def no_guard(kept, every):
    return (kept - kept.mean()) / kept.std()


@white(
    "whiten_single_entry",
    "One entry alone has no deviation: std of one number is NaN. The result is 0 there.",
)
def single_entry(kept, every):
    return (kept - kept.mean()) / (kept.std() + 1e-8)


@mistake(
    "whiten",
    "whiten_by_row",
    "Each row is whitened by itself. Take mean and deviation over all masked entries.",
)
def by_row(x, mask):
    result = torch.zeros(x.shape)
    for i in range(len(x)):
        kept = x[i][mask[i]].float()
        result[i][mask[i]] = guarded(kept - kept.mean(), kept.std()) if kept.dim() else kept
    return result


@mistake(
    "whiten",
    "whiten_padding_shifted",
    "Masked places hold minus the mean over the deviation. They have to be 0.",
)
def padding_shifted(x, mask):
    kept = x[mask].float()
    if len(kept) < 2 or bool((kept == kept[0]).all()):
        return torch.zeros(x.shape)
    return (torch.where(mask, x, 0.0).float() - kept.mean()) / kept.std()


@mistake(
    "whiten",
    "nan_survives_mask",
    "0 times NaN is NaN: select the masked entries instead of multiplying.",
)
def multiplied(x, mask):
    count = mask.sum()
    mean = (x * mask).float().sum() / count.clamp(min=1)
    centred = (x.float() - mean) * mask
    if count < 2 or not centred.any():
        return torch.zeros(x.shape) * mask
    return centred / (centred.square().sum() / (count - 1)).sqrt()
