"""Other ways to write last_token_index, bradley_terry_loss and pair_accuracy."""

import torch
import torch.nn.functional as F


def last_token_index_by_maximum(attention_mask):
    places = torch.arange(attention_mask.shape[1])
    return torch.where(attention_mask == 1, places, 0).amax(dim=1)


def last_token_index_by_flipping(attention_mask):
    behind = attention_mask.flip(1).argmax(dim=1)
    return torch.where(attention_mask.any(dim=1), attention_mask.shape[1] - 1 - behind, 0)


def last_token_index_by_counting(attention_mask):
    return attention_mask.cumsum(dim=1).argmax(dim=1)


def last_token_index_by_rows(attention_mask):
    found = [row.nonzero() for row in attention_mask]
    return torch.tensor([int(places[-1]) if len(places) else 0 for places in found])


def last_token_index_by_sums(attention_mask):
    first = attention_mask.argmax(dim=1)
    return (first + attention_mask.sum(dim=1) - 1).clamp(min=0)


def bradley_terry_loss_by_softplus(chosen_rewards, rejected_rewards, margin=None):
    lead = 0.0 if margin is None else margin
    return F.softplus(rejected_rewards.float() + lead - chosen_rewards.float()).float().mean()


def bradley_terry_loss_by_cross_entropy(chosen_rewards, rejected_rewards, margin=None):
    chosen = chosen_rewards.float() - (0 if margin is None else margin)
    both = torch.stack([chosen.float(), rejected_rewards.float()], dim=1)
    return F.cross_entropy(both, torch.zeros(len(both), dtype=torch.long))


def bradley_terry_loss_by_binary_cross_entropy(chosen_rewards, rejected_rewards, margin=0.0):
    gap = (chosen_rewards.double() - rejected_rewards.double() - margin).float()
    return F.binary_cross_entropy_with_logits(gap, torch.ones_like(gap))


def bradley_terry_loss_by_pairs(chosen_rewards, rejected_rewards, margin=None):
    margins = torch.as_tensor(0.0 if margin is None else margin).expand(len(chosen_rewards))
    losses = [
        -F.logsigmoid((c.float() - r.float() - m).float())
        for c, r, m in zip(chosen_rewards, rejected_rewards, margins, strict=True)
    ]
    return sum(losses) / len(losses)


def bradley_terry_loss_by_logaddexp(chosen_rewards, rejected_rewards, margin=None):
    gap = chosen_rewards.double() - rejected_rewards.double()
    if margin is not None:
        gap = gap - margin
    return torch.logaddexp(torch.zeros_like(gap), -gap).mean().to(torch.float32)


def pair_accuracy_by_counting(chosen_rewards, rejected_rewards):
    wins = sum(c > r for c, r in zip(chosen_rewards.tolist(), rejected_rewards.tolist(), strict=True))
    return wins / max(len(chosen_rewards), 1)


def pair_accuracy_by_signs(chosen_rewards, rejected_rewards):
    signs = torch.sign(chosen_rewards.double() - rejected_rewards.double())
    return float((signs == 1).sum()) / max(signs.numel(), 1)


def pair_accuracy_by_losses(chosen_rewards, rejected_rewards):
    if len(chosen_rewards) == 0:
        return 0.0
    return 1.0 - torch.le(chosen_rewards, rejected_rewards).float().mean().item()


def pair_accuracy_by_numpy(chosen_rewards, rejected_rewards):
    better = chosen_rewards.numpy() > rejected_rewards.numpy()
    return float(better.mean()) if better.size else 0.0


def pair_accuracy_by_maximum(chosen_rewards, rejected_rewards):
    both = torch.stack([rejected_rewards, chosen_rewards])  # argmax takes the first of equals
    return both.argmax(dim=0).float().sum().item() / max(both.shape[1], 1)
