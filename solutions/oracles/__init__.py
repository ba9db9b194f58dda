"""The right answers once more, independent of `solutions.answers`: float64, loops, by the papers.

Check vectors are built from them, and graders ask them on inputs that nobody has seen: `verify`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch

from helpers.course.checks.draws import Draw
from helpers.course.checks.exercise import Case, Exercise
from helpers.course.checks.outcomes import Outcome, gradients_of, run, same
from solutions.oracles import (
    credit,
    evaluation,
    grpo,
    hacking,
    kl,
    logprobs,
    ppo,
    preference,
    qlora,
    reward,
    sequence,
    sft,
)
from solutions.oracles.base import ORACLES, Given, Oracle, in_float64

__all__ = ["ORACLES", "Oracle", "exercise_of", "right", "verify"]

TOPICS = (logprobs, kl, credit, ppo, sft, reward, preference, grpo, sequence, evaluation, hacking, qlora)


def right(oracle: Oracle, arguments: dict[str, Any]) -> Outcome:
    """The oracle's value and gradients, in the precision that the contract names."""
    leaves: dict[str, torch.Tensor] = {}
    given = {name: in_float64(value) for name, value in arguments.items()}
    for name in oracle.gradients:
        leaves[name] = given[name].clone().requires_grad_()
    value = oracle.function(**{**given, **leaves})
    gradients: dict[str, Any] = gradients_of(value, leaves)
    for (
        name,
        gradient,
    ) in gradients.items():  # an oracle that takes nothing from an input has gradient 0 there
        like = torch.zeros_like(leaves[name]) if gradient is None else gradient
        gradients[name] = like.to(arguments[name].dtype)
    return Outcome(as_contracted(value), gradients)


def as_contracted(value: Any) -> Any:
    """float64 as float32; a pair of results as a list, as the checks keep it."""
    if isinstance(value, tuple):
        return [as_contracted(part) for part in value]
    floating = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.detach().float() if floating else value


def exercise_of(oracle: Oracle) -> Exercise:
    """The exercise without cases, for calling functions as the checks do."""
    return Exercise(
        name=oracle.name,
        arguments=list(oracle.arguments),
        optional=list(oracle.optional),
        gradients=list(oracle.gradients),
        cases=[],
        mistakes={},
        inputs=oracle.inputs,
        properties=list(oracle.properties),
    )


def verify(name: str, function: Callable[..., Any], draws: int = 20, seed: int | None = None) -> str | None:
    """Compare a function with the oracle, on its cases and on fresh random inputs.

    None where all agree, else what differs.

    Value, shape, dtype and gradients count. `seed` makes the draws repeatable. KeyError: unknown exercise.
    """
    oracle = ORACLES[name]
    exercise = exercise_of(oracle)
    seeds = random.SystemRandom() if seed is None else random.Random(seed)
    for given in [*oracle.cases(), *(fresh(oracle, seeds.getrandbits(48)) for _ in range(draws))]:
        case = Case(given.why, given.arguments, {}, {}, given.tolerance, given.floor, given.layout)
        expected, got = right(oracle, given.arguments), run(function, exercise, case)
        if not given.gradients:
            expected.gradients = {}
        if not same(got, expected, case):
            return f"{name}, {given.why}: {expected.value} expected, {shown(got)}"
    return None


def fresh(oracle: Oracle, seed: int) -> Given:
    """Inputs that nobody has seen."""
    return Given(
        f"the draw of seed {seed}",
        Draw(seed).arguments(oracle.inputs),
        tolerance=2e-5,
        floor=oracle.fresh_floor,
    )


def shown(outcome: Outcome) -> str:
    """What came instead."""
    if outcome.problem is not None:
        return f"raised {outcome.error}: {outcome.problem}"
    return f"got {outcome.value}, gradients {outcome.gradients}, changed {outcome.changed}"
