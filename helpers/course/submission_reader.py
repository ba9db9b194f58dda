"""Reading submissions nobody vouches for: directories, zips and JSON lines, with one clear line per fault.

Nothing is ever unpacked to disk and nothing submitted is executed. Sizes are bounded while reading, so a
zip bomb costs one file's limit. Text that came from a submission is quoted before it is shown.
"""

from __future__ import annotations

import json
import math
import os
import stat
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from helpers.errors import CourseError

ROOT_NAME = "llm_rl_final_proj_public_submission"  # as the university project's autograder looks for it
PARTS = ("policy_generations", "reward_model", "part2")
REWARD_FILE = "reward_model/public_test_pref_scores.jsonl"
MAX_PROMPT_TOKENS, MAX_NEW_TOKENS, MAX_RESPONSE_TOKENS = 700, 256, 512  # the benchmark's budgets

MAX_ARCHIVE_BYTES = 64 * 2**20
MAX_FILE_BYTES = 16 * 2**20
MAX_LINE_CHARS = 200_000
MAX_MEMBERS = 2_000
MAX_ROWS = 20_000
SHOWN = 3  # how many lines a message lists before "and N more"

POLICY_FIELDS = ("row_id", "prompt_text", "response_text", "generated_num_tokens")
SCORE_FIELDS = ("row_id", "chosen_score", "rejected_score")


@dataclass
class Faults:
    """What is wrong with one file: kind of fault -> where it occurs. Empty means sound."""

    places: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, place: str = "") -> None:
        """Count one occurrence of `kind` at `place`, such as "line 3"."""
        self.places.setdefault(kind, []).append(place)

    def lines(self) -> list[str]:
        """Return one line a kind: the first places, then how many more there are."""
        rendered = []
        for kind, places in self.places.items():
            named = [place for place in places if place]
            more = f" and {len(named) - SHOWN} more" if len(named) > SHOWN else ""
            rendered.append(f"{', '.join(named[:SHOWN])}{more}: {kind}" if named else kind)
        return rendered

    def __bool__(self) -> bool:
        return bool(self.places)


def quoted(value: Any, limit: int = 40) -> str:
    """Show a submitted value on one line: escaped, ASCII only, cut to `limit` characters."""
    text = ascii(value if not isinstance(value, str) else value[: limit * 2])
    return text if len(text) <= limit else text[: limit - 1] + "…"


# ---------------------------------------------------------------------- where the files come from


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
        folders[:] = sorted(name for name in folders if depth < 4 and not (here / name).is_symlink())
        for name in sorted(names):
            found[(here / name).relative_to(source).as_posix()] = here / name
        if len(found) > MAX_MEMBERS:
            raise CourseError(
                f"{source} holds more than {MAX_MEMBERS} files: give the submission directory itself"
            )
    root = _root_of(found, str(source))
    return Submission({name: _file_reader(name, found[root + name]) for name in _below(found, root)}, notices)


def _file_reader(name: str, path: Path) -> Callable[[], bytes]:
    def read() -> bytes:
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            raise CourseError(f"{name} is a link: submit the file itself")
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
            raise CourseError(f"{name} is not a regular file")
        with path.open("rb") as stream:
            return _bounded(name, stream.read(MAX_FILE_BYTES + 1))

    return read


def _bounded(name: str, data: bytes) -> bytes:
    if len(data) > MAX_FILE_BYTES:
        raise CourseError(f"{name} is larger than {MAX_FILE_BYTES // 2**20} MiB once unpacked")
    return data


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
        if member.is_dir():
            continue
        fault = "appears twice in the zip" if member.filename in safe else _member_fault(member)
        if fault:
            notices.append(f"zip member {quoted(member.filename, 60)} {fault} and was skipped")
        else:
            safe[member.filename] = member
    root = _root_of(safe, str(source))
    return Submission(
        {name: _member_reader(name, source, safe[root + name]) for name in _below(safe, root)}, notices
    )


def _member_fault(member: zipfile.ZipInfo) -> str | None:
    name = member.filename
    if name.startswith(("/", "\\")) or name[1:2] == ":":
        return "has an absolute path"
    if ".." in name.replace("\\", "/").split("/"):
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
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError) as problem:
            raise CourseError(f"{name} cannot be unpacked: {quoted(str(problem), 80)}") from None

    return read


def _root_of(names: Iterable[str], source: str) -> str:
    """Return the prefix ("" or "a/b/") of the submission: the project's name first, then the shallowest."""
    roots = set()
    for name in names:
        folders = PurePosixPath(name).parts[:-1]
        if any(folder == "__MACOSX" for folder in folders):
            continue
        for depth, folder in enumerate(folders):
            if folder in PARTS:
                roots.add(folders[:depth])
                break
    if not roots:
        raise CourseError(
            f"{source} holds neither policy_generations/*.jsonl nor {REWARD_FILE}: "
            "make them with `python -m helpers submit`"
        )
    best = min(roots, key=lambda root: (ROOT_NAME not in root, len(root), root))
    return "".join(f"{folder}/" for folder in best)


