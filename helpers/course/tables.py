"""The result table of a course run, as text for the terminal and as Markdown; and how figures are written.

Any field of `course` may be missing, None or NaN: it is shown as a dash.
"""

from __future__ import annotations

import math
import shutil
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

DASH = "–"
TARGET_NAMES = {"win_rate_vs_base": "vs base", "win_rate_vs_sft": "vs SFT"}
# What `helpers.judging.evaluate` calls the same figures.
ALIASES = {
    "win_rate_vs_base_strict": "strict_win_rate_vs_base",
    "ci95_strict": "strict_ci95",
    "kl_per_sequence": "kl_sum",
    "pair_accuracy_gold": "gold_accuracy",
    "label_ceiling": "label_accuracy",
}
DISPLAY_NAMES = {"base": "base", "dr_grpo": "Dr. GRPO", "reward_model": "reward model"}


# ---------------------------------------------------------------------- single figures
def display_name(name: str) -> str:
    """Return how a method is written for readers: "dr_grpo" → "Dr. GRPO", "dpo" → "DPO"."""
    return DISPLAY_NAMES.get(name, name.upper() if len(name) <= 4 else name.replace("_", " "))


def threshold_target(name: str, row: Mapping[str, Any]) -> str:
    """Return which figure a method's threshold is about: PPO starts from SFT and is measured against it."""
    default = "win_rate_vs_sft" if name == "ppo" else "win_rate_vs_base"
    return str(row.get("threshold_on") or default)


def kl_of(name: str, row: Mapping[str, Any], key: str, digits: int) -> str:
    """Write a KL to what the method is measured against, saying so where that is the SFT model."""
    if threshold_target(name, row) != "win_rate_vs_sft":
        return number(row.get(key), digits)
    own = {"kl": "kl_vs_sft", "kl_per_sequence": "kl_sum_vs_sft"}[key]
    text = number(row.get(own), digits)
    return text if text == DASH else f"{text} to SFT"


def interval_of(row: Mapping[str, Any], key: str) -> tuple[float, float]:
    """Return (low, high) of an interval such as `ci95`; (NaN, NaN) where it is missing or malformed."""
    pair = row.get(key)
    if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
        return math.nan, math.nan
    return number_or_nan(pair[0]), number_or_nan(pair[1])


def number_or_nan(value: Any) -> float:
    """Return `value` as a float; whatever is no number becomes NaN."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def number(value: Any, digits: int = 2) -> str:
    """Write a finite number with `digits` decimals; anything else is a dash."""
    amount = number_or_nan(value)
    return f"{amount:.{digits}f}" if math.isfinite(amount) else DASH


def rate(row: Mapping[str, Any], key: str, interval_key: str = "", *, with_interval: bool = True) -> str:
    """Write a rate with its 95 % interval, such as "0.75 (.68–.82)"."""
    text = number(row.get(key))
    low, high = interval_of(row, interval_key)
    if text == DASH or not with_interval or not math.isfinite(low + high):
        return text
    return f"{text} ({_short(low)}–{_short(high)})"


def _short(value: float) -> str:
    text = f"{value:.2f}"
    return text[1:] if text.startswith("0.") else text


def duration(seconds: Any) -> str:
    """Write seconds as "48 s", "7 min 12 s" or "2 h 05 min"."""
    amount = number_or_nan(seconds)
    if not math.isfinite(amount):
        return DASH
    whole = round(amount)
    if whole < 100:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def goal(name: str, row: Mapping[str, Any]) -> str:
    """Write a threshold, with what it is measured against where that is not the base."""
    text = number(row.get("threshold"))
    target = threshold_target(name, row)
    if text == DASH or target == "win_rate_vs_base":
        return text
    return f"{text} {TARGET_NAMES.get(target, target)}"


def verdict(passed: Any) -> str:
    """Write whether a threshold was reached; a dash where there is none."""
    return DASH if passed is None else ("passed" if passed else "missed")


def methods_of(course: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the methods of a course in their order, under one set of names; None counts as empty."""
    methods = course.get("methods") or {}
    return {str(name): _renamed(row if isinstance(row, Mapping) else {}) for name, row in methods.items()}


