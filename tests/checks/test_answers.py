"""What is right passes: the reference answers, and five other ways to write each."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from typing import Any

import pytest

import solutions.answers as answers
import tests.checks.forms as forms
from helpers.course.checks import check
from solutions.oracles import ORACLES, verify

EVERY = pytest.mark.parametrize("name", sorted(ORACLES))


def written_otherwise(name: str) -> dict[str, Callable[..., Any]]:
    """The forms of an exercise: functions whose name begins with its own."""
    modules = [
        importlib.import_module(f"{forms.__name__}.{m.name}") for m in pkgutil.iter_modules(forms.__path__)
    ]
    every = {key: f for module in modules for key, f in inspect.getmembers(module, inspect.isfunction)}
    return {key: f for key, f in every.items() if key.startswith((f"{name}_by_", f"{name}_in_"))}


@EVERY
def test_the_reference_answer_passes(name: str) -> None:
    function = getattr(answers, name)
    assert check(name, function, quiet=True).passed
    assert verify(name, function, draws=25) is None


@EVERY
def test_five_other_forms_pass(name: str) -> None:
    others = written_otherwise(name)
    assert len(others) == 5
    for key, function in others.items():
        result = check(name, function, quiet=True)
        assert result.passed, (key, result.hint)
        assert verify(name, function, draws=10) is None, key


@EVERY
def test_a_check_never_fails_by_chance(name: str) -> None:
    """Properties are tried on fresh draws, so a right answer must pass on all of them."""
    results = [check(name, getattr(answers, name), quiet=True) for _ in range(15)]
    assert all(result.passed for result in results), [result.hint for result in results]
