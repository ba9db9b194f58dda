"""Lesson 12: choosing among candidates."""

import torch


def best_of_n(scores: torch.Tensor) -> torch.Tensor:
    """Choose the candidate with the highest score for each prompt.

    Args:
        scores: (P, N) scores of N candidates for each of P prompts.

    Returns:
        (P,) int64: column of the best candidate, the first of equals. A score of NaN counts as -inf.
    """
    return scores.masked_fill(scores.isnan(), float("-inf")).argmax(dim=1)
