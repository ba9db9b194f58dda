"""The command `check`: exercises in a learner's file or notebook."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field

from helpers.apps.flags import parse, take_flag
from helpers.course.checks import show
from helpers.course.checks.files import check_file
from helpers.errors import CourseError

USAGE = "usage: python -m helpers check [NAME|all] FILE [--json] [--timeout SECONDS]"


@dataclass
class CheckConfig:
    """check [NAME|all] FILE: check one exercise, or all that a Python file or notebook defines."""

    json: bool = field(default=False, metadata={"help": "print the results as JSON"})
    timeout: float = field(default=20.0, metadata={"help": "seconds until a function is stopped; 0: never"})


def check_exercises(words: list[str]) -> int:
    """Print one line an exercise; exit status 1 if one is not passed."""
    timeout, rest = take_flag(words, "--timeout")
    places = [word for word in rest if not word.startswith("-")]
    flags = [word for word in rest if word.startswith("-")]
    config = parse(CheckConfig, flags + (["--timeout", timeout] if timeout else []), "check")
    if not 0 <= config.timeout < math.inf:  # NaN is neither
        raise CourseError(f"check: --timeout is {config.timeout:g}; give seconds, or 0 for no limit")
    if len(places) not in (1, 2):
        raise CourseError(f"check needs a file, and at most one exercise before it\n{USAGE}")
    name = places[0] if len(places) == 2 and places[0] != "all" else None
    results = check_file(places[-1], name, config.timeout)
    if config.json:
        print(json.dumps([asdict(result) for result in results], indent=1, ensure_ascii=False))
    else:
        for result in results:
            show(result)
    return 0 if all(result.passed for result in results) else 1
