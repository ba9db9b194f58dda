"""Lesson 11: two penalties that make a reward harder to game."""

from collections.abc import Sequence

import torch


def length_penalty(rewards: torch.Tensor, lengths: torch.Tensor, coef: float) -> torch.Tensor:
    """Take a price for every token off the reward (Singhal et al. 2023, arXiv 2310.03716, section 4).

    Args:
        rewards: (N,) rewards of N responses.
        lengths: (N,) their lengths in tokens.
        coef: price of one token, in units of the reward.

    Returns:
        (N,) float32: reward - coef * length.
    """
    return rewards.float() - coef * lengths.float()


def repetition_fraction(token_ids: Sequence[int], n: int = 3) -> float:
    """Share of a response's n-grams that occurred in it before.

    Args:
        token_ids: the tokens of one response.
        n: tokens of an n-gram; n-grams overlap, so that L tokens have L - n + 1 of them.

    Returns:
        float in [0, 1): 1 - distinct n-grams / n-grams; 0 for fewer than n tokens.
    """
    grams = [tuple(token_ids[i : i + n]) for i in range(len(token_ids) - n + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0
