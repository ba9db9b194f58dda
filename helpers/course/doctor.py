"""What the curves of a training run mean, in words, with the numbers behind them.

    python -m helpers doctor runs/my_dpo

A finding is a note (normal, or worth knowing) or a warning (worth acting on). Thresholds are rules of thumb
and stand as constants beside the rules that use them; nothing here decides a grade.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from helpers.course import doctor_offline as offline
from helpers.course import doctor_online as online
from helpers.course.curves import NAMES
from helpers.course.doctor_record import SHORT, Finding, Record, note, read_run
from helpers.course.hacking import hacking

Rule = Callable[[Record], Iterable[Finding]]


def rules_for(algo: str) -> tuple[Rule, ...]:
    """The rules that apply to an algorithm."""
    if algo == "sft":
        return (about_the_run, *offline.COMMON, offline.overfitting)
    if algo == "reward_model":
        return (about_the_run, *offline.COMMON, *offline.REWARD_MODEL)
    if algo in ("dpo", "ipo", "aot"):
        return (about_the_run, *offline.COMMON, *offline.PREFERENCE)
    return (about_the_run, *offline.COMMON, *online.ONLINE, hacking)


@dataclass(frozen=True)
class Diagnosis:
    """A run and all there is to say about it, warnings first."""

    record: Record
    findings: tuple[Finding, ...]

    @property
    def warnings(self) -> int:
        """How many findings are worth acting on."""
        return sum(found.level == "warning" for found in self.findings)

    def render(self) -> str:
        """Text for a terminal."""
        record = self.record
        verdict = f"{self.warnings} to look at" if self.warnings else "nothing to worry about"
        name = NAMES.get(record.algo, record.algo)
        head = f"{record.path}: {name}, {record.steps} logged steps, {verdict}"
        return "\n".join([head, *map(str, self.findings)])

    def to_dict(self) -> dict[str, Any]:
        """The same for programs."""
        return {
            "run": str(self.record.path),
            "algo": self.record.algo,
            "steps": self.record.steps,
            "finished": self.record.finished,
            "warnings": self.warnings,
            "findings": [asdict(found) for found in self.findings],
        }


def diagnose(path: str | Path) -> Diagnosis:
    """Read a run directory and apply every rule of its algorithm; CourseError where it is none."""
    record = read_run(path)
    findings = [found for rule in rules_for(record.algo) for found in rule(record)]
    return Diagnosis(record, tuple(sorted(findings, key=lambda found: found.level != "warning")))


def about_the_run(record: Record) -> Iterator[Finding]:
    """How far it is, and whether that is enough to speak of trends."""
    last = max(int(float(row["step"])) for row in record.rows)
    if not record.finished:
        yield note("unfinished", f"the run stands at step {last} and has not come to its end", step=last)
    if record.steps < SHORT:
        yield note(
            "short",
            f"{record.steps} logged steps say little about trends; log more often with --logging_steps 1,"
            " or train longer",
            steps=record.steps,
        )
