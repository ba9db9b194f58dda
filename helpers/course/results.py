"""The results of grading: parts that cannot take each other down, Gradescope's JSON, and a table.

The JSON holds the fields that Gradescope documents for `results.json`, and nothing else at its top level;
figures of our own lie under `extra_data`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from helpers.errors import CourseError
from helpers.judging.judge import Judge


@dataclass(frozen=True)
class Outcome:
    """What grading one part found. `value` is None where nothing could be measured."""

    passed: bool
    output: str
    value: float | None = None
    details: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    """One part of the grade: worth one point at or over its threshold."""

    name: str
    threshold: float
    grade: Callable[[], Outcome]


def outcome_of(grade: Callable[[], Outcome]) -> Outcome:
    """Run one part; whatever goes wrong in it becomes its one line and leaves the others alone."""
    try:
        return grade()
    except CourseError as problem:
        return Outcome(False, str(problem))
    except Exception as problem:  # a fault of ours or of the judge must not take the other parts down
        return Outcome(
            False, f"the grader failed on this part ({type(problem).__name__}: {problem}); ask staff"
        )


def graded(part: Part) -> dict[str, Any]:
    """Grade one part, and return it as Gradescope's test case."""
    started = time.perf_counter()
    outcome = outcome_of(part.grade)
    return as_test(part, outcome, time.perf_counter() - started)


def as_test(part: Part, outcome: Outcome, seconds: float) -> dict[str, Any]:
    """An outcome as Gradescope's test case."""
    return {
        "name": part.name,
        "score": 1.0 if outcome.passed else 0.0,
        "max_score": 1.0,
        "status": "passed" if outcome.passed else "failed",
        "output": printable(outcome.output),
        "output_format": "text",
        "visibility": "visible",
        "extra_data": {
            "value": outcome.value,
            "threshold": part.threshold,
            "seconds": round(seconds, 3),
            **outcome.details,
        },
    }


def results_of(
    tests: list[dict[str, Any]],
    notices: list[str],
    judge: Judge | None,
    seconds: float,
    *,
    leaderboard: bool = False,
) -> dict[str, Any]:
    """The whole results JSON. With `leaderboard`, Gradescope shows every part's figure to the class."""
    notices = [printable(notice) for notice in notices]
    results = {
        "score": sum(test["score"] for test in tests),
        "execution_time": round(seconds, 3),
        "output": "\n".join(notices),
        "output_format": "text",
        "visibility": "visible",
        "tests": tests,
        "extra_data": {
            "max_score": sum(test["max_score"] for test in tests),
            "judge": judge.name if judge else None,
            "judge_is_proxy": bool(judge and judge.is_proxy),
            "notices": notices,
        },
    }
    if leaderboard:
        measured = [test for test in tests if test["extra_data"]["value"] is not None]
        results["leaderboard"] = [
            {"name": test["name"], "value": round(test["extra_data"]["value"], 4)} for test in measured
        ]
    return results


def printable(text: str) -> str:
    """Escape what a terminal or a JSON file could choke on; newlines between lines stay."""
    return "\n".join(
        "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)
        for line in text.split("\n")
    )


# ---------------------------------------------------------------------- the table


def render_results(results: Mapping[str, Any]) -> str:
    """Return the results as a table for the terminal, with what to mend below it."""
    header = f"{'part':<13} {'value':>6} {'needed':>6} {'score':>9} {'seconds':>8}  result"
    total = f"{results['score']:>4g}/{results['extra_data']['max_score']:<4g}"
    lines = [header, "-" * len(header)]
    lines += [_table_row(test) for test in results["tests"]]
    lines += ["-" * len(header), f"{'total':<13} {'':>6} {'':>6} {total}"]
    lines += [f"note: {notice}" for notice in results["extra_data"]["notices"]]
    for test in results["tests"]:
        body = test["output"].split("\n")
        lines.append(f"{test['name']}: {body[0]}")
        lines += [f"    {line}" for line in body[1:]]
    return "\n".join(lines)


def _table_row(test: Mapping[str, Any]) -> str:
    extra = test["extra_data"]
    value = "–" if extra["value"] is None else f"{extra['value']:.3f}"
    score = f"{test['score']:>4g}/{test['max_score']:<4g}"
    figures = f"{value:>6} {extra['threshold']:>6.2f} {score:>9} {extra['seconds']:>8.2f}"
    return f"{test['name']:<13} {figures}  {test['status']}"
