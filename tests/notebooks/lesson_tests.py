"""What holds for every lesson; the modules beside this one name a lesson each, so that workers share them.

Every lesson is executed once from its text, twice over in one kernel: first the student's notebook with the
answers filled in, then, with the results deleted, the instructor's. That kernel sees a copy of the student
kit, where solutions/ and tests/ are deleted, starts in an empty directory, and has no network.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.course.builder.execute import CellFailed, execute
from helpers.course.builder.kit import Kit
from helpers.course.builder.notebooks import METADATA, Notebook, json_cell, make_notebook

ROOT = Path(__file__).resolve().parents[2]
KIT = Kit(ROOT, "solutions.answers")
MIB = 2**20
GROWTH_TENSORS = 4 * MIB  # between the ends of two runs: less than the bundled model
GROWTH_PROCESS = 150 * MIB  # of the whole process, whose allocator keeps what it once had
MEASURED = ("seconds", "minutes", "memory")  # figures whose keys hold such a word differ from run to run

PROBE = """
import gc as _gc, json as _json, os as _os, shutil as _shutil
import psutil as _psutil, torch as _torch
_gc.collect(), _gc.collect()
_place = _os.environ["COURSE_FIGURE_DATA"]
_state = {"figures": _json.load(open(_place)) if _os.path.exists(_place) else {}}
_state["process"] = _psutil.Process().memory_info().rss
_tensors = [item for item in _gc.get_objects() if issubclass(type(item), _torch.Tensor)]
_state["tensors"] = sum(item.numel() * item.element_size() for item in _tensors)
del _tensors
_shutil.rmtree("runs", ignore_errors=True)
if _os.path.exists(_place):
    _os.remove(_place)
print(_json.dumps(_state))
"""


@cache
def lesson_named(number: str) -> str:
    (name,) = KIT.lessons([number])
    return name


@cache
def notebook(lesson: str, student: bool) -> Notebook:
    return make_notebook(KIT, lesson, student=student)


def filled(unfilled: Notebook) -> Notebook:
    """A student's notebook with every stub replaced by its answer, as a diligent learner would leave it."""
    cells = []
    for cell in unfilled["cells"]:
        if cell["cell_type"] == "code":
            cell = {**cell, "source": filled_source(cell["source"])}
        cells.append(cell)
    return {**unfilled, "cells": cells}


def filled_source(source: str) -> str:
    lines = source.split("\n")
    for node in reversed(ast.parse(source).body):
        if isinstance(node, ast.FunctionDef) and node.name in KIT.answers:
            first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
            assert KIT.answers[node.name].refusal in source
            lines[first - 1 : node.end_lineno] = KIT.answers[node.name].whole.split("\n")
    return "\n".join(lines)


def code_cells(*parts: Notebook | str) -> Notebook:
    """The code cells of notebooks, and single cells, as one notebook."""
    sources: list[str] = []
    for part in parts:
        if isinstance(part, str):
            sources.append(part)
        else:
            sources += [cell["source"] for cell in part["cells"] if cell["cell_type"] == "code"]
    cells = [json_cell("code", source, f"cell-{number}") for number, source in enumerate(sources)]
    return {"cells": cells, "metadata": METADATA, "nbformat": 4, "nbformat_minor": 5}


@dataclass(frozen=True)
class Place:
    """Where a lesson is executed: the student kit, and a directory to work in."""

    student_kit: Path
    folder: Path

    def run(self, cells: Notebook, lesson: str) -> Notebook:
        without = self.student_kit.parent / "deleted"
        variables = {
            "PYTHONPATH": f"{self.student_kit}{os.pathsep}{without}",
            "COURSE_FIGURE_DATA": str(self.folder.with_suffix(".figures.json")),
        }
        return execute(cells, lesson, python_path=self.student_kit, folder=self.folder, variables=variables)


