"""The report of a course run: one self-contained HTML file, and the closing table for terminal and Markdown.

All text that a model or a data file wrote is escaped, control characters are made visible, and the page's
content security policy allows neither scripts nor any request.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup
from matplotlib.figure import Figure

from helpers.course import plots
from helpers.course.plots import Skipped
from helpers.course.report_blocks import clean_text
from helpers.course.report_template import STYLE, TEMPLATE
from helpers.course.tables import (
    DASH,
    display_name,
    duration,
    markdown_table,
    methods_of,
    number,
    number_or_nan,
    percent,
    result_rows,
    reward_model_line,
    reward_model_of,
    summary_line,
    terminal_table,
    threshold_target,
    verdict,
)
from helpers.errors import CourseError
from helpers.files import read_json, write_text

__all__ = ["markdown_table", "terminal_table", "write_report"]

SECTIONS = (
    ("run", "What was run"),
    ("results", "Results"),
    ("reward", "Reward model"),
    ("curves", "Curves"),
    ("families", "By family"),
    ("samples", "Samples"),
    ("data", "Data"),
    ("reproduce", "Reproduce"),
)
READING = (
    "vs base, vs SFT: share of held-out prompts on which the method's greedy answer beats the other's, ties "
    "counting one half, with a 95 % bootstrap interval over prompts. Every pair is judged in both orders.",
    "strict: the same comparison with scores under .3 counted as 0, so that a bad answer cannot win against "
    "a worse one.",
    "KL: estimate of KL(method ‖ reference), in nats a response token, from one answer a prompt sampled at "
    "temperature 1; KL/answer is its sum over an answer. The reference is the base, or the SFT model where a "
    "method starts from that (PPO). Help/harm/hon: mean helpful, harmless and honest scores.",
)


def write_report(
    course: Mapping[str, Any],
    runs: Mapping[str, str | Path],
    samples: Sequence[Mapping[str, Any]],
    output: str | Path,
) -> Path:
    """Write the report of a course run, atomically, and return its path.

    Args:
        course: what course.json holds; any field may be missing or None.
        runs: name → run directory, for curves and settings; the name is the algorithm's.
        samples: {"prompt", "family", "responses": {method: {"text", "total"}}} each.
        output: the HTML file.

    Raises:
        CourseError: if `output` is a directory.
    """
    target = Path(output)
    if target.is_dir():
        raise CourseError(
            f"{target} is a directory: name a file for the report, such as {target}/report.html"
        )
    html = template_environment().from_string(TEMPLATE).render(_context(course, runs, samples))
    write_text(target, clean_text(html))
    return target


def template_environment() -> jinja2.Environment:
    """Templates that escape whatever they are given."""
    return jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        finalize=lambda value: "" if value is None else value,
    )


def _context(
    course: Mapping[str, Any], runs: Mapping[str, str | Path], samples: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    methods = methods_of(course)
    header, rows = result_rows(course)
    return {
        "title": f"Alignment course, profile {course.get('profile') or 'unknown'}",
        "style": Markup(STYLE),
        "sections": SECTIONS,
        "summary": summary_line(course),
        "tiles": _tiles(course, methods),
        "facts": _facts(course),
        "header": _results_first(header),
        "rows": [_results_first(row) for row in rows],
        "reading": (*READING, *_judge_notes(course)),
        "method_plots": [
            _image(plots.win_rate_bars(methods)),
            _image(plots.hhh_bars(methods)),
            _image(plots.mean_tokens_bars(methods)),
        ],
        "families": _families(methods),
        "samples": [_sample(row, methods) for row in samples],
        "data_reports": _data_reports(course, runs),
        **_reward_context(course, runs),
        "runs": [_run(name, Path(path), course) for name, path in runs.items()],
        "command": course.get("command") or _command(course),
        "reproduce": _reproduce_notes(course, runs),
    }


def _results_first(row: list[str]) -> list[str]:
    # On a phone the last columns are out of sight, and the result is what one looks for.
    return [row[0], row[-1], row[-2], *row[1:-2]]


# ---------------------------------------------------------------------- head of the page
def _tiles(course: Mapping[str, Any], methods: Mapping[str, Mapping[str, Any]]) -> list[dict[str, str]]:
    tiles = []
    reward = reward_model_of(course)
    if reward:
        value = number(reward.get("pair_accuracy"))
        tiles.append(
            _tile("reward model", value, reward.get("threshold"), reward.get("passed"), "pair accuracy")
        )
    for name, row in methods.items():
        key = threshold_target(name, row)
        if number(row.get(key)) != DASH and name != "base":
            what = "win rate vs SFT" if key == "win_rate_vs_sft" else "win rate vs base"
            tiles.append(
                _tile(display_name(name), number(row.get(key)), row.get("threshold"), row.get("passed"), what)
            )
    return tiles


def _tile(name: str, value: str, threshold: Any, passed: Any, what: str) -> dict[str, str]:
    goal = f", needs {number(threshold)}" if number(threshold) != DASH else ""
    mark = {"passed": " ✓", "missed": " ✗"}.get(verdict(passed), "")
    return {"name": name, "value": value + mark, "state": verdict(passed), "note": what + goal}


def _facts(course: Mapping[str, Any]) -> list[tuple[str, str]]:
    facts = [
        ("Profile", course.get("profile")),
        ("Why this profile", course.get("reason")),
        ("Hardware", _flat(course.get("hardware"))),
        ("Model", course.get("model_name") or course.get("model")),
        ("Judge", _judge_name(course)),
        ("Seed", course.get("seed")),
        ("Held-out prompts", course.get("prompts")),
        ("Started", _moment(course.get("started"))),
        ("Finished", _moment(course.get("finished"))),
        ("Took", duration(course.get("seconds"))),
        ("Grade of the submission", _grade(course.get("grade"))),
        ("Versions", _flat(course.get("versions"))),
    ]
    return [(name, str(value)) for name, value in facts if value not in (None, "", DASH)]


def _grade(grade: Any) -> str:
    if not isinstance(grade, Mapping) or number(grade.get("score")) == DASH:
        return ""
    return f"{number(grade['score'], 1)} of {number(grade.get('max_score'), 1)} points"


def _flat(value: Any) -> str:
    """Write a mapping as "torch 2.13, peft 0.21"; other values as they are."""
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {item}" for name, item in value.items() if item is not None)
    return "" if value is None else str(value)


def _moment(value: Any) -> str:
    """Write seconds since 1970 as a UTC time; text stays as it is."""
    if isinstance(value, (int, float)) and 0 < number_or_nan(value) < 1e11:
        return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return "" if value is None else str(value)


def _judge_name(course: Mapping[str, Any]) -> str:
    judge = course.get("judge")
    name = judge.get("name", "") if isinstance(judge, Mapping) else judge or ""
    return f"{name} (a proxy, not ground truth)" if name and _is_proxy(course) else str(name)


def _is_proxy(course: Mapping[str, Any]) -> bool:
    judge = course.get("judge")
    if isinstance(judge, Mapping):
        return bool(judge.get("is_proxy"))
    return bool(course.get("is_proxy") or course.get("judge_is_proxy"))


def _judge_notes(course: Mapping[str, Any]) -> list[str]:
    notes = []
    if _is_proxy(course):
        notes.append(
            "The judge is a proxy: methods trained against it, or one like it, look better than they are."
        )
    notes += [f"{column} is left out: {reason}." for column, reason in (course.get("omitted") or {}).items()]
    unparsed = {name: row.get("unparsed") for name, row in methods_of(course).items() if row.get("unparsed")}
    if unparsed:
        counts = ", ".join(f"{display_name(name)} {count}" for name, count in unparsed.items())
        notes.append(f"Prompts without a readable verdict, left out of the rate: {counts}.")
    for name, row in methods_of(course).items():
        warning = (row.get("judged_vs_base") or {}).get("length_warning")
        notes += [f"{display_name(name)}: {warning}."] if warning else []
    return notes


# ---------------------------------------------------------------------- figures
def _image(figure: Figure | Skipped) -> dict[str, str]:
    if isinstance(figure, Skipped):
        return {"png": "", "reason": figure.reason, "alt": ""}
    title = figure.axes[0].get_title(loc="left").replace("\n", " ")
    return {"png": plots.figure_to_png_base64(figure), "reason": "", "alt": title}


def _reward_context(course: Mapping[str, Any], runs: Mapping[str, str | Path]) -> dict[str, Any]:
    reward = reward_model_of(course)
    chosen, rejected = reward.get("chosen_rewards"), reward.get("rejected_rewards")
    if not chosen and "reward_model" in runs:
        saved = _read(Path(runs["reward_model"]) / "eval_rewards.json")
        chosen, rejected = saved.get("chosen"), saved.get("rejected")
    pairs = reward.get("minimal_pairs") or {}
    return {
        "reward_line": reward_model_line(course),
        "reward_plots": [_image(plots.reward_histogram(chosen, rejected))],
        "minimal_pairs": [(name, number(value)) for name, value in pairs.items()],
    }


def _run(name: str, path: Path, course: Mapping[str, Any]) -> dict[str, Any]:
    config = _read(path / "config.json")
    metrics = plots.read_metrics(path / "metrics.csv")
    algo = str(config.get("algo") or name)
    threshold = reward_model_of(course).get("threshold")
    figures = plots.training_curves(metrics, algo, beta=config.get("beta"), threshold=threshold)
    return {
        "name": display_name(name),
        "plots": [_image(figure) for figure in figures.values()],
        "notes": _run_notes(path, metrics),
        "config": json.dumps(config, indent=2, ensure_ascii=False) if config else "",
    }


def _run_notes(path: Path, metrics: Mapping[str, plots.Series]) -> list[str]:
    if not path.is_dir():
        return [f"The run directory {path.name} does not exist, so there are no curves."]
    notes = []
    skipped = metrics.get("skipped_steps")
    if skipped is not None and len(skipped.values) and skipped.values[-1] > 0:
        notes.append(f"Update steps skipped because they were not finite: {skipped.values[-1]:.0f}.")
    if not (path / "finished.json").exists():
        notes.append("This run has not come to its end: --resume continues it.")
    return notes


def _data_reports(course: Mapping[str, Any], runs: Mapping[str, str | Path]) -> list[tuple[str, str]]:
    """The loading reports of the course or, where it has none, those that lie in the run directories."""
    given = course.get("data_reports")
    if given:
        return [(str(name), str(text)) for name, text in given.items()]
    found = []
    for name, path in runs.items():
        file = Path(path) / "data_report.txt"
        if file.is_file():
            found.append((display_name(name), file.read_text(encoding="utf-8", errors="replace").strip()))
    return found


def _read(path: Path) -> dict[str, Any]:
    """Read a JSON object; a missing or torn file is an empty one, for a report must not fail on it."""
    try:
        value = read_json(path)
    except CourseError:
        return {}
    return value if isinstance(value, dict) else {}


# ---------------------------------------------------------------------- families and samples
def heat(score: float) -> str:
    """Return a background for a score in [0, 1]: orange through white to blue, readable under black text."""
    low, middle, high = (245, 176, 120), (250, 247, 240), (140, 196, 232)
    share = min(max(score, 0.0), 1.0)
    start, end, part = (low, middle, share * 2) if share < 0.5 else (middle, high, share * 2 - 1)
    red, green, blue = (round(a + (b - a) * part) for a, b in zip(start, end, strict=True))
    return f"#{red:02x}{green:02x}{blue:02x}"


def _families(methods: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    scored = {name: row["by_family"] for name, row in methods.items() if row.get("by_family")}
    families = sorted({family for table in scored.values() for family in table})
    rows = []
    for family in families:
        cells = [table.get(family) or {} for table in scored.values()]
        counts = {str(cell["n"]) for cell in cells if cell.get("n") is not None}
        rows.append(
            {
                "family": family.replace("_", " "),
                "n": "/".join(sorted(counts)) or DASH,
                "cells": [*map(_family_cell, cells)],
            }
        )
    return {"methods": [display_name(name) for name in scored], "rows": rows}


def _family_cell(cell: Mapping[str, Any]) -> dict[str, str]:
    text = number(cell.get("total"))
    parts = [f"{part} {number(cell[part])}" for part in ("helpful", "harmless", "honest") if part in cell]
    colour = heat(number_or_nan(cell.get("total"))) if text != DASH else ""
    return {"text": text, "colour": colour, "detail": ", ".join(parts)}


def _sample(row: Mapping[str, Any], methods: Mapping[str, Any]) -> dict[str, Any]:
    responses = row.get("responses") or {}
    order = [name for name in methods if name in responses]
    order += [name for name in responses if name not in methods]
    return {
        "prompt": row.get("prompt") or "",
        "family": str(row.get("family") or "no family").replace("_", " "),
        "answers": [_answer(name, responses[name]) for name in order],
    }


def _answer(method: str, response: Any) -> dict[str, str]:
    response = response if isinstance(response, Mapping) else {"text": response}
    score = number(response.get("total"))
    known = score != DASH
    text = response.get("text")
    return {
        "method": display_name(method),
        "text": "(no answer)" if text is None else str(text) or "(empty)",
        "score": score if known else "",
        "colour": heat(number_or_nan(response.get("total"))) if known else "",
    }


# ---------------------------------------------------------------------- reproduction
def _command(course: Mapping[str, Any]) -> str:
    parts = ["python -m helpers course"]
    parts += [f"--profile {course['profile']}"] if course.get("profile") else []
    parts += [f"--seed {course['seed']}"] if course.get("seed") is not None else []
    return " ".join(parts)


def _reproduce_notes(course: Mapping[str, Any], runs: Mapping[str, str | Path]) -> list[str]:
    notes = [
        "The same seed gives the same run on the same machine with the versions above; another machine or "
        "number of threads may round differently.",
    ]
    if runs:
        places = ", ".join(f"{display_name(name)} in {Path(path).name}" for name, path in runs.items())
        notes.append(f"Run directories, each with its config.json: {places}.")
    truncated = {n: row.get("truncated_share") for n, row in methods_of(course).items()}
    cut = [f"{display_name(n)} {percent(v)}" for n, v in truncated.items() if number_or_nan(v) > 0]
    if cut:
        notes.append(f"Answers cut off by the token budget: {', '.join(cut)}.")
    return notes
