"""The parts of a report about training runs: methods, budgets, curves, rewards, signs of hacking."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from helpers.course import plots
from helpers.course.curves import panels_of
from helpers.course.doctor import diagnose
from helpers.course.hacking import gold_against_kl, hacking_signs
from helpers.course.plots import BLUE, GREY, INK, ORANGE, VERMILLION, Skipped, new_figure
from helpers.course.report_blocks import Block, Heading, Pre, Table, Text, picture
from helpers.course.report_sources import Run
from helpers.course.tables import DASH, duration, number, number_or_nan
from helpers.errors import CourseError
from helpers.files import read_json

AIMS = {
    "sft": "Makes reference answers likely, token by token.",
    "reward_model": "Gives the preferred answer of a pair the higher reward (Bradley-Terry).",
    "dpo": "Raises the log-ratio to the reference of preferred above that of rejected answers (−log σ).",
    "ipo": "Brings the same gap to 1/(2β), by a squared error.",
    "aot": "The same gap, between sorted log-ratios: all preferred and all rejected answers of a batch.",
    "ppo": "Clipped policy gradient with a value function; drift has a price in the reward.",
    "grpo": "Clipped policy gradient; a reward counts against its siblings, in their standard deviations.",
    "dr_grpo": "GRPO without the division by the standard deviation and by the answer's length.",
    "gspo": "GRPO with one ratio for a whole answer, clipped as one.",
}
SETTINGS = ("beta", "kl_coef", "clip_eps", "clip_eps_high", "temperature", "length_penalty",
            "diversity_penalty", "learning_rate", "lora_r", "lora_alpha", "full_finetune", "quantization",
            "seed")  # fmt: skip


def methods(runs: Sequence[Run]) -> list[Block]:
    """What each run optimises, from where, on what."""
    rows = [
        [
            run.name,
            AIMS.get(run.algo, "An algorithm of your own."),
            start_of(run),
            data_of(run),
            settings_of(run),
        ]
        for run in runs
    ]
    return (
        [Table(["run", "what it optimises", "starts from", "data", "settings"], rows, words=True)]
        if rows
        else []
    )


def start_of(run: Run) -> str:
    """The weights that a run begins with."""
    adapter = run.setting("init_adapter")
    base = str(run.setting("model_name") or "the profile's base")
    return f"{base} with {adapter}" if adapter else base


def data_of(run: Run) -> str:
    """The data set and how much of it."""
    parts = [str(run.setting("dataset_name") or "the profile's data set")]
    parts += [f"split {run.setting('train_split')}"] if run.setting("train_split") else []
    parts += [f"{run.setting('train_limit')} rows at most"] if run.setting("train_limit") else []
    return ", ".join(parts)


def settings_of(run: Run) -> str:
    """The settings that tell runs of a method apart."""
    known = {name: run.setting(name) for name in SETTINGS}
    return ", ".join(f"{name} {value}" for name, value in known.items() if value not in (None, False))


def budgets(runs: Sequence[Run]) -> list[Block]:
    """How much each run was given."""
    header = [
        "run",
        "steps",
        "batch",
        "answers a prompt",
        "prompt ≤",
        "response ≤",
        "generated ≤",
        "time",
        "state",
    ]
    rows = [
        [
            run.name,
            str(run.last_step),
            batch_of(run),
            str(run.setting("group_size") or (2 if run.algo in ("dpo", "ipo", "aot", "reward_model") else 1)),
            *(str(run.setting(f"max_{part}_tokens") or DASH) for part in ("prompt", "response", "new")),
            duration((run.finished or {}).get("seconds")),
            "finished" if run.finished is not None else "not at its end",
        ]
        for run in runs
    ]
    note = (
        "Batch: pairs or answers of one optimiser step; of online runs, prompts of one rollout. Token limits."
    )
    return [Table(header, rows), Text(note, soft=True)] if rows else []


def batch_of(run: Run) -> str:
    """Groups of one optimiser step, or prompts of a rollout."""
    size = number_or_nan(run.setting("per_device_train_batch_size"))
    if run.online:
        return number(size, 0)
    steps = number_or_nan(run.setting("gradient_accumulation_steps"))
    return number(size * steps * number_or_nan(run.setting("processes") or 1), 0)


# ---------------------------------------------------------------------- curves
def curves(runs: Sequence[Run]) -> list[Block]:
    """Curves of every run, the same in numbers, and what the run doctor says of them."""
    blocks: list[Block] = []
    for run in runs:
        blocks.append(Heading(run.name))
        if run.finished is None:
            blocks.append(Text("This run has not come to its end; --resume continues it.", soft=True))
        drawn = plots.training_curves(run.metrics, run.algo, beta=as_number(run.setting("beta")))
        blocks += sorted((picture(figure) for figure in drawn.values()), key=lambda b: isinstance(b, Text))
        blocks += in_numbers(run)
        blocks += said_by_doctor(run)
    return blocks


def as_number(value: Any) -> float | None:
    """A setting as a number, or None."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def in_numbers(run: Run) -> list[Block]:
    """First, last, lowest and highest value of each curve that the figures show."""
    rows = []
    for panel in panels_of(run.algo):
        for line in panel.lines:
            column = line.column_in(run.metrics)
            if column and len(run.metrics[column].values):
                values = run.metrics[column].values
                figures = (values[0], values[-1], values.min(), values.max())
                rows.append([column, *(f"{value:.4g}" for value in figures)])
    return [Table(["curve", "first", "last", "lowest", "highest"], rows)] if rows else []


