"""Oracles of lessons 10 and 12: verdicts, rates, intervals, length control, and choosing among candidates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize

from solutions.oracles.base import Given, matter, noise, oracle, rows

SEATS = {"kind": "words", "of": ["A", "B"]}
INF, NAN = math.inf, math.nan


# ---------------------------------------------------------------- combine_orders
def passes(first: str, second: str) -> dict[str, Any]:
    """The two passes, written as words such as "AAB"."""
    return {"first": list(first), "second": list(second)}


@oracle(
    cases=lambda: [
        Given("the policy is chosen in both seats", passes("A", "B")),
        Given("the opponent is chosen in both seats", passes("B", "A")),
        Given("seat A both times", passes("A", "A")),
        Given("seat B both times", passes("B", "B")),
        Given("a judge who always says A", passes("AAAA", "AAAA")),
        Given("a judge who always prefers the policy", passes("AAA", "BBB")),
        Given("all four in one list", passes("ABAB", "BAAB")),
        Given("more wins than losses", passes("AAABAB", "BBBABB")),
        Given("no prompts", passes("", "")),
    ],
    inputs={"first": SEATS, "second": SEATS},
    properties=(
        ("repeatable", {}),
        ("batch_order", {"rows": ["first", "second"], "result": "rows"}),
        *matter("first", "second"),
    ),
)
def combine_orders(first: Sequence[str], second: Sequence[str]) -> list[str]:
    """Count in how many of the two passes the policy's answer was chosen."""
    chosen = [int(a == "A") + int(b == "B") for a, b in zip(first, second, strict=True)]
    return ["win" if times == 2 else "loss" if times == 0 else "tie" for times in chosen]


# ---------------------------------------------------------------- win_rate
def verdicts(words: str) -> dict[str, Any]:
    """Verdicts from letters: w, l and t."""
    return {"verdicts": [{"w": "win", "l": "loss", "t": "tie"}[letter] for letter in words]}


@oracle(
    cases=lambda: [
        Given("one win", verdicts("w")),
        Given("one loss", verdicts("l")),
        Given("one tie", verdicts("t")),
        Given("ties alone", verdicts("tttt")),
        Given("three wins, one loss, six ties", verdicts("wwwltttttt")),
        Given("wins and losses", verdicts("wlwwl")),
        Given("wins, losses and ties", verdicts("wltwtlwww")),
        Given("losses alone", verdicts("lll")),
        Given("no verdicts", verdicts("")),
    ],
    inputs={"verdicts": {"kind": "words", "of": ["win", "loss", "tie"]}},
    properties=(
        ("repeatable", {}),
        ("batch_order", {"rows": ["verdicts"], "result": "same"}),
        (
            "repeated_list",
            {"rows": ["verdicts"], "hint": "the same verdicts twice over must have the same rate"},
        ),
        (
            "equal_entries_give",
            {
                "name": "verdicts",
                "entry": "tie",
                "value": 0.5,
                "hint": "ties alone must give 0.5: a model against itself wins one half",
            },
        ),
        *matter("verdicts"),
        ("between", {"low": 0.0, "high": 1.0}),
    ),
)
def win_rate(verdicts: Sequence[str]) -> float:
    """Half of the margin of wins over losses, above one half."""
    wins, losses = (sum(verdict == word for verdict in verdicts) for word in ("win", "loss"))
    return 0.5 + (wins - losses) / (2 * len(verdicts)) if verdicts else 0.5


# ---------------------------------------------------------------- bootstrap_ci
MANY = 40_000  # resamples of the oracle


def spread(seed: int, count: int) -> list[float]:
    """Outcomes between 0 and 1, such as preferences that a judge gives with its confidence."""
    return np.random.default_rng(seed).random(count).round(4).tolist()


def interval_case(why: str, outcomes: list[float], **rest: Any) -> Given:
    """A right bootstrap differs from another by chance: six standard errors of the bound are allowed."""
    resamples = rest.get("n_resamples", 2000)
    error = float(np.std(outcomes)) / math.sqrt(len(outcomes))
    chance = math.sqrt(0.025 * 0.975 / resamples) / 0.058  # of a percentile, in standard errors of the mean
    floor = max(6 * chance * error, 1e-6)
    return Given(why, {"outcomes": outcomes, **rest}, tolerance=0.0, floor=floor)


