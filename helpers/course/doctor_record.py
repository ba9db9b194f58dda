"""What the run doctor reads: the settings and the curves of a run, and what it says: findings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.errors import CourseError
from helpers.files import read_json
from helpers.training.run_dir import CONFIG, FINISHED, METRICS
from helpers.training.run_rows import read_metric_rows

SHORT = 8  # with fewer logged steps no trend is spoken of


@dataclass(frozen=True)
class Finding:
    """One thing that a run shows."""

    level: str  # "note" or "warning"
    topic: str  # what it is about, one word or two
    message: str  # a sentence or two, numbers included
    numbers: dict[str, float]

    def __str__(self) -> str:
        return f"{self.level:<8} {self.topic}: {self.message}"


def note(topic: str, message: str, **numbers: float) -> Finding:
    """Something normal, or worth knowing."""
    return Finding("note", topic, message, rounded(numbers))


def warning(topic: str, message: str, **numbers: float) -> Finding:
    """Something to act on."""
    return Finding("warning", topic, message, rounded(numbers))


def rounded(numbers: Mapping[str, float]) -> dict[str, float]:
    """Five significant digits."""
    return {name: float(f"{value:.5g}") for name, value in numbers.items()}


@dataclass(frozen=True)
class Curve:
    """The finite values of one column, in the order of the steps."""

    steps: tuple[int, ...]
    values: tuple[float, ...]

    def __bool__(self) -> bool:
        return bool(self.values)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def first(self) -> float:
        """Mean of the first quarter."""
        return mean(self.values[: max(len(self) // 4, 1)])

    @property
    def last(self) -> float:
        """Mean of the last quarter."""
        return mean(self.values[-max(len(self) // 4, 1) :])

    @property
    def middle(self) -> float:
        """Mean of the second quarter: where the curve was when it had begun to move."""
        quarter = max(len(self) // 4, 1)
        return mean(self.values[quarter : 2 * quarter] or self.values)


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean."""
    return sum(values) / len(values)


@dataclass(frozen=True)
class Record:
    """A run as its files tell it."""

    path: Path
    algo: str
    config: dict[str, Any]
    rows: list[dict[str, str]]
    finished: bool

    def curve(self, column: str) -> Curve:
        """One column; empty where the run has none."""
        found = [(int(float(row["step"])), number(row.get(column))) for row in self.rows]
        kept = [(step, value) for step, value in found if value is not None and math.isfinite(value)]
        return Curve(tuple(step for step, _ in kept), tuple(value for _, value in kept))

    def not_finite(self, column: str) -> list[int]:
        """The steps at which a column holds NaN or infinity."""
        found = [(int(float(row["step"])), number(row.get(column))) for row in self.rows]
        return [step for step, value in found if value is not None and not math.isfinite(value)]

    def setting(self, name: str, default: float = math.nan) -> float:
        """A number of config.json."""
        value = self.config.get(name)
        return float(value) if isinstance(value, (int, float)) else default

    def trends(self, column: str) -> bool:
        """True where a column is long enough to speak of its trend."""
        return len(self.curve(column)) >= SHORT

    @property
    def steps(self) -> int:
        """Training steps that were logged."""
        return sum(bool(row.get("loss")) for row in self.rows)


def number(text: str | None) -> float | None:
    """A cell as a number; None for an empty cell or words."""
    try:
        return float(text) if text else None
    except ValueError:
        return None


# ---------------------------------------------------------------------- reading
def read_run(path: str | Path) -> Record:
    """Read a run directory; CourseError says what is missing from it."""
    place = Path(path)
    if not place.is_dir():
        raise CourseError(f"{place}: there is no such directory; doctor wants a run, such as runs/my_dpo")
    if not (place / CONFIG).is_file():
        runs = sorted(child.name for child in place.iterdir() if (child / CONFIG).is_file())
        hint = f"; it holds the runs {', '.join(runs)}" if runs else ""
        raise CourseError(f"{place} has no {CONFIG}, so it is no run{hint}")
    config = read_json(place / CONFIG)
    if not isinstance(config, dict) or not isinstance(config.get("algo"), str):
        raise CourseError(f"{place / CONFIG} does not say which algo was run: was it written by `train`?")
    columns, rows = read_metric_rows(place / METRICS)
    record = Record(place, config["algo"], config, rows, (place / FINISHED).is_file())
    if not rows or not record.steps:
        what = "has no rows yet" if columns else "is missing, or no table that begins with a column `step`"
        raise CourseError(f"{place / METRICS} {what}: the run has logged no training step")
    return record
