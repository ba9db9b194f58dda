"""The reference answers as text: whole for the instructor, blanked for the student.

A function is blanked whole, from below its docstring, unless it marks regions:

    def loss(x):
        \"\"\"Docstring.\"\"\"
        scaffolding = x * 2
        # blank: subtract the mean
        result = scaffolding - x.mean()
        # end blank
        return result

Then only the regions are the learner's to write.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from helpers.errors import CourseError
from helpers.files import read_text

BLANK = re.compile(r"(\s*)# blank: (\S.*)")
END_BLANK = re.compile(r"\s*# end blank")
MARKER = re.compile(r"\s*#\s*(?:end\s+)?blank\b")
YOUR_CODE = "# your code"


@dataclass(frozen=True)
class Answer:
    """One exercise's reference answer.

    Attributes:
        name: of the function.
        where: file and function, for messages.
        lines: the function as it is defined, decorators first, markers included.
        body: index of the first line below the docstring.
        needs: statements (imports, constants) that it needs before it, in the order of its module.
        uses: other exercises that it calls.
    """

    name: str
    where: str
    lines: tuple[str, ...]
    body: int
    needs: tuple[str, ...]
    uses: tuple[str, ...]

    @property
    def whole(self) -> str:
        """The function without the markers of its blanks."""
        return "\n".join(line for line in self.lines if not MARKER.match(line))

    @property
    def stub(self) -> str:
        """What the learner starts from: signature, docstring, scaffolding, and places to fill in."""
        kept = list(self.lines)
        for start, stop, comment in reversed(self.blanks()):
            indent = re.match(r"\s*", self.lines[start]).group()  # type: ignore[union-attr]
            kept[start:stop] = [f"{indent}{comment}", f"{indent}{self.refusal}"]
        return "\n".join(kept)

    @property
    def refusal(self) -> str:
        """The statement that stands where the learner's code belongs."""
        return f'raise NotImplementedError("{self.name} is not written yet")'

    @property
    def hidden(self) -> list[str]:
        """The lines of code that a student must not be given; without comments and docstrings."""
        code = without_comments("\n".join(self.lines)).split("\n")
        blanked = [line for start, stop, _ in self.blanks() for line in code[start:stop]]
        return [line for line in blanked if line.strip()]

    @property
    def signature(self) -> str:
        """Decorators, arguments and result."""
        (function,) = ast.parse(self.whole).body
        return signature(function)  # type: ignore[arg-type]

    def blanks(self) -> list[tuple[int, int, str]]:
        """(first line, line after the last, comment for the learner) of every region to blank."""
        regions, start, comment = [], None, ""
        for number, line in enumerate(self.lines):
            if begin := BLANK.fullmatch(line):
                if start is not None:
                    raise CourseError(f"{self.where}: a blank begins inside a blank: {line.strip()}")
                start, comment = number, f"{YOUR_CODE}: {begin.group(2)}"
            elif END_BLANK.fullmatch(line):
                if start is None:
                    raise CourseError(f"{self.where}: `# end blank` without a `# blank: …` before it")
                regions.append((start, number + 1, comment))
                start = None
            elif MARKER.match(line):
                raise CourseError(
                    f"{self.where}: {line.strip()!r} is neither `# blank: TEXT` nor `# end blank`"
                )
        if start is not None:
            raise CourseError(f"{self.where}: the blank that begins with {comment!r} has no `# end blank`")
        return regions or [(self.body, len(self.lines), YOUR_CODE)]


def signature(function: ast.FunctionDef) -> str:
    """Decorators, arguments and result of a definition, however they are laid out."""
    decorators = "".join(f"@{ast.unparse(item)} " for item in function.decorator_list)
    result = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    return f"{decorators}def {function.name}({ast.unparse(function.args)}){result}"


def without_comments(source: str) -> str:
    """Python source with its comments cut off; lines keep their number."""
    lines = source.split("\n")
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip()
    return "\n".join(lines)


# ---------------------------------------------------------------------- reading the modules
def read_answers(root: Path, package: str) -> dict[str, Answer]:
    """Every function that the package of answers re-exports, in the order of their names."""
    place = root.joinpath(*package.split("."), "__init__.py")
    index = parsed(read_text(place), place.relative_to(root).as_posix())
    homes: dict[str, str] = {}
    for node in index.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{package}."):
            homes.update({alias.name: node.module or "" for alias in node.names})
    modules = {home: Module(root, home) for home in set(homes.values())}
    return {name: modules[homes[name]].answer(name, set(homes)) for name in sorted(homes)}


