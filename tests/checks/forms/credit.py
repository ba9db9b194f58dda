"""Other ways to write gae and whiten."""

import torch


def gae_by_rows(rewards, values, mask, gamma, lam):
    advantages, returns = torch.zeros(mask.shape), torch.zeros(mask.shape)
    for i, keep in enumerate(mask):
        places, running, following = keep.nonzero()[:, 0].tolist(), 0.0, 0.0
        for t in reversed(places):
            value = float(values[i, t])
            running = float(rewards[i, t]) + gamma * following - value + gamma * lam * running
            following, advantages[i, t], returns[i, t] = value, running, running + value
    return advantages, returns


def gae_by_powers(rewards, values, mask, gamma, lam):
    advantages, returns = torch.zeros(mask.shape), torch.zeros(mask.shape)
    for i, keep in enumerate(mask):
        r, v = rewards[i][keep].double(), values[i][keep].double()
        delta = r + gamma * torch.cat([v[1:], v.new_zeros(1)])[: len(v)] - v
        steps = torch.arange(len(v))
        weights = torch.triu((gamma * lam) ** (steps[None] - steps[:, None]).clamp(min=0).double())
        advantages[i, keep] = (weights @ delta).float()
        returns[i, keep] = (weights @ delta + v).float()
    return advantages, returns


def gae_by_returns(rewards, values, mask, gamma, lam):
    returns = torch.zeros(mask.shape)
    v = torch.where(mask, values.float(), 0.0)
    ahead_return, ahead_value = torch.zeros(len(mask)), torch.zeros(len(mask))
    for t in range(mask.shape[1] - 1, -1, -1):
        mixed = rewards[:, t].float() + gamma * ((1 - lam) * ahead_value + lam * ahead_return)
        returns[:, t] = torch.where(mask[:, t], mixed, torch.zeros(()))
        ahead_return = torch.where(mask[:, t], mixed, ahead_return)
        ahead_value = torch.where(mask[:, t], v[:, t], ahead_value)
    return returns - v, returns


def gae_by_lists(rewards, values, mask, gamma, lam):
    columns = []
    running = following = torch.zeros(len(mask))
    triples = zip(rewards.float().unbind(1), values.float().unbind(1), mask.unbind(1), strict=True)
    for r, v, keep in reversed(list(triples)):
        step = r - v + gamma * (following + lam * running)
        running, following = torch.where(keep, step, running), torch.where(keep, v, following)
        columns.insert(0, torch.stack([torch.where(keep, x, torch.zeros(())) for x in (step, step + v)]))
    advantages, returns = torch.stack(columns, dim=-1)
    return advantages, returns


def gae_in_float64(rewards, values, mask, gamma, lam):
    r, v = (x.double().masked_fill(~mask, 0.0) for x in (rewards, values))
    advantages = torch.zeros_like(r)
    for i in range(len(r)):
        places = mask[i].nonzero()[:, 0].tolist()
        for t, after in zip(reversed(places), [None, *reversed(places)], strict=False):
            later = 0.0 if after is None else gamma * v[i, after] + gamma * lam * advantages[i, after]
            advantages[i, t] = r[i, t] - v[i, t] + later
    return advantages.float(), (advantages + v).float()


def whiten_by_where(x, mask):
    kept = x[mask].float()
    unit = kept.std() if len(kept) > 1 and kept.std() > 0 else 1.0
    return torch.where(mask, (x.float() - kept.mean()) / unit, 0.0)


def whiten_by_sums(x, mask):
    clean, count = torch.where(mask, x.double(), 0.0), mask.sum()
    centred = torch.where(mask, clean - clean.sum() / count.clamp(min=1), 0.0)
    variance = centred.square().sum() / (count - 1).clamp(min=1)
    return (centred / variance.sqrt().clamp(min=1e-12)).float()


def whiten_by_assignment(x, mask):
    result, kept = torch.zeros(x.shape), x[mask].double()
    if kept.numel() > 1:
        result[mask] = ((kept - kept.mean()) * (kept.var() + 1e-12).rsqrt()).float()
    return result


def whiten_by_normalising(x, mask):
    kept = x[mask].double()
    centred = kept - kept.mean() if len(kept) else kept
    scaled = torch.nn.functional.normalize(centred, dim=0) * max(len(kept) - 1, 0) ** 0.5
    return torch.zeros(x.shape).masked_scatter(mask, scaled.float())


def whiten_by_python(x, mask):
    import statistics

    kept = x[mask].tolist()
    unit = (statistics.stdev(kept) if len(kept) > 1 else 0.0) or 1.0
    values = [(value - statistics.fmean(kept)) / unit for value in kept]
    return torch.zeros(x.shape).masked_scatter(mask, torch.tensor(values, dtype=torch.float32))
