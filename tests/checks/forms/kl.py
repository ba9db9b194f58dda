"""Other ways to write approx_kl and token_entropy."""

import torch
from torch.distributions import Categorical


def approx_kl_by_selection(logprobs, ref_logprobs, mask, estimator="k3"):
    d = logprobs[mask].float() - ref_logprobs[mask].float()
    each = {"k1": d, "k2": d**2 / 2, "k3": torch.exp(-d) - 1 + d}[estimator]
    return each.sum() / max(len(each), 1)


def approx_kl_by_ratio(logprobs, ref_logprobs, mask, estimator="k3"):
    log_r = torch.where(mask, ref_logprobs.float() - logprobs.float(), torch.zeros(()))
    if estimator == "k1":
        each = -log_r
    elif estimator == "k2":
        each = log_r * log_r * 0.5
    else:
        each = (log_r.exp() - 1) - log_r
    return torch.where(mask, each, torch.zeros(())).sum() / mask.sum().clamp(min=1)


def approx_kl_by_tokens(logprobs, ref_logprobs, mask, estimator="k3"):
    total, count = 0.0 * logprobs[mask].float().sum(), 0
    for i, t in mask.nonzero().tolist():
        d = logprobs[i, t].float() - ref_logprobs[i, t].float()
        total = total + (
            d if estimator == "k1" else d.square() / 2 if estimator == "k2" else torch.expm1(-d) + d
        )
        count += 1
    return total / (count or 1)


def approx_kl_by_weights(logprobs, ref_logprobs, mask, estimator="k3"):
    d = logprobs.double().masked_fill(~mask, 0.0) - ref_logprobs.double().masked_fill(~mask, 0.0)
    each = [d, 0.5 * d.pow(2), torch.exp(-d) + d - 1]["k1 k2 k3".split().index(estimator)]
    return torch.einsum("bt,bt->", mask / mask.sum().clamp(min=1), each.float())


def approx_kl_in_float64(logprobs, ref_logprobs, mask, estimator="k3"):
    d = torch.where(mask, logprobs.double() - ref_logprobs.double(), 0.0)
    functions = {"k1": lambda x: x, "k2": lambda x: x.square() / 2, "k3": lambda x: torch.expm1(-x) + x}
    return (functions[estimator](d).sum() / mask.sum().clamp(min=1)).float()


def token_entropy_by_categorical(logits):
    logp = logits.float().log_softmax(-1).clamp(min=-1e4)
    return Categorical(logits=logp).entropy()


def token_entropy_by_logsumexp(logits):
    scores = logits.float()
    p = scores.softmax(-1)
    return scores.logsumexp(-1) - (p * scores.masked_fill(scores.isinf(), 0.0)).sum(-1)


def token_entropy_by_xlogy(logits):
    p = logits.float().softmax(-1)
    return -torch.where(p > 0, p * torch.where(p > 0, p, 1.0).log(), 0.0).sum(dim=2)


def token_entropy_by_rows(logits):
    lines = []
    for row in logits.float():
        logp = row.log_softmax(-1)
        logp = torch.where(logp.isinf(), torch.zeros_like(logp), logp)
        lines.append(-torch.einsum("tv,tv->t", row.softmax(-1), logp))
    return torch.stack(lines)


def token_entropy_in_float64(logits):
    logp = logits.double() - logits.double().logsumexp(-1, keepdim=True)
    return -(logp.exp() * logp.clamp(min=-1e5)).sum(-1).float()
