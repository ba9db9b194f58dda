"""Is this judge worth asking? Against itself, for its love of one position, and beside another judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean
from typing import Any

from helpers.errors import CourseError
from helpers.judging.judge import Comparison, Judge, Verdict
from helpers.judging.statistics import Kappa, Positions, cohens_kappa, positions

FAIR = 0.5  # the first-position rate of a judge that does not care for the order
OUTCOMES = {("A", "B"): "first", ("B", "A"): "second", ("A", "A"): "tie", ("B", "B"): "tie"}
POINTS = {"first": 1.0, "tie": 0.5, "second": 0.0}


@dataclass(frozen=True)
class Sanity:
    """What a judge did with pairs shown in both orders.

    `win_rate` is that of each pair's first response, ties ½; None where nothing could be read.
    """

    judge: str
    pairs: int
    win_rate: float | None
    first_rate: float | None  # share of all readable verdicts for the response shown first
    positions: Positions
    left_out: dict[str, int]  # verdicts, by status
    warning: str | None

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "judge": self.judge,
            "pairs": self.pairs,
            "win_rate": self.win_rate,
            "first_position_rate": self.first_rate,
            "consistency": self.positions.consistency,
            "left_out": dict(self.left_out),
            "warning": self.warning,
        }

    def render(self, title: str) -> str:
        """Lines for a terminal."""
        kept = self.positions.consistency
        lines = [
            f"{title}: {self.judge}, {self.pairs} pairs in both orders",
            f"  win rate of the first response  {_share(self.win_rate)}",
            f"  first-position rate             {_share(self.first_rate)}  (0.500 without bias)",
            f"  both orders agree               {_share(kept)}",
            f"  verdicts without a winner       {', '.join(f'{n} {k}' for k, n in self.left_out.items())}",
        ]
        return "\n".join(lines + ([f"warning: {self.warning}"] if self.warning else []))


def examine(judge: Judge, pairs: Sequence[Comparison], *, same: bool = False) -> Sanity:
    """Show every pair in both orders. With `same` both responses are equal: only the order can decide.

    Raises:
        CourseError: for no pairs.
    """
    if not pairs:
        raise CourseError("there are no pairs to show to the judge")
    first, second = both_orders(judge, pairs)
    labels = [label for label in outcomes(first, second) if label]
    verdicts = [verdict for verdict in (*first, *second) if verdict.winner is not None]
    rate = fmean(float(verdict.winner == "A") for verdict in verdicts) if verdicts else None
    lost = Counter(
        verdict.detail.get("status", "unparsed") for verdict in (*first, *second) if not verdict.winner
    )
    told = positions(first, second)
    biased = _bias(rate if same else told.first_position_rate, len(verdicts) if same else 2 * told.n)
    declared = bool(verdicts) and all(
        verdict.score_a is not None and verdict.score_a == verdict.score_b for verdict in verdicts
    )
    return Sanity(
        judge=judge.name,
        pairs=len(pairs),
        win_rate=fmean(POINTS[label] for label in labels) if labels else None,
        first_rate=rate,
        positions=told,
        left_out={status: lost[status] for status in ("unparsed", "refused", "missing")},
        warning=None if same and declared else _unread((*first, *second)) or biased,
    )


def both_orders(judge: Judge, pairs: Sequence[Comparison]) -> tuple[list[Verdict], list[Verdict]]:
    """Verdicts on the pairs as they are, and swapped."""
    swapped = [Comparison(one.example, one.response_b, one.response_a) for one in pairs]
    return judge.compare(pairs), judge.compare(swapped)


def outcomes(first: Sequence[Verdict], second: Sequence[Verdict]) -> list[str | None]:
    """ "first", "second" or "tie" for each pair; None where a verdict could not be read."""
    return [
        OUTCOMES.get((a.winner, b.winner)) if a.winner and b.winner else None
        for a, b in zip(first, second, strict=True)
    ]


@dataclass(frozen=True)
class JudgeAgreement:
    """Two judges on the same pairs, each in both orders."""

    judges: tuple[str, str]
    kappa: Kappa
    table: dict[str, dict[str, int]]  # label of the first judge → label of the second → pairs

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {"judges": list(self.judges), "kappa": self.kappa.to_dict(), "table": self.table}

    def render(self) -> str:
        """Lines for a terminal."""
        kappa, (low, high) = self.kappa, self.kappa.ci95
        known = kappa.value == kappa.value
        value = (
            f"{kappa.value:.3f} [{low:.3f}, {high:.3f}]" if known else "not defined: both say one thing only"
        )
        lines = [
            f"{self.judges[0]} (rows) and {self.judges[1]} (columns) on {kappa.n} pairs"
            + (f", {kappa.left_out} more without a verdict" if kappa.left_out else ""),
            "          " + "".join(f"{label:>8}" for label in POINTS),
            *(f"  {row:<8}" + "".join(f"{self.table[row][one]:>8}" for one in POINTS) for row in POINTS),
            f"  equal labels   {kappa.agreement:.3f}",
            f"  Cohen's kappa  {value}  (95 % interval over pairs)",
        ]
        return "\n".join(lines)


def agree(judge: Judge, other: Judge, pairs: Sequence[Comparison]) -> JudgeAgreement:
    """How far two judges agree beyond chance on who wins, a verdict that turns with the order being a tie."""
    if not pairs:
        raise CourseError("there are no pairs to show to the judges")
    labels = [outcomes(*both_orders(one, pairs)) for one in (judge, other)]
    counts = Counter(zip(*labels, strict=True))
    table = {row: {column: counts[row, column] for column in POINTS} for row in POINTS}
    return JudgeAgreement((judge.name, other.name), cohens_kappa(*labels), table)


def _bias(rate: float | None, n: int) -> str | None:
    """A warning where chance (two standard errors) does not explain the rate."""
    if rate is None or n == 0 or abs(rate - FAIR) <= max(0.05, 2 * 0.5 / sqrt(n)):
        return None
    side = "first" if rate > FAIR else "second"
    return (
        f"the response shown {side} got {max(rate, 1 - rate):.0%} of the verdicts: this judge goes by"
        " position, and what it says of a pair in one order means little"
    )


def _unread(verdicts: Sequence[Verdict]) -> str | None:
    """A warning where fewer than half could be read, with what the first of the others met."""
    lost = [verdict for verdict in verdicts if verdict.winner is None]
    if 2 * len(lost) <= len(verdicts):
        return None
    read = f"only {len(verdicts) - len(lost)} of {len(verdicts)} verdicts could be read"
    if all(verdict.detail.get("status") == "missing" for verdict in lost):
        cause = "the others did not come"
    else:
        cause = "this judge does not follow the form"
    reason = next((str(one.detail["reason"]) for one in lost if one.detail.get("reason")), "")
    return f"{read}: {cause}" + (f" ({reason[:200]})" if reason else "")


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