def _below(names: Iterable[str], root: str) -> list[str]:
    """Return the names under `root` that lie in one of the layout's directories, relative to it."""
    inside = [name[len(root) :] for name in names if name.startswith(root)]
    return [name for name in inside if name.split("/")[0] in PARTS]


# ---------------------------------------------------------------------- what the files say


def parse_jsonl(data: bytes, faults: Faults) -> list[tuple[int, dict[str, Any]]]:
    """Return (line number, object) for every sound line; faults are collected, nothing is raised."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        faults.add(f"the file is not UTF-8 text (byte {problem.start}): save it as UTF-8")
        return []
    lines = text.split("\n")
    if len(lines) > MAX_ROWS:
        faults.add(f"the file has more than {MAX_ROWS} lines")
        return []
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        row = _parse_line(line, f"line {number}", faults)
        if row is not None:
            rows.append((number, row))
    return rows


def _parse_line(line: str, place: str, faults: Faults) -> dict[str, Any] | None:
    if len(line) > MAX_LINE_CHARS:
        faults.add(f"longer than {MAX_LINE_CHARS} characters", place)
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):  # also integers of thousands of digits, and nesting without end
        faults.add("not JSON", place)
        return None
    if not isinstance(row, dict):
        faults.add("not a JSON object", place)
        return None
    return row


def read_policy_rows(data: bytes, expected: Collection[str], faults: Faults) -> dict[str, str]:
    """Read a policy file: row_id -> response_text of the sound rows; everything else goes to `faults`.

    Args:
        expected: the row ids of the prompts, each to be answered exactly once.
    """
    responses: dict[str, str] = {}
    for place, row_id, row in _known_rows(data, expected, faults):
        fault = _response_fault(row.get("response_text")) or _token_count_fault(row)
        if fault:
            faults.add(fault, place)
        else:
            responses[row_id] = row["response_text"]
    return responses


def _response_fault(text: Any) -> str | None:
    if text is None:
        return "response_text is missing"
    if not isinstance(text, str):
        return "response_text is not a string"
    if not text.strip():
        return "response_text is empty"
    if any("\ud800" <= char <= "\udfff" for char in text):
        return "response_text has broken Unicode (a lone surrogate)"
    return None


def _token_count_fault(row: Mapping[str, Any]) -> str | None:
    count = row.get("generated_num_tokens")
    if "generated_num_tokens" not in row:
        return "generated_num_tokens is missing"
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        return "generated_num_tokens is not a positive whole number"
    if count > MAX_NEW_TOKENS:
        return f"generated_num_tokens is over the budget of {MAX_NEW_TOKENS}"
    return None


def read_score_rows(data: bytes, expected: Collection[str], faults: Faults) -> dict[str, tuple[float, float]]:
    """Read a reward file: row_id -> (chosen_score, rejected_score) of the sound rows."""
    scores: dict[str, tuple[float, float]] = {}
    for place, row_id, row in _known_rows(data, expected, faults):
        found = {name: _score_fault(name, row) for name in SCORE_FIELDS[1:]}
        problems = [fault for fault in found.values() if fault]
        for fault in problems:
            faults.add(fault, place)
        if not problems:
            scores[row_id] = (float(row["chosen_score"]), float(row["rejected_score"]))
    return scores


def _score_fault(name: str, row: Mapping[str, Any]) -> str | None:
    value = row.get(name)
    if value is None:
        return f"{name} is missing"
    if isinstance(value, str):
        return f"{name} is a string: write a number without quotes"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"{name} is not a number"
    try:
        return None if math.isfinite(value) else f"{name} is NaN or infinite"
    except OverflowError:
        return f"{name} is too large for a float"


def _known_rows(
    data: bytes, expected: Collection[str], faults: Faults
) -> list[tuple[str, str, dict[str, Any]]]:
    """Return (place, row_id, row) of rows with an expected, unique row_id; report all others."""
    wanted, seen, known = set(expected), set(), []
    for number, row in parse_jsonl(data, faults):
        place, row_id = f"line {number}", row.get("row_id")
        if not isinstance(row_id, str):
            faults.add("row_id is missing" if row_id is None else "row_id is not a string", place)
        elif row_id not in wanted:
            faults.add(f"row_id is not among the {len(wanted)} rows asked for", f"{place} ({quoted(row_id)})")
        elif row_id in seen:
            faults.add("row_id appears a second time", f"{place} ({quoted(row_id)})")
        else:
            seen.add(row_id)
            known.append((place, row_id, row))
    missing = [row_id for row_id in expected if row_id not in seen]
    for row_id in missing:
        faults.add(f"{len(missing)} of {len(wanted)} rows are missing", quoted(row_id))
    return known
