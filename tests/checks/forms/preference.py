"""Other ways to write dpo_loss."""

import torch
import torch.nn.functional as F


def dpo_loss_by_softplus(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    policy = policy_chosen.float() - policy_rejected.float()
    reference = ref_chosen.float() - ref_rejected.float()
    return F.softplus(beta * (reference - policy)).mean()


def dpo_loss_by_implicit_rewards(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    chosen = beta * (policy_chosen.double() - ref_chosen.double())
    rejected = beta * (policy_rejected.double() - ref_rejected.double())
    labels = torch.zeros(len(chosen), dtype=torch.long)
    return F.cross_entropy(torch.stack([chosen, rejected], dim=1), labels).float()


def dpo_loss_by_pairs(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    total = 0.0
    for pc, pr, rc, rr in zip(policy_chosen, policy_rejected, ref_chosen, ref_rejected, strict=True):
        total = total - F.logsigmoid(beta * ((pc.float() - rc.float()) - (pr.float() - rr.float())))
    return total / policy_chosen.shape[0]


def dpo_loss_by_einsum(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    terms = torch.stack([policy_chosen, policy_rejected, ref_chosen, ref_rejected]).float()
    gap = torch.einsum("k,kb->b", torch.tensor([1.0, -1.0, -1.0, 1.0]), terms)
    return -torch.mean(F.logsigmoid(gap * beta))


def dpo_loss_by_labels(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    gap = (policy_chosen.float() + ref_rejected.float()) - (policy_rejected.float() + ref_chosen.float())
    return F.binary_cross_entropy_with_logits(beta * gap, torch.ones_like(gap))
