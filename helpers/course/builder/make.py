"""Build the notebooks: both of a lesson, or neither."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Sequence
from typing import Any

from helpers.course.builder.execute import execute
from helpers.course.builder.kit import Kit
from helpers.course.builder.notebooks import Notebook, code_of, dump, load, make_notebook
from helpers.course.builder.outputs import NOTEBOOK_LIMIT, clean
from helpers.errors import CourseError
from helpers.files import write_text, writing


def build_lessons(
    kit: Kit,
    numbers: Sequence[str] = (),
    *,
    run: bool = True,
    force: bool = False,
    say: Callable[[str], Any] = print,
) -> None:
    """Write the notebooks of all lessons, or of those that `numbers` name.

    Args:
        kit: the checkout.
        numbers: such as ["03"]; all lessons by default.
        run: execute the instructor's notebooks. Those whose code is what their outputs came from keep them.
        force: execute these too, as after a change in `helpers`.
        say: receives a line for each lesson.

    Raises:
        CourseError: for a source that cannot be built or a cell that fails; what stood there stays.
    """
    for lesson in kit.lessons(numbers):
        instructor = make_notebook(kit, lesson, student=False)
        student = make_notebook(kit, lesson, student=True)
        check_cells(student, kit.shown(kit.student(lesson)))
        kept = None if force else with_outputs_kept(kit, lesson, instructor)
        if kept is None and run:
            say(f"{lesson}: executing")
            executed = execute(instructor, lesson, python_path=kit.root)
            kept = clean(executed, lesson, kit.root)
        text = dump(kept or instructor)
        if len(text.encode()) > NOTEBOOK_LIMIT:
            raise CourseError(
                f"lesson {lesson}: the instructor's notebook has {len(text.encode()) / 1e6:.1f} MB, and"
                f" {NOTEBOOK_LIMIT / 1e6:.0f} MB are the limit: show fewer or smaller figures"
            )
        with writing(kit.student(lesson).parent):  # before either is written
            kit.student(lesson).parent.mkdir(parents=True, exist_ok=True)
        write_text(kit.instructor(lesson), text)
        write_text(kit.student(lesson), dump(student))
        state = "built" if kept else "built without outputs"
        say(f"{lesson}: {state}")


def with_outputs_kept(kit: Kit, lesson: str, fresh: Notebook) -> Notebook | None:
    """The fresh notebook with the outputs of the one that lies there, if the same code gave them."""
    try:
        old = load(kit.instructor(lesson))
        cells = [cell for cell in old["cells"] if cell["cell_type"] == "code"]
        failed = any(output["output_type"] == "error" for cell in cells for output in cell["outputs"])
        ran = bool(cells) and all(cell["execution_count"] for cell in cells)
    except (CourseError, KeyError, TypeError):
        return None
    if failed or not ran or code_of(old) != code_of(fresh):
        return None
    bare = iter(cells)
    merged = []
    for cell in fresh["cells"]:
        if cell["cell_type"] == "code":
            before = next(bare)
            cell = {**cell, "execution_count": before["execution_count"], "outputs": before["outputs"]}
        merged.append(cell)
    return {**fresh, "cells": merged}


def check_cells(notebook: Notebook, where: str) -> None:
    """CourseError for a code cell that Python cannot read."""
    for number, cell in enumerate(notebook["cells"], start=1):
        if cell["cell_type"] == "code":
            try:
                ast.parse(cell["source"])
            except SyntaxError as problem:
                raise CourseError(f"{where}, cell {number}: {problem.msg} in line {problem.lineno}") from None


def build_vectors(kit: Kit, *, check: bool) -> list[str]:
    """Write the check vectors that are out of date, or, to check, only name them."""
    if not (kit.sources / "vectors.py").is_file():
        return []
    return importlib.import_module(f"{kit.package.split('.')[0]}.vectors").build(check=check)
