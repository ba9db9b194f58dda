"""`grade`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.apps.flags import parse, text
from helpers.apps.submitting import PAIRS, PROMPTS, public_directory, public_file
from helpers.course.autograder import NO_JUDGE, as_example, grade
from helpers.course.results import render_results
from helpers.course.stages import METHODS
from helpers.course.submission import directory_fingerprint, read_public_rows
from helpers.errors import CourseError
from helpers.judging.judge import Judge
from helpers.judging.measure import gold_metadata
from helpers.judging.registry import JUDGES, JudgeSettings, make_judge


@dataclass
class GradeConfig(JudgeSettings):
    """Grade a submission directory or zip against the public evaluation files."""

    submission: str = text("directory or zip")
    public_eval: str | None = text("directory of the public evaluation files; default: the bundled one")
    output: str | None = text("results JSON in Gradescope's format; default: beside the submission")
    leaderboard: bool = text(
        "also write the figures as Gradescope's leaderboard, which the class sees", False
    )
    profile: str | None = text("of --judge reward_model: tiny, smol, colab or qlora_7b")


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
    prompts, _ = public_file(public, PROMPTS), public_file(public, PAIRS)
    known_judge(config.judge)
    judge, why_not = judge_or_reason(config, prompts, answers)
    results = grade(
        source,
        public,
        judge,
        answers,
        output,
        trainable=METHODS,
        no_judge=why_not,
        leaderboard=config.leaderboard,
        judging_reward_model=judging_reward_model(config),
    )
    print(render_results(results))
    print(f"results: {output}")
    return 0 if all(test.get("status") == "passed" for test in results["tests"]) else 1


def judge_or_reason(config: Any, prompts: Path, answers: Any) -> tuple[Judge | None, str]:
    """The judge, or why there is none, as without a key: then the reward model is graded all the same.

    Without --judge it is the gold judge where every prompt carries its facts, else an LLM.
    """
    rows = map(as_example, read_public_rows(prompts))
    name = config.judge or ("gold" if all(map(gold_metadata, rows)) else "openai")
    try:
        return make_judge(name, config, answers), NO_JUDGE
    except CourseError as problem:
        return None, str(problem)


def judging_reward_model(config: Any) -> str | None:
    """The fingerprint of the reward model that judges, as a manifest of part 2 would name it."""
    if config.judge != "reward_model" or not config.judge_reward_model or config.force_proxy:
        return None
    place = Path(config.judge_reward_model)
    return directory_fingerprint(place) if place.is_dir() else None


def known_judge(name: str | None) -> None:
    """Raise CourseError for a judge that there is not; None is the default."""
    if name is not None and name not in JUDGES:
        raise CourseError(f"--judge {name} is not one of {', '.join(JUDGES)}")