def parsed(text: str, where: str) -> ast.Module:
    """A module's tree; CourseError with the line that Python cannot read."""
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError) as problem:  # ValueError: a null byte, before Python 3.11.4
        line = getattr(problem, "lineno", None)
        what = problem.msg if isinstance(problem, SyntaxError) else str(problem)
        raise CourseError(f"{where}{f' line {line}' if line else ''}: {what}") from None


class Module:
    """The text of one module of answers, and what its top level defines."""

    def __init__(self, root: Path, dotted: str) -> None:
        self.path = root.joinpath(*dotted.split(".")).with_suffix(".py")
        self.where = self.path.relative_to(root).as_posix()
        self.package = dotted.split(".")[0]
        self.text = read_text(self.path)
        self.tree = parsed(self.text, self.where)
        self.lines = self.text.split("\n")
        self.functions = {node.name: node for node in self.tree.body if isinstance(node, ast.FunctionDef)}

    def answer(self, name: str, exercises: set[str]) -> Answer:
        """Cut one function out. CourseError where it has no docstring or leans on a private helper."""
        where = f"{self.where}, {name}"
        node = self.functions.get(name)
        if node is None:
            raise CourseError(f"{self.where} defines no function {name} at its top level")
        if ast.get_docstring(node) is None:
            raise CourseError(f"{where}: the docstring states the exercise, and there is none")
        first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
        # Unlike end_lineno, this sees comments that end the body, such as `# end blank`.
        lines = [line.rstrip("\n") for line in inspect.getblock(self.text.splitlines(True)[first - 1 :])]
        while not lines[-1].strip():
            lines.pop()
        body = (node.body[0].end_lineno or 0) - first + 1
        needs, uses = self.needs(node, exercises - {name}, where)
        answer = Answer(name, where, tuple(lines), body, needs, uses)
        ast.parse(answer.stub)
        return answer

    def needs(
        self, node: ast.AST, exercises: set[str], where: str
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(statements, exercises) that the function needs, directly or through a constant."""
        found: dict[int, str] = {}
        uses: set[str] = set()
        waiting = [node]
        while waiting:
            names = {part.id for part in ast.walk(waiting.pop()) if isinstance(part, ast.Name)}
            for place, statement, text in self.bindings(names):
                own = isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith(
                    self.package
                )
                if own or isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
                    uses |= self.exercises_in(statement, names, exercises, where)
                elif place not in found:
                    found[place] = text
                    waiting.append(statement)
        return tuple(found[place] for place in sorted(found)), tuple(sorted(uses))

    def bindings(self, names: set[str]) -> Iterator[tuple[int, ast.stmt, str]]:
        """(order, statement, text) of what binds `names` at the top level; an import for each name alone."""
        order = 0
        for statement in self.tree.body:
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                for alias in statement.names:
                    order += 1
                    if (alias.asname or alias.name.split(".")[0]) in names:
                        yield order, statement, import_of(statement, alias)
                continue
            order += 1
            if names & set(names_bound(statement)):
                yield order, statement, "\n".join(self.lines[statement.lineno - 1 : statement.end_lineno])

    def exercises_in(self, statement: ast.stmt, names: set[str], exercises: set[str], where: str) -> set[str]:
        """Which exercises a statement brings in; CourseError for a function that is no exercise."""
        bound = set(names_bound(statement)) & names
        if isinstance(statement, ast.FunctionDef) and where.endswith(f", {statement.name}"):
            return set()  # it calls itself
        if private := sorted(bound - exercises):
            raise CourseError(
                f"{where} leans on {', '.join(private)}, which is no exercise: a notebook holds one function"
                " for an exercise, so write it inside"
            )
        return bound


def import_of(statement: ast.Import | ast.ImportFrom, alias: ast.alias) -> str:
    """The import of one name as a line of its own."""
    renamed = f" as {alias.asname}" if alias.asname else ""
    if isinstance(statement, ast.ImportFrom):
        return f"from {statement.module} import {alias.name}{renamed}"
    return f"import {alias.name}{renamed}"


def names_bound(statement: ast.stmt) -> list[str]:
    """The names that a top-level statement binds."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return [statement.name]
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name.split(".")[0] for alias in statement.names]
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    parts = [part for target in targets if target is not None for part in ast.walk(target)]
    return [part.id for part in parts if isinstance(part, ast.Name)]
