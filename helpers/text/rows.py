"""Read rows of JSON-lines and JSON files, gzipped or not, keeping count of the lines that are none."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.errors import CourseError

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz")


@dataclass(frozen=True)
class SourceRow:
    """One row and where it stands; without data, `problem` is why and `detail` how."""

    where: str  # "file.jsonl:12" or, in a JSON list, "file.json[11]"
    data: dict[str, Any] | None
    problem: str = ""
    detail: str = ""


def read_rows(path: Path) -> Iterator[SourceRow]:
    """Yield every row of a file. A file that cannot be opened or unpacked raises CourseError."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
        opener = gzip.open if packed else open
        with opener(path, "rb") as stream:
            if path.name.removesuffix(".gz").endswith(".json") and _starts_a_list(stream):
                yield from _list_rows(path, stream.read())
            else:
                yield from _line_rows(path, stream)
    except FileNotFoundError:
        raise CourseError(f"{path} does not exist") from None
    except (OSError, EOFError, zlib.error) as problem:
        raise CourseError(f"{path} cannot be read: {problem}") from None


def _starts_a_list(stream: Any) -> bool:
    start = stream.read(4096).removeprefix(b"\xef\xbb\xbf").lstrip()
    stream.seek(0)
    return start.startswith(b"[")


def _line_rows(path: Path, lines: Iterable[bytes]) -> Iterator[SourceRow]:
    """Rows of JSON lines.

    A binary stream splits at line feeds only. Text would also be split at U+2028 and its like, which
    JSON allows inside strings and chat logs contain.
    """
    for number, line in enumerate(lines, start=1):
        if line.strip():
            line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            yield _row(f"{path.name}:{number}", line)


def _row(where: str, line: bytes) -> SourceRow:
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as problem:
        return SourceRow(where, None, "not UTF-8", str(problem))
    except (ValueError, RecursionError) as problem:
        return SourceRow(where, None, "not JSON", str(problem))
    return _checked(where, value)


def _list_rows(path: Path, content: bytes) -> Iterator[SourceRow]:
    try:
        values = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as problem:
        raise CourseError(f"{path} is not a JSON list: {problem}") from None
    for number, value in enumerate(values):
        yield _checked(f"{path.name}[{number}]", value)


def _checked(where: str, value: Any) -> SourceRow:
    if not isinstance(value, dict):
        return SourceRow(where, None, "wrong type", f"the row is a {type(value).__name__}, not an object")
    return SourceRow(where, value)
