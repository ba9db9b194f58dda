"""Figures of the course: pure functions from data to a matplotlib Figure.

Nothing here touches pyplot, the backend or rcParams, so the figures work headless and in a notebook alike.
Colours are Okabe and Ito's, which colour-blind readers can tell apart. Every title says what to see. Where
the data for a figure is missing, a `Skipped` with one sentence stands in its place.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from helpers.course.curves import Line, Panel, panels_of
from helpers.course.tables import display_name, interval_of, number_or_nan, threshold_target
from helpers.training.run_dir import read_metric_rows

BLUE, ORANGE, GREEN, VERMILLION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, GREY, INK = "#CC79A7", "#56B4E9", "#8A8A8A", "#222222"
LINE_COLOURS = (BLUE, VERMILLION, GREEN, PURPLE)
METHOD_COLOURS = {
    "base": GREY, "sft": SKY, "dpo": BLUE, "ipo": "#4D4DA6", "aot": PURPLE,
    "ppo": GREEN, "grpo": VERMILLION, "dr_grpo": ORANGE, "gspo": "#8C510A",
}  # fmt: skip
WIDE = 4.8  # inches; figures shrink to the width of a phone, and their text with them
LIGHT = {SKY, ORANGE, PURPLE, GREY}  # colours that want dark text on them
SMOOTH_FROM = 40  # points; below that the raw curve is readable


@dataclass(frozen=True)
class Skipped:
    """Stands for a figure whose data is missing; `reason` is a whole sentence."""

    reason: str


@dataclass(frozen=True)
class Series:
    """One column of metrics.csv: finite `values` (n,) at `steps` (n,), and how many were NaN or infinite."""

    steps: np.ndarray
    values: np.ndarray
    non_finite: int = 0


# ---------------------------------------------------------------------- metrics
def read_metrics(path: str | Path) -> dict[str, Series]:
    """Read metrics.csv → one Series a column, empty cells left out.

    A last line torn by kill -9, short and long rows and cells that are no numbers are passed over; a missing
    file gives {}.
    """
    columns, rows = read_metric_rows(path)
    return {name: _series(rows, name) for name in columns if name != "step"}


def _series(rows: Sequence[Mapping[str, str]], name: str) -> Series:
    points = [(float(row["step"]), number_or_nan(row[name])) for row in rows if row.get(name, "").strip()]
    finite = [(step, value) for step, value in points if math.isfinite(value)]
    table = np.array(finite, dtype=float).reshape(-1, 2)
    return Series(table[:, 0], table[:, 1], len(points) - len(finite))


def smooth(values: np.ndarray, width: int) -> np.ndarray:
    """Centred moving average of `width` points, over fewer of them at the ends. Shape kept."""
    kernel = np.ones(max(width, 1))
    return np.convolve(values, kernel, "same") / np.convolve(np.ones_like(values), kernel, "same")


# ---------------------------------------------------------------------- training curves
def training_curves(
    metrics: Mapping[str, Series], algo: str, *, beta: float | None = None, threshold: float | None = None
) -> dict[str, Figure | Skipped]:
    """Draw the curves that matter for `algo` ("sft", "reward_model", "dpo", …, "gspo").

    beta: for IPO's reference line, the loss (1/(2β))² at step 0. threshold: of the pair accuracy.
    """
    panels = panels_of(algo, beta=beta, threshold=threshold)
    drawn = {panel.key: draw_panel(metrics, panel) for panel in panels}
    silent = {panel.key for panel in panels if panel.optional and isinstance(drawn[panel.key], Skipped)}
    return {key: figure for key, figure in drawn.items() if key not in silent}


def draw_panel(metrics: Mapping[str, Series], panel: Panel) -> Figure | Skipped:
    """Draw one panel, or say which columns it misses."""
    found = [(line, metrics[name]) for line in panel.lines if (name := line.column_in(metrics))]
    found = [(line, series) for line, series in found if len(series.values)]
    if not found:
        wanted = " or ".join(line.names[0] for line in panel.lines)
        return Skipped(f"{panel.name} is left out: metrics.csv has no values in a column {wanted}.")
    left_out = sum(series.non_finite for _, series in found)
    note = f" ({left_out} values that were not finite are left out)" if left_out else ""
    figure, axes = new_figure(panel.title, "step" + note, panel.ylabel)
    for index, (line, series) in enumerate(found):
        _draw_line(axes, line, series, LINE_COLOURS[index % len(LINE_COLOURS)])
    for value, label in panel.references:
        reference_line(axes, value, label)
    if panel.from_zero:
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
    if len(found) > 1:
        legend(axes)
    return figure


def _draw_line(axes: Axes, line: Line, series: Series, colour: str) -> None:
    steps, values = series.steps, series.values
    if len(values) >= SMOOTH_FROM and not line.is_evaluation:
        axes.plot(steps, values, color=colour, alpha=0.3, linewidth=0.8)
        axes.plot(steps, smooth(values, len(values) // 12), color=colour, linewidth=1.8, label=line.label)
        return
    marker = "o" if line.is_evaluation or len(values) < 8 else None
    axes.plot(steps, values, color=colour, linewidth=1.6, marker=marker, markersize=4, label=line.label)


# ---------------------------------------------------------------------- reward model
def reward_histogram(chosen: Iterable[Any] | None, rejected: Iterable[Any] | None) -> Figure | Skipped:
    """Draw how a reward model scores chosen and rejected answers, with both means."""
    groups = [("rejected", VERMILLION, _finite(rejected)), ("chosen", BLUE, _finite(chosen))]
    if not all(len(values) for _, _, values in groups):
        return Skipped("The reward histogram is left out: there are no chosen and rejected scores.")
    figure, axes = new_figure(
        "Chosen answers should score to the right of rejected ones", "reward", "answers"
    )
    bins = np.histogram_bin_edges(np.concatenate([values for *_, values in groups]), bins=32)
    for name, colour, values in groups:
        axes.hist(
            values, bins=bins.tolist(), color=colour, alpha=0.5, label=f"{name}, mean {values.mean():.2f}"
        )
        axes.axvline(values.mean(), color=colour, linewidth=1.6)
    axes.set_ylim(top=axes.get_ylim()[1] * 1.3)  # room for the legend
    legend(axes)
    return figure


# ---------------------------------------------------------------------- methods side by side
def win_rate_bars(methods: Mapping[str, Mapping[str, Any]]) -> Figure | Skipped:
    """Draw plain and strict win rates against the base, 95 % intervals and the thresholds to reach."""
    rows = [name for name in methods if math.isfinite(number_or_nan(methods[name].get("win_rate_vs_base")))]
    if not rows:
        return Skipped("The win rates are left out: no method has a win_rate_vs_base.")
    title = "Win rate against the frozen base: bars should pass the black mark"
    figure, axes = new_figure(title, "win rate, ties count one half", "", (WIDE, 1.15 + 0.5 * len(rows)))
    for y, name in enumerate(rows):
        colour = METHOD_COLOURS.get(name, BLUE)
        _win_bar(axes, y - 0.19, methods[name], "win_rate_vs_base", "ci95", colour, 1.0)
        _win_bar(axes, y + 0.19, methods[name], "win_rate_vs_base_strict", "ci95_strict", colour, 0.5)
        goal = number_or_nan(methods[name].get("threshold"))
        if math.isfinite(goal) and threshold_target(name, methods[name]) == "win_rate_vs_base":
            axes.plot([goal, goal], [y - 0.42, y + 0.42], color="black", linewidth=2.4, zorder=4)
    axes.axvline(0.5, color=GREY, linestyle="--", linewidth=1)
    axes.set(xlim=(0, 1), ylim=(len(rows) - 0.45, -0.55))
    axes.set_yticks(range(len(rows)), [_label(name) for name in rows])
    keys = [("plain", GREY, 1.0), ("strict", GREY, 0.5)]
    for label, colour, alpha in keys:
        axes.barh([-9], [0], color=colour, alpha=alpha, label=label)
    axes.plot([], [], color="black", linewidth=2.4, label="threshold")
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False, labelcolor=INK)
    return figure


def _win_bar(
    axes: Axes, y: float, row: Mapping[str, Any], key: str, interval_key: str, colour: str, alpha: float
) -> None:
    value = number_or_nan(row.get(key))
    if not math.isfinite(value):
        return
    axes.barh(y, value, height=0.36, color=colour, alpha=alpha, zorder=2)
    low, high = interval_of(row, interval_key)
    if math.isfinite(low + high):
        spread = [[max(value - low, 0.0)], [max(high - value, 0.0)]]
        axes.errorbar(value, y, xerr=spread, color=INK, capsize=3, linewidth=1.1, zorder=3)
    inside = value > 0.15
    place = 0.012 if inside else (max(value, high) if math.isfinite(high) else value) + 0.02
    ink = "white" if inside and alpha == 1.0 and colour not in LIGHT else INK
    axes.text(place, y, f"{value:.2f}", va="center", fontsize=8, color=ink, zorder=5)


def hhh_bars(methods: Mapping[str, Mapping[str, Any]]) -> Figure | Skipped:
    """Draw helpful, harmless and honest scores (0 to 1) of every method beside each other."""
    parts = (("helpful", BLUE), ("harmless", ORANGE), ("honest", GREEN))
    rows = [n for n in methods if any(math.isfinite(number_or_nan(methods[n].get(p))) for p, _ in parts)]
    if not rows:
        return Skipped("Helpful, harmless and honest are left out: no method has these scores.")
    title = "Helpful, harmless, honest: no bar should be bought with another"
    figure, axes = new_figure(title, "method", "mean score, 0 to 1", (WIDE, 2.8))
    for offset, (part, colour) in zip((-0.27, 0.0, 0.27), parts, strict=True):
        values = [number_or_nan(methods[name].get(part)) for name in rows]
        axes.bar(np.arange(len(rows)) + offset, values, width=0.25, color=colour, label=part)
    axes.set_ylim(0, 1)
    _name_columns(axes, rows)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False, labelcolor=INK)
    return figure


def _name_columns(axes: Axes, rows: Sequence[str]) -> None:
    crowded = len(rows) > 6
    axes.set_xticks(range(len(rows)), [_label(name) for name in rows], fontsize=7 if crowded else 8)
    if len(rows) > 8:
        axes.tick_params(axis="x", rotation=30)


def mean_tokens_bars(methods: Mapping[str, Mapping[str, Any]]) -> Figure | Skipped:
    """Draw the mean length of greedy answers in tokens."""
    rows = [name for name in methods if math.isfinite(number_or_nan(methods[name].get("mean_tokens")))]
    if not rows:
        return Skipped("The answer lengths are left out: no method has mean_tokens.")
    title = "Answer length: a method far longer than the base may win by length"
    figure, axes = new_figure(title, "method", "mean tokens an answer", (WIDE, 2.4))
    values = [number_or_nan(methods[name]["mean_tokens"]) for name in rows]
    colours = [METHOD_COLOURS.get(name, BLUE) for name in rows]
    bars = axes.bar(range(len(rows)), values, width=0.6, color=colours)
    axes.bar_label(bars, fmt="%.1f", fontsize=8, color=INK)
    axes.margins(y=0.15)
    _name_columns(axes, rows)
    return figure


# ---------------------------------------------------------------------- shared small parts
def figure_to_png_base64(figure: Figure, dpi: int = 150) -> str:
    """Return the figure as a base64 PNG of 64 colours without line breaks, ready for a data: URL."""
    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png", dpi=dpi, facecolor="white")
    with Image.open(full) as image:
        image.convert("RGB").quantize(64, dither=Image.Dither.NONE).save(small, format="png", optimize=True)
    return base64.b64encode(small.getvalue()).decode("ascii")


def _label(name: str) -> str:
    """A method's name for a figure: short, and with no dollar signs, which matplotlib takes for formulas."""
    shown = display_name(name)
    return (shown if len(shown) <= 14 else shown[:13] + "…").replace("$", r"\$")


