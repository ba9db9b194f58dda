"""An advisory lock so that two processes never write to one run.

The lock is a small JSON file naming its owner. One left behind by a killed process is recognised by its
process id (and start time, since ids are reused) and taken over. A lock from another machine, as on a
shared drive, counts as abandoned when its owner has not touched it for `ABANDONED_SECONDS`.
"""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from pathlib import Path
from typing import Any

import psutil

from helpers.errors import CourseError

ABANDONED_SECONDS = 15 * 60
TOUCH_SECONDS = 30
START_TOLERANCE_SECONDS = 5  # a process's start time shifts a little when the clock is set


class RunLock:
    """The lock file of one run directory; taking it twice in the same process is allowed."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._token: str | None = None
        self._pid = 0
        self._touched = 0.0

    @property
    def held(self) -> bool:
        """True while this object, in the process that took it (not a fork), holds the lock."""
        return self._token is not None and self._pid == os.getpid()

    def acquire(self) -> bool:
        """Take the lock; return False where it was held already. CourseError while another process has it."""
        if self.held:
            self._touch()
            return False
        if not self._create():
            owner = self._read()
            if is_alive(owner, self.path):
                raise CourseError(_busy_message(self.path, owner))
            self._take_over()
        return True

    def release(self) -> None:
        """Remove the lock file if it is still ours."""
        if self.held and self._read().get("token") == self._token:
            self.path.unlink(missing_ok=True)
        self._token = None

    def _create(self) -> bool:
        try:
            handle = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        except FileExistsError:
            return False
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(self._claim())
        return True

    def _take_over(self) -> None:
        draft = self.path.with_name(f"{self.path.name}.{uuid.uuid4().hex[:8]}")
        draft.write_text(self._claim(), encoding="utf-8")
        os.replace(draft, self.path)
        owner = self._read()
        if owner.get("token") != self._token:  # somebody else took the same stale lock an instant later
            self._token = None
            raise CourseError(_busy_message(self.path, owner))

    def _claim(self) -> str:
        self._token, self._pid, self._touched = uuid.uuid4().hex, os.getpid(), time.time()
        owner = {"pid": self._pid, "host": socket.gethostname(), "token": self._token}
        return json.dumps({**owner, "process_started": psutil.Process().create_time()}) + "\n"

    def _read(self) -> dict[str, Any]:
        try:
            owner = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return owner if isinstance(owner, dict) else {}

    def _touch(self) -> None:
        if time.time() - self._touched > TOUCH_SECONDS:
            self._touched = time.time()
            if self.path.exists():
                os.utime(self.path)


def is_alive(owner: dict[str, Any], path: Path) -> bool:
    """Say whether the owner written in the lock file at `path` still runs, and is not this very process."""
    if owner.get("host") != socket.gethostname():
        return _seconds_since_touch(path) < (ABANDONED_SECONDS if owner else START_TOLERANCE_SECONDS)
    pid = owner.get("pid")
    if not isinstance(pid, int) or pid == os.getpid():
        return False
    try:
        process = psutil.Process(pid)
        started = process.create_time()
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
    except psutil.NoSuchProcess:
        return False
    except psutil.AccessDenied:
        return True
    return abs(started - float(owner.get("process_started") or started)) < START_TOLERANCE_SECONDS


def _seconds_since_touch(path: Path) -> float:
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return float("inf")


def _busy_message(path: Path, owner: dict[str, Any]) -> str:
    who = f"process {owner.get('pid', '?')} on {owner.get('host', 'an unknown machine')}"
    return (
        f"{path.parent} is being written by {who}: wait for it, stop it, or choose another --output_dir. "
        f"If you are sure that it is gone, delete {path}"
    )
