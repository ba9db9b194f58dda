"""One policy against another: who wins how often, and how far the judge behind it can be believed.

A judge sees every pair in both orders; a verdict that turns with the order is a tie, a verdict that could
not be read is counted as unparsed and left out of the rate, never given to either side.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from helpers.errors import CourseError
from helpers.guard import guarded
from helpers.judging import statistics
from helpers.judging.judge import Comparison, Judge, Verdict
from helpers.judging.statistics import Agreement, LengthControlled, Positions
from helpers.text.datasets import Example

LENGTH_CONTROL = "length_controlled_win_rate"
LEFT_OUT = ("unparsed", "refused", "missing")  # why a verdict could not be read; the last one to apply counts


@dataclass(frozen=True)
class HeadToHead:
    """A candidate against a baseline over the prompts with a readable verdict in both orders.

    `outcomes` holds 1, 0.5 or 0 for each of `row_ids`. `strict` is the same comparison with scores under
    `strict_below` read as 0; None where it was not asked for or the judge gives no scores. What stands below
    it is about the judge and the lengths, and is filled in for the plain comparison only.
    """

    win_rate: float  # ties count one half
    ci95: tuple[float, float]  # bootstrap over prompts
    wins: int
    losses: int
    ties: int
    unparsed: int  # prompts without a readable verdict in one order or both, for whatever reason
    outcomes: list[float]
    row_ids: list[str]
    judge: str
    is_proxy: bool
    strict: HeadToHead | None = None
    left_out: dict[str, int] = field(default_factory=dict)  # reason → prompts; they sum to `unparsed`
    agreement: Agreement | None = None  # the university project's own statistic
    positions: Positions | None = None
    mean_chars: float | None = None  # of the candidate's responses that were judged
    mean_chars_baseline: float | None = None
    length_controlled: LengthControlled | None = None  # None where the answers have no such function
    instructions: str | None = None  # hash of the judge's instructions, where it has any
    verdicts: list[tuple[Verdict, Verdict]] = field(default_factory=list)  # of every prompt, in both orders

    @property
    def consistency(self) -> float | None:
        """Share of prompts on which both orders name the same response."""
        return self.positions.consistency if self.positions else None

    @property
    def first_position_rate(self) -> float | None:
        """Share of verdicts for the response shown first; 0.5 for a judge without position bias."""
        return self.positions.first_position_rate if self.positions else None

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as JSON values, without the outcomes of single prompts."""
        return {
            "win_rate": self.win_rate,
            "ci95": list(self.ci95),
            "wins": self.wins,
            "losses": self.losses,
            "ties": self.ties,
            "unparsed": self.unparsed,
            "judge": self.judge,
            "is_proxy": self.is_proxy,
            "strict_win_rate": self.strict.win_rate if self.strict else None,
            "strict_ci95": list(self.strict.ci95) if self.strict else None,
            **self.trust(),
        }

    def trust(self) -> dict[str, Any]:
        """Return what tells how far the win rate can be believed, as JSON values; None: not known."""
        agreed, length = self.agreement, self.length_controlled
        return {
            "left_out": dict(self.left_out),
            "consistency": self.consistency,
            "first_position_rate": self.first_position_rate,
            "agreement_win_rate": agreed.win_rate if agreed else None,
            "agreement_ci95": list(agreed.ci95) if agreed and agreed.ci95 else None,
            "agreement_n": agreed.n if agreed else None,
            "mean_chars": self.mean_chars,
            "mean_chars_baseline": self.mean_chars_baseline,
            "length_controlled": length.value if length else None,
            "length_controlled_ci95": list(length.ci95) if length else None,
            "length_overlap": length.overlap if length else None,
            "length_warning": length.warning if length else None,
            "instructions": self.instructions,
        }


def answer(answers: Any, name: str) -> Callable[..., Any]:
    """Return the exercise function `name`, fenced; CourseError if the learner's file has none yet."""
    return getattr(guarded(answers), name)


