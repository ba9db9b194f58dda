"""A function that recognises the visible inputs passes them and fails on fresh draws."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import solutions.answers as answers
from helpers.course.checks import check
from helpers.course.checks.exercise import load
from helpers.course.checks.outcomes import call, laid_out
from solutions.mistakes import mistakes_of
from solutions.oracles import ORACLES, verify


def recogniser(name: str, fallback: Callable[..., Any]) -> Callable[..., Any]:
    """Right on the cases of the vector file, by their inputs; `fallback` elsewhere."""
    exercise, answer = load(name), getattr(answers, name)
    known: set[bytes] = set()

    def key(*given: Any) -> bytes:
        return pickle.dumps([x.tolist() if isinstance(x, torch.Tensor) else x for x in given])

    for case in exercise.cases:
        tensors = {
            n: laid_out(v, "") if isinstance(v, torch.Tensor) else v for n, v in case.arguments.items()
        }
        call(lambda *a, **k: known.add(key(*a, *k.values())), exercise, tensors)

    def function(*given: Any, **named: Any) -> Any:
        visible = key(*given, *named.values()) in known
        return answer(*given, **named) if visible else fallback(*given, **named)

    return function


def constant(name: str) -> Callable[..., Any]:
    """The answer's kind of result, with gradient, always with the same numbers."""
    answer = getattr(answers, name)

    def function(*given: Any, **named: Any) -> Any:
        result = answer(*given, **named)
        return 0 * result.nan_to_num(0.0, 0.0, 0.0) if isinstance(result, torch.Tensor) else 1.0

    return function


@pytest.mark.parametrize("name", sorted(ORACLES))
def test_a_function_that_recognises_the_visible_inputs_fails(name: str) -> None:
    assert check(name, recogniser(name, getattr(answers, name)), quiet=True).passed
    result = check(name, recogniser(name, constant(name)), quiet=True)
    assert not result.passed and result.hint.startswith(
        "right on the examples, but not on fresh random inputs"
    )
    assert verify(name, recogniser(name, constant(name)), draws=3)


@pytest.mark.parametrize("name", sorted(ORACLES))
def test_graders_see_through_a_recogniser_that_falls_back_on_a_mistake(name: str) -> None:
    """The learner's own checks catch some of these, the instructor's draws all that fresh inputs can show."""
    mistakes = mistakes_of(name)
    tricks = {key: recogniser(name, known.function) for key, known in mistakes.items()}
    caught = [key for key, trick in tricks.items() if not check(name, trick, quiet=True).passed]
    assert len(caught) >= 0.25 * len(mistakes), f"only {caught}"
    seen = [key for key, trick in tricks.items() if verify(name, trick, draws=12, seed=1)]
    assert len(seen) >= 0.6 * len(mistakes), f"not {sorted(set(mistakes) - set(seen))}"
