"""Samples for a report, good and bad, each labelled with what it was picked by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from helpers.course.report_blocks import Answer, Block, Card, Heading, Text
from helpers.course.report_sources import Run, Source
from helpers.course.tables import display_name, number, number_or_nan
from helpers.errors import CourseError
from helpers.files import read_jsonl

SHOWN = 3  # best, and as many worst, of every run or policy
SCORES = {"gold": "the held-out judge's score", "reward": "reward"}


def samples(sources: Sequence[Source], runs: Sequence[Run]) -> list[Block]:
    """Answers of every run and evaluation."""
    blocks: list[Block] = []
    for source in sources:
        if source.kind == "evaluation":
            blocks += of_evaluation(source)
    for run in runs:
        blocks += of_run(run)
    note = (
        "Best and worst are picked by the score that each card names: they show the range, not the average."
    )
    return [Text(note, soft=True), *blocks] if blocks else [Text("No answers were recorded.")]


# ---------------------------------------------------------------------- of a training run
def of_run(run: Run) -> list[Block]:
    """Best and worst answers of the last evaluation, with those of the first beside them."""
    steps = sorted({step_of(row) for row in run.samples})
    if not steps:
        return []
    last = [row for row in run.samples if step_of(row) == steps[-1]]
    before = (
        {row.get("row_id"): row for row in run.samples if step_of(row) == steps[0]} if len(steps) > 1 else {}
    )
    score = next(
        (name for name in SCORES if any(np.isfinite(number_or_nan(row.get(name))) for row in last)), None
    )
    cards = []
    for tag, row in picked(last, score):
        cards.append(
            Card(tag, str(row.get("prompt") or ""), answers_of(row, before.get(row.get("row_id")), steps))
        )
    return [Heading(f"{run.name}, step {steps[-1]}"), *cards]


def step_of(row: Mapping[str, Any]) -> int:
    """The step of a sample."""
    return int(float(row.get("step") or 0))


def picked(rows: Sequence[Mapping[str, Any]], score: str | None) -> list[tuple[str, Mapping[str, Any]]]:
    """(label, row) of the best and the worst by a score; without one, of the first few."""
    if score is None:
        return [(f"the first {min(SHOWN, len(rows))}: nothing scored them", row) for row in rows[:SHOWN]]
    known = [row for row in rows if np.isfinite(number_or_nan(row.get(score)))]
    ranked = sorted(known, key=lambda row: number_or_nan(row.get(score)), reverse=True)
    count = min(SHOWN, max(len(ranked) // 2, 1))
    best = [(f"picked: best of {len(ranked)} by {SCORES[score]}", row) for row in ranked[:count]]
    worst = [(f"picked: worst of {len(ranked)} by {SCORES[score]}", row) for row in ranked[count:][-count:]]
    return best + worst


def answers_of(
    row: Mapping[str, Any], earlier: Mapping[str, Any] | None, steps: Sequence[int]
) -> list[Answer]:
    """The answer, the one at the first evaluation, and the data set's own."""
    found = [Answer(f"step {steps[-1]}", shown(row.get("response")), label_of(row), colour_of(row))]
    if earlier is not None:
        found.append(
            Answer(f"step {steps[0]}", shown(earlier.get("response")), label_of(earlier), colour_of(earlier))
        )
    if row.get("reference_response"):
        found.append(Answer("in the data set", shown(row["reference_response"])))
    return found


def shown(text: Any) -> str:
    """An answer as it was, or a word for none."""
    return "(no answer)" if text is None else str(text) or "(empty)"


def label_of(row: Mapping[str, Any]) -> str:
    """Every score of an answer that was recorded."""
    known = [
        f"{name} {number(row.get(name))}" for name in SCORES if np.isfinite(number_or_nan(row.get(name)))
    ]
    return ", ".join(known)


def colour_of(row: Mapping[str, Any]) -> float | None:
    """The judge's score, which has a scale; a reward has none."""
    value = number_or_nan(row.get("gold"))
    return value if np.isfinite(value) else None


# ---------------------------------------------------------------------- of an evaluation
def of_evaluation(source: Source) -> list[Block]:
    """For each policy, prompts on which it won and lost most clearly against the baseline."""
    baseline = str(source.figures.get("baseline") or "base")
    try:
        outcomes = read_jsonl(source.path / "outcomes.jsonl")
        theirs = responses_of(source, baseline)
    except CourseError as problem:
        return [Heading(f"Evaluation {source.path.name}"), Text(f"No samples: {problem}", soft=True)]
    blocks: list[Block] = []
    for name in source.figures["policies"]:
        rows = [row for row in outcomes if row.get("policy") == name and row.get("opponent") == baseline]
        if name == baseline or not rows:
            continue
        try:
            mine = responses_of(source, name)
        except CourseError as problem:
            blocks.append(Text(f"No samples of {display_name(name)}: {problem}", soft=True))
            continue
        blocks.append(Heading(f"{display_name(name)} against {display_name(baseline)}"))
        blocks += [compared(tag, row, mine, theirs, (name, baseline)) for tag, row in won_and_lost(rows)]
    return blocks


def responses_of(source: Source, name: str) -> dict[str, dict[str, Any]]:
    """Row id → row of responses/NAME.jsonl."""
    rows = read_jsonl(source.path / "responses" / f"{name}.jsonl")
    return {str(row.get("row_id")): row for row in rows}


def won_and_lost(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """The clearest wins and losses: by the difference of scores where the judge gave any."""
    won = sorted((row for row in rows if row.get("outcome") == 1), key=gap_of, reverse=True)
    lost = sorted((row for row in rows if row.get("outcome") == 0), key=gap_of)
    tied = sum(row.get("outcome") == 0.5 for row in rows)
    count = f"{len(won)} won, {tied} tied, {len(lost)} lost"
    return [(f"picked: clearest win ({count}), by the judge", row) for row in won[:SHOWN]] + [
        (f"picked: clearest loss ({count}), by the judge", row) for row in lost[:SHOWN]
    ]


def scores_of(row: Mapping[str, Any]) -> tuple[float, float]:
    """The judge's scores of policy and opponent in the first order; NaN where it gives none."""
    first = row.get("policy_first")
    first = first if isinstance(first, Mapping) else {}
    return number_or_nan(first.get("score_a")), number_or_nan(first.get("score_b"))


def gap_of(row: Mapping[str, Any]) -> float:
    """How clear a verdict is; 0 where the judge only chose."""
    mine, theirs = scores_of(row)
    return mine - theirs if np.isfinite(mine - theirs) else 0.0


def compared(
    tag: str,
    row: Mapping[str, Any],
    mine: Mapping[str, Mapping[str, Any]],
    theirs: Mapping[str, Mapping[str, Any]],
    names: tuple[str, str],
) -> Card:
    """Both answers to one prompt."""
    key = str(row.get("row_id"))
    prompt = prompt_in(mine.get(key) or theirs.get(key) or {})
    found = []
    for name, score, rows in zip(names, scores_of(row), (mine, theirs), strict=True):
        known = bool(np.isfinite(score))
        text = shown((rows.get(key) or {}).get("response_text"))
        unit = score if known and 0 <= score <= 1 else None
        found.append(Answer(display_name(name), text, number(score) if known else "", unit))
    return Card(tag, prompt, found)


def prompt_in(row: Mapping[str, Any]) -> str:
    """The last message of a prompt."""
    messages = row.get("prompt_messages")
    last = messages[-1] if isinstance(messages, list) and messages else {}
    return str(last.get("content") or "") if isinstance(last, Mapping) else ""
