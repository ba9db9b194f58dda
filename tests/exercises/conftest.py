"""`pytest tests/exercises --answers my_answers.py`: whose functions are checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

REFERENCE = "solutions.answers"


def pytest_addoption(parser: pytest.Parser) -> None:
    """A file, a notebook or a module; without it the reference answers."""
    parser.addoption(
        "--answers", default=REFERENCE, help="file, notebook or module whose functions are checked"
    )


@pytest.fixture(scope="session")
def answers(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Functions by name."""
    from helpers.course.answers import functions_of, import_answers

    spec = request.config.getoption("--answers", REFERENCE)
    return functions_of(Path(spec)) if spec.endswith((".py", ".ipynb")) else vars(import_answers(spec))
