"""Judges by name."""

from __future__ import annotations

from helpers.errors import CourseError
from helpers.judging.gold import GoldJudge
from helpers.judging.judge import Judge

JUDGES = {"gold": GoldJudge}


def make_judge(name: str) -> Judge:
    """The judge called `name`; CourseError names the known ones."""
    if name not in JUDGES:
        raise CourseError(f"--judge {name} is not one of {', '.join(JUDGES)}")
    return JUDGES[name]()
