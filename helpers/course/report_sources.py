"""What a report is about: course runs, training runs and evaluations, read from their directories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from helpers.course.plots import Series, read_metrics
from helpers.course.stages import METHODS
from helpers.course.tables import display_name
from helpers.errors import CourseError
from helpers.files import read_json
from helpers.training.run_dir import CONFIG, FINISHED, METRICS, SAMPLES
from helpers.training.run_rows import read_sample_rows

COURSE, EVALUATION = "course.json", "evaluation.json"
ORDER = ("sft", "reward_model", *METHODS)
ONLINE = ("ppo", "grpo", "dr_grpo", "gspo")


@dataclass(frozen=True)
class Run:
    """One training run."""

    path: Path
    name: str  # as the report calls it
    algo: str
    config: dict[str, Any]
    metrics: dict[str, Series]
    samples: list[dict[str, Any]]
    finished: dict[str, Any] | None

    @property
    def online(self) -> bool:
        """Whether it samples and is rewarded."""
        return self.algo in ONLINE

    @property
    def last_step(self) -> int:
        """The last step that was logged."""
        return int(
            max((series.steps.max() for series in self.metrics.values() if len(series.steps)), default=0)
        )

    def setting(self, name: str) -> Any:
        """A setting, or None."""
        return self.config.get(name)


@dataclass(frozen=True)
class Source:
    """One RUN of the command line. `figures` is course.json or evaluation.json, {} for a training run."""

    path: Path
    kind: str  # "course", "evaluation" or "run"
    figures: dict[str, Any] = field(default_factory=dict)
    runs: Sequence[Run] = ()
    problems: Sequence[str] = ()  # a line for each part that cannot be read


def read_sources(paths: Sequence[str | Path]) -> tuple[list[Source], list[str]]:
    """Read every directory; return what could be read, and one line for each that could not."""
    found: list[Source] = []
    left_out: list[str] = []
    for path in dict.fromkeys(map(Path, paths)):
        try:
            found.append(source := read_source(path))
            left_out += source.problems
        except CourseError as problem:
            left_out.append(one_line(problem))
    names = [run.name for source in found for run in source.runs]
    twice = {name for name in names if names.count(name) > 1}
    return [with_places(source, twice) for source in found], left_out


def one_line(problem: object) -> str:
    """A message without its line ends."""
    return " ".join(str(problem).split())


def read_source(path: Path) -> Source:
    """Read one directory, or one evaluation.json. CourseError says in one line what is wrong with it."""
    place = path.parent if path.name in (COURSE, EVALUATION) else path
    if not place.is_dir():
        raise CourseError(f"{path}: there is no such directory")
    if (place / COURSE).is_file():
        return read_course(place)
    if (place / EVALUATION).is_file():
        return Source(place, "evaluation", record(place / EVALUATION, "policies"))
    if (place / CONFIG).is_file():
        return Source(place, "run", {}, [read_run(place)])
    inside = sorted(child.name for child in place.iterdir() if (child / CONFIG).is_file())
    hint = f"; it holds the runs {', '.join(inside)}" if inside else ""
    raise CourseError(
        f"{place} has no {COURSE}, {CONFIG} or {EVALUATION}, so there is nothing to report{hint}"
    )


def read_course(place: Path) -> Source:
    """Read a course run with its training runs; one that is damaged does not take the others down."""
    figures = record(place / COURSE, "methods")
    runs, problems = [], []
    for name in ORDER:
        if (place / name / CONFIG).is_file():
            try:
                runs.append(read_run(place / name, display_name(name)))
            except CourseError as problem:
                problems.append(one_line(problem))
    return Source(place, "course", figures, runs, problems)


def record(path: Path, key: str) -> dict[str, Any]:
    """A JSON object whose `key` is an object of objects; CourseError for any other."""
    value = read_json(path)
    rows = value.get(key) if isinstance(value, Mapping) else None
    if not isinstance(rows, Mapping) or not all(isinstance(row, Mapping) for row in rows.values()):
        raise CourseError(f"{path} holds no {key}: is it this course's, and whole?")
    return dict(value)


def read_run(path: Path, name: str | None = None) -> Run:
    """Read a training run as far as it is whole."""
    config = read_json(path / CONFIG)
    algo = config.get("algo") if isinstance(config, dict) else None
    if not isinstance(algo, str):
        raise CourseError(f"{path / CONFIG} does not say which algo was run: was it written by train?")
    finished = read_json(path / FINISHED) if (path / FINISHED).is_file() else None
    if finished is not None and not isinstance(finished, dict):
        raise CourseError(f"{path / FINISHED} is no JSON object: the run is damaged")
    return Run(
        path=path,
        name=name or display_name(algo),
        algo=algo,
        config=config,
        metrics=read_metrics(path / METRICS),
        samples=read_sample_rows(path / SAMPLES),
        finished=finished,
    )


def with_places(source: Source, names: set[str]) -> Source:
    """The same, with the runs of these names told apart by their directories."""
    runs = []
    for run in source.runs:
        place = run.path.resolve()
        where = place.parent.name if source.kind == "course" else place.name
        runs.append(replace(run, name=f"{run.name} ({where})") if run.name in names else run)
    return replace(source, runs=runs)


def all_runs(sources: Sequence[Source]) -> list[Run]:
    """Every training run."""
    return [run for source in sources for run in source.runs]
