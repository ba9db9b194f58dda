"""The volume of runs on Modal: its layout, and what moves files there and back.

    /vol/runs/…       run directories: `--output_dir runs/my_dpo` and every default lies there
    /vol/data/…       what was uploaded: `--dataset_name data/my_pairs`, `--answers data/my_answers.py`
    /vol/hf_cache/…   models and data sets of the hub, fetched once

A command starts in /vol, so the paths of a command line mean there what they mean at home.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

from helpers.errors import CourseError
from helpers.files import atomic_path

RUNS, DATA, HUB = "runs", "data", "hf_cache"
ROOT_VARIABLE = "COURSE_VOLUME"  # where the volume is mounted; tests name a directory
LEFT_THERE = ("checkpoints", "reference", "run.lock")  # of a run: large, or of no use elsewhere


def volume_root() -> Path:
    """Where the volume is mounted."""
    return Path(os.environ.get(ROOT_VARIABLE) or "/vol")


# ---------------------------------------------------------------------- in the container
@contextmanager
def working_on_volume() -> Iterator[Path]:
    """Work in the volume's root, with the hub's cache on it; afterwards everything is as it was."""
    root, before = volume_root(), Path.cwd()
    for name in (RUNS, DATA, HUB):
        (root / name).mkdir(parents=True, exist_ok=True)
    known = os.environ.get("HF_HOME")
    os.environ["HF_HOME"] = str(root / HUB)
    os.chdir(root)
    try:
        yield root
    finally:
        release_own_locks(root / RUNS)
        os.chdir(before)
        os.environ.pop("HF_HOME")
        if known is not None:
            os.environ["HF_HOME"] = known


def release_own_locks(runs: Path) -> None:
    """Remove the locks that this process still holds.

    A container that is stopped comes back under another host name, to which a lock of its own, a few seconds
    old, would look like that of a machine at work.
    """
    for lock in runs.glob("**/run.lock"):
        try:
            owner = json.loads(lock.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if owner.get("host") == socket.gethostname() and owner.get("pid") == os.getpid():
            lock.unlink(missing_ok=True)


# ---------------------------------------------------------------------- at home
def upload(volume: Any, path: str | Path, name: str | None = None, *, force: bool = False) -> str:
    """Put a file or directory into data/ of the volume; return the path that flags take there."""
    source = Path(path)
    if not source.exists():
        raise CourseError(f"{source} does not exist: name the file or directory to upload")
    place = f"{DATA}/{plain_name(name or source.resolve().name)}"
    with volume.batch_upload(force=force) as batch:
        if source.is_dir():
            batch.put_directory(source, f"/{place}")
        else:
            batch.put_file(source, f"/{place}")
    return place


def download(volume: Any, run: str, output_dir: str | Path = RUNS, *, everything: bool = False) -> Path:
    """Fetch a run directory, whole or not at all; return where it lies.

    Args:
        run: its name below runs/, with or without that; or a file or directory elsewhere on the volume,
            from the root: /data/my_pairs.
        everything: checkpoints and the cache of reference log-probs too.

    Raises:
        CourseError: if there is no such run, or it lies here already.
    """
    remote = run.strip("/") if run.startswith(("/", f"{RUNS}/")) else f"{RUNS}/{run.strip('/')}"
    target = Path(output_dir) / plain_name(PurePosixPath(remote).name)
    if target.exists():
        raise CourseError(f"{target} exists already: move it, or name another --output_dir")
    files = files_below(volume, remote)
    if not everything:
        files = {place: inside for place, inside in files.items() if inside.split("/")[0] not in LEFT_THERE}
    if not files:
        raise CourseError(
            f"the volume holds no {remote}; modal volume ls {volume_name(volume)} {RUNS} lists them"
        )
    with atomic_path(target) as draft:
        for place, inside in files.items():
            write_file(volume, place, draft / inside if inside else draft)
    return target


def files_below(volume: Any, remote: str) -> dict[str, str]:
    """Path on the volume → path below `remote`, of every file there; "" where `remote` is a file itself."""
    try:
        entries = volume.listdir(f"/{remote}", recursive=True)
    except Exception as problem:  # modal says NotFoundError for an empty place, of one class or another
        if "NotFound" in type(problem).__name__ or "No such file" in str(problem):
            return {}
        raise
    found = {}
    for entry in entries:
        place = entry.path.strip("/")
        inside = place.removeprefix(remote).strip("/")
        if ".." in PurePosixPath(inside).parts:
            raise CourseError(
                f"the volume holds {entry.path!r}, which leads out of {remote}: nothing is fetched"
            )
        if is_file(entry):
            found[place] = inside
    return found


def is_file(entry: Any) -> bool:
    """Whether an entry of a listing is a file."""
    return getattr(entry.type, "name", str(entry.type)) == "FILE"


def write_file(volume: Any, place: str, target: Path) -> None:
    """Write one file of the volume here."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("wb") as stream:
        for chunk in volume.read_file(f"/{place}"):
            stream.write(chunk)


def plain_name(name: str) -> str:
    """A single name, or CourseError."""
    if name in ("", ".", "..") or "/" in name or "\\" in name:
        raise CourseError(f"{name!r} is no name for a file or directory on the volume")
    return name


def volume_name(volume: Any) -> str:
    """What the volume is called, for messages."""
    return str(getattr(volume, "name", None) or "alignment-course")
