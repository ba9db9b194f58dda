"""The judge sees every prompt's candidates twice, the second time in the opposite order."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from helpers.dataset_build.personal import find_personal
from helpers.dataset_build.settings import BuildSettings
from helpers.dataset_build.stages import FOLDER, VERSION, Row, Stage, batched, finished, partial, save
from helpers.errors import CourseError
from helpers.files import fingerprint
from helpers.journal import Journal
from helpers.judging.judge import Candidates, Choice, CostReached, Judge
from helpers.text.datasets import Example

TOO_FEW = "fewer than two different answers"
JUDGED_TOGETHER = 64  # prompts


def candidate_rows(
    settings: BuildSettings, prompts: Stage, answers: Sequence[Stage]
) -> tuple[list[Row], Row]:
    """For each prompt the answers worth judging, in the order the judge sees them, and what was left out.

    Equal texts count once. The order goes by a hash: no author is always the first.
    """
    left_out: Row = {}
    by_prompt: dict[str, list[Row]] = {row["row_id"]: [] for row in prompts.rows}
    for author in answers:
        for row in author.rows:
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

    Questions that the judge leaves open, at its cost cap or because a server does not answer, are missing
    from the rows; `stopped` in the summary says why. The next run asks those alone.
    """
    rows, left_out = candidate_rows(settings, prompts, answers)
    fit = [row for row in rows if len(row["answers"]) > 1]
    path = output / FOLDER / "verdicts.jsonl"
    key = fingerprint(VERSION, path.name, rows, identity)
    done = finished(path, key)
    if done is not None:
        return done
    _announce(judge, fit)
    problem: CourseError | None = None
    try:
        found = batched(path, key, fit, JUDGED_TOGETHER, lambda batch: _judge(judge, batch), "judging")
    except CostReached as reached:
        problem = reached
        found = [row for batch in Journal(partial(path), key).load() for row in batch["rows"]]
    if len(found) == len(fit):
        return save(path, key, found, {"left_out": left_out, "stopped": ""})
    problem = problem or CourseError(
        f"the judge answered {len(found)} of {len(fit)} prompts in both orders; the same command asks the"
        " others"
    )
    if not found:
        raise problem
    tqdm.write(str(problem), file=sys.stderr)
    return Stage(found, {"left_out": left_out, "stopped": str(problem)}, fingerprint(found))


def _announce(judge: Judge, rows: Sequence[Row]) -> None:
    """Say once what all questions would cost, where the judge knows; not again for every batch."""
    estimate, asker = getattr(judge, "estimate", None), getattr(judge, "asker", None)
    if estimate and rows:
        tqdm.write(estimate(_both_orders(rows)).render(judge.name), file=sys.stderr)
    if asker:
        asker.announce = False


def _both_orders(rows: Sequence[Row]) -> list[Candidates]:
    """First every row's candidates in order, then every row's in the opposite order."""
    sets = [(example_of(row), tuple(answer["text"] for answer in row["answers"])) for row in rows]
    return [Candidates(e, t) for e, t in sets] + [Candidates(e, t[::-1]) for e, t in sets]


def _judge(judge: Judge, batch: Sequence[Row]) -> list[Row]:
    """Both orders of a batch in one call, which a judge over the network spreads over its connections.

    A prompt without an answer in either order is left out, so that it is asked again.
    """
    choices = judge.choose(_both_orders(batch))
    if len(choices) != 2 * len(batch):
        raise CourseError(f"judge {judge.name} gave {len(choices)} choices for {2 * len(batch)} questions")
    return [
        {
            "row_id": row["row_id"],
            "first": asdict(first),
            "second": asdict(turned(second, len(row["answers"]))),
        }
        for row, first, second in zip(batch, choices[: len(batch)], choices[len(batch) :], strict=True)
        if "missing" not in (first.status, second.status)
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
