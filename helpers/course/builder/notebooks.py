"""From the cells of a lesson to its two notebooks, as JSON that is equal for equal sources."""

from __future__ import annotations

import ast
import copy
import json
from typing import Any

from helpers.course.builder.answers import Answer, import_of
from helpers.course.builder.kit import Cell, Kit
from helpers.errors import CourseError
from helpers.files import read_json

METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
    },
}
Notebook = dict[str, Any]


def make_notebook(kit: Kit, lesson: str, *, student: bool) -> Notebook:
    """A lesson's notebook without outputs, answers whole or, for the student, blanked.

    Cell ids derive from lesson and position, and no cell has metadata: nothing depends on what an editor
    keeps or drops there.
    """
    left_out = "solution-only" if student else "student-only"
    held: set[str] = set()  # imports and constants that a cell above has
    written: set[str] = set()  # exercises above
    cells: list[Notebook] = []
    for number, cell in enumerate(kit.cells(lesson), start=1):
        if cell.tag == left_out:
            continue
        where = f"{kit.shown(kit.source(lesson))}, cell {number}"
        source = cell.source
        if cell.tag == "setup":
            source = kit.setup_cell
        elif cell.tag == "exercise":
            parts = [kit.answers[name] for name in exercises_of(kit, cell, where)]
            source = exercise_source(parts, student, held, written, where)
        if cell.kind == "code":
            held |= statements(source, where)
        cells.append(json_cell(cell.kind, source, f"{lesson.replace('_', '-')[:48]}-{len(cells) + 1:03d}"))
    return {"cells": cells, "metadata": copy.deepcopy(METADATA), "nbformat": 4, "nbformat_minor": 5}


def json_cell(kind: str, source: str, cell_id: str) -> Notebook:
    """One cell as nbformat 4.5 has it."""
    cell: Notebook = {"cell_type": kind, "id": cell_id, "metadata": {}, "source": source}
    return {**cell, "execution_count": None, "outputs": []} if kind == "code" else cell


def exercises_of(kit: Kit, cell: Cell, where: str) -> list[str]:
    """The names that an exercise cell imports, which is all it may do."""
    advice = f"an exercise cell is exactly `from {kit.package} import NAME`"
    try:
        body = ast.parse(cell.source).body
    except SyntaxError as problem:
        raise CourseError(f"{where}: {problem.msg}; {advice}") from None
    names = []
    for node in body:
        if not isinstance(node, ast.ImportFrom) or node.module != kit.package:
            raise CourseError(f"{where}: {ast.unparse(node)[:60]!r} stands there; {advice}")
        names += [alias.name for alias in node.names]
    if unknown := [name for name in names if name not in kit.answers]:
        raise CourseError(f"{where}: {kit.package} re-exports no {', '.join(unknown)}")
    return names


def exercise_source(parts: list[Answer], student: bool, held: set[str], written: set[str], where: str) -> str:
    """What the answers need and no cell above has, then the answers or their stubs."""
    needs: list[str] = []
    for answer in parts:
        if missing := sorted(set(answer.uses) - written):
            raise CourseError(
                f"{where}: {answer.name} calls {', '.join(missing)}, which no cell above defines"
            )
        needs += [line for line in answer.needs if line not in needs and not statements(line, where) <= held]
        written.add(answer.name)
    functions = [answer.stub if student else answer.whole for answer in parts]
    imports = [line for line in needs if line.startswith(("import ", "from "))]
    constants = [line for line in needs if line not in imports]
    above = "\n\n".join("\n".join(lines) for lines in (imports, constants) if lines)
    return "\n\n\n".join([above, *functions] if above else functions)


def statements(source: str, where: str) -> set[str]:
    """Top-level imports (each name alone) and assignments of a cell, in one spelling."""
    try:
        body = ast.parse(source).body
    except SyntaxError as problem:
        raise CourseError(f"{where}: {problem.msg} (line {problem.lineno} of the cell)") from None
    found: set[str] = set()
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {import_of(node, alias) for alias in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            found.add(ast.unparse(node))
    return found


# ---------------------------------------------------------------------- files
def dump(notebook: Notebook) -> str:
    """The notebook as Jupyter itself would write it: sorted keys, sources as lists of lines."""
    return json.dumps(with_lines(notebook, list_lines), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def load(path: Any) -> Notebook:
    """A notebook file, with sources and texts joined; CourseError if it is none."""
    raw = read_json(path)
    try:
        return with_lines(raw, join_lines)
    except (KeyError, TypeError, AttributeError):
        raise CourseError(f"{path} is not a notebook") from None


def with_lines(notebook: Notebook, change: Any) -> Notebook:
    """A copy with `change` applied to every text that nbformat splits into lines."""
    changed = copy.deepcopy(notebook)
    for cell in changed["cells"]:
        cell["source"] = change(cell["source"])
        for output in cell.get("outputs", []):
            if "text" in output:
                output["text"] = change(output["text"])
            for kind, value in output.get("data", {}).items():
                if kind != "application/json" and isinstance(value, (str, list)):
                    output["data"][kind] = change(value)
    return changed


def list_lines(text: str | list[str]) -> list[str]:
    """A text as the list of its lines, ends kept."""
    return text.splitlines(True) if isinstance(text, str) else text


def join_lines(lines: str | list[str]) -> str:
    """The inverse of `list_lines`."""
    return lines if isinstance(lines, str) else "".join(lines)


def code_of(notebook: Notebook) -> list[str]:
    """The sources of the code cells."""
    return [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]


def without_outputs(notebook: Notebook) -> Notebook:
    """A copy with every code cell as if it had never run."""
    bare = copy.deepcopy(notebook)
    for cell in bare["cells"]:
        if cell["cell_type"] == "code":
            cell["execution_count"], cell["outputs"] = None, []
    return bare
