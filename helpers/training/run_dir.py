"""A run directory: everything that a training run leaves behind, safe against Ctrl-C and kill -9.

    config.json                      what was run
    metrics.csv                      long rows: step, then named columns; columns may appear later
    samples.jsonl                    {"step": …, prompt, response, …}
    checkpoints/step_000100/…        each there as a whole or not at all, with a list of its files
    final/…                          the trainer's result
    signs.json, best/…               online runs: signs of reward hacking, and the best weights
    finished.json                    the closing metrics; present exactly if the run came to its end
    environment.json                 versions, hardware and profile that the run was last started with
    run.lock                         who is writing just now

Rows are appended in one write each, everything else is written beside its place and renamed. A row torn by
a crash has no line end and is ignored by the readers, and dropped before the next row is appended.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from helpers.errors import CourseError
from helpers.files import atomic_path, read_json, write_json, write_text, writing
from helpers.training.inputs import PREFIX
from helpers.training.run_lock import RunLock
from helpers.training.run_rows import (
    append,
    cell,
    csv_line,
    drop_torn_end,
    plain,
    read_metric_rows,
    read_sample_rows,
    step_of,
)
from helpers.training.seal import damage, seal

__all__ = ["RunDir", "read_metric_rows", "read_sample_rows"]

CONFIG, METRICS, SAMPLES, FINISHED = "config.json", "metrics.csv", "samples.jsonl", "finished.json"
CHECKPOINTS, FINAL, LOCK = "checkpoints", "final", "run.lock"
SIGNS, BEST = "signs.json", "best"
ENVIRONMENT = "environment.json"
BESIDES = ("data_report.txt", "eval_rewards.json", ENVIRONMENT, SIGNS)  # what trainers leave beside these
NOT_COMPARED = (
    "resume",
    "overwrite",
    "output_dir",
    "check_memory",
)  # say how to start and where, not what to run


class OtherRun(CourseError):
    """The directory holds a run with other settings."""


class RunDir:
    """The directory of one training run.

    Opening creates the directory and reads nothing into memory but the last step. Reading needs no lock;
    the first write takes it, `close` (or leaving a `with` block, or `mark_finished`) gives it back.

    resume: continue with whatever configuration, which `write_config` then replaces.
    overwrite: `write_config` removes what an earlier run left here.
    """

    def __init__(self, path: str | Path, *, resume: bool = False, overwrite: bool = False) -> None:
        self.path = Path(path)
        self.resume, self.overwrite = resume, overwrite
        with writing(f"--output_dir {self.path}"):
            if self.path.exists() and not self.path.is_dir():
                raise CourseError(f"{self.path} is a file, not a directory: choose another --output_dir")
            self.path.mkdir(parents=True, exist_ok=True)
        self._lock = RunLock(self.path / LOCK)
        self._columns: list[str] | None = None  # of metrics.csv as it lies on disk; None: not read yet
        self._last_step = 0
        self._followers: list[Callable[[int, Mapping[str, Any]], None]] = []

    def follow(self, listener: Callable[[int, Mapping[str, Any]], None]) -> None:
        """Call `listener(step, metrics)` after every row that is logged."""
        self._followers.append(listener)

    # ------------------------------------------------------------------ places
    @property
    def config_path(self) -> Path:
        return self.path / CONFIG

    @property
    def metrics_path(self) -> Path:
        return self.path / METRICS

    @property
    def samples_path(self) -> Path:
        return self.path / SAMPLES

    @property
    def final_path(self) -> Path:
        return self.path / FINAL

    # ------------------------------------------------------------------ start and end
    def write_config(self, config: Mapping[str, Any]) -> list[str]:
        """Write config.json; return the names of the settings that differ from an earlier run here.

        Without `resume` or `overwrite` a directory that holds another configuration, or files that are no
        run at all, is refused, unless nothing was trained there yet: a run that failed on a wrong flag may
        be started again with the right one. The same configuration is the same run: it is opened as it lies,
        and the caller continues from `latest_checkpoint` or starts over with `truncate_to(0)`.
        """
        new = plain(dict(config))
        old = read_json(self.config_path) if self.config_path.exists() else None
        changed = _changed_keys(old, new) if isinstance(old, dict) else []
        if old is None:
            self._refuse_foreign_files()
        elif changed and not (self.resume or self.overwrite or self._never_began()):
            raise OtherRun(_other_config_message(self.path, old, new, changed))
        self._acquire()
        if self.overwrite and not self.resume:
            self._clear()
        write_json(self.config_path, new)
        return changed

    def read_config(self) -> dict[str, Any]:
        """Return config.json; CourseError where there is none."""
        return dict(read_json(self.config_path))

    def mark_finished(self, metrics: Mapping[str, Any]) -> None:
        """Write finished.json with the closing metrics (NaN and infinity become null); release the lock."""
        self._acquire()
        write_json(self.path / FINISHED, plain(dict(metrics)))
        self.close()

    @property
    def is_finished(self) -> bool:
        return (self.path / FINISHED).exists()

    def finished_metrics(self) -> dict[str, Any] | None:
        """Return the closing metrics, or None while the run is unfinished."""
        return dict(read_json(self.path / FINISHED)) if self.is_finished else None

    def close(self) -> None:
        """Release the lock. A later write takes it again."""
        self._lock.release()

    def __enter__(self) -> RunDir:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------ rows
    @property
    def last_step(self) -> int:
        """The step of the last whole row of metrics.csv, 0 where there is none."""
        if self._columns is None:
            self._read_position()
        return self._last_step

    def log(self, step: int, /, **metrics: Any) -> None:
        """Append one row to metrics.csv. Steps never fall; several rows may share one (training, evaluation).

        Numbers, booleans, strings, None (an empty cell) and one-element tensors are accepted. A metric not
        seen before adds a column: the file is then rewritten, atomically.
        """
        self._acquire()
        if step < self.last_step:
            raise CourseError(
                f"{self.metrics_path} already reaches step {self.last_step}, so step {step} "
                "cannot be logged: continue with --resume, or choose another --output_dir"
            )
        columns = self._columns or []
        fresh = [name for name in ("step", *metrics) if name not in columns]
        if fresh:
            self._columns = columns = [*columns, *fresh]
            self._rewrite_metrics(read_metric_rows(self.metrics_path)[1])
        row = {"step": int(step), **{name: cell(value) for name, value in metrics.items()}}
        append(self.metrics_path, csv_line([row.get(name) for name in columns]))
        self._last_step = int(step)
        for listener in self._followers:
            listener(int(step), row)

    def read_metrics(self) -> tuple[list[str], list[dict[str, str]]]:
        """Return the columns of metrics.csv and its whole rows, as text."""
        return read_metric_rows(self.metrics_path)

    def log_samples(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows such as {"prompt", "response", "reward"} to samples.jsonl, each with its step."""
        self._acquire()
        lines = [json.dumps({"step": int(step), **plain(dict(row))}, ensure_ascii=False) for row in rows]
        drop_torn_end(self.samples_path)
        append(self.samples_path, "".join(line + "\n" for line in lines))

    def read_samples(self) -> list[dict[str, Any]]:
        """Return the whole rows of samples.jsonl."""
        return read_sample_rows(self.samples_path)

    def truncate_to(self, step: int) -> None:
        """Forget everything after `step`: metrics, samples, later checkpoints and the finished mark."""
        self._acquire()
        (self.path / FINISHED).unlink(missing_ok=True)
        self._columns, rows = read_metric_rows(self.metrics_path)
        kept = [row for row in rows if step_of(row) <= step]
        if self._columns:
            self._rewrite_metrics(kept)
        self._last_step = step_of(kept[-1]) if kept else 0
        if self.samples_path.exists():
            samples = [row for row in self.read_samples() if int(row.get("step", 0)) <= step]
            lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in samples]
            write_text(self.samples_path, "".join(lines))
        for number, path in self.checkpoints():
            if number > step:
                self._remove_directory(path)

    # ------------------------------------------------------------------ checkpoints
    @contextmanager
    def save_checkpoint(self, step: int) -> Iterator[Path]:
        """Yield an empty draft directory; it becomes checkpoints/step_000100 if the block succeeds."""
        self._acquire()
        with atomic_path(self.path / CHECKPOINTS / f"step_{step:06d}") as draft:
            draft.mkdir()
            yield draft
            seal(draft)

    def checkpoints(self) -> list[tuple[int, Path]]:
        """Return (step, path) of every whole checkpoint, oldest first. Drafts and empty ones do not count."""
        folder = self.path / CHECKPOINTS
        found = []
        for path in folder.iterdir() if folder.is_dir() else ():
            match = re.fullmatch(r"step_(\d{6,})", path.name)
            if match and path.is_dir() and any(path.iterdir()):
                found.append((int(match[1]), path))
        return sorted(found)

    def latest_checkpoint(self) -> tuple[int, Path] | None:
        """Return (step, path) of the newest whole checkpoint, or None; warns of damaged ones passed over."""
        for step, path in reversed(self.checkpoints()):
            problem = damage(path)
            if problem is None:
                return step, path
            warnings.warn(f"{path} is passed over: {problem}", stacklevel=2)
        return None

    def prune(self, keep: int) -> list[Path]:
        """Delete all but the newest `keep` (at least 1) checkpoints; return what was deleted."""
        if keep < 1:
            raise CourseError(f"cannot keep {keep} checkpoints: the number to keep must be 1 or more")
        self._acquire()
        removed = [path for _, path in self.checkpoints()[:-keep]]
        for path in removed:
            self._remove_directory(path)
        return removed

    # ------------------------------------------------------------------ inside
    def _acquire(self) -> None:
        if self._lock.acquire():
            self._columns = None  # another process may have written since this object last looked
            for folder in (self.path, self.path / CHECKPOINTS):
                for draft in folder.glob(".*"):
                    if _is_draft_name(draft.name):
                        shutil.rmtree(draft, ignore_errors=True)

    def _read_position(self) -> None:
        columns, rows = read_metric_rows(self.metrics_path)
        self._columns, self._last_step = columns, step_of(rows[-1]) if rows else 0
        if self._lock.held:
            drop_torn_end(self.metrics_path)

    def _rewrite_metrics(self, rows: list[dict[str, str]]) -> None:
        columns = self._columns or []
        lines = [csv_line(columns), *(csv_line([row.get(name, "") for name in columns]) for row in rows)]
        write_text(self.metrics_path, "".join(lines))

    def _never_began(self) -> bool:
        return not any(
            (self.path / name).exists() for name in (METRICS, SAMPLES, FINISHED, CHECKPOINTS, FINAL)
        )

    def _refuse_foreign_files(self) -> None:
        names = sorted(p.name for p in self.path.iterdir() if p.name != LOCK and p.name[0] != ".")
        names = [name for name in names if not name.endswith(".log")]
        if names and not self.resume:
            raise CourseError(
                f"{self.path} is not empty ({', '.join(names[:3])}{', …' if len(names) > 3 else ''}) and "
                f"holds no {CONFIG}, so it is not a run: choose another --output_dir"
            )

    def _clear(self) -> None:
        for name in (METRICS, SAMPLES, FINISHED, CONFIG, *BESIDES):
            (self.path / name).unlink(missing_ok=True)
        for name in (CHECKPOINTS, FINAL, BEST):
            if (self.path / name).is_dir():
                self._remove_directory(self.path / name)
        self._columns, self._last_step = [], 0

    def _remove_directory(self, path: Path) -> None:
        # Renamed first: a half-deleted directory must never look like a whole one.
        scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        path.rename(scratch / path.name)
        shutil.rmtree(scratch, ignore_errors=True)


