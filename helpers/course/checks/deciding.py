"""From outcomes to one verdict and hint: a known mistake, a slip, or the smallest input that shows it."""

from __future__ import annotations

import functools
import inspect
import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

import torch

from helpers.course.checks.clock import TimeUp, line_in, time_limit
from helpers.course.checks.draws import Draw
from helpers.course.checks.exercise import Case, Exercise, load
from helpers.course.checks.misuse import misuse, raised, unwritten
from helpers.course.checks.outcomes import Outcome, misfit, run, same, same_value, wrong_gradients
from helpers.course.checks.properties import PROPERTIES, SOMETIMES, Probe, Unlike
from helpers.course.checks.quantised import OF_BLOCKS
from helpers.course.checks.state import chance_kept, settings_kept
from helpers.guard import described

ROUNDS = 2  # fresh draws for a property
TRIES = 40  # for one that need not hold on every draw
FEW = 24  # numbers; longer tensors are shown by their shape


@dataclass(frozen=True)
class CheckResult:
    """One check: `mistake` is the id of a known one, `hint` what the learner reads; both empty if passed."""

    name: str
    passed: bool
    mistake: str | None = None
    hint: str = ""


@functools.cache
def exercise_named(name: str) -> Exercise:
    """An exercise, read once."""
    return load(name)


def decide(name: str, function: Any, timeout: float | None) -> CheckResult:
    """Check one function; what it sets for the whole process is put back. KeyError: unknown exercise."""
    with chance_kept(), settings_kept():
        return decided(name, function, timeout)


def decided(name: str, function: Any, timeout: float | None) -> CheckResult:
    """Check one function, in torch's default settings."""
    exercise = exercise_named(name)
    if not callable(function) or inspect.isclass(function):
        kind = "a class" if inspect.isclass(function) else described(function)
        return CheckResult(name, False, None, f"it is {kind}, not a function")
    if problem := misfit(function, exercise):
        return CheckResult(name, False, None, problem)
    try:
        with time_limit(timeout), silence():
            return verdict(exercise, function)
    except TimeUp as problem:
        return stopped(
            name, function, problem, f"it was still running after {timeout:g} s; is a loop endless?"
        )
    except KeyboardInterrupt as problem:
        return stopped(name, function, problem, "it was interrupted")


@contextmanager
def silence() -> Iterator[None]:
    """Drop what a function prints, and its warnings."""
    nowhere = io.StringIO()
    with redirect_stdout(nowhere), redirect_stderr(nowhere), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def stopped(name: str, function: Any, problem: BaseException, words: str) -> CheckResult:
    """A check that was cut short."""
    line = line_in(function, problem)
    return CheckResult(name, False, None, f"{words} ({line})" if line else words)


def verdict(exercise: Exercise, function: Callable[..., Any]) -> CheckResult:
    """All cases, then the properties."""
    cases = exercise.cases
    expected = [Outcome.from_json(case.expected, case) for case in cases]
    got = [run(function, exercise, case) for case in cases]
    if all(unwritten(function, outcome) for outcome in got):
        return CheckResult(
            exercise.name, False, None, "not written yet: replace the line that raises NotImplementedError"
        )
    pairs = zip(got, expected, cases, strict=True)
    failing = [i for i, (a, b, case) in enumerate(pairs) if not same(a, b, case)]
    if not failing:
        hint = broken_property(exercise, function)
        return CheckResult(exercise.name, hint is None, None, hint or "")
    named, exact = known_mistake(exercise, got, expected, failing)
    if named:
        hint = exercise.mistakes[named]
        name = named.partition("#")[0]  # variants of a mistake share its id
        return CheckResult(exercise.name, False, name, hint if exact else f"looks like this: {hint}")
    first = min(failing, key=lambda i: cases[i].size)
    hint = misuse(function, exercise, cases[first], got[first], expected[first])
    hint = hint or difference(cases[first], got[first], expected[first])
    return CheckResult(exercise.name, False, None, hint)


def known_mistake(
    exercise: Exercise, got: list[Outcome], expected: list[Outcome], failing: list[int]
) -> tuple[str | None, bool]:
    """The mistake with the same outcomes, and whether it has them on every case.

    A partial match agrees on more than half of the failing cases, and on at least two (or on all).
    """
    best: tuple[int, int, str] | None = None
    for number, name in enumerate(exercise.mistakes):
        agree = [
            same(got[i], Outcome.from_json(case.mistakes[name], case), case)
            if name in case.mistakes
            else i not in failing
            for i, case in enumerate(exercise.cases)
        ]
        if all(agree):
            return name, True
        hits = sum(agree[i] for i in failing)
        if 2 * hits > len(failing) and hits >= min(2, len(failing)):
            best = max(best or (0, 0, ""), (sum(agree), -number, name))
    return (best[2], False) if best else (None, False)


def broken_property(exercise: Exercise, function: Callable[..., Any]) -> str | None:
    """The hint of the first property that fails on fresh inputs."""
    probe = Probe(function, exercise)
    for name, parameters in exercise.properties:
        if hint := tried(probe, name, parameters):
            return f"right on the examples, but not on fresh random inputs: {hint}"
    return None


def tried(probe: Probe, name: str, parameters: dict[str, Any]) -> str | None:
    """One property on several draws: it must hold on all, or on one where it need not hold everywhere."""
    hint = None
    for _ in range(TRIES if name in SOMETIMES else ROUNDS):
        given = Draw().arguments(probe.exercise.inputs)
        try:
            hint = (PROPERTIES | OF_BLOCKS)[name](probe, given, **parameters)
        except (TimeUp, KeyboardInterrupt):
            raise
        except Unlike as problem:
            return str(problem)
        except BaseException as problem:
            return raised(probe.function, problem, Case("fresh inputs", given, {}))
        if bool(hint) != (name in SOMETIMES):
            return hint
    return hint


# ---------------------------------------------------------------------- words for numbers
def difference(case: Case, got: Outcome, expected: Outcome) -> str:
    """Where only numbers are wrong: the input, what was expected and what came."""
    inputs = ", ".join(f"{name}={short(value)}" for name, value in case.arguments.items())
    if not same_value(got.value, expected.value, case):
        return f"{case.why}: expected {short(expected.value)}, got {short(got.value)} for {inputs}"
    name = wrong_gradients(got, expected, case)[0]
    right, wrong = short(expected.gradients[name]), short(got.gradients[name])
    words = f"the value is right, but the gradient in {name} should be {right} and is {wrong}"
    return f"{case.why}: {words} for {inputs}"


def short(value: Any) -> str:
    """A value in few characters: four digits, long tensors by their shape."""
    if isinstance(value, torch.Tensor):
        return written(value.tolist()) if value.numel() <= FEW else f"a tensor of shape {tuple(value.shape)}"
    return written(value)


def written(value: Any) -> str:
    """Nested lists of numbers."""
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {written(entry)}" for name, entry in value.items()) + "}"
    return f"{value:.4g}" if isinstance(value, float) else repr(value)
