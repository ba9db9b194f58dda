"""Outputs of finished stages: a stage runs again only if what it depends on has changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.errors import CourseError
from helpers.files import file_digest, fingerprint, read_jsonl, write_jsonl
from helpers.journal import in_batches

Row = dict[str, Any]
FOLDER = "stages"
VERSION = 1  # raised when a stage would give something else for equal inputs


@dataclass(frozen=True)
class Stage:
    """A stage's rows, the summary kept with them, and the fingerprint that the next stage builds on."""

    rows: list[Row]
    summary: Row
    key: str


def finished(path: Path, key: str) -> Stage | None:
    """The stage's output if it was made from the same inputs."""
    if not path.is_file():
        return None
    try:
        head, *rows = read_jsonl(path)
    except (CourseError, ValueError):  # damaged, or empty: made again
        return None
    sound = head.get("fingerprint") == key and "summary" in head
    return Stage(rows, head["summary"], key) if sound else None


def stage(path: Path, inputs: Any, work: Callable[[str], tuple[list[Row], Row]]) -> Stage:
    """Read the output of a finished stage, or do the `work`, which gets the fingerprint of `inputs`."""
    key = fingerprint(VERSION, path.name, inputs)
    done = finished(path, key)
    if done is not None:
        return done
    return save(path, key, *work(key))


def save(path: Path, key: str, rows: list[Row], summary: Row) -> Stage:
    """Write a finished stage; its batches are not needed any more."""
    write_jsonl(path, [{"fingerprint": key, "summary": summary}, *rows])
    partial(path).unlink(missing_ok=True)
    return Stage(rows, summary, key)


def partial(path: Path) -> Path:
    """Where the finished batches of an unfinished stage are."""
    return path.with_name(path.name + ".partial")


def batched(
    path: Path, key: str, rows: Sequence[Row], size: int, work: Callable[[list[Row]], list[Row]], label: str
) -> list[Row]:
    """Rows of all batches, in the order of `rows`; finished batches of a killed run are not done again."""
    batches, _ = in_batches(path, key, rows, size, lambda batch: {"rows": work(batch)}, label)
    found = {row["row_id"]: row for batch in batches for row in batch["rows"]}
    return [found[row["row_id"]] for row in rows if row["row_id"] in found]


def tail(place: str | Path) -> str:
    """The last two parts of a path, or a hub id whole: what may be said of a place in a published file."""
    return "/".join(Path(place).parts[-2:])


def digest_of(place: str | Path) -> dict[str, str]:
    """SHA-256 by name of the file, or of the files of a directory; for a hub id its name stands alone."""
    path = Path(place).expanduser()
    if path.is_file():
        return {path.name: file_digest(path)}
    if path.is_dir():
        return {item.name: file_digest(item) for item in sorted(path.iterdir()) if item.is_file()}
    return {str(place): "from the hub"}
