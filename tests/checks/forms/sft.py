"""Other ways to write sft_loss and perplexity."""

import math

import torch
import torch.nn.functional as F


def sft_loss_by_ignored_labels(logits, input_ids, mask):
    labels = input_ids.masked_fill(~mask, -100)[:, 1:]
    total = F.cross_entropy(logits[:, :-1].float().transpose(1, 2), labels, reduction="sum")
    return total / max(int((labels != -100).sum()), 1)


def sft_loss_by_where(logits, input_ids, mask):
    logprobs = logits.float().log_softmax(-1)[:, :-1].gather(-1, input_ids[:, 1:, None])[..., 0]
    return -torch.where(mask[:, 1:], logprobs, torch.zeros_like(logprobs)).sum() / mask[:, 1:].sum().clamp(1)


def sft_loss_by_tokens(logits, input_ids, mask):
    losses = []
    for b, t in mask.nonzero().tolist():
        if t:
            losses.append(F.cross_entropy(logits[b, t - 1].float(), input_ids[b, t]))
    return torch.stack(losses).mean() if losses else 0.0 * logits.float().sum()


def sft_loss_by_weights(logits, input_ids, mask):
    keep = mask[:, 1:]
    clean = torch.where(keep[..., None], logits[:, :-1].double(), 0.0)
    nll = clean.logsumexp(-1) - clean.gather(-1, input_ids[:, 1:, None]).squeeze(-1)
    return (nll * (keep / keep.sum().clamp(min=1))).sum().float()


def sft_loss_by_rows(logits, input_ids, mask):
    total, count = logits.new_zeros((), dtype=torch.float32), 0
    for row, ids, keep in zip(logits, input_ids, mask, strict=True):
        logprobs = row[:-1].float().log_softmax(-1)[torch.arange(len(ids) - 1), ids[1:]]
        total = total - logprobs.masked_fill(~keep[1:], 0.0).sum()
        count += int(keep[1:].sum())
    return total / (count or 1)


def perplexity_by_selection(logprobs, mask):
    kept = logprobs[mask].double()
    return (-kept.mean()).exp().item() if len(kept) else 1.0


def perplexity_by_math(logprobs, mask):
    total = float(logprobs.masked_fill(~mask, 0.0).double().sum())
    return float(torch.tensor(float(-total) / max(int(mask.sum()), 1), dtype=torch.float64).exp())


def perplexity_by_loops(logprobs, mask):
    nll = []
    for row, keep in zip(logprobs.tolist(), mask.tolist(), strict=True):
        nll += [-value for value, counts in zip(row, keep, strict=True) if counts]
    mean = sum(nll) / max(len(nll), 1)
    return math.exp(mean) if mean < 709 else math.inf


def perplexity_by_the_root_of_a_product(logprobs, mask):
    inverse = torch.where(mask, (-logprobs.double()).exp(), 1.0).prod()
    return float(inverse ** (1.0 / max(mask.sum().item(), 1)))


def perplexity_by_float32(logprobs, mask):
    nll = torch.where(mask, -logprobs.float(), 0.0)
    return torch.exp(nll.sum() / mask.sum().clamp(min=1)).item()
