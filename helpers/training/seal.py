"""Checkpoints that can tell whether they are whole: a list of their files with sizes and hashes.

A checkpoint appears under its name in one rename, but may be damaged afterwards: a file deleted, a disk that
lost its last writes, a copy broken off. Going on from such a one would train on silently with a fresh
optimiser or other random numbers; it is recognised and passed over instead.
"""

from __future__ import annotations

from pathlib import Path

from helpers.errors import CourseError
from helpers.files import file_digest, read_json, write_json

SEAL = "files.json"


def seal(directory: Path) -> None:
    """Write the list of everything in `directory`."""
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != SEAL)
    write_json(
        directory / SEAL, {str(path.relative_to(directory).as_posix()): file_digest(path) for path in files}
    )


def damage(directory: Path) -> str | None:
    """What is wrong with a sealed directory, or None where everything is as it was written."""
    try:
        listed = read_json(directory / SEAL)
    except CourseError:
        return f"{SEAL} is missing or damaged"
    for name, known in listed.items() if isinstance(listed, dict) else ():
        try:
            if file_digest(directory / name) != known:
                return f"{name} is damaged"
        except OSError:
            return f"{name} is missing"
    return None if listed else f"{SEAL} lists nothing"
