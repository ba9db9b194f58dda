"""Where the trainers' functions come from: the reference answers, or a learner's file or notebook."""

from __future__ import annotations

import ast
import importlib
import json
import types
from pathlib import Path
from typing import Any

from helpers.errors import CourseError


class Answers(types.SimpleNamespace):
    """A namespace of functions that names what is missing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise CourseError(
            f"the answers lack the function {name}: write it, or give a file that has it by --answers"
        )


def load_answers(spec: str, fallback: str | None = None) -> Any:
    """Load answers from a module name, a Python file or a notebook.

    Args:
        spec: such as "solutions.answers", "my_answers.py" or "notebooks/03_dpo.ipynb".
        fallback: module whose functions fill in what a file lacks, where it can be imported.

    Returns:
        A namespace of functions.

    Raises:
        CourseError: for a missing file, a file that cannot be read or run, or an unknown module.
    """
    if not spec.endswith((".py", ".ipynb")):
        return import_answers(spec)
    found = functions_of(Path(spec))
    rest: dict[str, Any] = {}
    if fallback is not None:
        try:
            module = importlib.import_module(fallback)
            rest = {name: getattr(module, name) for name in module.__all__}
        except ImportError:
            rest = {}
    return Answers(**{**rest, **found})


def import_answers(name: str) -> Any:
    """Import a module of answers."""
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        raise CourseError(
            f"--answers {name} cannot be imported ({problem}): give your own file,"
            " such as --answers my_answers.py"
        ) from None


def functions_of(path: Path) -> dict[str, Any]:
    """Run a file's imports, constants and definitions, and return its functions.

    Of a notebook only these are run, so that a training cell does not start to train.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CourseError(f"--answers {path}: there is no such file") from None
    except (OSError, UnicodeDecodeError) as problem:
        raise CourseError(f"--answers {path} cannot be read: {problem}") from None
    source = notebook_source(path, text) if path.suffix == ".ipynb" else text
    namespace: dict[str, Any] = {"__name__": "answers", "__file__": str(path)}
    try:
        tree = ast.parse(source, filename=str(path))
        tree.body = [node for node in tree.body if is_definition(node)]
        exec(compile(tree, str(path), "exec"), namespace)  # the learner's own code, on the learner's machine
    except SyntaxError as problem:
        raise CourseError(f"--answers {path} line {problem.lineno}: {problem.msg}") from None
    except Exception as problem:  # whatever the learner's file raises is the learner's to mend
        raise CourseError(f"--answers {path}: {type(problem).__name__}: {problem}") from None
    return {name: value for name, value in namespace.items() if isinstance(value, types.FunctionType)}


def is_definition(node: ast.stmt) -> bool:
    """True for imports, functions, classes and assignments of constants."""
    if isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)):
        return True
    if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
        return all(not isinstance(part, (ast.Call, ast.Await)) for part in ast.walk(node.value))
    return False


def notebook_source(path: Path, text: str) -> str:
    """The code cells of a notebook, without magics and shell lines."""
    try:
        cells = json.loads(text)["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError):
        raise CourseError(f"--answers {path} is not a notebook") from None
    lines = "\n".join(code).split("\n")
    return "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in lines)
