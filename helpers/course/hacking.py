"""Reward hacking after the fact: the signs in a run's files, and reward and judge against the KL.

    for sign in hacking_signs("runs/my_grpo"): print(sign.step, sign.kind, sign.message)

The figure is that of Gao et al. 2022 (arXiv 2210.10760, figure 1): proxy and gold over the square root of
the KL divergence; there a sequence's, here a token's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from helpers.course.doctor_record import Finding, Record, read_run, warning
from helpers.errors import CourseError
from helpers.training.run_dir import SAMPLES
from helpers.training.run_rows import read_sample_rows
from helpers.training.signs import Sign, column, signs_of


def hacking_signs(run: str | Path) -> list[Sign]:
    """The signs of reward hacking in a run directory; CourseError where it is none."""
    return signs_in(read_run(run))


def signs_in(record: Record) -> list[Sign]:
    """The signs in a run that was read."""
    return signs_of(record.rows, read_sample_rows(record.path / SAMPLES))


def hacking(record: Record) -> Iterator[Finding]:
    """The run doctor's rule: every sign is a warning. The KL has a rule of its own (`kl_runs_away`)."""
    for sign in signs_in(record):
        if not sign.kind.startswith("KL over"):
            yield warning(sign.kind, f"from step {sign.step} {sign.message}", step=sign.step, **sign.numbers)


@dataclass(frozen=True)
class Overoptimisation:
    """What every evaluation of a run measured; lists of equal length."""

    steps: list[int]
    kl: list[float]  # nats a token
    proxy: list[float]  # the reward model on held-out answers
    gold: list[float]  # the held-out judge on the same answers

    @property
    def root_kl(self) -> list[float]:
        """The figure's axis."""
        return [math.sqrt(max(value, 0.0)) for value in self.kl]


def gold_against_kl(run: str | Path) -> Overoptimisation:
    """Reward, judge and KL at the evaluations of a run.

    A step's KL is measured before its update, so the KL at an evaluation is that of the step after it, and
    is taken with its neighbour, as a few samples make it noisy.

    Raises CourseError for a run that was never judged.
    """
    rows = read_run(run).rows
    kls = dict(column(rows, "kl") or column(rows, "kl_k1"))
    rewards, golds = dict(column(rows, "eval_reward")), dict(column(rows, "gold"))
    steps = [step for step in golds if step in rewards]
    if not steps:
        raise CourseError(
            f"{run} has no column gold: train with --eval_steps and --eval_samples on prompts that have gold"
            " facts, or with a --held_out_judge"
        )
    near = [[kls[s] for s in (step, step + 1) if s in kls] or [kls[max(kls)]] for step in steps]
    return Overoptimisation(
        steps, [fmean(values) for values in near], [rewards[s] for s in steps], [golds[s] for s in steps]
    )
