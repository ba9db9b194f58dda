"""What runs in the place of another lesson's exercise, where a learner has not written that one yet.

Enough for curves, tables and grades to appear; none of it would pass as an answer. Measures that are one
line of a library are taken from there. `approx_kl` knows the plain mean of the log-ratio only: the column
`kl_k1` of a run is filled, the column `kl` stays empty until the learner's own function draws it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.stats
import torch


def last_token_index(mask: torch.Tensor) -> torch.Tensor:
    """Index of the last token, for the layouts this course builds: every row begins at column 0."""
    return (mask.long().sum(dim=1) - 1).clamp(min=0)


def pair_accuracy(chosen: torch.Tensor, rejected: torch.Tensor) -> float:
    """Share of positive margins."""
    margins = np.asarray(chosen.detach().double().cpu()) - np.asarray(rejected.detach().double().cpu())
    return float(np.count_nonzero(margins > 0) / max(margins.size, 1))


def approx_kl(
    logprobs: torch.Tensor, reference: torch.Tensor, mask: torch.Tensor, estimator: str = "k3"
) -> torch.Tensor:
    """The mean log-ratio for "k1", NaN for the other estimators, which are an exercise."""
    if estimator != "k1" or not mask.any():
        return torch.tensor(0.0 if estimator == "k1" else math.nan)
    return (logprobs[mask] - reference[mask]).float().mean()


def combine_orders(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """How often the policy's side was chosen in two orders, 0, 1 or 2 times, as a word."""
    words = ("loss", "tie", "win")
    return [words[int(a == "A") + int(b == "B")] for a, b in zip(first, second, strict=True)]


def win_rate(verdicts: Sequence[str]) -> float:
    """Mean number of points."""
    points = np.array([("loss", "tie", "win").index(word) / 2 for word in verdicts])
    return float(points.mean()) if points.size else 0.5


def bootstrap_ci(outcomes: Sequence[float], n_resamples: int = 2000, seed: int = 0) -> tuple[float, float]:
    """scipy's percentile bootstrap of the mean."""
    points = np.asarray(outcomes, dtype=float)
    if len(points) < 2 or (points == points[0]).all():
        return float(points.mean()), float(points.mean())
    interval = scipy.stats.bootstrap(
        (points,),
        np.mean,
        n_resamples=n_resamples,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    return float(interval.low), float(interval.high)


STAND_INS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (last_token_index, pair_accuracy, approx_kl, combine_orders, win_rate, bootstrap_ci)
}
