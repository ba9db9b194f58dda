"""Where the trainers' functions come from: the reference answers, or a learner's file or notebook."""

from __future__ import annotations

import ast
import difflib
import importlib
import json
import linecache
import re
import sys
import traceback
import types
from pathlib import Path
from typing import Any

from helpers.course.stand_ins import STAND_INS
from helpers.errors import CourseError
from helpers.guard import Guarded, described, guarded

CELL = "# %%"  # begins a cell of a notebook kept as a Python file
# What a constant may be computed with; the modules stand for their functions.
HARMLESS = set("bool dict float frozenset int len list max min range set str sum tuple partial".split())
HARMLESS |= set("functools math np numpy torch".split())
ASSIGNED_MAGIC = re.compile(r"\s*[\w.,\s]+=\s*[%!]")  # files = !ls


class Answers(types.SimpleNamespace):
    """A namespace of functions that names what is missing."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise CourseError(
            f"the answers lack the function {name}: write it, or give a file that has it by --answers"
        )


def load_answers(spec: str, fallback: str | None = None) -> Guarded:
    """Load answers from a module name, a Python file or a notebook, and say on stderr which a file gives.

    Args:
        spec: such as "solutions.answers", "my_answers.py" or "notebooks/03_dpo.ipynb".
        fallback: module whose functions fill in what a file lacks, where it can be imported. In the student
            kit it cannot: there measures have stand-ins (`helpers.course.stand_ins`), losses have none.

    Returns:
        A namespace of functions, each fenced (`helpers.guard`).

    Raises:
        CourseError: for a missing file, one that cannot be read or run, or that holds none of the exercises'
            functions; for an unknown module.
    """
    student_kit = fallback is not None and not is_importable(fallback)
    if student_kit and spec == fallback:
        return guarded(Answers(**STAND_INS))
    if not spec.endswith((".py", ".ipynb")):
        return guarded(import_answers(spec))
    rest: dict[str, Any] = {}
    if fallback is not None and not student_kit:
        module = importlib.import_module(fallback)
        rest = {name: getattr(module, name) for name in module.__all__}
    found = functions_of(Path(spec))
    if rest:
        check_names(spec, found, set(rest))
        own = sorted(rest.keys() & found.keys())
        others = f"; the others are those of {fallback}" if len(own) < len(rest) else ""
        print(f"answers: {spec} gives {', '.join(own)}{others}", file=sys.stderr)
    found = {name: value for name, value in found.items() if callable(value)}
    return guarded(Answers(**{**(STAND_INS if student_kit else rest), **found}))


def is_importable(name: str) -> bool:
    """Whether a module exists and can be imported."""
    try:
        importlib.import_module(name)
    except ImportError:
        return False
    return True


def check_names(spec: str, found: dict[str, Any], known: set[str]) -> None:
    """Raise CourseError where a reference answer would stand in for what the learner seems to have given."""
    for name in sorted(known & found.keys()):
        if not callable(found[name]):
            raise CourseError(f"--answers {spec}: {name} is {described(found[name])}, not a function")
    if known & found.keys():
        return
    near = [(name, match) for name in found for match in difflib.get_close_matches(name, known, 1, 0.8)]
    hint = (
        f": is {near[0][0]} meant to be {near[0][1]}?" if near else f"; they are {', '.join(sorted(known))}"
    )
    raise CourseError(f"--answers {spec} defines none of the exercises' functions{hint}")


def import_answers(name: str) -> Any:
    """Import a module of answers."""
    advice = "give your own file, such as --answers my_answers.py"
    try:
        return importlib.import_module(name)
    except (ImportError, ValueError, TypeError) as problem:  # the last two: no name, a relative name
        raise CourseError(f"--answers {name} cannot be imported ({problem}): {advice}") from None
    except (Exception, SystemExit) as problem:
        raise CourseError(f"--answers {name}: {type(problem).__name__}: {problem}; {advice}") from None


def functions_of(path: Path) -> dict[str, Any]:
    """Run a file and return the names it leaves behind.

    A Python file is run whole, as an import would. Of a notebook, or of a Python file with `# %%` cells,
    only imports, constants and definitions are run, so that a training cell does not start to train.
    """
    text = read_source(path)
    cells = path.suffix == ".ipynb" or any(line.startswith(CELL) for line in text.split("\n"))
    source = notebook_source(path, text) if path.suffix == ".ipynb" else text
    module = types.ModuleType("answers")
    module.__file__ = str(path)
    # So that tracebacks and fingerprints see the lines that were run, of a notebook too.
    linecache.cache[str(path)] = (len(source), None, source.splitlines(keepends=True), str(path))
    try:
        tree = ast.parse(source, filename=str(path))
        # The learner's own code, on the learner's machine.
        if not cells:
            exec(compile(tree, str(path), "exec"), module.__dict__)
        made = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and is_target(node)}
        for node in filter(is_definition, tree.body) if cells else ():
            run_definition(node, str(path), module.__dict__, made)
    except (Exception, SystemExit) as problem:  # whatever it raises is the learner's to mend
        raise CourseError(f"--answers {path}{line_of(problem, path)}: {words_of(problem)}") from None
    return {name: value for name, value in vars(module).items() if not name.startswith("_")}


def is_target(node: ast.Name) -> bool:
    """True where a name is assigned."""
    return isinstance(node.ctx, ast.Store)


def run_definition(node: ast.stmt, path: str, names: dict[str, Any], made: set[str]) -> None:
    """Run one statement of a notebook; what needs a training cell's result is left out.

    That is an assignment that fails, and a definition whose defaults or decorators want a name that the
    notebook assigns (`made`) in a cell that was not run.
    """
    try:
        exec(compile(ast.Module([node], []), path, "exec"), names)
    except NameError as problem:
        if problem.name not in made and not isinstance(node, (ast.Assign, ast.AnnAssign)):
            raise
    except Exception:
        if not isinstance(node, (ast.Assign, ast.AnnAssign)):
            raise


def read_source(path: Path) -> str:
    """The text of a file; CourseError where there is none."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise CourseError(f"--answers {path}: there is no such file") from None
    except (OSError, ValueError) as problem:  # ValueError: not UTF-8, or a null byte in the name
        raise CourseError(f"--answers {path} cannot be read: {problem}") from None


