"""Write `data/checks`: `python -m solutions.vectors [--check] [NAME …]`.

For every exercise the oracle gives what is right and every known mistake what it would give, on the same
cases. A mistake that equals the right answer on all cases, or another mistake, is refused: then the cases
do not show it, and a learner would be told the wrong thing.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from helpers.course.checks.exercise import FORMAT, Case, Exercise, checks_dir, encode
from helpers.course.checks.outcomes import Outcome, run, same
from helpers.errors import CourseError
from helpers.files import write_text
from solutions.mistakes import mistakes_of
from solutions.oracles import ORACLES, Oracle, exercise_of, right
from solutions.oracles.base import Given

LARGEST = 200_000  # bytes of one exercise
CLOSE = 1e-4  # numbers of two builds, on machines that round differently


def build(check: bool = False, names: Sequence[str] = ()) -> list[str]:
    """Write the vector files that are out of date, and return their names; with `check` write nothing.

    A file whose numbers differ by rounding alone is left as it is.

    Raises CourseError for a mistake that the cases do not show, and for an unknown name.
    """
    for name in names:
        if name not in ORACLES:
            raise CourseError(f"there is no oracle of {name}: there are {', '.join(sorted(ORACLES))}")
    stale = []
    for name in sorted(names or ORACLES):
        path = checks_dir() / f"{name}.json"
        text = written(vectors(ORACLES[name]))
        if len(text.encode()) > LARGEST:
            raise CourseError(
                f"{path.name} has {len(text.encode())} bytes, over {LARGEST}: use smaller cases"
            )
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        if old != text and not (old and alike(json.loads(old), json.loads(text))):
            stale.append(f"data/checks/{path.name}")
            if not check:
                write_text(path, text)
    return stale


def vectors(oracle: Oracle) -> dict[str, Any]:
    """The check of one exercise as JSON."""
    exercise, known = exercise_of(oracle), mistakes_of(oracle.name)
    cases = [Case(g.why, g.arguments, {}, {}, g.tolerance, g.floor, g.layout) for g in oracle.cases()]
    expected = [right(oracle, case.arguments) for case in cases]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of mistakes
        outcomes = {
            key: [run(wrong.function, exercise, case) for case in cases] for key, wrong in known.items()
        }
    for given, *at_case in zip(oracle.cases(), expected, *outcomes.values(), strict=True):
        for outcome in at_case if not given.gradients else ():
            outcome.gradients = {}
    refuse_twins(exercise, cases, expected, outcomes)
    return {
        "exercise": oracle.name,
        "format": FORMAT,
        "arguments": exercise.arguments,
        "optional": exercise.optional,
        "gradients": exercise.gradients,
        "mistakes": {key: wrong.hint for key, wrong in known.items()},
        "inputs": exercise.inputs,
        "properties": [list(item) for item in oracle.properties],
        "cases": [
            case_json(given, case, expected[i], {key: got[i] for key, got in outcomes.items()})
            for i, (given, case) in enumerate(zip(oracle.cases(), cases, strict=True))
        ],
    }


def case_json(given: Given, case: Case, expected: Outcome, outcomes: dict[str, Outcome]) -> dict[str, Any]:
    """One case; a mistake is listed where its outcome is not the expected one."""
    wrong = {key: got.to_json() for key, got in outcomes.items() if not same(got, expected, case)}
    return {
        "why": given.why,
        "arguments": {name: encode(value) for name, value in given.arguments.items()},
        "expected": expected.to_json(),
        "mistakes": wrong,
        "tolerance": given.tolerance,
        "floor": given.floor,
        "layout": given.layout,
    }


def refuse_twins(
    exercise: Exercise, cases: list[Case], expected: list[Outcome], outcomes: dict[str, list[Outcome]]
) -> None:
    """Raise CourseError for a mistake that does not run, or equals the right answer or another mistake."""

    def twins(a: list[Outcome], b: list[Outcome]) -> bool:
        return all(same(x, y, case) for x, y, case in zip(a, b, cases, strict=True))

    for key, got in outcomes.items():
        broken = [outcome.problem for outcome in got if outcome.error in ("TypeError", "NameError")]
        if broken:
            raise CourseError(f"{exercise.name}: the mistake {key} does not run: {broken[0]}")
        if twins(got, expected):
            raise CourseError(f"{exercise.name}: no case tells the mistake {key} from the right answer")
    for (one, a), (other, b) in combinations(outcomes.items(), 2):
        if twins(a, b):
            raise CourseError(f"{exercise.name}: no case tells the mistake {one} from {other}")


def written(plain: dict[str, Any]) -> str:
    """The JSON text: one line a case, so that a change shows as such in a diff."""
    head = {key: value for key, value in plain.items() if key != "cases"}
    lines = [f"{json.dumps(key)}: {compact(value)}" for key, value in head.items()]
    cases = ",\n".join(compact(case) for case in plain["cases"])
    return "{\n" + ",\n".join([*lines, f'"cases": [\n{cases}\n]']) + "\n}\n"


def compact(value: Any) -> str:
    """JSON without idle spaces."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def alike(a: Any, b: Any) -> bool:
    """Equal JSON, but for the last digits of numbers."""
    if isinstance(a, dict) and isinstance(b, dict):
        return list(a) == list(b) and all(alike(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(alike, a, b))
    numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (a, b))
    return abs(a - b) <= CLOSE * max(abs(a), abs(b), 1e-3) if numbers else a == b


def main(words: Sequence[str]) -> int:
    """The command line: 1 where `--check` finds a file out of date, 2 for what cannot be built."""
    check = "--check" in words
    try:
        stale = build(check, [word for word in words if not word.startswith("--")])
    except CourseError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    for name in stale:
        print(f"{name} is out of date: python -m solutions.vectors" if check else f"wrote {name}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
