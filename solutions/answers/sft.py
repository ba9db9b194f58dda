"""Lesson 01: supervised fine-tuning."""

import math

import torch


def sft_loss(logits: torch.Tensor, input_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean negative log-likelihood over all response tokens of the batch.

    Args:
        logits: (B, T, V); the logits at position t predict token t + 1.
        input_ids: (B, T).
        mask: (B, T) bool, true on the tokens to learn. The first token of a row has no prediction.

    Returns:
        Scalar float32. Token-weighted: every masked token of the batch counts the same, whatever the
        length of its row. 0 if no token is masked.
    """
    predictions = logits[:, :-1].float()
    targets = input_ids[:, 1:]
    learn = mask[:, 1:].bool()
    chosen = predictions.gather(-1, targets[..., None]).squeeze(-1)
    nll = torch.logsumexp(predictions, dim=-1) - chosen
    total = torch.where(learn, nll, 0.0).sum()
    return total / learn.sum().clamp(min=1)


def perplexity(logprobs: torch.Tensor, mask: torch.Tensor) -> float:
    """Exponential of the mean negative log-likelihood per token.

    Args:
        logprobs: (B, T - 1) log-probabilities of tokens 1 .. T - 1.
        mask: (B, T - 1) bool, aligned with `logprobs`.

    Returns:
        float, at least 1: exp(-sum of masked log-probabilities / number of masked tokens). 1 if no token
        is masked.
    """
    keep = mask.bool()
    total = torch.where(keep, logprobs, 0.0).double().sum()
    return math.exp(-total.item() / max(int(keep.sum()), 1))