# ---------------------------------------------------------------------- small parts
def _is_draft_name(name: str) -> bool:
    ours = (CONFIG, METRICS, SAMPLES, FINISHED, CHECKPOINTS, FINAL)
    return name.startswith((".step_", *(f".{own}." for own in ours)))


def _changed_keys(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    names = [name for name in {**old, **new} if name not in NOT_COMPARED]
    # Runs of an earlier version recorded less; an input that is gone cannot be compared.
    names = [name for name in names if (name in old or not name.startswith(("answers.", PREFIX)))]
    names = [name for name in names if name in new or not name.startswith(PREFIX)]
    return [name for name in names if old.get(name) != new.get(name)]


def _change(name: str, old: Any, new: Any) -> str:
    if name.startswith(PREFIX):
        return f"what --{name.removeprefix(PREFIX)} names has changed since"
    function = name.removeprefix("answers.")
    return f"{name} was {old!r}, now {new!r}" if function == name else f"the answer {function} has changed"


def _other_config_message(
    path: Path, old: Mapping[str, Any], new: Mapping[str, Any], changed: list[str]
) -> str:
    shown = "; ".join(_change(name, old.get(name), new.get(name)) for name in changed[:4])
    more = f"; and {len(changed) - 4} more" if len(changed) > 4 else ""
    return (
        f"{path} holds a run with other settings ({shown}{more}): choose another --output_dir, "
        "continue it with --resume, or replace it with --overwrite"
    )
