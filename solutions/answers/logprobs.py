"""Lesson 00: which tokens count, and how likely the model finds them."""

import torch


def response_mask(prompt_lengths: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """Mark the response tokens of right-padded sequences.

    Args:
        prompt_lengths: (B,) number of prompt tokens in each row.
        attention_mask: (B, T), 1 on real tokens and 0 on padding.

    Returns:
        (B, T) bool, true on response tokens: after the prompt and not padding. Token ids play no part,
        so an end-of-turn token that shares its id with the padding is kept.
    """
    positions = torch.arange(attention_mask.shape[1], device=attention_mask.device)
    after_prompt = positions[None, :] >= prompt_lengths[:, None]
    return after_prompt & attention_mask.bool()


def token_logprobs(logits: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
    """Log-probability of every token given the tokens before it.

    Args:
        logits: (B, T, V); the logits at position t predict token t + 1.
        input_ids: (B, T).

    Returns:
        (B, T - 1) float32: entry t is log p(input_ids[:, t + 1] | input_ids[:, : t + 1]).
    """
    predictions = logits[:, :-1].float()
    targets = input_ids[:, 1:, None]
    chosen = predictions.gather(-1, targets).squeeze(-1)
    return chosen - torch.logsumexp(predictions, dim=-1)


def token_entropy(logits: torch.Tensor) -> torch.Tensor:
    """Entropy of the next-token distribution at every position.

    Args:
        logits: (B, T, V); entries of minus infinity mean probability zero.

    Returns:
        (B, T) float32 in nats, between 0 and log V: H = -sum_v p_v log p_v.
    """
    logprobs = torch.log_softmax(logits.float(), dim=-1)
    finite = logprobs.masked_fill(logprobs.isinf(), 0.0)  # p log p tends to 0 with p
    return -(logprobs.exp() * finite).sum(dim=-1)
