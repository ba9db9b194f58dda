"""What an evaluation leaves behind: figures as JSON, tables to read and to load, a line for each prompt."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from helpers.course.evaluation import Evaluation, finite
from helpers.course.evaluation_plots import evaluation_figures, save_figures
from helpers.course.tables import DASH, number, rate
from helpers.files import write_json, write_jsonl, write_text

Cell = Callable[[Mapping[str, Any]], str]


def judged(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is known of the comparison with the baseline; {} for the baseline itself."""
    return row.get("judged_vs_base") or {}


def _count(row: Mapping[str, Any], key: str) -> str:
    return number(row.get(key), 0)


COLUMNS: dict[str, Cell] = {
    "win rate": lambda row: rate(row, "win_rate_vs_base", "ci95"),
    "at equal length": lambda row: _flagged(judged(row)),
    "where both agree": lambda row: _agreed(judged(row)),
    "consistent": lambda row: number(judged(row).get("consistency")),
    "first place": lambda row: number(judged(row).get("first_position_rate")),
    "vs SFT": lambda row: rate(row, "win_rate_vs_sft", "ci95_vs_sft"),
    "KL/token": lambda row: number(row.get("kl"), 3),
    "tokens": lambda row: number(row.get("mean_tokens"), 1),
    "chars": lambda row: _count(row, "mean_chars"),
    "helpful/harmless/honest": lambda row: "/".join(
        number(row.get(part)) for part in ("helpful", "harmless", "honest")
    ),
    "rubric help/harm/hon": lambda row: "/".join(
        number(row.get(f"rubric_{part}"), 1) for part in ("helpful", "harmless", "honest")
    ),
    "perplexity SFT": lambda row: number(row.get("perplexity_sft")),
    "perplexity chosen": lambda row: number(row.get("perplexity_chosen")),
    "distinct-2": lambda row: number(row.get("distinct_2")),
    "reward": lambda row: number(row.get("reward_mean")),
}
TRUST = ("at equal length", "where both agree", "consistent", "first place", "chars")
TEXTS = ("rubric help/harm/hon", "perplexity SFT", "perplexity chosen", "distinct-2", "reward")


def _flagged(row: Mapping[str, Any]) -> str:
    text = rate(row, "length_controlled", "length_controlled_ci95")
    return f"{text} !" if row.get("length_warning") else text


def _agreed(row: Mapping[str, Any]) -> str:
    text = number(row.get("agreement_win_rate"))
    return text if row.get("agreement_n") is None else f"{text} of {row['agreement_n']}"


# ---------------------------------------------------------------------- text
def table_rows(
    policies: Mapping[str, Mapping[str, Any]], columns: Sequence[str] = tuple(COLUMNS)
) -> tuple[list[str], list[list[str]]]:
    """Header and one row a policy; columns that are empty for every policy are left out."""
    cells = {name: [COLUMNS[name](row) for row in policies.values()] for name in columns}
    kept = [name for name, column in cells.items() if any(set(text) - set(f"{DASH}/") for text in column)]
    return ["policy", *kept], [
        [name, *(cells[column][index] for column in kept)] for index, name in enumerate(policies)
    ]


def render_text(evaluation: Evaluation) -> str:
    """The table of policies, then what tells how far it can be believed, for a terminal."""
    policies = evaluation.policies()
    lines = [evaluation.table.render()]
    for columns in (TRUST, TEXTS):
        header, rows = table_rows(policies, columns)
        if len(header) > 1:
            widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
            lines += [""]
            lines += [
                "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
                for row in (header, *rows)
            ]
    return "\n".join([*lines, *notes(evaluation)])


def notes(evaluation: Evaluation) -> list[str]:
    """Warnings, and reasons for what is missing."""
    found = []
    for name, row in evaluation.policies().items():
        if judged(row).get("length_warning"):
            found.append(f"! {name}: {judged(row)['length_warning']}")
        left = {reason: count for reason, count in (judged(row).get("left_out") or {}).items() if count}
        if left:
            counts = ", ".join(f"{count} {reason}" for reason, count in left.items())
            found.append(f"{name}: prompts left out of the rate: {counts}")
    return [*found, *(f"{what} omitted: {reason}" for what, reason in evaluation.omitted.items())]


