"""`grade`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.apps.flags import parse, text
from helpers.apps.submitting import PAIRS, PROMPTS, public_directory, public_file
from helpers.course.autograder import NO_JUDGE, grade
from helpers.course.results import render_results
from helpers.course.stages import METHODS
from helpers.errors import CourseError
from helpers.judging.judge import Judge
from helpers.judging.registry import JUDGES, make_judge


@dataclass
class GradeConfig:
    """Grade a submission directory or zip against the public evaluation files."""

    submission: str = text("directory or zip")
    public_eval: str | None = text("directory of the public evaluation files; default: the bundled one")
    output: str | None = text("results JSON in Gradescope's format; default: beside the submission")
    leaderboard: bool = text(
        "also write the figures as Gradescope's leaderboard, which the class sees", False
    )
    judge: str = text("gold, exact on the bundled prompts", "gold")


def grade_submission(words: list[str], answers: Any) -> int:
    """Grade, print the table, and return 1 if a part fails."""
    if words and not words[0].startswith("-"):
        words = ["--submission", *words]
    config = parse(GradeConfig, words, "grade")
    if not config.submission:
        raise CourseError("grade needs the submission: python -m helpers grade DIR")
    source = Path(config.submission)
    if not os.path.exists(source):
        raise CourseError(f"{source} does not exist: give a submission directory or a zip")
    output = Path(config.output) if config.output else source.parent / f"{source.stem}_results.json"
    public = public_directory(config.public_eval)
    public_file(public, PROMPTS), public_file(public, PAIRS)
    judge, why_not = judge_or_reason(config, answers)
    results = grade(
        source,
        public,
        judge,
        answers,
        output,
        trainable=METHODS,
        no_judge=why_not,
        leaderboard=config.leaderboard,
    )
    print(render_results(results))
    print(f"results: {output}")
    return 0 if all(test.get("status") == "passed" for test in results["tests"]) else 1


def judge_or_reason(config: Any, answers: Any) -> tuple[Judge | None, str]:
    """The judge, or why there is none, as without a key: then the reward model is graded all the same."""
    known_judge(config.judge)
    try:
        return make_judge(config.judge), NO_JUDGE
    except CourseError as problem:
        return None, str(problem)


def known_judge(name: str) -> None:
    """Raise CourseError for a judge that there is not."""
    if name not in JUDGES:
        raise CourseError(f"--judge {name} is not one of {', '.join(JUDGES)}")
