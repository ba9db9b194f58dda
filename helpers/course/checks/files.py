"""Checks of a file or notebook: `python -m helpers check NAME FILE`."""

from __future__ import annotations

import difflib
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from helpers.course.answers import functions_of
from helpers.course.checks.deciding import CheckResult, decide
from helpers.course.checks.exercise import exercises
from helpers.errors import CourseError


def check_file(path: str | Path, name: str | None = None, timeout: float | None = 20) -> list[CheckResult]:
    """Check the exercise `name`, or every exercise whose function the file defines.

    Raises CourseError for a file that cannot be read or run, an unknown exercise, a missing function.
    """
    if name is not None and name not in exercises():
        near = difflib.get_close_matches(name, exercises(), 3, 0.6)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(exercises())}"
        raise CourseError(f"check: there is no exercise {name}; {hint}")
    found = defined_in(Path(path))
    names = [name] if name is not None else [known for known in exercises() if callable(found.get(known))]
    if not names:
        raise CourseError(f"{path} defines no function of an exercise; they are {', '.join(exercises())}")
    if names[0] not in found:
        near = difflib.get_close_matches(names[0], found, 1, 0.7)
        hint = f": is {near[0]} meant?" if near else ""
        raise CourseError(f"{path} defines no function {names[0]}{hint}")
    return [decide(known, found[known], timeout) for known in names]


def defined_in(path: Path) -> dict[str, Any]:
    """The names that a file leaves behind; what it prints goes to stderr."""
    if path.suffix not in (".py", ".ipynb"):
        raise CourseError(f"{path}: check reads a Python file or a notebook (.py or .ipynb)")
    try:
        with redirect_stdout(sys.stderr):
            return functions_of(path)
    except CourseError as problem:
        raise CourseError(str(problem).removeprefix("--answers ")) from None
