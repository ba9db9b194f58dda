"""Figures of an evaluation: rates with their intervals, lengths, KL and rewards by policy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from helpers.course import plots
from helpers.course.plots import BLUE, GREY, INK, ORANGE, VERMILLION, WIDE, Skipped, new_figure
from helpers.course.tables import display_name, interval_of, methods_of, number_or_nan
from helpers.files import atomic_path

Rows = Mapping[str, Mapping[str, Any]]


def evaluation_figures(
    figures: Mapping[str, Any], rewards: Mapping[str, Sequence[float]]
) -> dict[str, Figure | Skipped]:
    """Name → Figure or Skipped, from what evaluation.json holds and the single rewards by policy."""
    rows = {name: dict(row) for name, row in figures["policies"].items()}
    known = methods_of({"methods": rows})
    baseline = display_name(str(figures.get("baseline") or "base"))
    return {
        "win_rates": rate_intervals(known, baseline),
        "scores": plots.hhh_bars(known),
        "lengths": length_bars(known),
        "kl": kl_bars(known),
        "rewards": reward_boxes(rewards),
    }


def save_figures(figures: Mapping[str, Figure | Skipped], folder: Path) -> dict[str, str]:
    """Write the figures as PNG files; the reasons of those that were left out, by name."""
    skipped = {}
    for name, figure in figures.items():
        if isinstance(figure, Skipped):
            skipped[name] = figure.reason
            (folder / f"{name}.png").unlink(missing_ok=True)  # of an earlier evaluation in the same place
            continue
        with atomic_path(folder / f"{name}.png") as draft:
            figure.savefig(draft, format="png", dpi=150, facecolor="white")
    return skipped


def rate_intervals(rows: Rows, baseline: str = "base") -> Figure | Skipped:
    """Win rate, length-controlled rate and the project's statistic, each with its interval."""
    names = [name for name in rows if math.isfinite(number_or_nan(rows[name].get("win_rate_vs_base")))]
    if not names:
        return Skipped("The win rates are left out: no policy was compared with the baseline.")
    title = f"Win rate against {baseline}: where an interval holds 0.5, nothing was shown"
    size = (WIDE, 1.2 + 0.62 * len(names))
    figure, axes = new_figure(title, "rate, with 95 % intervals over prompts", "", size)
    kinds = (
        ("win_rate_vs_base", "ci95", "win rate, ties one half", BLUE, "o"),
        ("length_controlled", "length_controlled_ci95", "at equal length", VERMILLION, "s"),
        ("agreement_win_rate", "agreement_ci95", "among verdicts both orders agree on", ORANGE, "^"),
    )
    for place, (key, interval, label, colour, marker) in enumerate(kinds):
        for y, name in enumerate(names):
            row = {**(rows[name].get("judged_vs_base") or {}), **rows[name]}
            _dot(axes, y + 0.22 * (place - 1), row, key, interval, colour, marker)
        axes.plot([], [], marker=marker, color=colour, linewidth=0, label=label)
    axes.axvline(0.5, color=GREY, linestyle="--", linewidth=1)
    axes.set(xlim=(0, 1), ylim=(len(names) - 0.4, -0.6))
    axes.set_yticks(range(len(names)), [display_name(name).replace("$", r"\$") for name in names])
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False, labelcolor=INK)
    return figure


def _dot(
    axes: Any, y: float, row: Mapping[str, Any], key: str, interval: str, colour: str, marker: str
) -> None:
    value = number_or_nan(row.get(key))
    if not math.isfinite(value):
        return
    low, high = interval_of(row, interval)
    if math.isfinite(low + high):
        axes.plot([low, high], [y, y], color=colour, linewidth=1.4)
    axes.plot([value], [y], marker=marker, color=colour, markersize=5, clip_on=False, zorder=4)


def length_bars(rows: Rows) -> Figure | Skipped:
    """Mean length of answers in characters."""
    title = "Answer length: a policy that writes more may win by that alone"
    return _bars(rows, "mean_chars", title, "mean characters an answer", "The answer lengths are", "%.0f")


def kl_bars(rows: Rows) -> Figure | Skipped:
    """KL to the base by policy."""
    title = "KL to the base: how far each policy has moved"
    return _bars(rows, "kl", title, "nats a response token", "The KL is", "%.3f")


def _bars(rows: Rows, key: str, title: str, ylabel: str, what: str, digits: str) -> Figure | Skipped:
    names = [name for name in rows if math.isfinite(number_or_nan(rows[name].get(key)))]
    if not names:
        return Skipped(f"{what} left out: no policy has {key}.")
    figure, axes = new_figure(title, "policy", ylabel, (WIDE, 2.6))
    values = [number_or_nan(rows[name][key]) for name in names]
    colours = [plots.METHOD_COLOURS.get(name, BLUE) for name in names]
    axes.bar_label(axes.bar(range(len(names)), values, width=0.6, color=colours), fmt=digits, fontsize=8)
    axes.margins(y=0.15)
    _name_policies(axes, names)
    return figure


def reward_boxes(rewards: Mapping[str, Sequence[float]]) -> Figure | Skipped:
    """Quartiles, 5 and 95 % of a reward model's scores of every policy's answers."""
    if not rewards:
        return Skipped("The rewards are left out: no reward model was given (--reward_model).")
    title = "Rewards: a model's opinion, which policies are trained to raise"
    figure, axes = new_figure(title, "policy", "reward", (WIDE, 2.8))
    values = [np.asarray(scores, dtype=float) for scores in rewards.values()]
    boxes = axes.boxplot(values, whis=(5, 95), showfliers=False, patch_artist=True, widths=0.5)
    for name, box in zip(rewards, boxes["boxes"], strict=True):
        box.set(facecolor=plots.METHOD_COLOURS.get(name, BLUE), alpha=0.6)
    for line in boxes["medians"]:
        line.set(color=INK)
    _name_policies(axes, list(rewards), first=1)
    return figure


def _name_policies(axes: Any, names: Sequence[str], first: int = 0) -> None:
    labels = [display_name(name).replace("$", r"\$") for name in names]
    axes.set_xticks(range(first, first + len(names)), labels, fontsize=7 if len(names) > 6 else 8)
    if len(names) > 8:
        axes.tick_params(axis="x", rotation=30)
