"""Which verdicts become pairs: both orders must agree, and the pair must be clear and good enough."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from helpers.dataset_build.settings import BuildSettings
from helpers.dataset_build.stages import Row

QUALITIES = ("confidence", "strength", "training_quality")


@dataclass(frozen=True)
class Outcome:
    """Best and worst as places among the answers, the two orders' mean qualities, or why there is no pair."""

    reason: str = ""
    best: int = -1
    worst: int = -1
    confidence: float | None = None
    strength: float | None = None
    quality: float | None = None


def agree(first: Row, second: Row) -> Outcome:
    """What the two orders say together, before any threshold.

    They agree on the best if they name the same answer, or two that the judge's own scores make equal; and
    likewise on the worst. A judge that looks at places only names other answers in the other order.
    """
    for choice in (first, second):
        if choice["status"] != "ok":
            return Outcome(f"judge: {choice['status']}")
    if not same_answer("best", first, second):
        return Outcome("the orders disagree on the best")
    if not same_answer("worst", first, second):
        return Outcome("the orders disagree on the worst")
    if first["best"] == first["worst"]:
        return Outcome("best and worst are one")
    means = [_mean(first[name], second[name]) for name in QUALITIES]
    return Outcome("", first["best"], first["worst"], *means)


def same_answer(end: str, first: Row, second: Row) -> bool:
    """Whether both orders name one answer as "best" or "worst", or two that their own scores make equal."""
    one, other = first[end], second[end]
    if one == other:
        return one is not None
    if one is None or other is None or not first["scores"] or not second["scores"]:
        return False
    return first["scores"][one] == first["scores"][other] and second["scores"][one] == second["scores"][other]


def _mean(*values: float | None) -> float | None:
    known = [value for value in values if value is not None]
    return round(fmean(known), 4) if known else None


def judge_pair(first: Row, second: Row, settings: BuildSettings) -> Outcome:
    """The outcome after the thresholds. A quality that the judge does not give passes."""
    outcome = agree(first, second)
    if outcome.reason:
        return outcome
    if not settings.keep_unusable and any(choice["usable"] is False for choice in (first, second)):
        return Outcome("unusable")
    checks = (
        ("confidence too low", outcome.confidence, settings.min_confidence),
        ("preference too weak", outcome.strength, settings.min_strength),
        ("training quality too low", outcome.quality, settings.min_quality),
    )
    for reason, value, least in checks:
        if value is not None and value < least:
            return Outcome(reason)
    return outcome


def pair_row(row: Row, outcome: Outcome, judge_name: str) -> Row:
    """A row of the preference files, in the fields of the university project's data."""
    return {
        "avg_confidence": outcome.confidence,
        "avg_preference_strength": outcome.strength,
        "avg_training_quality": outcome.quality,
        "chosen_text": row["answers"][outcome.best]["text"],
        "judge_model": judge_name,
        "prompt_messages": row["prompt_messages"],
        "prompt_text": row["prompt_messages"][-1]["content"],
        "rejected_text": row["answers"][outcome.worst]["text"],
        "row_id": row["row_id"],
        "score": _mean(outcome.strength, outcome.quality),
        **_facts(row),
    }


def prompt_row(row: Row, pair: Row | None) -> Row:
    """A row of the files of prompts; the reference is the chosen answer, where there is one."""
    return {
        "prompt_messages": row["prompt_messages"],
        "prompt_text": row["prompt_messages"][-1]["content"],
        "reference_response_text": pair["chosen_text"] if pair else None,
        "row_id": row["row_id"],
        "score": pair["score"] if pair else None,
        **_facts(row),
    }


def sft_row(pair: Row) -> Row:
    """A row of instruction data: the chosen answer."""
    fields = {name: pair[name] for name in ("prompt_messages", "row_id")}
    return {**fields, "response_text": pair["chosen_text"], **_facts(pair)}


def _facts(row: Row) -> dict[str, Any]:
    return {"metadata": row["metadata"]} if "metadata" in row else {}


def all_outcomes(
    rows: Sequence[Row], verdicts: dict[str, Row], settings: BuildSettings, too_few: str, unjudged: str
) -> dict[str, Outcome]:
    """The outcome of every prompt by row_id, in order."""
    outcomes = {}
    for row in rows:
        verdict = verdicts.get(row["row_id"])
        if len(row["answers"]) < 2:
            outcomes[row["row_id"]] = Outcome(too_few)
        elif verdict is None:
            outcomes[row["row_id"]] = Outcome(unjudged)
        else:
            outcomes[row["row_id"]] = judge_pair(verdict["first"], verdict["second"], settings)
    return outcomes
