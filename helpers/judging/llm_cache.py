"""Verdicts on disk, so that none is paid for twice: one file each, written whole or not at all.

A file is found by the hash of all that could change the verdict. What it holds is checked when it is read:
a damaged file counts as none, and is written anew. Failures are never stored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from helpers.errors import CourseError
from helpers.files import atomic_path, fingerprint, writing

FORMAT = 1  # of the files; another one is not read


class VerdictCache:
    """A directory of answers by key; None for the directory keeps nothing."""

    def __init__(self, directory: str | Path | None) -> None:
        self.directory = Path(directory) if directory is not None else None
        if self.directory is not None:
            if self.directory.exists() and not self.directory.is_dir():
                raise CourseError(f"--judge_cache {self.directory} is a file: give a directory, or none")
            with writing(self.directory):
                self.directory.mkdir(parents=True, exist_ok=True)

    def path(self, key: str) -> Path | None:
        """Where the answer to `key` lies, or would."""
        return self.directory / key[:2] / f"{key}.json" if self.directory is not None else None

    def get(self, key: str) -> dict[str, Any] | None:
        """The stored answer, or None where there is none that is whole."""
        path = self.path(key)
        if path is None:
            return None
        try:
            entry = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(entry, dict) or entry.get("format") != FORMAT or entry.get("key") != key:
            return None
        answer = entry.get("answer")
        return answer if isinstance(answer, dict) and entry.get("check") == fingerprint(answer) else None

    def put(self, key: str, answer: Mapping[str, Any], about: Mapping[str, Any]) -> None:
        """Store an answer. `about` says for people which judge gave it, when asked how."""
        path = self.path(key)
        if path is None:
            return
        entry = {"format": FORMAT, "key": key, "about": dict(about), "answer": dict(answer)}
        entry["check"] = fingerprint(entry["answer"])
        with atomic_path(path) as draft:
            draft.write_text(json.dumps(entry, ensure_ascii=False, allow_nan=False), encoding="utf-8")
