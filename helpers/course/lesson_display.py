"""What a lesson shows: figures, tables of figures and tables of answers, in a notebook and on a terminal.

Every figure remembers the numbers it draws. Where the environment variable COURSE_FIGURE_DATA names a file,
they are written there, so that two runs of a lesson can be compared by what they drew.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from helpers.course.plots import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    figure_to_png_base64,
    new_figure,
    reference_line,
    smooth,
)
from helpers.course.plots import legend as draw_legend
from helpers.files import write_text

VARIABLE = "COURSE_FIGURE_DATA"
DOTS_PER_INCH = 110
COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, GREY)
SMOOTH_FROM = 30  # points; shorter curves are drawn as they are
CELL = "padding:4px 8px;border-bottom:1px solid #8884;vertical-align:top;text-align:left"
LONGEST = 240  # characters of an answer that a table shows


class FigureData(dict[str, Any]):
    """Plotted numbers by figure; a dict that is also kept in the file COURSE_FIGURE_DATA names."""

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        if place := os.environ.get(VARIABLE):
            write_text(Path(place), json.dumps(self, indent=1) + "\n")


class Plot:
    """One figure. Draw on `axes`; as the last value of a cell it appears, and its numbers are recorded."""

    def __init__(
        self,
        key: str,
        title: str,
        xlabel: str,
        ylabel: str,
        record: FigureData,
        size: tuple[float, float] = (5.6, 3.0),
    ) -> None:
        self.key, self.record = key, record
        self._colours = itertools.cycle(COLOURS)
        self.figure, self.axes = new_figure(title, xlabel, ylabel, size)

    def mark(self, value: float, label: str) -> Plot:
        """A dashed horizontal line with its name."""
        reference_line(self.axes, value, label)
        return self

    def line(self, x: Any, y: Any, label: str | None = None, **style: Any) -> Plot:
        """One more line, in the next colour; a long one is drawn pale with its moving average on top."""
        x, y = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
        colour = style.pop("color", None) or next(self._colours)
        if len(y) >= SMOOTH_FROM:
            self.axes.plot(x, y, color=colour, alpha=0.25, linewidth=0.8, **style)
            y = smooth(y, max(len(y) // 10, 3))
        self.axes.plot(x, y, color=colour, linewidth=1.7, label=label, **style)
        if (x == np.round(x)).all():  # steps
            self.axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=True))
        return self

    def numbers(self) -> dict[str, list[list[float]]]:
        """What is drawn: x and y of the lines, heights and widths of the bars."""
        return numbers_of(self.axes)

    def _repr_png_(self) -> bytes:
        _, labels = self.axes.get_legend_handles_labels()
        if labels and self.axes.get_legend() is None:
            draw_legend(self.axes)
        self.record[self.key] = self.numbers()
        return base64.b64decode(figure_to_png_base64(self.figure, DOTS_PER_INCH))

    def __repr__(self) -> str:
        return f"figure: {self.axes.get_title(loc='left')}".replace("\n", " ")


def numbers_of(axes: Axes) -> dict[str, list[list[float]]]:
    """Lines and bars of `axes` as plain numbers; NaN and infinity become null in the file."""
    lines = [np.asarray(line.get_xydata(), dtype=float).T.ravel().tolist() for line in axes.lines]
    bars = [bar for bar in axes.patches if isinstance(bar, Rectangle)]
    sizes = [[bar.get_x(), bar.get_y(), bar.get_width(), bar.get_height()] for bar in bars]
    return {
        "lines": [list(map(finite, values)) for values in lines],
        "bars": [list(map(finite, values)) for values in sizes],
    }


def finite(value: float) -> float:
    """The number, or 0 where JSON has none."""
    return float(value) if math.isfinite(value) else 0.0


@dataclass
class Table:
    """Rows of text and numbers under a caption that says what to see."""

    caption: str
    header: Sequence[str]
    rows: Sequence[Sequence[Any]]
    tints: Mapping[tuple[int, int], str] = field(default_factory=dict)  # (row, column) → background
    data: Any = None  # the figures behind it

    def _repr_html_(self) -> str:
        parts = [Markup('<table style="border-collapse:collapse"><caption style="{}">').format(CAPTION)]
        parts += [escape(self.caption), Markup("</caption><tr>")]
        parts += [Markup('<th style="{}">{}</th>').format(CELL, name) for name in self.header]
        parts.append(Markup("</tr>"))
        for number, row in enumerate(self.rows):
            parts.append(Markup("<tr>"))
            for column, value in enumerate(row):
                tint = self.tints.get((number, column))
                style = f"{CELL};background:{tint};color:#111" if tint else CELL
                parts.append(Markup('<td style="{}">{}</td>').format(style, written(value)))
            parts.append(Markup("</tr>"))
        return str(Markup("").join([*parts, Markup("</table>")]))

    def __repr__(self) -> str:
        cells = [list(map(str, self.header)), *[[written(value) for value in row] for row in self.rows]]
        widths = [min(max(map(len, column)), 60) for column in zip(*cells, strict=True)]
        lines = ["  ".join(text.ljust(w) for text, w in zip(row, widths, strict=True)) for row in cells]
        return "\n".join([self.caption, *(line.rstrip() for line in lines)])


CAPTION = "caption-side:top;text-align:left;font-weight:600;padding:2px 8px"


def written(value: Any) -> str:
    """A cell's text: numbers with two decimals, long texts cut, line ends as visible marks."""
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:.2f}"
    text = " ⏎ ".join(str(value).splitlines())
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def tint_of(score: float | None) -> str | None:
    """Background of an answer by its gold score, from 0 (orange) over 0.5 (grey) to 1 (green)."""
    if score is None:
        return None
    return "#f6c7a8" if score < 0.35 else ("#b9e3c6" if score >= 0.75 else "#e6e6e6")
