"""What is shipped: small plain JSON, built twice alike, and no line of an answer in it."""

from __future__ import annotations

import ast
import inspect
import json
import textwrap
from pathlib import Path

import pytest
import torch

import solutions.answers as answers
from helpers.course.checks import exercises
from helpers.course.checks.exercise import Case, checks_dir, decode, encode, load
from helpers.course.checks.outcomes import Outcome, run, same
from helpers.errors import CourseError
from solutions import vectors
from solutions.mistakes.base import MISTAKES, Mistake
from solutions.oracles import ORACLES, exercise_of

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(checks_dir().glob("*.json"))


def statements(name: str) -> set[str]:
    """Lines of an answer's body that say something of their own."""
    source = textwrap.dedent(inspect.getsource(getattr(answers, name)))
    body = ast.parse(source).body[0].body[1:]  # type: ignore[attr-defined]  # without the docstring
    lines = [line.strip() for node in body for line in ast.unparse(node).splitlines()]
    return {line for line in lines if len(line) > 24}


def test_every_exercise_with_an_oracle_is_shipped() -> None:
    assert exercises() == sorted(ORACLES)


def test_the_files_are_up_to_date() -> None:
    assert vectors.build(check=True) == [], "run: python -m solutions.vectors"


def test_building_twice_gives_equal_bytes() -> None:
    for name in ("dpo_loss", "grpo_loss"):
        first, second = (vectors.written(vectors.vectors(ORACLES[name])) for _ in range(2))
        assert first == second


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_files_are_small_and_plain(path: Path) -> None:
    assert path.stat().st_size < 200_000
    plain = json.loads(path.read_text(encoding="utf-8"), parse_constant=pytest.fail)  # no bare NaN
    assert plain["exercise"] == path.stem
    assert all(set(case["mistakes"]) <= set(plain["mistakes"]) for case in plain["cases"])


def test_no_shipped_file_holds_a_line_of_an_answer() -> None:
    shipped = [*FILES, *(ROOT / "helpers" / "course" / "checks").glob("*.py")]
    texts = {path: path.read_text(encoding="utf-8") for path in shipped}
    for name in ORACLES:
        for line in statements(name):
            assert not [path for path, text in texts.items() if line in text], line


def test_values_survive_the_round_trip() -> None:
    odd = torch.tensor([[1.5, torch.nan, -torch.inf], [1e-30, -0.1, 1e30]])
    for tensor in (odd, odd.bfloat16(), torch.tensor([True, False]), torch.zeros(2, 0), torch.tensor(3)):
        back = decode(json.loads(json.dumps(encode(tensor), allow_nan=False)))
        assert back.dtype == tensor.dtype and back.shape == tensor.shape
        torch.testing.assert_close(back, tensor, rtol=0, atol=0, equal_nan=True)
    for value in (None, 3, True, "k3", 0.1, float("inf"), [1, 2.5]):
        assert decode(json.loads(json.dumps(encode(value), allow_nan=False))) == value


def test_an_outcome_survives_the_round_trip() -> None:
    exercise = load("dpo_loss")
    for case in exercise.cases:
        outcome = run(answers.dpo_loss, exercise, case)
        assert same(outcome, Outcome.from_json(json.loads(json.dumps(outcome.to_json())), case), case)


def test_a_mistake_that_no_case_shows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    known = next(mistake for mistake in MISTAKES if mistake.exercise == "dpo_loss")
    for function, other in ((answers.dpo_loss, "from the right answer"), (known.function, "from twin")):
        twin = Mistake("dpo_loss", "twin", "A twin.", function)
        monkeypatch.setattr("solutions.mistakes.base.MISTAKES", [*MISTAKES, twin])
        with pytest.raises(CourseError, match=f"dpo_loss: no case tells the mistake .* {other}"):
            vectors.vectors(ORACLES["dpo_loss"])


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(CourseError, match="there is no oracle of dpo"):
        vectors.build(names=["dpo"])


def test_layouts_are_not_contiguous() -> None:
    for name, oracle in ORACLES.items():
        given = [case for case in oracle.cases() if case.layout]
        if not any(isinstance(x, torch.Tensor) for case in oracle.cases() for x in case.arguments.values()):
            continue  # lists have no layout
        assert given, name
        seen = []

        def look(*tensors: object, seen: list = seen, **rest: object) -> None:
            seen += [x.is_contiguous() for x in tensors if isinstance(x, torch.Tensor)]

        case = Case("", given[0].arguments, {}, layout=given[0].layout)
        run(look, exercise_of(oracle), case)
        assert not all(seen), name
