"""Lesson 10: what a head-to-head comparison is worth."""

from collections.abc import Sequence

import numpy as np
from scipy.special import expit

POINTS = {"win": 1.0, "tie": 0.5, "loss": 0.0}
RIDGE = 1e-3  # of the length-controlled fit: a penalty of RIDGE / 2 * (theta^2 + phi^2)


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


def length_controlled_win_rate(
    preferences: Sequence[float], model_lengths: Sequence[float], baseline_lengths: Sequence[float]
) -> float:
    """Win rate that the model would have if its answers were as long as the baseline's.

    Dubois et al. (2024, arXiv 2404.04475) explain each preference by a logistic model with a term for the
    length difference, then take that term away:

        P(model preferred) = sigmoid(theta + phi * tanh(difference / std(difference)))

    where difference = model length - baseline length, one a prompt, and std is the population's. The answer
    is sigmoid(theta), which is what the model predicts at difference 0. AlpacaEval's own fit also has a term
    for the difficulty of each instruction, fitted over all models on its board; this one has not.

    Args:
        preferences: one a prompt, in [0, 1]: 1 the model's answer was preferred, 0 the baseline's, between
            them a tie or a judge's probability.
        model_lengths, baseline_lengths: lengths of both answers to each prompt, in any one unit.

    Returns:
        float in [0, 1]: the fit minimises the cross-entropy summed over prompts plus
        0.0005 * (theta^2 + phi^2). That ridge is far too weak to move a usual fit, and keeps theta and phi
        finite where the lengths tell wins and losses apart perfectly. Where all differences are equal there
        is no length term to fit, and the plain mean of the preferences is returned.

    Raises:
        ValueError: without preferences, for lists of unequal length, or a preference outside [0, 1].
    """
    wins = np.asarray(preferences, dtype=float)
    if not 0 < len(wins) == len(model_lengths) == len(baseline_lengths):
        raise ValueError("give one preference and two lengths for each prompt, and at least one prompt")
    if not ((wins >= 0) & (wins <= 1)).all():
        raise ValueError("preferences are numbers from 0 to 1; leave out the prompts without one")
    difference = np.asarray(model_lengths, dtype=float) - np.asarray(baseline_lengths, dtype=float)
    if np.ptp(difference) == 0:
        return float(wins.mean())
    features = np.stack([np.ones_like(difference), np.tanh(difference / difference.std())], axis=1)
    weights = np.zeros(2)  # theta, phi
    for _ in range(100):  # Newton's method; a convex loss of two variables takes about ten steps
        chances = expit(features @ weights)
        gradient = features.T @ (chances - wins) + RIDGE * weights
        curvature = features.T @ (features * (chances * (1 - chances))[:, None]) + RIDGE * np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        weights = weights - step
        if np.abs(step).max() < 1e-9:
            break
    return float(expit(weights[0]))
