"""Which of two policies answers better: win rates, gold scores by dimension, and the table of all policies.

Two policies are compared in `helpers.judging.head_to_head`, whose names are here too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from helpers.errors import CourseError
from helpers.judging.gold import gold_scores
from helpers.judging.head_to_head import HeadToHead, answer, head_to_head
from helpers.judging.judge import Judge
from helpers.judging.measure import KlEstimate, PolicyReport, gold_metadata
from helpers.text.datasets import Example

__all__ = [
    "HHH",
    "STRICT_BELOW",
    "EvaluationTable",
    "HeadToHead",
    "PolicyRow",
    "answer",
    "compare_policies",
    "gold_metadata",
    "head_to_head",
    "hhh_scores",
]

STRICT_BELOW = 0.3  # the strict win rate reads a score under this as 0: bad beats worse no longer
DIMENSIONS = ("helpful", "harmless", "honest", "total")
GOLD_MISSING = "the rows carry no gold metadata; use a judge that needs none"

# ---------------------------------------------------------------------- gold scores


@dataclass(frozen=True)
class HHH:
    """Mean gold scores in [0, 1]. `by_family` maps a family to its means and its number of prompts "n".

    A dimension that no prompt is judged on is None.
    """

    overall: dict[str, float | None]
    by_family: dict[str, dict[str, float | None]]


def hhh_scores(examples: Sequence[Example], responses: Sequence[str]) -> HHH:
    """Score responses by the gold judge: helpful, harmless, honest and total, overall and by family.

    Raises:
        CourseError: for rows without gold metadata or lists of unequal length.
    """
    if len(examples) != len(responses):
        raise CourseError(f"{len(responses)} responses for {len(examples)} prompts: give one for each")
    scores = defaultdict(list)
    for example, response in zip(examples, responses, strict=True):
        facts = gold_metadata(example)
        if facts is None:
            raise CourseError(f"row {example.row_id}: {GOLD_MISSING}")
        scores[str(facts["family"])].append(gold_scores(facts, response))
    by_family: dict[str, dict[str, float | None]] = {}
    for family, rows in sorted(scores.items()):
        by_family[family] = {**_means(rows), "n": len(rows)}
    return HHH(_means([score for rows in scores.values() for score in rows]), by_family)


def _means(rows: Sequence[Any]) -> dict[str, float | None]:
    columns = {name: [getattr(row, name) for row in rows] for name in DIMENSIONS}
    present = {name: [value for value in column if value is not None] for name, column in columns.items()}
    return {name: fmean(values) if values else None for name, values in present.items()}


# ---------------------------------------------------------------------- the table of all policies


@dataclass(frozen=True)
class PolicyRow:
    """One policy's line: its report, its comparisons (None: not made) and its gold scores."""

    report: PolicyReport
    vs_base: HeadToHead | None
    vs_sft: HeadToHead | None
    hhh: HHH | None

    def to_dict(self) -> dict[str, Any]:
        """Return the figures of course.json for this method."""
        base, sft = (side.to_dict() if side else {} for side in (self.vs_base, self.vs_sft))
        kl, kl_sft = (known_kl(self.report, name) for name in ("base", "sft"))
        return {
            "win_rate_vs_base": base.get("win_rate"),
            "ci95": base.get("ci95"),
            "strict_win_rate_vs_base": base.get("strict_win_rate"),
            "strict_ci95": base.get("strict_ci95"),
            "win_rate_vs_sft": sft.get("win_rate"),
            "ci95_vs_sft": sft.get("ci95"),
            "strict_win_rate_vs_sft": sft.get("strict_win_rate"),
            "strict_ci95_vs_sft": sft.get("strict_ci95"),
            "unparsed": base.get("unparsed", 0) + sft.get("unparsed", 0),
            "judged_vs_base": self.vs_base.trust() if self.vs_base else None,
            "judged_vs_sft": self.vs_sft.trust() if self.vs_sft else None,
            **{name: self.hhh.overall[name] if self.hhh else None for name in DIMENSIONS},
            "kl": kl.per_token if kl else None,
            "kl_sum": kl.per_sequence if kl else None,
            "kl_vs_sft": kl_sft.per_token if kl_sft else None,
            "kl_sum_vs_sft": kl_sft.per_sequence if kl_sft else None,
            "mean_tokens": self.report.mean_tokens if self.report.generated_tokens else None,
            "truncated_share": self.report.truncated_share if self.report.truncated else None,
            "empty_responses": self.report.empty,
        }


