"""The exercises as tests: one each, with the hint of its check where it fails."""

from __future__ import annotations

from typing import Any

import pytest

from helpers.course.checks import check, exercises


@pytest.mark.parametrize("name", exercises())
def test_exercise(name: str, answers: dict[str, Any]) -> None:
    __tracebackhide__ = True
    if name not in answers:
        pytest.skip(f"{name} is not in these answers")
    result = check(name, answers[name], quiet=True)
    if not result.passed:
        pytest.fail(f"{name}: {result.hint}", pytrace=False)
