"""Lines of the answers in what students hold.

The rule. Of every answer, the lines of code below its docstring count (of one with marked blanks, those
inside them), without comments and without any white space. A line is telling if it is at least SHORTEST
characters long then, and stands in no docstring of an exercise, which students are given anyway; shorter
ones, such as `return total`, say nothing about one exercise rather than another. A file leaks a telling
line that it holds, white space aside, anywhere: alone, inside a longer one, in a comment, in a text of JSON.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from helpers.course.builder.kit import Kit

SHORTEST = 20
INSTRUCTORS = ("tests", "runs", "build", "dist")  # folders that are no part of the student kit, or are built
TEXTS = {".py", ".ipynb", ".md", ".json", ".jsonl", ".toml", ".yml", ".yaml", ".txt", ".csv", ""}


def telling_lines(kit: Kit) -> dict[str, tuple[str, str]]:
    """Lines that must not be shipped, without white space → (exercise, the line as it is written)."""
    given = compact("\n".join(docstring(answer.whole) for answer in kit.answers.values()))
    found: dict[str, tuple[str, str]] = {}
    for answer in kit.answers.values():
        for line in answer.hidden:
            short = compact(line)
            if len(short) >= SHORTEST and short not in given:
                found.setdefault(short, (answer.name, line.strip()))
    return found


def docstring(source: str) -> str:
    """The docstring of the function that `source` is."""
    (function,) = ast.parse(source).body
    return ast.get_docstring(function) or ""  # type: ignore[arg-type]


def compact(text: str) -> str:
    """A text without white space."""
    return re.sub(r"\s+", "", text)


def leaks_in(path: Path, telling: dict[str, tuple[str, str]]) -> list[tuple[str, str]]:
    """(exercise, line) of every telling line that a file holds."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return []
    if path.suffix in (".json", ".ipynb"):
        text = "\n".join(strings(text))
    text = compact(text)
    return [found for line, found in telling.items() if line in text]


def strings(text: str) -> Iterator[str]:
    """Every text in a JSON document, without the escapes of JSON; the document itself where it is none."""
    try:
        waiting: list[Any] = [json.loads(text)]
    except ValueError:
        yield text
        return
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            waiting += reversed(list(value.values()))
        elif isinstance(value, list):
            waiting += reversed(value)


def shipped(kit: Kit) -> list[Path]:
    """The text files that are left when the instructor's part and the tests are deleted."""
    found: list[Path] = []
    for place in sorted(kit.root.iterdir()):
        if place.name not in (*INSTRUCTORS, kit.sources.name):
            found += [place] if place.is_file() else place.rglob("*")
    return sorted(path for path in found if path.suffix in TEXTS and path.is_file() and not hidden(kit, path))


def hidden(kit: Kit, path: Path) -> bool:
    """True below folders such as .git, .venv and caches."""
    return any(part.startswith(".") or part == "__pycache__" for part in path.relative_to(kit.root).parts)
