"""Work done in batches that survives kill -9: each finished batch is one line of `<file>.partial`.

A batch, not a row, is the unit, so that a resumed run sees the same batches, hence the same padding and the
same rounding, as one that was never interrupted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from helpers.errors import CourseError
from helpers.files import write_jsonl


class Journal:
    """Finished batches of an unfinished file: a header with the fingerprint, then one JSON line a batch."""

    def __init__(self, path: Path, key: str) -> None:
        self.path, self.key = path, key

    def load(self) -> list[dict[str, Any]]:
        """Return the batches written under the same fingerprint; a line torn by a crash is dropped."""
        lines = self.path.read_bytes().split(b"\n")[:-1] if self.path.is_file() else []
        batches = [entry for entry in map(_entry, lines) if entry is not None]
        sound = bool(batches) and batches[0] == {"fingerprint": self.key}
        batches = [entry for entry in batches if isinstance(entry.get("rows"), list)] if sound else []
        write_jsonl(self.path, [{"fingerprint": self.key}, *batches])  # the torn tail must not be appended to
        return batches

    def append(self, batch: dict[str, Any]) -> None:
        """Add one finished batch and see it onto the disk."""
        with self.path.open("ab") as stream:
            stream.write(json.dumps(batch).encode() + b"\n")
            stream.flush()
            os.fsync(stream.fileno())


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def in_batches(
    path: Path,
    key: str,
    rows: Sequence[dict[str, Any]],
    batch_size: int,
    work: Callable[[list[dict[str, Any]]], dict[str, Any]],
    label: str,
) -> tuple[list[dict[str, Any]], int]:
    """Run `work` over the rows that the journal beside `path` lacks; return all batches and rows resumed."""
    if batch_size < 1:
        raise CourseError(f"--batch_size {batch_size}: use 1 or more")
    journal = Journal(path.with_name(path.name + ".partial"), key)
    batches = journal.load()
    done = {row["row_id"] for batch in batches for row in batch["rows"]}
    left = [row for row in rows if row["row_id"] not in done]
    with tqdm(total=len(rows), initial=len(done), desc=label, unit="row", leave=False) as bar:
        for start in range(0, len(left), batch_size):
            batch = work(left[start : start + batch_size])
            journal.append(batch)
            batches.append(batch)
            bar.update(len(batch["rows"]))
    return batches, len(done)
