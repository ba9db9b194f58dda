"""Opening submissions nobody vouches for: a directory or a zip becomes named readers of bounded bytes.

Nothing is ever unpacked to disk and nothing submitted is executed. Sizes are bounded while reading, so a
zip bomb costs one file's limit. Text that came from a submission is quoted before it is shown.
"""

from __future__ import annotations

import os
import stat
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from helpers.course.layout import ALIASES, PARTS, REWARD_FILE, ROOT_NAME, layout
from helpers.errors import CourseError

MAX_ARCHIVE_BYTES = 16 * 2**20
MAX_FILE_BYTES = 16 * 2**20
MAX_MEMBERS = 2_000
MAX_DEPTH = 4  # folders around the submission
SHOWN = 3  # how many places a message lists before "and N more"


def quoted(value: Any, limit: int = 40) -> str:
    """Show a submitted value on one line: escaped, ASCII only, cut to `limit` characters."""
    try:
        text = ascii(value if not isinstance(value, str) else value[: limit * 2])
    except (RecursionError, ValueError):  # nested without end; a whole number of thousands of digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def listed(places: list[str]) -> str:
    """The first places of a list, then how many more there are."""
    more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
    return ", ".join(places[:SHOWN]) + more


@dataclass(frozen=True)
class Submission:
    """The files of a submission by their path in the layout, each with a bounded reader of its bytes."""

    readers: Mapping[str, Callable[[], bytes]]
    notices: list[str]  # things refused or skipped on opening

    def __contains__(self, name: str) -> bool:
        return name in self.readers

    def read(self, name: str) -> bytes:
        """Return the bytes of one file; CourseError if it is missing, too large or damaged."""
        if name not in self.readers:
            raise CourseError(f"{name} is missing")
        return self.readers[name]()


def open_submission(path: str | Path) -> Submission:
    """Open a submission directory (or a folder around it) or zip, without unpacking anything.

    Raises:
        CourseError: if there is nothing to grade at `path`, saying why.
    """
    source = Path(path)
    if source.is_dir():
        return _from_directory(source)
    if not source.is_file():
        raise CourseError(f"{path} does not exist: give a submission directory or a zip")
    if source.stat().st_size > MAX_ARCHIVE_BYTES:
        raise CourseError(
            f"{path} is larger than {MAX_ARCHIVE_BYTES // 2**20} MiB; a submission takes under 1 MiB"
        )
    return _from_zip(source)


def _submission(
    found: Mapping[str, Any],
    reader: Callable[[str, Any], Callable[[], bytes]],
    source: str,
    notices: list[str],
) -> Submission:
    """Keep the files of the layout; say in one notice each what else there is."""
    root = _root_of(found, source)
    inside = {name[len(root) :]: found[name] for name in found if name.startswith(root)}
    inside = {name: place for name, place in inside.items() if name.split("/")[0] in PARTS}
    known = {*layout(), *ALIASES.values()}
    notices = notices + _strangers(sorted(inside.keys() - known), known)
    return Submission({name: reader(name, inside[name]) for name in inside if name in known}, notices)


def _strangers(names: list[str], known: set[str]) -> list[str]:
    """Notices about files that no part reads: those whose name is only nearly right, and all others."""
    right = {name.casefold(): name for name in known}
    near = [name for name in names if name.casefold() in right]
    notices = [
        f"{quoted(name, 70)} was not read: it is called {right[name.casefold()]}, in small letters"
        for name in near[:SHOWN]
    ]
    others = [name for name in names if name not in near and not _litter(name)]
    if others:
        places = listed([quoted(name, 60) for name in others])
        notices.append(f"{places}: no part of a submission, not read")
    return notices


def _litter(name: str) -> bool:
    """Files that operating systems and interrupted runs leave behind."""
    last = name.rsplit("/", 1)[-1]
    return last.startswith((".", "Thumbs.db")) or last.endswith(".partial")


def _root_of(names: Iterable[str], source: str) -> str:
    """Return the prefix ("" or "a/b/") of the submission: the project's name first, then the shallowest."""
    roots, nested = set(), []
    for name in names:
        folders = PurePosixPath(name).parts[:-1]
        if any(folder == "__MACOSX" for folder in folders):
            continue
        nested += [name] if name.lower().endswith(".zip") else []
        for depth, folder in enumerate(folders):
            if folder in PARTS:
                roots.add(folders[:depth])
                break
    if not roots:
        inner = f"; it holds the zip {quoted(nested[0], 60)}: submit what is inside it" if nested else ""
        raise CourseError(
            f"{source} holds neither policy_generations/*.jsonl nor {REWARD_FILE} nor part2/*.jsonl{inner}"
            + ("" if inner else ": make them with `python -m helpers submit`")
        )
    best = min(roots, key=lambda root: (ROOT_NAME not in root, len(root), root))
    return "".join(f"{folder}/" for folder in best)


