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


def log_ratios(policy_chosen, policy_rejected, ref_chosen, ref_rejected):
    """Both log-ratios in float32."""
    return policy_chosen.float() - ref_chosen.float(), policy_rejected.float() - ref_rejected.float()


def ipo_loss_by_powers(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    chosen, rejected = log_ratios(policy_chosen, policy_rejected, ref_chosen, ref_rejected)
    return torch.mean((chosen - rejected - 0.5 / beta) ** 2)


def ipo_loss_by_mse(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    chosen, rejected = log_ratios(policy_chosen, policy_rejected, ref_chosen, ref_rejected)
    return F.mse_loss(chosen - rejected, torch.full_like(chosen, 1 / (2 * beta)))


def ipo_loss_by_margins(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    policy = policy_chosen.double() - policy_rejected.double()
    reference = ref_chosen.double() - ref_rejected.double()
    return (((2 * beta * (policy - reference) - 1) / (2 * beta)) ** 2).mean().float()


def ipo_loss_by_pairs(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    chosen, rejected = log_ratios(policy_chosen, policy_rejected, ref_chosen, ref_rejected)
    total = sum((h - 1 / (2 * beta)) * (h - 1 / (2 * beta)) for h in chosen - rejected)
    return total / len(chosen)


def ipo_loss_by_dot_product(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    chosen, rejected = log_ratios(policy_chosen, policy_rejected, ref_chosen, ref_rejected)
    distance = 1 / (2 * beta) - (chosen - rejected)
    return distance @ distance / distance.numel()


def aot_loss_by_descending(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    chosen, rejected = log_ratios(policy_chosen, policy_rejected, ref_chosen, ref_rejected)
    high, low = (x.sort(descending=True).values for x in (chosen, rejected))
    return -F.logsigmoid(beta * (high - low)).mean()


def aot_loss_by_argsort(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    chosen, rejected = log_ratios(policy_chosen, policy_rejected, ref_chosen, ref_rejected)
    return F.softplus(-beta * (chosen[chosen.argsort()] - rejected[rejected.argsort()])).mean()


def aot_loss_by_topk(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    chosen, rejected = log_ratios(policy_chosen, policy_rejected, ref_chosen, ref_rejected)
    count = len(chosen)
    gap = torch.topk(chosen, count).values - torch.topk(rejected, count).values
    return F.binary_cross_entropy_with_logits(beta * gap, torch.ones(count))


def aot_loss_by_python(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    chosen, rejected = log_ratios(policy_chosen, policy_rejected, ref_chosen, ref_rejected)
    good, bad = (sorted(x, key=float) for x in (chosen, rejected))
    return torch.stack([-F.logsigmoid(beta * (g - b)) for g, b in zip(good, bad, strict=True)]).mean()


def aot_loss_by_ranks(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    chosen, rejected = log_ratios(policy_chosen, policy_rejected, ref_chosen, ref_rejected)
    rank_of_chosen = chosen.argsort().argsort()
    opponent = rejected[rejected.argsort()][rank_of_chosen]  # of equal rank, in the order of the chosen
    return F.softplus(beta * (opponent - chosen)).double().mean().float()
