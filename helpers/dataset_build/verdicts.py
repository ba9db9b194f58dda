"""The judge sees every prompt's candidates twice, the second time in the opposite order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from helpers.dataset_build.personal import find_personal
from helpers.dataset_build.settings import BuildSettings
from helpers.dataset_build.stages import FOLDER, Row, Stage, batched, partial, stage
from helpers.errors import CourseError
from helpers.files import fingerprint
from helpers.journal import Journal
from helpers.judging.judge import Candidates, Choice, Judge
from helpers.text.datasets import Example

TOO_FEW = "fewer than two different answers"


class _OutOfMoney(Exception):
    """The judge left something unanswered: what is judged is kept, the rest waits for another run."""


def candidate_rows(
    settings: BuildSettings, prompts: Stage, answers: Sequence[Stage]
) -> tuple[list[Row], Row]:
    """For each prompt the answers worth judging, in the order the judge sees them, and what was left out.

    Equal texts count once. The order goes by a hash: no author is always the first.
    """
    left_out: Row = {}
    by_prompt: dict[str, list[Row]] = {row["row_id"]: [] for row in prompts.rows}
    for stage_ in answers:
        for row in stage_.rows:
            by_prompt[row["row_id"]] += row["answers"]
    rows = []
    for prompt in prompts.rows:
        kept: dict[str, Row] = {}
        for answer in by_prompt[prompt["row_id"]]:
            reason = _unfit(answer, settings, kept)
            if reason:
                left_out[reason] = left_out.get(reason, 0) + 1
            else:
                kept[answer["text"]] = answer
        order = sorted(kept.values(), key=lambda a: fingerprint(settings.seed, prompt["row_id"], a["text"]))
        rows.append({**prompt, "answers": order})
    return rows, left_out


def _unfit(answer: Row, settings: BuildSettings, kept: dict[str, Row]) -> str | None:
    if not answer["text"]:
        return "empty"
    if not answer["complete"] and not settings.keep_truncated:
        return "truncated"
    if answer["text"] in kept:
        return "said before"
    if settings.personal_data != "keep" and find_personal(answer["text"]):
        return "personal data"
    return None


def example_of(row: Row) -> Example:
    """A stage's row as the judge takes it."""
    facts = {"metadata": row["metadata"]} if "metadata" in row else {}
    return Example(row["row_id"], tuple(row["prompt_messages"]), (), facts)


def write_verdicts(
    settings: BuildSettings,
    judge: Judge,
    identity: Any,
    prompts: Stage,
    answers: Sequence[Stage],
    output: Path,
) -> Stage:
    """Rows of row_id and the two choices, both as places in that row's `answers` of `candidate_rows`.

    A judge that stops at its cost cap leaves rows out; `complete` in the summary is False then, and the next
    run with a higher cap goes on there.
    """
    rows, left_out = candidate_rows(settings, prompts, answers)
    fit = [row for row in rows if len(row["answers"]) > 1]
    inputs = {"rows": fingerprint(rows), "judge": identity, "batch": settings.batch_size}
    path = output / FOLDER / "verdicts.jsonl"
    stopped: list[Row] = []

    def work(key: str) -> tuple[list[Row], Row]:
        try:
            found = batched(
                path, key, fit, settings.batch_size, lambda batch: _judge(judge, batch), "judging"
            )
        except _OutOfMoney:
            done = Journal(partial(path), key).load()
            stopped.extend(row for batch in done for row in batch["rows"])
            raise
        return found, {"left_out": left_out, "complete": True}

    try:
        return stage(path, inputs, work)
    except _OutOfMoney:
        if not stopped:
            raise CourseError(
                "the judge answered nothing for the first batch: raise --max_cost, or look at what it says"
                " above; prompts and answers are kept, the same command goes on"
            ) from None
        return Stage(stopped, {"left_out": left_out, "complete": False}, fingerprint(stopped))


def _judge(judge: Judge, batch: Sequence[Row]) -> list[Row]:
    """Both orders of a batch in one call, which a judge over the network can spread over its connections."""
    examples = [example_of(row) for row in batch]
    texts = [tuple(answer["text"] for answer in row["answers"]) for row in batch]
    forward = [Candidates(e, t) for e, t in zip(examples, texts, strict=True)]
    backward = [Candidates(e, t[::-1]) for e, t in zip(examples, texts, strict=True)]
    choices = judge.choose([*forward, *backward])
    if len(choices) != 2 * len(batch):
        raise CourseError(f"judge {judge.name} gave {len(choices)} choices for {2 * len(batch)} questions")
    if any(choice.status == "missing" for choice in choices):
        raise _OutOfMoney
    pairs = zip(batch, texts, choices[: len(batch)], choices[len(batch) :], strict=True)
    return [
        {"row_id": row["row_id"], "first": asdict(first), "second": asdict(turned(second, len(answers)))}
        for row, answers, first, second in pairs
    ]


def turned(choice: Choice, count: int) -> Choice:
    """A choice among candidates in the opposite order, as places in the order itself."""
    values = asdict(choice)
    for name in ("best", "worst"):
        if values[name] is not None:
            values[name] = count - 1 - values[name]
    if values["scores"] is not None:
        values["scores"] = tuple(values["scores"][::-1])
    return Choice(**values)