def markdown(evaluation: Evaluation) -> str:
    """The whole table in Markdown, with the differences between policies and the notes."""
    header, rows = table_rows(evaluation.policies())
    table = evaluation.table
    proxy = " (a proxy, no ground truth)" if table.is_proxy else ""
    lines = ["# Evaluation", ""]
    judge = f"judge: {table.judge or 'none'}{proxy}"
    lines += [f"{table.prompts} prompts, {judge}, baseline: {evaluation.baseline}."]
    lines += [
        "Intervals are 95 % bootstrap intervals over prompts; docs/methods.md explains the columns.",
        "",
    ]
    lines += _markdown_table(header, rows)
    gaps = evaluation.differences()
    if gaps:
        lines += ["", "Win rates of two policies, subtracted prompt by prompt:", ""]
        lines += _markdown_table(
            ["first", "second", "difference", "prompts"],
            [[gap["first"], gap["second"], rate(gap, "value", "ci95"), str(gap["n"])] for gap in gaps],
        )
    found = [*notes(evaluation), *(f"{what} omitted: {why}" for what, why in table.omitted.items())]
    return "\n".join([*lines, "", *(f"- {note}" for note in found)]).rstrip() + "\n"


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


# ---------------------------------------------------------------------- files
def csv_table(policies: Mapping[str, Mapping[str, Any]]) -> str:
    """Every figure by policy, one column each, with nested names joined by dots; for a spreadsheet."""
    flat = {name: _flat(row) for name, row in policies.items()}
    columns = list(dict.fromkeys(key for row in flat.values() for key in row))
    nested = {column.rsplit(".", depth)[0] for column in columns for depth in range(1, column.count(".") + 1)}
    columns = [column for column in columns if column not in nested]  # None where others have parts
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["policy", *columns])
    writer.writerows([name, *(row.get(column, "") for column in columns)] for name, row in flat.items())
    return stream.getvalue()


def _flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in row.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            found |= _flat(value, f"{name}.")
        elif isinstance(value, (list, tuple)):
            found |= {f"{name}.{place}": item for place, item in zip(("low", "high"), value, strict=False)}
        else:
            found[name] = value
    return found


def outcome_rows(evaluation: Evaluation) -> list[dict[str, Any]]:
    """One line a prompt, policy and opponent, with the verdicts of both orders as the judge gave them.

    The outcome is 1, 0.5 or 0, and None where there was no readable verdict. In "policy_first" the policy
    was shown as A, in "policy_second" as B.
    """
    rows = []
    for row in evaluation.table.rows:
        for opponent, side in ((evaluation.baseline, row.vs_base), ("sft", row.vs_sft)):
            if side is None:
                continue
            known = dict(zip(side.row_ids, side.outcomes, strict=True))
            rows += [
                {
                    "row_id": row_id,
                    "policy": row.report.name,
                    "opponent": opponent,
                    "outcome": known.get(row_id),
                    "policy_first": finite(asdict(first)),
                    "policy_second": finite(asdict(second)),
                }
                for row_id, (first, second) in zip(row.report.row_ids, side.verdicts, strict=True)
            ]
    return rows


def response_rows(evaluation: Evaluation, name: str) -> list[dict[str, Any]]:
    """One line a prompt of one policy: what `--responses` reads."""
    report = next(row.report for row in evaluation.table.rows if row.report.name == name)
    rewards = evaluation.rewards.get(name)
    return [
        {
            "row_id": example.row_id,
            "prompt_messages": list(example.messages),
            "response_text": text,
            **({"metadata": example.metadata["metadata"]} if "metadata" in example.metadata else {}),
            **({"tokens": report.generated_tokens[place]} if report.generated_tokens else {}),
            **({"reward": rewards[place]} if rewards else {}),
        }
        for place, (example, text) in enumerate(zip(evaluation.examples, report.responses, strict=True))
    ]


def write_evaluation(evaluation: Evaluation, folder: Path) -> list[str]:
    """Write everything into `folder`; returns the lines that say what is there."""
    figures = evaluation.to_dict()
    drawn = evaluation_figures(figures, evaluation.rewards)
    figures["figures_omitted"] = save_figures(drawn, folder / "figures")
    write_json(folder / "evaluation.json", json.loads(json.dumps(figures)))
    write_text(folder / "table.md", markdown(evaluation))
    write_text(folder / "table.csv", csv_table(figures["policies"]))
    write_jsonl(folder / "outcomes.jsonl", outcome_rows(evaluation))
    for name in figures["policies"]:
        write_jsonl(folder / "responses" / f"{name}.jsonl", response_rows(evaluation, name))
    count = len(drawn) - len(figures["figures_omitted"])
    return [f"{folder}: evaluation.json, table.md, table.csv, outcomes.jsonl, responses/, {count} figures"]