def _bounded(name: str, data: bytes) -> bytes:
    if len(data) > MAX_FILE_BYTES:
        raise CourseError(f"{name} is larger than {MAX_FILE_BYTES // 2**20} MiB once unpacked")
    return data


# ---------------------------------------------------------------------- directories


def _from_directory(source: Path) -> Submission:
    found: dict[str, Path] = {}
    notices: list[str] = []
    for folder, folders, names in os.walk(source, followlinks=False):
        here = Path(folder)
        for name in [name for name in folders if (here / name).is_symlink()]:
            notices.append(
                f"{quoted(name)} is a link to a directory and was skipped: submit the files themselves"
            )
        depth = len(here.relative_to(source).parts)
        folders[:] = sorted(name for name in folders if depth < MAX_DEPTH and not (here / name).is_symlink())
        for name in sorted(names):
            found[(here / name).relative_to(source).as_posix()] = here / name
        if len(found) + len(notices) > MAX_MEMBERS:
            raise CourseError(
                f"{source} holds more than {MAX_MEMBERS} files: give the submission directory itself"
            )
    return _submission(found, _file_reader, str(source), notices)


def _file_reader(name: str, path: Path) -> Callable[[], bytes]:
    def read() -> bytes:
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            raise CourseError(f"{name} is a link: submit the file itself")
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
            raise CourseError(f"{name} is not a regular file")
        try:
            with path.open("rb") as stream:
                return _bounded(name, stream.read(MAX_FILE_BYTES + 1))
        except OSError as problem:
            raise CourseError(f"{name} cannot be read: {problem.strerror}") from None

    return read


# ---------------------------------------------------------------------- zips


def _from_zip(source: Path) -> Submission:
    try:
        with zipfile.ZipFile(source) as archive:
            members = archive.infolist()
    except Exception as problem:  # zipfile raises half a dozen kinds on damaged directories
        raise CourseError(
            f"{source} is neither a directory nor a readable zip ({quoted(str(problem), 80)})"
        ) from None
    if len(members) > MAX_MEMBERS:
        raise CourseError(f"{source} has {len(members)} members; a submission has under 20")
    notices: list[str] = []
    safe: dict[str, zipfile.ZipInfo] = {}
    for member in members:
        name = member.filename.replace("\\", "/")  # as some programs on Windows write them
        if not name or name.endswith("/"):
            continue
        fault = "appears twice in the zip" if name in safe else _member_fault(name, member)
        if fault:
            notices.append(f"zip member {quoted(member.filename, 60)} {fault} and was skipped")
        else:
            safe[name] = member
    if len(notices) > SHOWN:
        notices = [*notices[:SHOWN], f"members of the zip that were skipped: {len(notices) - SHOWN} more"]

    def reader(name: str, member: zipfile.ZipInfo) -> Callable[[], bytes]:
        return _member_reader(name, source, member)

    return _submission(safe, reader, str(source), notices)


def _member_fault(name: str, member: zipfile.ZipInfo) -> str | None:
    if name.startswith("/") or name[1:2] == ":":
        return "has an absolute path"
    if ".." in name.split("/"):
        return "climbs out of the zip with '..'"
    if stat.S_ISLNK(member.external_attr >> 16):
        return "is a link"
    if member.flag_bits & 0x1:
        return "is encrypted"
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "uses a compression other than deflate"
    if member.file_size > MAX_FILE_BYTES:
        return f"unpacks to more than {MAX_FILE_BYTES // 2**20} MiB"
    return None


def _member_reader(name: str, source: Path, member: zipfile.ZipInfo) -> Callable[[], bytes]:
    def read() -> bytes:
        try:
            with zipfile.ZipFile(source) as archive, archive.open(member) as stream:
                # the size in the zip's directory may lie, so what is read is bounded, not what is promised
                return _bounded(name, stream.read(MAX_FILE_BYTES + 1))
        except CourseError:
            raise
        except Exception as problem:  # of zipfile, zlib and struct, on whatever the bytes pretend to be
            raise CourseError(f"{name} cannot be unpacked: {quoted(str(problem), 80)}") from None

    return read