def reward_model_of(course: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reward model's figures under one set of names; {} where there is none."""
    row = course.get("reward_model")
    return _renamed(row) if isinstance(row, Mapping) else {}


def _renamed(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **row,
        **{name: row[other] for name, other in ALIASES.items() if name not in row and other in row},
    }


# ---------------------------------------------------------------------- the table
def result_rows(
    course: Mapping[str, Any], *, intervals: bool = True, scores: bool = True
) -> tuple[list[str], list[list[str]]]:
    """Return the header and one row a method.

    intervals: with 95 % intervals. scores: with helpful / harmless / honest, truncated share and KL sums.
    """
    header = ["method", "vs base", "strict", "vs SFT", "KL/token"]
    header += ["KL/answer", "tokens", "truncated", "helpful/harmless/honest"] if scores else ["tokens"]
    header += ["time", "threshold", "result"]
    rows = [_method_row(name, row, intervals, scores) for name, row in methods_of(course).items()]
    return header, rows


def _method_row(name: str, row: Mapping[str, Any], intervals: bool, scores: bool) -> list[str]:
    cells = [
        display_name(name),
        rate(row, "win_rate_vs_base", "ci95", with_interval=intervals),
        rate(row, "win_rate_vs_base_strict", "ci95_strict", with_interval=intervals),
        rate(row, "win_rate_vs_sft", "ci95_vs_sft", with_interval=intervals),
        kl_of(name, row, "kl", 3),
    ]
    if scores:
        cells += [kl_of(name, row, "kl_per_sequence", 2), number(row.get("mean_tokens"), 1)]
        cells += [percent(row.get("truncated_share"))]
        cells += ["/".join(number(row.get(part)) for part in ("helpful", "harmless", "honest"))]
    else:
        cells += [number(row.get("mean_tokens"), 1)]
    return [*cells, duration(row.get("seconds")), goal(name, row), verdict(row.get("passed"))]


def percent(share: Any) -> str:
    """Write a share as whole per cent."""
    amount = number_or_nan(share)
    return f"{100 * amount:.0f} %" if math.isfinite(amount) else DASH


def reward_model_line(course: Mapping[str, Any]) -> str:
    """Say in one line how the reward model did; "" where there is none."""
    row = reward_model_of(course)
    if not row:
        return ""
    parts = [f"Reward model: pair accuracy {rate(row, 'pair_accuracy', 'ci95')}"]
    aside = [
        f"{label} {number(row.get(key))}"
        for key, label in (("pair_accuracy_gold", "against gold labels"), ("label_ceiling", "label ceiling"))
        if number(row.get(key)) != DASH
    ]
    parts[0] += f" ({', '.join(aside)})" if aside else ""
    if number(row.get("threshold")) != DASH:
        parts.append(f"threshold {number(row.get('threshold'))}")
    parts += [text for text in (verdict(row.get("passed")), duration(row.get("seconds"))) if text != DASH]
    return ", ".join(parts)


def summary_line(course: Mapping[str, Any]) -> str:
    """Say how many thresholds were reached and how long it all took."""
    results = [row.get("passed") for row in methods_of(course).values()]
    results.append(reward_model_of(course).get("passed"))
    judged = [bool(passed) for passed in results if passed is not None]
    text = f"{sum(judged)} of {len(judged)} thresholds reached" if judged else "No thresholds were checked"
    if duration(course.get("seconds")) != DASH:
        text += f" in {duration(course.get('seconds'))}"
    if course.get("prompts"):
        text += f", {course['prompts']} held-out prompts"
    return text + "."


def terminal_table(course: Mapping[str, Any], width: int | None = None) -> str:
    """Return the closing table as plain text, as wide as fits.

    Args:
        width: columns available; default: the terminal's. The narrower, the fewer columns: first the
            scores go, then the intervals.
    """
    available = width or shutil.get_terminal_size((110, 24)).columns
    for intervals, scores in ((True, True), (True, False), (False, False)):
        table = _aligned(*result_rows(course, intervals=intervals, scores=scores))
        if max(map(_columns, table)) <= available:
            break
    closing = [line for line in (reward_model_line(course), summary_line(course)) if line]
    return "\n".join([*table, "", *closing])


def _aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    table = [header, *rows]
    widths = [max(_columns(row[index]) for row in table) for index in range(len(header))]
    lines = []
    for row in table:
        cells = [
            cell + " " * (width - _columns(cell)) if index == 0 else " " * (width - _columns(cell)) + cell
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return [lines[0], "─" * max(map(_columns, lines)), *lines[1:]]


def _columns(text: str) -> int:
    """How many terminal columns a text takes: wide characters two, combining ones none."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )


def markdown_table(course: Mapping[str, Any]) -> str:
    """Return the closing table in Markdown, every column, followed by the reward model and a summary."""
    header, rows = result_rows(course)
    lines = [_markdown_row(header), _markdown_row(["---", *["---:"] * (len(header) - 1)])]
    lines += [_markdown_row(row) for row in rows]
    closing = [line for line in (reward_model_line(course), summary_line(course)) if line]
    return "\n".join([*lines, "", *[line + "\n" for line in closing]]).rstrip() + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"
