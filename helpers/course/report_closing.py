"""The end of a report: environment, hashes, and the commands that give the same again."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from helpers.course.report_blocks import Block, Heading, Pre, Table, Text
from helpers.course.report_sources import COURSE, EVALUATION, Run, Source
from helpers.errors import CourseError
from helpers.files import file_digest, find_data, read_json
from helpers.models.hardware import probe
from helpers.training.configs import RunSettings
from helpers.training.run_dir import CONFIG, ENVIRONMENT, METRICS, SAMPLES
from helpers.training.setup import environment, pick_split

KINDS = {
    "sft": "sft",
    "reward_model": "preference",
    "dpo": "preference",
    "ipo": "preference",
    "aot": "preference",
}
SHOWN_DIGITS = 16
SAME_AGAIN = (
    "The same seed gives the same run on the same machine with the same versions; another machine or number"
    " of threads may round differently."
)
OF_A_RUN = (CONFIG, METRICS, SAMPLES, "final/adapter/adapter_model.safetensors", "final/head.safetensors",
            "final/model.safetensors")  # fmt: skip
OF_OTHERS = (COURSE, EVALUATION, "outcomes.jsonl", "submission.zip", "grade.json")
NOT_FLAGS = ("algo", "processes", "resume", "overwrite")


def surroundings(sources: Sequence[Source], runs: Sequence[Run]) -> list[Block]:
    """Versions, hardware and profile: as recorded, and of the machine that wrote the report."""
    rows = []
    for source in sources:
        if source.kind == "course":
            known = source.figures
            for name in ("hardware", "profile", "reason", "versions", "seed", "finished"):
                if known.get(name) is not None:
                    rows.append([f"{source.path.name}: {name}", flat(known[name])])
    rows += [[f"{name}, {', '.join(runs)}", value] for (name, value), runs in recorded(runs).items()]
    rows += [["this report's machine", str(probe())], ["its versions", flat(environment())]]
    note = "Machines and versions are those that a run was last started with."
    return [Table(["what", "as recorded"], rows, words=True), Text(note, soft=True)]


def recorded(runs: Sequence[Run]) -> dict[tuple[str, str], list[str]]:
    """(what, value) → the runs that recorded it in environment.json."""
    found: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        try:
            known = read_json(run.path / ENVIRONMENT)
        except CourseError:
            known = {}
        known = dict(known) if isinstance(known, dict) else {}
        profile = known.pop("profile", None) or run.setting("profile") or "unknown"
        parts = {"profile": profile, "hardware": known.pop("hardware", "unknown")}
        for name, value in {**parts, "versions": flat(known) or "unknown"}.items():
            found.setdefault((name, str(value)), []).append(run.name)
    return found


def flat(value: Any) -> str:
    """A mapping as "torch 2.13, peft 0.21"; other values as they are."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {item}" for name, item in value.items() if item is not None)
    return str(value)


def hashes(sources: Sequence[Source], runs: Sequence[Run]) -> list[Block]:
    """SHA-256 of what the report rests on."""
    rows = [[name, file, mark] for name, file, mark in hashed(sources, runs)]
    note = f"SHA-256, the first {SHOWN_DIGITS} digits; sha256sum FILE gives the whole."
    return [Table(["of", "file", "SHA-256"], rows), Text(note, soft=True)] if rows else []


def hashed(sources: Sequence[Source], runs: Sequence[Run]) -> Iterator[tuple[str, str, str]]:
    """(run, file, digits) of every file that is there."""
    for source in sources:
        for file in OF_OTHERS:
            yield from mark_of(source.path.name, source.path / file, file)
    for run in runs:
        for file in OF_A_RUN:
            yield from mark_of(run.name, run.path / file, file)
        for place in data_files(run):
            yield from mark_of(f"{run.name}: data", place, place.name)


def mark_of(name: str, path: Path, shown: str) -> Iterator[tuple[str, str, str]]:
    """One row, where there is such a file and it can be read."""
    try:
        if path.is_file():
            yield name, shown, file_digest(path)[:SHOWN_DIGITS]
    except OSError:
        yield name, shown, "cannot be read"


def data_files(run: Run) -> list[Path]:
    """The files of the training split, where the data set is a directory or file here."""
    source = Path(find_data(str(run.setting("dataset_name") or "")))
    if source.is_file():
        return [source]
    try:
        kind = KINDS.get(run.algo, "prompts")
        split = (
            pick_split(str(source), kind, run.setting("train_split"), evaluation=False)
            if source.is_dir()
            else None
        )
    except CourseError:
        return []
    return sorted(source.glob(f"{split}.json*")) if split else []


def reproduction(sources: Sequence[Source], runs: Sequence[Run]) -> list[Block]:
    """The command of every run, and its settings."""
    blocks: list[Block] = [Text(SAME_AGAIN, soft=True)]
    for source in sources:
        if source.kind == "course":
            blocks.append(Pre(f"{source.path.name}: command", course_command(source.figures)))
        elif source.kind == "evaluation":
            settings = source.figures.get("settings")
            blocks.append(
                Pre(f"{source.path.name}: settings", json.dumps(settings, indent=2, ensure_ascii=False))
            )
    for run in runs:
        blocks += [Heading(run.name), Pre("command", train_command(run))]
        blocks.append(Pre("settings", json.dumps(run.config, indent=2, ensure_ascii=False)))
    return blocks


def course_command(course: Mapping[str, Any]) -> str:
    """The command of a course run, as far as its settings tell."""
    config = course.get("config") if isinstance(course.get("config"), Mapping) else {}
    words = ["python", "-m", "helpers", "course", "--profile", str(course.get("profile") or "tiny")]
    for name, value in config.items():
        if name not in ("profile", "overwrite") and value not in (None, "", False):
            words += [f"--{name}", str(value)]
    return shlex.join(words)


def train_command(run: Run) -> str:
    """The command with every setting that differs from the flag's default; resolved ones too."""
    defaults = {item.name: item.default for item in dataclasses.fields(RunSettings)}
    words = ["python", "-m", "helpers", "train", "--algo", run.algo]
    for name, value in run.config.items():
        if name in NOT_FLAGS or "." in name or value is None or value == defaults.get(name, object()):
            continue
        if isinstance(value, (str, int, float)):
            words += [f"--{name}", str(value)]
    several = run.setting("processes")
    return (f"torchrun --standalone --nproc_per_node {several} " if several else "") + shlex.join(
        words[1:] if several else words
    )
