"""What the numbers of a comparison are worth: intervals, agreement, position bias, length, variety.

Pure functions of verdicts, numbers and texts. Prompts are the unit that is resampled everywhere: two orders
of one pair, or several answers to one prompt, are no independent observations. The exercises of lesson 10
are not here; what needs one of them takes it as an argument. docs/methods.md has the formulas, and
`helpers.judging.power` says how many prompts a question takes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy import stats

from helpers.errors import CourseError
from helpers.judging.judge import Verdict

RESAMPLES = 2000
LEVEL = 0.95
FEW = 0.2  # an overlap of lengths under this leaves the controlled rate to extrapolation
FIT_RESAMPLES = 500  # of the whole length-controlled fit

Pair = tuple[float, float]


# ---------------------------------------------------------------------- intervals
def cluster_bootstrap(
    statistic: Callable[..., float],
    columns: Sequence[Sequence[Any] | np.ndarray],
    clusters: Sequence[Hashable] | None = None,
    *,
    n_resamples: int = RESAMPLES,
    seed: int = 0,
) -> Pair:
    """95 % percentile interval of any statistic, resampling whole clusters, which are the prompts.

    Efron and Tibshirani (1993), chapters 8 and 13. Rows of one prompt stay together, so that ten answers to
    each of twenty prompts are not taken for two hundred independent ones.

    Args:
        statistic: called with one array for each column, the rows drawn; returns a number.
        columns: lists of one length n, each with one entry a row.
        clusters: the prompt of each row (n,); None: every row is a prompt of its own.

    Returns:
        (low, high); resamples on which the statistic is NaN are left out, and with no other the bounds are
        NaN. Of a single cluster nothing can be resampled: both bounds are the statistic itself.

    Raises:
        CourseError: without rows, or for columns of unequal length.
    """
    tables = [np.asarray(column) for column in columns]
    sizes = {len(table) for table in tables} | ({len(clusters)} if clusters is not None else set())
    if len(sizes) != 1 or 0 in sizes:
        raise CourseError(
            f"an interval needs at least one row, and columns of one length, not {sorted(sizes)}"
        )
    members = _members(clusters if clusters is not None else range(len(tables[0])))

    def drawn(picks: np.ndarray) -> float:
        rows = picks if clusters is None else np.concatenate([members[pick] for pick in picks])
        return float(statistic(*(table[rows] for table in tables)))

    everything = np.arange(len(members))
    if len(members) == 1:
        return drawn(everything), drawn(everything)
    spread = stats.bootstrap(
        (everything,),
        drawn,
        n_resamples=n_resamples,
        vectorized=False,
        method="percentile",
        rng=np.random.default_rng(seed),
    ).bootstrap_distribution
    spread = spread[np.isfinite(spread)]
    tails = 50 * (1 - LEVEL)
    return _pair(np.percentile(spread, (tails, 100 - tails))) if spread.size else (math.nan, math.nan)


def _members(clusters: Sequence[Hashable]) -> list[np.ndarray]:
    rows: dict[Hashable, list[int]] = {}
    for row, cluster in enumerate(clusters):
        rows.setdefault(cluster, []).append(row)
    return [np.asarray(found) for found in rows.values()]


def _pair(bounds: Sequence[float] | np.ndarray) -> Pair:
    return float(bounds[0]), float(bounds[1])


@dataclass(frozen=True)
class Difference:
    """First minus second on the prompts that both have."""

    value: float
    ci95: Pair
    n: int
    left_out: int  # prompts that only one of them has


def paired_difference(
    first: Mapping[Any, float], second: Mapping[Any, float], *, n_resamples: int = RESAMPLES, seed: int = 0
) -> Difference:
    """Mean difference of two systems on the same prompts, such as two methods' outcomes against the base.

    A prompt is drawn with both its outcomes. Drawing each system's prompts for itself would add the spread
    between easy and hard prompts, which both share, and hide differences that are there.

    Args:
        first, second: prompt → outcome, such as `dict(zip(result.row_ids, result.outcomes))`.

    Raises:
        CourseError: if they have no prompt in common.
    """
    shared = [prompt for prompt in first if prompt in second]
    if not shared:
        raise CourseError("the two systems have no prompt in common: compare answers to the same prompts")
    gaps = [float(first[prompt]) - float(second[prompt]) for prompt in shared]
    low, high = cluster_bootstrap(np.mean, [gaps], n_resamples=n_resamples, seed=seed)
    left_out = len(set(first) ^ set(second))
    return Difference(float(np.mean(gaps)), (low, high), len(shared), left_out)


# ---------------------------------------------------------------------- both orders of a judge
@dataclass(frozen=True)
class Agreement:
    """The university project's own statistic: the win rate among rows whose two orders agree.

    It leaves out what the course's `win_rate` counts as ties, and rows that the judge calls unusable. So it
    is farther from one half than the win rate, and says nothing about how many rows were left: read `n`.
    """

    win_rate: float | None  # None where no row is left
    ci95: Pair | None
    n: int  # rows that agree and are usable in both orders
    rows: int  # rows judged


@dataclass(frozen=True)
class Positions:
    """What the order of presentation did to a judge (Zheng et al., 2023, section 3.3).

    Rows whose scores are equal in both orders are left out: there the judge saw no difference to be
    consistent about. None where no row remains.
    """

    consistency: float | None  # share of rows on which both orders name the same response
    first_position_rate: float | None  # share of verdicts for the response shown first; 0.5 without bias
    n: int  # rows with a readable verdict in both orders and no declared tie
    equal: int  # rows that the judge declared equal in both orders


def agreement(first: Sequence[Verdict], second: Sequence[Verdict], *, seed: int = 0) -> Agreement:
    """Wins among rows where both orders agree and both are usable, with a bootstrap interval over rows.

    Args:
        first: verdicts with the candidate shown as A.
        second: verdicts on the same rows with the candidate shown as B.

    A verdict without the field "usable" counts as usable; a declared tie agrees with nobody.
    """
    wins = [
        float(a.winner == "A")
        for a, b in zip(first, second, strict=True)
        if _readable(a) and _readable(b) and a.winner != b.winner and _usable(a) and _usable(b)
    ]
    if not wins:
        return Agreement(None, None, 0, len(first))
    interval = cluster_bootstrap(np.mean, [wins], seed=seed)
    return Agreement(float(np.mean(wins)), interval, len(wins), len(first))


def positions(first: Sequence[Verdict], second: Sequence[Verdict]) -> Positions:
    """Consistency and first-position rate of the verdicts in both orders; arguments as in `agreement`."""
    read = [(a, b) for a, b in zip(first, second, strict=True) if _readable(a) and _readable(b)]
    told = [(a, b) for a, b in read if not (_equal(a) and _equal(b))]
    if not told:
        return Positions(None, None, 0, len(read))
    same = sum(a.winner != b.winner for a, b in told)  # the letters change when the answer does not
    shown_first = sum((a.winner == "A") + (b.winner == "A") for a, b in told)
    return Positions(same / len(told), shown_first / (2 * len(told)), len(told), len(read) - len(told))


def _readable(verdict: Verdict) -> bool:
    return verdict.winner in ("A", "B")


def _usable(verdict: Verdict) -> bool:
    return verdict.detail.get("usable") is not False


def _equal(verdict: Verdict) -> bool:
    return verdict.score_a is not None and verdict.score_a == verdict.score_b


# ---------------------------------------------------------------------- two judges
@dataclass(frozen=True)
class Kappa:
    """Agreement of two judges beyond chance. `value` and `ci95` are NaN where chance alone agrees fully."""

    value: float
    ci95: Pair
    n: int
    agreement: float  # plain share of equal labels
    left_out: int = 0  # rows that at least one of them did not label

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values; what is not defined is None."""
        known = not math.isnan(self.value)
        return {
            **asdict(self),
            "value": self.value if known else None,
            "ci95": list(self.ci95) if known else None,
        }


