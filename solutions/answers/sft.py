"""Lesson 01: supervised fine-tuning."""

import torch


def sft_loss(logits: torch.Tensor, input_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean negative log-likelihood over all response tokens of the batch.

    Args:
        logits: (B, T, V); the logits at position t predict token t + 1.
        input_ids: (B, T).
        mask: (B, T) bool, true on the tokens to learn. The first token of a row has no prediction.
            Masked-out logits may hold NaN: select, do not multiply.

    Returns:
        Scalar float32. Token-weighted: every masked token of the batch counts the same, whatever the
        length of its row. 0 if no token is masked.
    """
    learn = mask[:, 1:].bool()
    # Picking the masked positions, (M, V), keeps what stands elsewhere out of the gradient too.
    predictions = logits[:, :-1][learn].float()
    targets = input_ids[:, 1:][learn]
    chosen = predictions.gather(-1, targets[:, None]).squeeze(-1)
    nll = torch.logsumexp(predictions, dim=-1) - chosen
    return nll.sum() / learn.sum().clamp(min=1)


def perplexity(logprobs: torch.Tensor, mask: torch.Tensor) -> float:
    """Exponential of the mean negative log-likelihood per token.

    Args:
        logprobs: (B, T - 1) log-probabilities of tokens 1 .. T - 1.
        mask: (B, T - 1) bool, aligned with `logprobs`. Masked-out places may hold NaN:
            select, do not multiply.

    Returns:
        float, at least 1: exp(-sum of masked log-probabilities / number of masked tokens). 1 if no token
        is masked, infinite beyond what float64 holds.
    """
    keep = mask.bool()
    total = torch.where(keep, logprobs, 0.0).double().sum()
    return (-total / keep.sum().clamp(min=1)).exp().item()