def _finite(values: Iterable[Any] | None) -> np.ndarray:
    numbers = np.array([number_or_nan(value) for value in (values if values is not None else ())])
    return numbers[np.isfinite(numbers)]


def new_figure(
    title: str, xlabel: str, ylabel: str, size: tuple[float, float] = (4.2, 2.7)
) -> tuple[Figure, Axes]:
    figure = Figure(figsize=size, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot(facecolor="white")
    axes.set_title(
        fill(title, int(size[0] * 10.5)).replace("$", r"\$"),
        loc="left",
        fontsize=9.5,
        fontweight="bold",
        color=INK,
    )
    axes.set_xlabel(xlabel, fontsize=8.5, color=INK)
    axes.set_ylabel(ylabel, fontsize=8.5, color=INK)
    axes.tick_params(labelsize=8, colors=INK)
    axes.grid(color="#E6E6E6", linewidth=0.7)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color("#999999")
    return figure, axes


def reference_line(axes: Axes, value: float, label: str) -> None:
    axes.axhline(value, color=INK, linestyle="--", linewidth=1)
    axes.annotate(
        label,
        (1, value),
        xytext=(-2, 2.5),
        xycoords=axes.get_yaxis_transform(),
        textcoords="offset points",
        ha="right",
        va="bottom",
        fontsize=7.5,
        color=INK,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.6},
    )


def legend(axes: Axes) -> None:
    axes.legend(
        fontsize=8, frameon=True, framealpha=0.85, edgecolor="none", facecolor="white", labelcolor=INK
    )
