"""Atomic writes, JSON lines and fingerprints: a file is either the old one or the whole new one."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from helpers.errors import CourseError

FULL = "the disk is full, or your quota used up; make room and run the same command again"
# What torch and safetensors say where their own writers run out of room.
WRITER_FAILED = (
    "No space left",
    "quota exceeded",
    "PytorchStreamWriter",
    "iostream error",
    "inline_container",
)


@contextmanager
def writing(path: str | Path) -> Iterator[None]:
    """Turn what the file system refuses inside the block into a CourseError that names the place."""
    try:
        yield
    except CourseError:
        raise
    except OSError as problem:
        raise CourseError(f"{without_scratch(path)} cannot be written: {explained(problem)}") from problem
    except Exception as problem:
        if not any(words in str(problem) for words in WRITER_FAILED):
            raise
        raise CourseError(f"{without_scratch(path)} cannot be written: {FULL}") from problem


def check_place(path: str | Path | None, flag: str) -> None:
    """Refuse a file that could not be written, before the work whose result it is to hold.

    Makes the directory it lies in. CourseError names the flag.
    """
    if path is None:
        return
    target = Path(path)
    with writing(f"{flag} {target}"):
        if target.is_dir():
            raise CourseError(f"{flag} {target} is a directory: name a file")
        target.parent.mkdir(parents=True, exist_ok=True)
        if not os.access(target if target.exists() else target.parent, os.W_OK):
            raise CourseError(f"{flag} {target} cannot be written here: choose another place")


def explained(problem: OSError) -> str:
    """What went wrong with a file, and what to do, in one line."""
    if problem.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)):
        return FULL
    return f"{problem.strerror or problem}; choose another place, or clear this one"


def without_scratch(path: str | Path) -> str:
    """A path as the user knows it, without the scratch directories of `atomic_path`."""
    parts = Path(path).parts
    kept = [
        a for a, b in zip(parts, (*parts[1:], ""), strict=True) if not a.startswith(f".{b[:80]}.") or not b
    ]
    return str(Path(*kept)) if kept else str(path)


@contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; move it there only if the block succeeds.

    The block may create a file or a directory. An existing file or directory at `path` is replaced by one
    of its kind. Raises CourseError where the place cannot be written.
    """
    target = Path(path)
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name[:80]}.", dir=target.parent))
        draft = scratch / target.name
        try:
            yield draft
            if target.is_dir() and draft.is_dir():
                os.rename(target, scratch / "replaced")
            os.replace(draft, target)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def data_dir() -> Path:
    """The project's data directory: $COURSE_DATA, or `data` beside the `helpers` package."""
    return Path(os.environ.get("COURSE_DATA") or Path(__file__).resolve().parents[1] / "data")


def find_data(name: str | Path) -> str:
    """Turn the name of a bundled data set, such as data/tiny, into its path; other names stay as they are."""
    parts = Path(name).parts
    if (
        not os.path.exists(name)
        and len(parts) > 1
        and parts[0] == "data"
        and data_dir().joinpath(*parts[1:]).exists()
    ):
        return str(data_dir().joinpath(*parts[1:]))
    return str(name)


def write_text(path: str | Path, text: str) -> None:
    """Write `text` as UTF-8, atomically."""
    with atomic_path(path) as draft:
        draft.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any) -> None:
    """Write `value` as indented JSON with a final newline, atomically. NaN and infinity are refused."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: str | Path) -> Any:
    """Read a JSON file; a missing or malformed one raises CourseError naming it."""
    text = read_text(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as problem:
        raise CourseError(f"{path} is not valid JSON: {problem}") from None


def read_text(path: str | Path) -> str:
    """Read a UTF-8 file; one that is missing, unreadable or binary raises CourseError naming it."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise CourseError(f"{path} does not exist") from None
    except OSError as problem:
        raise CourseError(f"{path} cannot be read: {problem.strerror or problem}") from None
    except ValueError as problem:  # not UTF-8, or a null byte in the name
        raise CourseError(f"{path} is not UTF-8 text: {problem}") from None


def write_jsonl(path: str | Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object a line, atomically."""
    with atomic_path(path) as draft, draft.open("w", encoding="utf-8") as stream:
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")


def read_jsonl(path: str | Path) -> list[dict[str, Any]]:
    """Read a JSON-lines file strictly: the first bad line raises CourseError with its number.

    Data sets, where single bad rows are dropped and reported, are read by `helpers.text.datasets`.
    """
    rows = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as problem:
            raise CourseError(f"{path} line {number} is not JSON: {problem}") from None
        if not isinstance(row, dict):
            raise CourseError(f"{path} line {number} is not a JSON object")
        rows.append(row)
    return rows


def file_digest(path: str | Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def fingerprint(*parts: Any) -> str:
    """Return 16 hex digits of the SHA-256 of `parts` as canonical JSON (bytes are hashed as they are)."""
    digest = hashlib.sha256()
    for part in parts:
        if not isinstance(part, bytes):
            part = json.dumps(part, sort_keys=True, ensure_ascii=False, default=str).encode()
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()[:16]
