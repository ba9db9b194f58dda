"""Slips that are no misunderstanding of the mathematics: a missing return, a shape, a lost gradient."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import torch

from helpers.course.checks.clock import line_in
from helpers.course.checks.exercise import Case, Exercise
from helpers.course.checks.outcomes import Outcome, is_number, is_special
from helpers.guard import code_file, described, words_of

SHAPE_WORDS = ("size", "shape", "dimension", "broadcast", "expand", "view")
CUT_OFF = ".detach(), .item(), torch.tensor(...), torch.no_grad() or a comparison cuts it off"


def unwritten(function: Callable[..., Any], outcome: Outcome) -> bool:
    """True for a function whose body is still the blank; torch raises the same error, but deeper down."""
    if outcome.error == "NotImplementedError" and outcome.problem is not None:
        frames = traceback.extract_tb(outcome.problem.__traceback__)
        return frames[-1].filename == code_file(function)
    return outcome.value is ...


def misuse(
    function: Callable[..., Any], exercise: Exercise, case: Case, got: Outcome, expected: Outcome
) -> str | None:
    """The hint for such a slip on this case, or None where only numbers are wrong."""
    if got.problem is not None:
        return raised(function, got.problem, case)
    if got.value is None:
        return "it returns None: is the return missing?"
    if got.changed:
        return (
            f"it changes its input {' and '.join(got.changed)} in place: compute a new tensor instead"
            " (no += on an input, no method that ends in _, no assignment to a slice)"
        )
    return wrong_kind(got.value, expected.value, case) or lost_gradient(got, expected)


def raised(function: Callable[..., Any], problem: BaseException, case: Case) -> str:
    """An exception in words, with the learner's line."""
    line = line_in(function, problem)
    where = f", {line}" if line else ""
    words = words_of(problem)[:200]
    if isinstance(problem, SystemExit):
        return f"it stops the program (exit){where}: return a value instead"
    shapes = isinstance(problem, (RuntimeError, IndexError, ValueError))
    if shapes and any(word in words.lower() for word in SHAPE_WORDS):
        return f"the shapes do not fit{where} ({words}); given were {shapes_of(case)}"
    return (
        f"it raises {type(problem).__name__}{where} ({words})"
        if words
        else (f"it raises {type(problem).__name__}{where}")
    )


def shapes_of(case: Case) -> str:
    """The shapes of the tensors that a case hands in."""
    tensors = {name: value for name, value in case.arguments.items() if isinstance(value, torch.Tensor)}
    return ", ".join(f"{name} {tuple(value.shape)}" for name, value in tensors.items())


def wrong_kind(value: Any, expected: Any, case: Case) -> str | None:
    """A result of the wrong type, shape, dtype or device."""
    if isinstance(expected, list):
        if not isinstance(value, (list, tuple)) or len(value) != len(expected):
            return f"it returns {described(value)}; expected are {len(expected)} results"
        parts = zip(value, expected, strict=True)
        return next(filter(None, (wrong_kind(a, b, case) for a, b in parts)), None)
    if isinstance(expected, dict) and (not isinstance(value, dict) or value.keys() != expected.keys()):
        got = f"the keys {', '.join(map(str, value))}" if isinstance(value, dict) else described(value)
        return f"it returns {got}; expected is a dictionary of {', '.join(expected)}"
    if not isinstance(expected, torch.Tensor):
        if is_number(expected) and not is_number(value):
            return f"it returns {described(value)}; expected is a Python float (.item() makes one)"
        return None
    shape = f"a tensor of shape {tuple(expected.shape)}"
    if not isinstance(value, torch.Tensor):
        more = f" ({CUT_OFF})" if is_number(value) else ""
        return f"it returns {described(value)}; expected is {shape}{more}"
    if is_special(value):
        return f"it returns a nested or sparse tensor; expected is {shape}, a plain one"
    if value.shape != expected.shape:
        return (
            f"the shape of the result is {tuple(value.shape)}, and should be {tuple(expected.shape)}"
            f" ({case.why}; given were {shapes_of(case)})"
        )
    if value.device != expected.device:
        return f"the result is on {value.device}, the inputs on {expected.device}: stay on the inputs' device"
    if value.dtype != expected.dtype:
        return wrong_dtype(value, expected, case)
    return None


def wrong_dtype(value: torch.Tensor, expected: torch.Tensor, case: Case) -> str:
    """The result's dtype, and where it comes from if the inputs have the same."""
    got, wanted = (str(x.dtype).removeprefix("torch.") for x in (value, expected))
    inputs = {x.dtype for x in case.arguments.values() if isinstance(x, torch.Tensor)}
    advice = ""
    if expected.dtype == torch.float32:
        advice = ": call .float() on the inputs first" if value.dtype in inputs else ": end with .float()"
    return f"the result is {got} and should be {wanted} ({case.why}){advice}"


def lost_gradient(got: Outcome, expected: Outcome) -> str | None:
    """A result that no gradient leads back from, although its inputs want one."""
    if expected.gradients and all(got.gradients.get(name) is None for name in expected.gradients):
        return (
            f"no gradient flows from the result to {' and '.join(expected.gradients)},"
            f" so nothing could be learnt: {CUT_OFF}"
        )
    return None