def interval_cases() -> list[Given]:
    """Outcomes on a continuum, so that percentiles do not jump; skewed ones; and those without spread."""
    skewed = (np.asarray(spread(3, 12)) ** 6).round(4).tolist()
    return [
        interval_case("one outcome", [1.0]),
        interval_case("equal outcomes", [0.5] * 9),
        interval_case("thirty outcomes", spread(0, 30), n_resamples=20_000),
        interval_case("two hundred outcomes", spread(1, 200), n_resamples=4000),
        interval_case("outcomes that are nearly all small", skewed, n_resamples=20_000),
        interval_case("numbers that are no rates", [10 * x - 20 for x in spread(4, 25)], n_resamples=20_000),
        interval_case("another seed", spread(5, 30), n_resamples=20_000, seed=3),
        interval_case("two thousand resamples", spread(6, 40)),
    ]


@oracle(
    cases=interval_cases,
    inputs={"outcomes": {"kind": "numbers"}},
    optional=("n_resamples", "seed"),
    fresh_floor=0.03,
    properties=(
        ("repeatable", {}),
        *matter("outcomes"),
        ("holds_the_mean", {"name": "outcomes"}),
        ("narrower_with_more", {"name": "outcomes"}),
        ("as_wide_with", {"name": "n_resamples", "values": [500, 8000]}),
        ("depends_on_number", {"name": "seed", "values": [0, 1]}),
        (
            "equal_entries_give",
            {
                "name": "outcomes",
                "entry": 0.25,
                "value": [0.25, 0.25],
                "hint": "where all outcomes are equal the interval is that one number",
            },
        ),
        ("between", {"low": 0.0, "high": 1.0}),
    ),
)
def bootstrap_ci(outcomes: Sequence[float], n_resamples: int = 2000, seed: int = 0) -> tuple[float, float]:
    """Draw by multiplicities: how often each outcome occurs in a resample is multinomial."""
    values = np.asarray(outcomes, dtype=float)
    counts = np.random.default_rng(1234).multinomial(len(values), np.ones(len(values)) / len(values), MANY)
    means = np.sort(counts @ values / len(values))
    return float(means[round(0.025 * (MANY - 1))]), float(means[round(0.975 * (MANY - 1))])


# ---------------------------------------------------------------- length_controlled_win_rate
def lengths_case(why: str, preferences: list[float], model: list[float], baseline: list[float]) -> Given:
    """Two fits differ in how they keep separable data finite, and in where they stop: 0.003 is allowed."""
    given = {"preferences": preferences, "model_lengths": model, "baseline_lengths": baseline}
    return Given(why, given, tolerance=0.0, floor=3e-3)


def judged(seed: int, count: int, theta: float, phi: float, shift: float = 0.0) -> tuple[list[float], ...]:
    """Verdicts of a judge who follows the model exactly, with its probabilities."""
    chance = np.random.default_rng(seed)
    model, baseline = chance.integers(50, 400, count) + shift, chance.integers(50, 400, count)
    x = np.tanh((model - baseline) / np.std(model - baseline))
    wins = 1 / (1 + np.exp(-theta - phi * x))
    return wins.round(6).tolist(), model.astype(float).tolist(), baseline.astype(float).tolist()


def length_cases() -> list[Given]:
    """By quality alone, by length alone, by both; hard verdicts; no difference in length."""
    soft, model, baseline = judged(3, 40, -0.4, 1.5, shift=80.0)
    hard = [float(p > 0.5) for p in soft]
    hard[0], hard[1], hard[5] = 1 - hard[0], 1 - hard[1], 0.5
    return [
        lengths_case("equal lengths", [1.0, 0.0, 1.0, 0.5], [30.0] * 4, [30.0] * 4),
        lengths_case("always longer by the same", [1.0, 0.0, 0.0, 0.5, 1.0], [60.0] * 5, [40.0] * 5),
        lengths_case("quality alone decides", *judged(0, 30, 0.8, 0.0)),
        lengths_case("length alone decides", *judged(1, 30, 0.0, 2.0, shift=60.0)),
        lengths_case("a longer model of lesser quality", soft, model, baseline),
        lengths_case("wins, losses and a tie", hard, model, baseline),
        lengths_case("a shorter model", *judged(5, 35, 0.5, 1.0, shift=-90.0)),
        lengths_case("lengths in thousands", soft, [1e3 * x for x in model], [1e3 * x for x in baseline]),
    ]