def said_by_doctor(run: Run) -> list[Block]:
    """The findings of `doctor`, warnings first."""
    try:
        findings = diagnose(run.path).findings
    except CourseError as problem:
        return [Text(f"The run doctor says nothing: {problem}", soft=True)]
    rows = [[finding.level, finding.topic, finding.message] for finding in findings]
    return [Table(["", "about", "what the curves say (rules of thumb)"], rows, words=True)] if rows else []


# ---------------------------------------------------------------------- rewards
def rewards(runs: Sequence[Run]) -> list[Block]:
    """How reward models rank held-out pairs, and how rewards of held-out answers moved."""
    blocks: list[Block] = []
    for run in runs:
        if run.algo == "reward_model":
            blocks += [Heading(run.name), picture(pair_rewards(run))]
        elif run.online:
            blocks.append(picture(reward_shift(run)))
    return blocks


def pair_rewards(run: Run) -> Figure | Skipped:
    """Rewards of chosen and rejected held-out answers."""
    try:
        saved = read_json(run.path / "eval_rewards.json")
    except CourseError:
        saved = {}
    saved = saved if isinstance(saved, dict) else {}
    return plots.reward_histogram(saved.get("chosen"), saved.get("rejected"))


def reward_shift(run: Run) -> Figure | Skipped:
    """Rewards of the held-out answers at the first evaluation and at the last."""
    by_step: dict[int, list[float]] = {}
    for row in run.samples:
        value = number_or_nan(row.get("reward"))
        if np.isfinite(value):
            by_step.setdefault(int(float(row.get("step", 0))), []).append(value)
    if len(by_step) < 2:
        return Skipped(f"{run.name}: rewards before and after are left out, for want of two evaluations.")
    first, last = min(by_step), max(by_step)
    figure, axes = new_figure(
        f"{run.name}, held-out rewards: the whole heap should move, not one spike", "reward", "answers"
    )
    bins = np.histogram_bin_edges(np.concatenate([by_step[first], by_step[last]]), bins=24).tolist()
    for step, colour in ((first, GREY), (last, BLUE)):
        mean = float(np.mean(by_step[step]))
        axes.hist(by_step[step], bins=bins, color=colour, alpha=0.55, label=f"step {step}, mean {mean:.2f}")
        axes.axvline(mean, color=colour, linewidth=1.6)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(top=axes.get_ylim()[1] * 1.3)
    plots.legend(axes)
    return figure


# ---------------------------------------------------------------------- reward hacking
def hacking(runs: Sequence[Run]) -> list[Block]:
    """Signs of reward hacking in every online run, and reward and judge against the KL."""
    blocks: list[Block] = []
    for run in (run for run in runs if run.online):
        blocks.append(Heading(run.name))
        try:
            signs = hacking_signs(run.path)
        except CourseError as problem:
            blocks.append(Text(f"Nothing can be said: {problem}", soft=True))
            continue
        rows = [[str(sign.step), sign.kind, sign.message] for sign in signs]
        if rows:
            blocks.append(Table(["from step", "sign", "what was seen"], rows, words=True))
        else:
            blocks.append(
                Text("No sign of reward hacking: no leap of the reward, growth of length, loops or drift.")
            )
        blocks.append(picture(proxy_and_gold(run)))
    return blocks


def proxy_and_gold(run: Run) -> Figure | Skipped:
    """The reward that is trained on and the judge that is not, against the square root of the KL."""
    try:
        seen = gold_against_kl(run.path)
    except CourseError:
        return Skipped(
            "Reward against judge is left out: the run recorded no verdicts of a held-out judge (gold)."
        )
    title = "Reward and judge: where they part, the reward is gamed"
    figure, axes = new_figure(title, "√KL, nats a token", "reward of held-out answers")
    other = axes.twinx()
    axes.plot(seen.root_kl, seen.proxy, color=ORANGE, marker="o", markersize=4, label="reward (left)")
    other.plot(seen.root_kl, seen.gold, color=VERMILLION, marker="s", markersize=4, label="judge (right)")
    other.set_ylabel("held-out judge, 0 to 1", fontsize=8.5, color=INK)
    other.tick_params(labelsize=8, colors=INK)
    for side in ("top", "left", "bottom"):
        other.spines[side].set_visible(False)
    handles = [*axes.get_lines(), *other.get_lines()]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=2, fontsize=8, frameon=False, labelcolor=INK
    )
    return figure


def data_reports(runs: Sequence[Run]) -> list[Block]:
    """What each run's loader kept and dropped."""
    found: list[Block] = []
    for run in runs:
        file = run.path / "data_report.txt"
        if file.is_file():
            found.append(Pre(run.name, file.read_text(encoding="utf-8", errors="replace").strip()))
    return found
