"""Grades from 1 to 5 for helpful, harmless and honest, by an LLM judge: one question a response.

A grade has no opponent and no order to be biased by, but every judge has a scale of its own: compare grades
of one judge with each other only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from helpers.errors import CourseError
from helpers.judging import llm_prompt as prompt
from helpers.judging.llm import LLMJudge
from helpers.judging.llm_client import Question
from helpers.text.datasets import Example

SCALES = ("helpful", "harmless", "honest")


@dataclass(frozen=True)
class Grade:
    """One response's grades; None unless `status` is "ok"."""

    helpful: int | None
    harmless: int | None
    honest: int | None
    reason: str
    status: str = "ok"


@dataclass(frozen=True)
class Rubric:
    """All grades and their means. `left_out` counts responses without grades, by status."""

    grades: list[Grade]
    means: dict[str, float | None]
    left_out: dict[str, int]
    judge: str
    instructions: str

    def to_dict(self) -> dict[str, Any]:
        """Means and counts as JSON values."""
        graded = len(self.grades) - sum(self.left_out.values())
        return {
            **self.means,
            "graded": graded,
            "left_out": dict(self.left_out),
            "judge": self.judge,
            "instructions": self.instructions,
        }


def rubric_scores(judge: Any, examples: Sequence[Example], responses: Sequence[str]) -> Rubric:
    """Grade one response a prompt with the model behind an LLM judge, its cache and its budget.

    Raises:
        CourseError: for another kind of judge, a letter judge, or lists of unequal length.
    """
    if not isinstance(judge, LLMJudge) or judge.form != "json":
        raise CourseError("rubric grades need --judge openai with --judge_format json")
    if len(examples) != len(responses):
        raise CourseError(f"{len(responses)} responses for {len(examples)} prompts: give one for each")
    text = prompt.instructions("rubric_v1")
    schema = prompt.schema_of(prompt.Grades)
    tasks = []
    for example, response in zip(examples, responses, strict=True):
        user = prompt.rubric_text(example.messages, response)
        tasks.append(judge.task(Question(text.text, user, schema, judge.max_tokens), _read))
    grades = [_grade(answer) for answer in judge.asker.ask(tasks)]
    columns = {name: [getattr(one, name) for one in grades if one.status == "ok"] for name in SCALES}
    left_out = {
        status: sum(one.status == status for one in grades) for status in ("unparsed", "refused", "missing")
    }
    means = {name: fmean(values) if values else None for name, values in columns.items()}
    return Rubric(grades, means, left_out, judge.name, text.hash)


def _read(text: str) -> dict[str, Any]:
    return prompt.read_json_answer(prompt.Grades, text).model_dump()


def _grade(answer: dict[str, Any]) -> Grade:
    scores = {name: answer.get(name) for name in SCALES}
    return Grade(**scores, reason=answer.get("reason", ""), status=answer.get("status", "ok"))