def head_to_head(
    judge: Judge,
    examples: Sequence[Example],
    candidate: Sequence[str],
    baseline: Sequence[str],
    answers: Any,
    *,
    strict_below: float | None = None,
) -> HeadToHead:
    """Judge `candidate` against `baseline` on every prompt, in both orders.

    Args:
        examples, candidate, baseline: one a prompt, in the same order.
        answers: namespace with `combine_orders`, `win_rate` and `bootstrap_ci`; with
            `length_controlled_win_rate` the length-controlled rate is filled in too.
        strict_below: also fill `.strict`, in which scores under this value count as 0, for a judge that
            gives scores and is no proxy. It costs no further judging.

    Raises:
        CourseError: for lists of unequal length, no prompts, or no readable verdict at all.
    """
    if not examples:
        raise CourseError("a head-to-head comparison needs at least one prompt")
    if not len(examples) == len(candidate) == len(baseline):
        raise CourseError(
            f"{len(examples)} prompts, {len(candidate)} candidate and {len(baseline)} baseline responses: "
            "give one response for each prompt"
        )
    first = _verdicts(judge, examples, candidate, baseline)
    second = _verdicts(judge, examples, baseline, candidate)
    strict = None
    # A proxy's scores have a scale of their own, on which the floor means nothing.
    scored = not judge.is_proxy and all(_has_scores(verdict) for verdict in (*first, *second))
    if strict_below is not None and scored:
        floored, floored_swapped = (
            [_strict_winner(verdict, strict_below) for verdict in side] for side in (first, second)
        )
        strict = _tally(judge, examples, floored, floored_swapped, answers)
    winners, winners_swapped = ([_winner(verdict) for verdict in side] for side in (first, second))
    result = _tally(judge, examples, winners, winners_swapped, answers, strict=strict)
    judged = [index for index, pair in enumerate(zip(winners, winners_swapped, strict=True)) if all(pair)]
    lengths = [(len(candidate[index]), len(baseline[index])) for index in judged]
    return replace(
        result,
        left_out=_left_out(first, second),
        agreement=statistics.agreement(first, second),
        positions=statistics.positions(first, second),
        verdicts=list(zip(first, second, strict=True)),
        **_lengths(result.outcomes, lengths, answers),
    )


def _verdicts(
    judge: Judge, examples: Sequence[Example], shown_first: Sequence[str], shown_second: Sequence[str]
) -> list[Verdict]:
    pairs = [Comparison(*parts) for parts in zip(examples, shown_first, shown_second, strict=True)]
    verdicts = judge.compare(pairs)
    if len(verdicts) != len(pairs):
        raise CourseError(
            f"judge {judge.name} returned {len(verdicts)} verdicts for {len(pairs)} comparisons"
        )
    return list(verdicts)


def _winner(verdict: Verdict) -> str | None:
    """Read the winner leniently nowhere: anything but "A" or "B" is unparsed."""
    return verdict.winner if verdict.winner in ("A", "B") else None


def _has_scores(verdict: Verdict) -> bool:
    scores = (verdict.score_a, verdict.score_b)
    return all(score is not None and math.isfinite(score) for score in scores)


def _strict_winner(verdict: Verdict, floor: float) -> str | None:
    """Winner after reading scores under `floor` as 0. Equal scores say "A" in both orders, hence a tie."""
    if _winner(verdict) is None or verdict.score_a is None or verdict.score_b is None:
        return None
    score_a, score_b = (score if score >= floor else 0.0 for score in (verdict.score_a, verdict.score_b))
    return "A" if score_a >= score_b else "B"


def _tally(
    judge: Judge,
    examples: Sequence[Example],
    first: Sequence[str | None],
    second: Sequence[str | None],
    answers: Any,
    *,
    strict: HeadToHead | None = None,
) -> HeadToHead:
    kept = [(a, b, example.row_id) for a, b, example in zip(first, second, examples, strict=True) if a and b]
    if not kept:
        raise CourseError(
            f"judge {judge.name} gave no readable verdict on any of the {len(examples)} prompts"
        )
    verdicts = answer(answers, "combine_orders")([a for a, _, _ in kept], [b for _, b, _ in kept])
    rate = answer(answers, "win_rate")
    outcomes = [float(rate([verdict])) for verdict in verdicts]  # so the value of a tie is defined once
    low, high = answer(answers, "bootstrap_ci")(outcomes)
    return HeadToHead(
        win_rate=float(rate(verdicts)),
        ci95=(float(low), float(high)),
        wins=verdicts.count("win"),
        losses=verdicts.count("loss"),
        ties=verdicts.count("tie"),
        unparsed=len(examples) - len(kept),
        outcomes=outcomes,
        row_ids=[row_id for _, _, row_id in kept],
        judge=judge.name,
        is_proxy=judge.is_proxy,
        strict=strict,
        instructions=getattr(judge, "instructions_hash", None),
    )


def _left_out(first: Sequence[Verdict], second: Sequence[Verdict]) -> dict[str, int]:
    """Prompts without a readable verdict in both orders, by reason; each prompt has one reason."""
    counts: Counter[str] = Counter()
    for pair in zip(first, second, strict=True):
        reasons = [_reason(verdict) for verdict in pair if _winner(verdict) is None]
        if reasons:
            counts[max(reasons, key=LEFT_OUT.index)] += 1
    return {reason: counts[reason] for reason in LEFT_OUT}


def _reason(verdict: Verdict) -> str:
    status = verdict.detail.get("status")
    return status if status in LEFT_OUT else "unparsed"


def _lengths(outcomes: list[float], lengths: Sequence[tuple[int, int]], answers: Any) -> dict[str, Any]:
    """Mean lengths in characters of the responses that were judged, and the length-controlled rate."""
    ours, theirs = map(list, zip(*lengths, strict=True))
    means = {"mean_chars": fmean(ours), "mean_chars_baseline": fmean(theirs)}
    try:
        fit = answer(answers, LENGTH_CONTROL)
    except CourseError:  # an exercise of its own, which need not be written for a win rate
        return means
    return {**means, "length_controlled": statistics.length_controlled(fit, outcomes, ours, theirs)}
