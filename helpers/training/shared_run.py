"""The run directory of several processes: process 0 holds the lock and writes, the others only read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from helpers.models import processes
from helpers.training.run_dir import RunDir


def open_run(path: str | Path, config: Mapping[str, Any], *, resume: bool, overwrite: bool) -> RunDir:
    """Open a run directory for this process, its config.json written; return it.

    The others open it when process 0 has: what an earlier run left is gone by then, or the settings have
    been refused. CourseError as from `RunDir.write_config`.
    """
    settings = dict(config)
    if processes.count() > 1:
        settings["processes"] = processes.count()  # it makes the batch larger, so it is another run
    kind = RunDir if processes.is_main() else Bystander
    run = kind(path, resume=resume, overwrite=overwrite)
    changed = processes.once(lambda: run.write_config(settings))
    if changed and resume and processes.is_main():
        print(f"resuming {path} with changed settings: {', '.join(changed)}")
    return run


class Bystander(RunDir):
    """A run directory as the other processes see it: every write is left to process 0."""

    def mark_finished(self, metrics: Mapping[str, Any]) -> None:
        """Nothing."""

    def log(self, step: int, /, **metrics: Any) -> None:
        """Nothing."""

    def log_samples(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Nothing."""

    def truncate_to(self, step: int) -> None:
        """Nothing."""

    @contextmanager
    def save_checkpoint(self, step: int) -> Iterator[Path]:
        """Refused: a draft comes from process 0 (`processes.draft_for_all`)."""
        raise NotImplementedError("process 0 opens the draft of a checkpoint")
        yield

    def prune(self, keep: int) -> list[Path]:
        """Nothing."""
        return []

    def _acquire(self) -> None:
        """Nothing."""