def line_of(problem: BaseException, path: Path) -> str:
    """ " line 3" where the problem arose in the file, or nothing."""
    if isinstance(problem, SyntaxError):
        return f" line {problem.lineno}" if problem.lineno else ""
    frames = traceback.extract_tb(problem.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path)]
    return f" line {lines[-1]}" if lines else ""


def words_of(problem: BaseException) -> str:
    """What went wrong, in one line."""
    if isinstance(problem, SyntaxError):
        return str(problem.msg)
    return f"{type(problem).__name__}: {problem}".split("\n")[0].removesuffix(": ")


def is_definition(node: ast.stmt) -> bool:
    """True for imports, functions, classes and assignments of constants, also under `if` and `try`."""
    definitions = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Pass)
    if isinstance(node, definitions):
        return True
    if isinstance(node, (ast.If, ast.Try)):
        handlers = [part for handler in getattr(node, "handlers", []) for part in handler.body]
        return all(map(is_definition, [*node.body, *node.orelse, *handlers, *getattr(node, "finalbody", [])]))
    if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
        return all(is_constant_part(part) for part in ast.walk(node.value))
    return False


def is_constant_part(part: ast.AST) -> bool:
    """True unless it may start something: `float("inf")` and `partial(f, 2)` do not, `train(config)` does."""
    if not isinstance(part, ast.Call):
        return not isinstance(part, ast.Await)
    root: ast.AST = part.func
    while isinstance(root, ast.Attribute):
        root = root.value
    return isinstance(root, ast.Name) and root.id in HARMLESS


def notebook_source(path: Path, text: str) -> str:
    """The code cells of a notebook, without cell magics, line magics and shell lines."""
    try:
        cells = json.loads(text)["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CourseError(f"--answers {path} is not a notebook") from None
    cells = list(map(without_magics, code))
    for number, cell in enumerate(cells, start=1):
        try:
            ast.parse(cell)
        except (SyntaxError, ValueError) as problem:
            line = f" line {problem.lineno}" if isinstance(problem, SyntaxError) and problem.lineno else ""
            raise CourseError(f"--answers {path}, code cell {number}{line}: {words_of(problem)}") from None
    return "\n".join(cells)


def without_magics(cell: str) -> str:
    """A cell as Python: of `%%time` and the like the body stays, of `%%bash` and the like nothing.

    Lines keep their number. A magic inside a block leaves `pass`, so that the block stays one.
    """
    lines = cell.split("\n")
    first = next((line.strip() for line in lines if line.strip()), "")
    if first.startswith("%%") and first.split()[0] not in ("%%time", "%%timeit", "%%capture", "%%prun"):
        return "\n" * (len(lines) - 1)
    kept = []
    for line in lines:
        stripped = line.lstrip()
        magic = stripped.startswith(("%", "!", "?")) or (stripped.endswith("?") and "#" not in stripped)
        magic = magic or bool(ASSIGNED_MAGIC.match(line))
        kept.append(line[: len(line) - len(stripped)] + "pass" if magic else line)
    return "\n".join(kept)