def cohens_kappa(
    labels_a: Sequence[Hashable | None],
    labels_b: Sequence[Hashable | None],
    *,
    n_resamples: int = RESAMPLES,
    seed: int = 0,
) -> Kappa:
    """Cohen's kappa (1960) of two judges' labels for the same rows, with a bootstrap interval over rows.

        kappa = (p_o - p_e) / (1 - p_e)

    where p_o is the share of equal labels and p_e what two judges with these label frequencies would reach
    by chance. 1: they always agree. 0: as chance would. Rows with a label None are left out and counted.

    Raises:
        CourseError: for lists of unequal length, or no row labelled by both.
    """
    if len(labels_a) != len(labels_b):
        raise CourseError(
            f"kappa: {len(labels_a)} labels against {len(labels_b)}: give one each for every row"
        )
    both = [(a, b) for a, b in zip(labels_a, labels_b, strict=True) if a is not None and b is not None]
    if not both:
        raise CourseError("kappa: no row has a label from both judges")
    places = {label: place for place, label in enumerate(dict.fromkeys(x for pair in both for x in pair))}
    table = np.zeros((len(places), len(places)))
    for a, b in both:
        table[places[a], places[b]] += 1
    # Resampling n rows with replacement and counting them is one multinomial draw of the table.
    draws = np.random.default_rng(seed).multinomial(len(both), table.ravel() / len(both), size=n_resamples)
    spread = _kappas(draws.reshape(-1, *table.shape).astype(float))
    spread = spread[np.isfinite(spread)]
    value = float(_kappas(table[None])[0])
    known = spread.size and not math.isnan(value)
    interval = _pair(np.percentile(spread, (2.5, 97.5))) if known else (math.nan, math.nan)
    agreed = float(np.trace(table) / len(both))
    return Kappa(value, interval, len(both), agreed, len(labels_a) - len(both))