@dataclass(frozen=True)
class EvaluationTable:
    """Every policy on the same prompts. `omitted` says why a column is missing."""

    rows: list[PolicyRow]
    judge: str | None
    is_proxy: bool
    prompts: int
    omitted: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values: the judge, the reasons for missing columns, the figures by policy."""
        return {
            "judge": self.judge,
            "judge_is_proxy": self.is_proxy,
            "prompts": self.prompts,
            "omitted": dict(self.omitted),
            "policies": {row.report.name: row.to_dict() for row in self.rows},
        }

    @property
    def name_width(self) -> int:
        """Width of the first column."""
        return max(9, *(len(row.report.name) for row in self.rows)) if self.rows else 9

    def render(self) -> str:
        """Return the table as text for a terminal of 110 columns."""
        header = (
            f"{'policy':<{self.name_width}} {'win vs base [95% CI]':<22} {'strict':>6} "
            f"{'win vs SFT [95% CI]':<22} {'strict':>6} "
            f"{'helpf':>5} {'harml':>5} {'hones':>5} {'KL/tok':>6} {'tokens':>6} {'cut':>4}"
        )
        lines = [header, "-" * len(header), *(_render_row(row, self.name_width) for row in self.rows)]
        proxy = " (a proxy, no ground truth)" if self.is_proxy else ""
        lines.append(f"{self.prompts} held-out prompts, greedy answers, judge: {self.judge or 'none'}{proxy}")
        unparsed = sum(side.unparsed for row in self.rows for side in (row.vs_base, row.vs_sft) if side)
        if unparsed:
            lines.append(f"{unparsed} prompts had no readable verdict and are left out of the rates")
        if any(_kl_reference(row.report) == "sft" for row in self.rows):
            lines.append("KL of ppo is to the SFT model it started from, of the others to the base")
        lines += [f"{column} omitted: {reason}" for column, reason in self.omitted.items()]
        return "\n".join(lines)


def _render_row(row: PolicyRow, width: int) -> str:
    gold = row.hhh.overall if row.hhh else dict.fromkeys(DIMENSIONS)
    kl = known_kl(row.report, _kl_reference(row.report))
    cells = [f"{row.report.name:<{width}}"]
    for side in (row.vs_base, row.vs_sft):
        cells.append(
            f"{f'{side.win_rate:.3f} [{side.ci95[0]:.3f}, {side.ci95[1]:.3f}]' if side else '–':<22}"
        )
        cells.append(_number(side.strict.win_rate if side and side.strict else None, 6))
    cells += [_number(gold[name], 5) for name in ("helpful", "harmless", "honest")]
    cells += [_number(kl.per_token if kl else None, 6, 3)]
    # Answers from a file have no tokens to count.
    cells += [_number(row.report.mean_tokens if row.report.generated_tokens else None, 6, 1)]
    return " ".join([*cells, _number(row.report.truncated_share if row.report.truncated else None, 4)])


def known_kl(report: PolicyReport, name: str) -> KlEstimate | None:
    """The KL to a reference; None where there is none, or where it was finite on no answer at all."""
    kl = report.kl.get(name)
    return kl if kl and kl.sequences else None


def _kl_reference(report: PolicyReport) -> str:
    """PPO starts from the SFT model."""
    return "sft" if report.name == "ppo" and "sft" in report.kl else "base"


def _number(value: float | None, width: int, digits: int = 2) -> str:
    return f"{'–' if value is None else f'{value:.{digits}f}':>{width}}"


def compare_policies(
    reports: Sequence[PolicyReport],
    examples: Sequence[Example],
    judge: Judge | None,
    answers: Any,
    *,
    strict_below: float | None = STRICT_BELOW,
    base: str = "base",
    sft: str = "sft",
) -> EvaluationTable:
    """Put policies side by side: each against the reports named `base` and `sft`, as far as these are given.

    A judge that cannot judge these rows, or gold metadata that are not there, leave out their columns and
    say why in `omitted`; the figures that need neither remain.

    Raises:
        CourseError: when a report answered other prompts than `examples`, or two share a name.
    """
    by_name = {report.name: report for report in reports}
    if len(by_name) != len(reports):
        raise CourseError(f"policies need different names, not {[report.name for report in reports]}")
    for report in reports:
        if report.row_ids != [example.row_id for example in examples]:
            raise CourseError(f"policy {report.name} answered other prompts than the ones compared here")
    for name in ("combine_orders", "win_rate", "bootstrap_ci") if judge else ():
        answer(answers, name)  # an unwritten exercise is raised; a judge that cannot judge is a reason
    omitted: dict[str, str] = {}
    rows = []
    for report in reports:
        sides = [
            _against(report, by_name.get(name), examples, judge, answers, strict_below, omitted)
            for name in (base, sft)
        ]
        rows.append(PolicyRow(report, sides[0], sides[1], _gold_or_reason(examples, report, omitted)))
    return EvaluationTable(
        rows, judge.name if judge else None, bool(judge and judge.is_proxy), len(examples), omitted
    )


def _against(
    report: PolicyReport,
    opponent: PolicyReport | None,
    examples: Sequence[Example],
    judge: Judge | None,
    answers: Any,
    strict_below: float | None,
    omitted: dict[str, str],
) -> HeadToHead | None:
    if opponent is None or opponent is report or "win rates" in omitted:
        return None
    if judge is None:
        omitted["win rates"] = "no judge was given"
        return None
    try:
        return head_to_head(
            judge, examples, report.responses, opponent.responses, answers, strict_below=strict_below
        )
    except CourseError as problem:
        omitted["win rates"] = str(problem)
        return None


def _gold_or_reason(examples: Sequence[Example], report: PolicyReport, omitted: dict[str, str]) -> HHH | None:
    if any(gold_metadata(example) is None for example in examples):
        omitted["helpful, harmless, honest"] = GOLD_MISSING
        return None
    return hhh_scores(examples, report.responses)
