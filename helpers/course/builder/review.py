"""`build --check`: are the notebooks what their sources give, and does anything give an answer away?"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from helpers.course.builder.answers import signature
from helpers.course.builder.kit import LESSON, Kit
from helpers.course.builder.leaks import leaks_in, shipped, telling_lines
from helpers.course.builder.make import build_vectors
from helpers.course.builder.notebooks import Notebook, dump, load, make_notebook, without_outputs
from helpers.course.builder.outputs import CELL_LIMIT, NOTEBOOK_LIMIT, size_of
from helpers.errors import CourseError


def review(kit: Kit, numbers: Sequence[str] = ()) -> list[str]:
    """What is wrong, one line each: file, fault, and how to mend it. Nothing is executed or written.

    With `numbers`, those lessons alone; otherwise all of them, everything that is shipped, and the vectors.
    """
    found: list[str] = []
    for lesson in kit.lessons(numbers):
        found += instructor_faults(kit, lesson)
        found += student_faults(kit, lesson)
    telling = telling_lines(kit)
    places = [kit.student(lesson) for lesson in kit.lessons(numbers)] if numbers else shipped(kit)
    for path in places:
        for exercise, line in leaks_in(path, telling):
            found.append(f"{kit.shown(path)} holds a line of the answer to {exercise}: `{line}`; take it out")
    if not numbers:
        found += orphans(kit)
        found += vector_faults(kit)
    return found


def instructor_faults(kit: Kit, lesson: str) -> Iterator[str]:
    """A notebook that is missing, stale, never executed, failed, or too large."""
    path, mend = kit.instructor(lesson), f"run python -m helpers build {lesson[:2]}"
    shown = kit.shown(path)
    notebook = read(path)
    if notebook is None:
        yield f"{shown} is missing or no notebook: {mend}"
        return
    yield from stale(kit, lesson, path, without_outputs(notebook), student=False)
    if path.stat().st_size > NOTEBOOK_LIMIT:
        yield f"{shown} has {path.stat().st_size / 1e6:.1f} MB, over {NOTEBOOK_LIMIT / 1e6:.0f} MB: show less"
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    if not any(cell["outputs"] for cell in code) or not all(cell["execution_count"] for cell in code):
        yield f"{shown} was not executed whole: {mend}"
    for number, cell in enumerate(notebook["cells"], start=1):
        outputs, size = cell.get("outputs", []), size_of(cell.get("outputs", [])) // 1000
        for output in outputs:
            if output["output_type"] == "error":
                yield f"{shown}, cell {number} ends in {output['ename']}: mend the source, then {mend}"
        if size_of(outputs) > CELL_LIMIT:
            yield f"{shown}, cell {number} has {size} kB of outputs: show less, then {mend}"


def student_faults(kit: Kit, lesson: str) -> Iterator[str]:
    """A notebook that is missing, edited, was run, or asks for something else than the answer gives."""
    path, mend = kit.student(lesson), f"run python -m helpers build {lesson[:2]}"
    shown = kit.shown(path)
    notebook = read(path)
    if notebook is None:
        yield f"{shown} is missing or no notebook: {mend}"
        return
    yield from stale(kit, lesson, path, notebook, student=True)
    for number, cell in enumerate(notebook["cells"], start=1):
        if cell.get("outputs") or cell.get("execution_count"):
            yield f"{shown}, cell {number} holds an output or an execution count: {mend}"
        for function in functions_in(cell):
            answer = kit.answers.get(function.name)
            if answer and signature(function) != answer.signature:
                yield f"{shown}, cell {number}: {function.name} has another signature than its answer: {mend}"


def stale(kit: Kit, lesson: str, path: Path, notebook: Notebook, *, student: bool) -> Iterator[str]:
    """A notebook that differs from what the source gives now, with the first cell that does."""
    try:
        fresh = make_notebook(kit, lesson, student=student)
    except CourseError as problem:
        yield str(problem)
        return
    same = dump(notebook) == dump(fresh)
    if same and (not student or path.read_text(encoding="utf-8") == dump(fresh)):
        return
    pairs = zip(notebook["cells"], fresh["cells"], strict=False)
    differing = [number for number, (old, new) in enumerate(pairs, start=1) if old != new]
    if differing:
        place = f"first in cell {differing[0]}"
    elif len(notebook["cells"]) != len(fresh["cells"]):
        place = f"{len(notebook['cells'])} cells against {len(fresh['cells'])}"
    else:
        place = "in its metadata or layout"
    source = kit.shown(kit.source(lesson))
    yield (
        f"{kit.shown(path)} differs from what {source} gives now ({place}): edit the source, then run"
        f" python -m helpers build {lesson[:2]}"
    )


def read(path: Path) -> Notebook | None:
    """A notebook, or None for what is not one."""
    try:
        notebook = load(path)
        ok = all(
            cell["cell_type"] in ("markdown", "raw")
            or ({"outputs", "execution_count"} <= set(cell) and all(map(is_output, cell["outputs"])))
            for cell in notebook["cells"]
        )
    except (CourseError, KeyError, TypeError):
        return None
    return notebook if ok else None


def is_output(output: dict[str, Any]) -> bool:
    """True for an output that says its type, and as an error its name."""
    return "output_type" in output and (output["output_type"] != "error" or "ename" in output)


def functions_in(cell: Notebook) -> list[ast.FunctionDef]:
    """The functions that a cell defines; none if Python cannot read it."""
    if cell["cell_type"] != "code":
        return []
    try:
        body = ast.parse(cell["source"]).body
    except SyntaxError:
        return []
    return [node for node in body if isinstance(node, ast.FunctionDef)]


def orphans(kit: Kit) -> Iterator[str]:
    """Notebooks without a source."""
    names = set(kit.lessons())
    for folder in (kit.sources, kit.root / "notebooks"):
        for path in sorted(folder.glob("*.ipynb")):
            if path.stem not in names and LESSON.fullmatch(path.stem):
                yield f"{kit.shown(path)} has no source {kit.shown(kit.source(path.stem))}: delete it"


def vector_faults(kit: Kit) -> Iterator[str]:
    """Check vectors that are not what the oracles give now."""
    try:
        for name in build_vectors(kit, check=True):
            yield f"{name} is not what the oracles give now: run python -m helpers build"
    except CourseError as problem:
        yield str(problem)
