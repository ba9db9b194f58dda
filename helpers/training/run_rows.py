"""The rows of a run directory, metrics.csv and samples.jsonl: written in one piece, read as far as whole."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from helpers.files import writing


def read_metric_rows(path: str | Path) -> tuple[list[str], list[dict[str, str]]]:
    """Read metrics.csv as far as it is whole → (columns, rows of text).

    A last line without its line end was torn by a crash and is left out; so are lines whose first cell is
    no step. Short rows lack their last columns, cells beyond the header are ignored. No file: ([], []).
    """
    try:
        text = Path(path).read_bytes().decode("utf-8", errors="replace").replace("\x00", "")
    except FileNotFoundError:
        return [], []
    whole = text[: text.rfind("\n") + 1]
    lines: list[list[str]] = []
    with contextlib.suppress(csv.Error):  # something else was written over the rest
        lines += (cells for cells in csv.reader(io.StringIO(whole, newline="")) if cells)
    if not lines or lines[0][0] != "step":
        return [], []
    columns = lines[0]
    rows = [dict(zip(columns, cells, strict=False)) for cells in lines[1:]]
    return columns, [row for row in rows if is_number(row["step"])]


def read_sample_rows(path: str | Path) -> list[dict[str, Any]]:
    """Read samples.jsonl as far as it is whole, without lines that are no JSON objects. No file: []."""
    try:
        text = Path(path).read_bytes().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return []
    rows = []
    for line in text[: text.rfind("\n") + 1].split("\n"):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and is_number(row.get("step", 0)):
            rows.append(row)
    return rows


def plain(value: Any) -> Any:
    """Return `value` as JSON holds it: tensors as numbers or lists, paths as text, NaN and ±inf as None."""
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
        return [plain(item) for item in items]
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "tolist"):  # torch and numpy
        return plain(value.tolist())
    return str(value)


# ---------------------------------------------------------------------- writing
def append(path: Path, text: str) -> None:
    """Add text to a file, in one write: a crash tears the last row at most."""
    with writing(path), path.open("ab") as stream:
        stream.write(text.encode("utf-8"))


def csv_line(cells: Iterable[Any]) -> str:
    """One row with its line end."""
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(["" if value is None else value for value in cells])
    return buffer.getvalue()


def cell(value: Any) -> Any:
    """One-element tensors as numbers; NaN stays visible; text on one line, so that a torn row can be told."""
    value = value.item() if hasattr(value, "item") else value
    return re.sub(r"[\r\n]+", " ", value) if isinstance(value, str) else value


def drop_torn_end(path: Path) -> None:
    """Cut off a last line that has no line end."""
    if not path.exists() or not path.stat().st_size:
        return
    with path.open("r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        if stream.read(1) != b"\n":
            stream.seek(0)
            stream.truncate(stream.read().rfind(b"\n") + 1)


def step_of(row: Mapping[str, Any]) -> int:
    """The step of a row that was read."""
    return int(float(row["step"]))


def is_number(value: Any) -> bool:
    """True for what `step_of` can read."""
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError):
        return False