def copy_student_kit(target: Path) -> Path:
    """What is left when solutions/ and tests/ are deleted; importing `solutions` fails there."""
    skip = shutil.ignore_patterns("__pycache__")
    for name in ("helpers", "data", "notebooks"):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, target / "kit" / name, ignore=skip)
    (target / "deleted").mkdir()
    # However this checkout is installed, its instructor part is not to be found.
    (target / "deleted" / "solutions.py").write_text('raise ImportError("solutions/ was deleted")\n')
    return target / "kit"


class LessonTests:
    """Subclasses set `number`."""

    number: str

    @pytest.fixture(scope="class")
    def lesson(self) -> str:
        return lesson_named(self.number)

    @pytest.fixture(scope="class")
    def place(self, tmp_path_factory) -> Place:
        target = tmp_path_factory.mktemp("student")
        return Place(copy_student_kit(target), target / "work")

    @pytest.fixture(scope="class")
    def two_runs(self, lesson, place) -> list[dict[str, Any]]:
        """What the student's notebook, filled, and then the instructor's, left in one kernel."""
        first, second = filled(notebook(lesson, True)), notebook(lesson, False)
        done = place.run(code_cells(first, PROBE, second, PROBE), lesson)
        probes = [cell for cell in done["cells"] if cell["source"] == PROBE]
        return [json.loads(cell["outputs"][0]["text"]) for cell in probes]

    def test_filled_in_the_students_notebook_is_the_instructors(self, lesson):
        """But for cells that only one of them has."""
        tags = {cell.tag for cell in KIT.cells(lesson)}
        if not tags & {"student-only", "solution-only"}:
            assert code_cells(filled(notebook(lesson, True))) == code_cells(notebook(lesson, False))

    @pytest.mark.slow
    def test_it_runs_first_in_an_empty_directory_and_without_the_instructors_part(self, two_runs):
        assert len(two_runs) == 2

    @pytest.mark.slow
    def test_both_notebooks_draw_the_same_figures(self, lesson, two_runs):
        first, second = (run["figures"] for run in two_runs)
        assert first, "a lesson has a figure"
        assert first.keys() == second.keys()
        for key in first:
            if not any(word in key for word in MEASURED):
                assert_close(first[key], second[key], f"{lesson}, figure {key}")

    @pytest.mark.slow
    def test_a_second_run_in_one_kernel_keeps_no_more_memory(self, two_runs):
        first, second = two_runs
        assert second["tensors"] - first["tensors"] < GROWTH_TENSORS
        assert second["process"] - first["process"] < GROWTH_PROCESS

    @pytest.mark.slow
    def test_unfilled_it_stops_with_a_friendly_line_that_names_the_exercise(self, lesson, place):
        if filled(notebook(lesson, True)) == notebook(lesson, True):
            pytest.skip("this lesson has no function to write")
        with pytest.raises(CellFailed) as stop:
            place.run(code_cells(notebook(lesson, True)), lesson)
        exercises = [name for name in KIT.answers if f"def {name}(" in str(notebook(lesson, True))]
        assert stop.value.name == "CourseError"
        assert any(f"exercise {name}" in stop.value.shown for name in exercises)
        assert "not written yet" in stop.value.shown
        assert "Traceback" not in stop.value.shown and len(stop.value.shown.splitlines()) <= 4


def assert_close(first: Any, second: Any, where: str) -> None:
    """Equal structure, numbers equal to 1e-6 of their size."""
    assert type(first) is type(second), where
    if isinstance(first, dict):
        assert first.keys() == second.keys(), where
        for key in first:
            assert_close(first[key], second[key], f"{where}, {key}")
    elif isinstance(first, list) and not all(isinstance(item, (int, float)) for item in first + second):
        assert len(first) == len(second), where
        for number, (one, other) in enumerate(zip(first, second, strict=True)):
            assert_close(one, other, f"{where}, {number}")
    elif isinstance(first, str):
        assert first == second, where
    else:
        np.testing.assert_allclose(second, first, rtol=1e-6, atol=1e-6, err_msg=where)
