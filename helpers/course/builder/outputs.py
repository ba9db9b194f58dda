"""What is kept of a cell's outputs: results, without noise and without traces of the machine."""

from __future__ import annotations

import copy
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from helpers.course.builder.notebooks import METADATA, Notebook
from helpers.errors import CourseError

CELL_LIMIT = 150_000  # bytes of one cell's outputs
NOTEBOOK_LIMIT = 1_000_000  # bytes of a whole notebook
WIDGET = "application/vnd.jupyter.widget-view+json"
PROGRESS = re.compile(r"\s*(?:.{0,40}:\s*)?\d{1,3}%\|.*\|.*|.*\d+it \[\d\d:\d\d.*")
ADDRESS = re.compile(r"\bat 0x[0-9a-f]{6,}")
# A home, a temporary folder, or a drive of Windows.
ABSOLUTE = re.compile(
    r"(?<![\w./~}:])/(?:[h]ome|[r]oot|[t]mp|Users|private|var/folders)(?:/|\b)|\b[A-Z]:\\\\?\w"
)


def clean(executed: Notebook, lesson: str, root: Path) -> Notebook:
    """An executed notebook as plain JSON, outputs cleaned and executions counted from 1.

    Dropped are stderr, progress bars and widgets; paths below the checkout become relative.

    Raises:
        CourseError: for a path that remains, or outputs beyond the limits, naming the cell.
    """
    cells, count = [], 0
    for number, cell in enumerate(executed["cells"], start=1):
        kept = {key: cell[key] for key in ("cell_type", "id", "source")} | {"metadata": {}}
        if cell["cell_type"] == "code":
            count += 1
            where = f"lesson {lesson}, cell {number}"
            kept["execution_count"] = count
            kept["outputs"] = clean_outputs(cell["outputs"], count, root, where)
        cells.append(kept)
    # Not what the kernel says of itself: its version would differ from machine to machine.
    return {"cells": cells, "metadata": copy.deepcopy(METADATA), "nbformat": 4, "nbformat_minor": 5}


def clean_outputs(outputs: Any, count: int, root: Path, where: str) -> list[Notebook]:
    """The outputs of one cell."""
    kept: list[Notebook] = []
    for output in outputs:
        if output["output_type"] == "stream":
            add_stream(kept, output)
        elif output["output_type"] in ("display_data", "execute_result"):
            add_display(kept, output, count)
    kept = [tidy(output, root, where) for output in kept]
    kept = [output for output in kept if output.get("text") != ""]
    size = size_of(kept)
    if size > CELL_LIMIT:
        raise CourseError(
            f"{where}: its outputs take {size / 1000:.0f} kB, and {CELL_LIMIT / 1000:.0f} kB are the limit:"
            " show less, or a smaller figure"
        )
    return kept


def add_stream(kept: list[Notebook], output: Notebook) -> None:
    """Append standard output to the chunk before it; leave standard error out."""
    if output["name"] != "stdout":
        return
    if kept and kept[-1]["output_type"] == "stream":
        kept[-1]["text"] += output["text"]
    else:
        kept.append({"output_type": "stream", "name": "stdout", "text": output["text"]})


def add_display(kept: list[Notebook], output: Notebook, count: int) -> None:
    """Append something displayed, unless it is a widget, which is blank without its kernel."""
    data = dict(output["data"])
    if WIDGET in data:
        return
    result = {
        "output_type": output["output_type"],
        "data": data,
        "metadata": dict(output.get("metadata", {})),
    }
    if output["output_type"] == "execute_result":
        result["execution_count"] = count
    kept.append(result)


def tidy(output: Notebook, root: Path, where: str) -> Notebook:
    """Texts of an output without progress bars, addresses and machine paths."""
    if output["output_type"] == "stream":
        return {**output, "text": tidy_text(without_progress(output["text"]), root, where)}
    data = {
        kind: tidy_text(value, root, where)
        if isinstance(value, str) and not kind.startswith("image/")
        else value
        for kind, value in output["data"].items()
    }
    return {**output, "data": data}


def without_progress(text: str) -> str:
    """What a terminal would still show after carriage returns, without lines that are progress bars."""
    shown = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    kept = [line for line in shown if not PROGRESS.fullmatch(line)]
    return "\n".join(kept) if any(line.strip() for line in kept) else ""


def tidy_text(text: str, root: Path, where: str) -> str:
    """A text with paths below the checkout made relative; CourseError for a path of the machine."""
    for folder in (str(root.resolve()), str(root)):
        text = text.replace(f"{folder}/", "").replace(folder, ".")
    text = ADDRESS.sub("at 0x…", text)
    home = str(Path.home())
    known = [place for place in (home, sys.prefix, tempfile.gettempdir()) if len(place) > 1]
    for line in text.split("\n"):
        if ABSOLUTE.search(line) or any(f"{place}/" in line for place in known):
            raise CourseError(
                f"{where} shows a path of this machine: {line.strip()[:120]}; print a relative one"
            )
    return text


def size_of(outputs: list[Notebook]) -> int:
    """Bytes of texts and images."""
    texts = [output.get("text", "") for output in outputs]
    texts += [
        value for output in outputs for value in output.get("data", {}).values() if isinstance(value, str)
    ]
    return sum(len(text.encode()) for text in texts)
