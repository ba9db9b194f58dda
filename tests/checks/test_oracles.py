"""The oracles against finite differences, and against each other's cases: no answer is involved."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from helpers.course.checks.draws import Draw
from solutions.oracles import ORACLES, Oracle, right, verify
from solutions.oracles.base import in_float64

WITH_GRADIENT = sorted(name for name, oracle in ORACLES.items() if oracle.gradients)


def weighted(oracle: Oracle, given: dict[str, Any]) -> float:
    """The number whose gradient a check compares."""
    value = oracle.function(**given)
    weights = 1.0 + (torch.arange(value.numel()) % 3) * 0.5
    return float((value.reshape(-1) * weights).sum().detach())


@pytest.mark.parametrize("name", WITH_GRADIENT)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    oracle, chosen, step = ORACLES[name], random.Random(0), 1e-6
    for seed in range(2):
        given = Draw(seed).arguments(oracle.inputs)
        exact = {key: in_float64(value) for key, value in given.items()}
        gradients = right(oracle, given).gradients
        for key in oracle.gradients:
            flat = exact[key].reshape(-1)
            for place in chosen.sample(range(flat.numel()), min(12, flat.numel())):
                ends = []
                for move in (step, -step):
                    moved = flat.clone()
                    moved[place] += move
                    ends.append(weighted(oracle, {**exact, key: moved.view_as(exact[key])}))
                slope = (ends[0] - ends[1]) / (2 * step)
                gradient = gradients[key]
                assert gradient is not None
                assert float(gradient.reshape(-1)[place]) == pytest.approx(slope, rel=1e-4, abs=1e-6), (
                    key,
                    place,
                )


def test_an_oracle_is_not_an_answer() -> None:
    """An oracle returns float64 (or whole numbers, or a Python float), and imports no answer."""
    import ast
    from pathlib import Path

    import solutions.oracles as oracles

    for path in Path(oracles.__file__).parent.glob("*.py"):
        imported = {
            getattr(n, "module", "")
            for n in ast.walk(ast.parse(path.read_text()))
            if isinstance(n, ast.ImportFrom)
        }
        assert not any(str(module).startswith("solutions.answers") for module in imported), path


def test_every_oracle_has_cases_of_every_kind() -> None:
    for name, oracle in ORACLES.items():
        cases = oracle.cases()
        whys = [case.why for case in cases]
        assert len(set(whys)) == len(whys) >= 8, name
        if any(isinstance(x, torch.Tensor) for case in cases for x in case.arguments.values()):
            assert "inputs that are not contiguous" in whys, name
        if oracle.gradients:
            assert "inputs in bfloat16" in whys, name


def test_equal_seeds_give_equal_draws_and_others_do_not() -> None:
    inputs = ORACLES["sft_loss"].inputs
    one, again, other = (Draw(seed).arguments(inputs) for seed in (3, 3, 4))
    assert torch.equal(one["logits"], again["logits"])
    assert one["logits"].shape != other["logits"].shape or not torch.equal(one["logits"], other["logits"])


def test_verify_says_what_differs() -> None:
    said = verify("pair_accuracy", lambda chosen_rewards, rejected_rewards: 0.25, draws=1)
    assert said is not None and "expected, got 0.25" in said
    said = verify("pair_accuracy", lambda chosen_rewards, rejected_rewards: 1 / 0, draws=1)
    assert said is not None and "raised ZeroDivisionError" in said
    with pytest.raises(KeyError):
        verify("nothing", max)