@oracle(
    cases=length_cases,
    inputs={
        "preferences": {"kind": "numbers", "low": 0.05, "high": 0.95},
        "model_lengths": {"kind": "numbers", "low": 20.0, "high": 200.0},
        "baseline_lengths": {"kind": "numbers", "low": 20.0, "high": 200.0},
    },
    fresh_floor=3e-3,
    properties=(
        ("repeatable", {}),
        (
            "batch_order",
            {"rows": ["preferences", "model_lengths", "baseline_lengths"], "result": "same"},
        ),
        (
            "exchanged_sums_to_one",
            {"swap": ["model_lengths", "baseline_lengths"], "flip": ["preferences"]},
        ),
        (
            "equal_entries_give",
            {
                "name": "preferences",
                "entry": 0.5,
                "value": 0.5,
                "hint": "ties alone must give 0.5, whatever the lengths",
            },
        ),
        ("matters", {"name": "model_lengths"}),
        ("matters", {"name": "baseline_lengths"}),
        ("between", {"low": 0.0, "high": 1.0}),
    ),
)
def length_controlled_win_rate(
    preferences: Sequence[float], model_lengths: Sequence[float], baseline_lengths: Sequence[float]
) -> float:
    """Minimise the cross-entropy of σ(θ + φ·tanh(Δ/std Δ)) without derivatives, and read it at Δ = 0."""
    wins = np.asarray(preferences, dtype=float)
    gaps = np.asarray(model_lengths, dtype=float) - np.asarray(baseline_lengths, dtype=float)
    if np.ptp(gaps) == 0:
        return float(wins.mean())
    x = np.tanh(gaps / math.sqrt(float(np.mean((gaps - gaps.mean()) ** 2))))

    def cost(weights: Any) -> float:
        z = weights[0] + weights[1] * x
        return float(np.sum(np.logaddexp(0, z) - wins * z) + 0.0005 * np.sum(np.square(weights)))

    theta = minimize(cost, [0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-10}).x[0]
    return float(1 / (1 + math.exp(-theta)))


# ---------------------------------------------------------------- best_of_n
@oracle(
    cases=lambda: [
        Given("one prompt, one candidate", {"scores": rows([0.3])}),
        Given("one prompt", {"scores": rows([0.1, 2.0, -1.0])}),
        Given("one candidate each", {"scores": rows([0.5], [-0.5], [2.0])}),
        Given("several prompts", {"scores": noise(0, 3, 5)}),
        Given("as many prompts as candidates", {"scores": noise(2, 4, 4)}),
        Given("negative scores", {"scores": -1 - noise(1, 4, 3).abs()}),
        Given("the first of equals", {"scores": rows([1.0, 3.0, 3.0], [2.0, 2.0, 2.0])}),
        Given("a score of NaN", {"scores": rows([NAN, 1.0, 2.0], [0.5, NAN, 0.25])}),
        Given("a score of NaN among negative ones", {"scores": rows([-1.0, NAN, -2.0], [NAN, -3.0, -1.0])}),
        Given("scores of NaN alone", {"scores": rows([NAN, NAN], [1.0, 2.0])}),
        Given("an infinite score", {"scores": rows([1.0, INF, 2.0], [-INF, -5.0, -INF])}),
        Given("narrow leads at a large size", {"scores": rows([10001.0, 1e4], [1e4, 10001.0])}),
        Given("inputs that are not contiguous", {"scores": noise(3, 3, 4)}, layout="transposed"),
    ],
    inputs={"scores": {"kind": "normal", "shape": "BL"}},
    properties=(
        ("repeatable", {}),
        ("batch_order", {"rows": ["scores"], "result": "rows"}),
        ("rows_alone", {"rows": ["scores"]}),
        (
            "unchanged_by_shift",
            {"together": ["scores"], "hint": "a number added to all scores must change no choice"},
        ),
        *matter("scores"),
        ("between", {"low": 0.0, "high": None}),
    ),
)
def best_of_n(scores: torch.Tensor) -> torch.Tensor:
    """Walk along each row and keep the place of the largest score so far."""
    found = []
    for line in scores.tolist():
        best = 0
        for place, score in enumerate(line):
            best_so_far = -INF if math.isnan(line[best]) else line[best]
            if not math.isnan(score) and score > best_so_far:
                best = place
        found.append(best)
    return torch.tensor(found, dtype=torch.long)
