"""What a run is made from, by content: its data, the adapter it starts from, its reward model.

A path that stays the same may come to hold something else. A run remembers what it read, so that a finished
one is not handed out for other data, and an interrupted one does not go on with them.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from helpers.errors import CourseError
from helpers.files import find_data
from helpers.training.configs import RunSettings

PREFIX = "inputs."
DATA_FILES = (".json", ".jsonl", ".parquet", ".gz", ".csv")
WHOLE = 64 * 2**20  # bytes; of a larger file the size and both ends are read
END = 2**20


def inputs_of(config: RunSettings) -> dict[str, str]:
    """Hash of each local input by the name of its setting; what is not a local path is left out."""
    found = {}
    for name in ("dataset_name", "init_adapter", "reward_model"):
        place = local(name, getattr(config, name, None))
        if place is not None and (mark := content_hash(place, data=name == "dataset_name")):
            found[PREFIX + name] = mark
    return found


def local(name: str, value: str | None) -> Path | None:
    """The path that a setting means, if it is one here."""
    if not value:
        return None
    try:
        place = Path(find_data(value)) if name == "dataset_name" else Path(value)
        return place if place.exists() else None
    except (CourseError, OSError, ValueError):
        return None  # whoever reads it says what is wrong


def content_hash(place: Path, *, data: bool) -> str:
    """Hash of a file, or of the files in a directory with their names; "" where there are none.

    data: only files that may hold rows, in the directory itself; else everything below it.
    """
    files = [place] if place.is_file() else sorted(place.iterdir() if data else place.rglob("*"))
    files = [file for file in files if file.is_file() and (not data or file.suffix in DATA_FILES)]
    total = hashlib.sha256()
    for file in files:
        total.update(f"{file.name if file == place else file.relative_to(place).as_posix()}\0".encode())
        total.update(file_hash(file))
    return total.hexdigest()[:16] if files else ""


def file_hash(file: Path) -> bytes:
    """Hash of a file's content; of a very large one, of its size and both ends."""
    with file.open("rb") as stream:
        size = file.stat().st_size
        if size <= WHOLE:
            return hashlib.file_digest(stream, "sha256").digest()
        parts = [str(size).encode(), stream.read(END)]
        stream.seek(-END, 2)
        return hashlib.sha256(b"".join([*parts, stream.read(END)])).digest()
