"""The lessons as a whole: every one is built, checked and executed."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.apps.cli import main
from helpers.course.builder.review import review
from tests.notebooks.lesson_tests import KIT


def test_every_lesson_has_a_module_of_tests():
    modules = {
        path.stem.removeprefix("test_lesson_") for path in Path(__file__).parent.glob("test_lesson_*.py")
    }
    numbers = {name[:2] for name in KIT.lessons()}
    assert modules == numbers, "copy tests/notebooks/test_lesson_03.py and change its number"


@pytest.mark.slow
def test_the_notebooks_are_those_of_their_sources_and_give_no_answer_away():
    assert review(KIT) == []


def test_an_unknown_lesson_is_a_sentence_and_status_2(capsys):
    assert main(["build", "99", "--check"]) == 2
    assert "there is no lesson 99; there are" in capsys.readouterr().err


@pytest.mark.parametrize(("findings", "status"), [([], 0), (["one thing", "another"], 1)])
def test_findings_are_printed_a_line_each_and_make_the_status(monkeypatch, capsys, findings, status):
    monkeypatch.setattr("helpers.course.builder.review.review", lambda kit, numbers: findings)
    assert main(["build", "--check", "03"]) == status
    said = capsys.readouterr().out.splitlines()
    assert said == (findings or ["all is as the sources say: 03_dpo"])
