"""Lesson 10: what a head-to-head comparison is worth."""

from collections.abc import Sequence

import numpy as np

POINTS = {"win": 1.0, "tie": 0.5, "loss": 0.0}


def combine_orders(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """Turn verdicts from both presentation orders into one verdict a prompt.

    Args:
        first: "A" or "B" for each prompt, with the policy shown as A.
        second: "A" or "B" for each prompt, with the policy shown as B.

    Returns:
        "win", "loss" or "tie" a prompt, from the policy's side. A judge that contradicts itself when the
        order is swapped has shown no preference: a tie.

    Raises:
        ValueError: for lists of unequal length, or a verdict other than "A" or "B".
    """
    outcome = {("A", "B"): "win", ("B", "A"): "loss", ("A", "A"): "tie", ("B", "B"): "tie"}
    pairs = list(zip(first, second, strict=True))
    for pair in pairs:
        if pair not in outcome:  # an unreadable verdict is no tie: the caller leaves it out and counts it
            raise ValueError(f"a verdict is 'A' or 'B' in each order, not {pair}")
    return [outcome[pair] for pair in pairs]


def win_rate(verdicts: Sequence[str]) -> float:
    """Share of prompts won, with a tie counted as half a win.

    Args:
        verdicts: "win", "loss" or "tie", one a prompt.

    Returns:
        float in [0, 1]; 0.5 for no verdicts, as nothing was shown.
    """
    if not verdicts:
        return 0.5
    return sum(POINTS[verdict] for verdict in verdicts) / len(verdicts)


def bootstrap_ci(outcomes: Sequence[float], n_resamples: int = 2000, seed: int = 0) -> tuple[float, float]:
    """95 % percentile bootstrap interval of a mean (Efron and Tibshirani, 1993, chapter 13).

    Args:
        outcomes: one number a prompt, such as 1, 0.5 and 0 for win, tie and loss. Prompts are resampled
            with replacement.
        n_resamples: number of bootstrap samples.
        seed: of the resampling.

    Returns:
        (low, high): the 2.5th and 97.5th percentile of the resampled means.

    Raises:
        ValueError: without outcomes.
    """
    values = np.asarray(outcomes, dtype=float)
    if values.size == 0:
        raise ValueError("an interval needs at least one outcome")
    picks = np.random.default_rng(seed).integers(0, values.size, size=(n_resamples, values.size))
    low, high = np.percentile(values[picks].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)