def _kappas(tables: np.ndarray) -> np.ndarray:
    """(R, K, K) tables of counts → (R,) kappas, NaN where chance alone agrees fully."""
    shares = tables / tables.sum(axis=(1, 2), keepdims=True)
    observed = np.trace(shares, axis1=1, axis2=2)
    expected = (shares.sum(axis=2) * shares.sum(axis=1)).sum(axis=1)
    room = np.where(np.isclose(expected, 1), np.nan, 1 - expected)
    return (observed - expected) / room


# ---------------------------------------------------------------------- length
@dataclass(frozen=True)
class LengthControlled:
    """A length-controlled win rate with the interval of the whole fit. See `length_overlap`."""

    value: float
    ci95: Pair
    overlap: float
    warning: str | None


def length_overlap(model_lengths: Sequence[float], baseline_lengths: Sequence[float]) -> float:
    """Twice the share of prompts on the rarer side of equal length, in [0, 1].

    1: the model's answer is the longer one as often as the shorter one. 0: always the longer, or always the
    shorter, and the rate at equal length is a guess about answers that nobody has seen. Answers of equal
    length count half on either side.
    """
    gaps = np.sign(np.asarray(model_lengths, dtype=float) - np.asarray(baseline_lengths, dtype=float))
    longer = float(np.mean((gaps + 1) / 2))
    return 2 * min(longer, 1 - longer)


def length_controlled(
    fit: Callable[[list[float], list[float], list[float]], float],
    preferences: Sequence[float],
    model_lengths: Sequence[float],
    baseline_lengths: Sequence[float],
    *,
    n_resamples: int = FIT_RESAMPLES,
    seed: int = 0,
) -> LengthControlled:
    """Length-controlled win rate (Dubois et al., 2024), its interval, and a warning where it extrapolates.

    Args:
        fit: `length_controlled_win_rate` of the answers; called again on every resample of the prompts, so
            that the interval holds what is not known of the length term too.
        preferences: one a prompt in [0, 1], 1 for the model. Leave out prompts without one.

    Raises:
        CourseError: without prompts.
    """
    columns = [np.asarray(c, dtype=float) for c in (preferences, model_lengths, baseline_lengths)]

    def fitted(*drawn: np.ndarray) -> float:
        return fit(*(column.tolist() for column in drawn))

    interval = cluster_bootstrap(fitted, columns, n_resamples=n_resamples, seed=seed)
    overlap = length_overlap(model_lengths, baseline_lengths)
    return LengthControlled(
        float(fitted(*columns)), interval, overlap, _length_warning(overlap, *columns[1:])
    )


def _length_warning(overlap: float, ours: np.ndarray, theirs: np.ndarray) -> str | None:
    if overlap >= FEW:
        return None
    word = "longer" if np.mean(ours > theirs) > 0.5 else "shorter"
    return (
        f"the answers are {word} than the baseline's on {100 * (1 - overlap / 2):.0f} % of the prompts: the "
        "length-controlled rate is an extrapolation to lengths that hardly occur, not a measurement"
    )


# ---------------------------------------------------------------------- variety
def distinct_n(texts: Sequence[str], n: int = 2) -> float:
    """Different word n-grams over all of them (Li et al., 2016), in [0, 1]; 0 where there are none.

    Words are lower-cased and split at white space. The share falls as texts grow in number or length, so
    compare it between policies on the same prompts only.
    """
    if n < 1:
        raise CourseError(f"distinct-n counts sequences of at least 1 word, not {n}")
    counts: Counter[tuple[str, ...]] = Counter()
    for text in texts:
        words = text.lower().split()
        counts.update(zip(*(words[start:] for start in range(n)), strict=False))
    return len(counts) / max(counts.total(), 1)
