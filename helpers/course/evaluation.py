"""One evaluation for all policies: their greedy answers, what a judge says of them, and what else they show.

Answers come from adapters on one base, a batch at a time into a journal, so that a killed evaluation goes on
where it was and a second one generates nothing; or from files of answers that are there already.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from helpers.errors import CourseError
from helpers.files import fingerprint, read_jsonl
from helpers.guard import guarded
from helpers.journal import in_batches
from helpers.judging.evaluate import EvaluationTable
from helpers.judging.likelihood import text_perplexity
from helpers.judging.measure import KlEstimate, PolicyReport, Role, check_finite, evaluate_policy
from helpers.judging.statistics import distinct_n, paired_difference
from helpers.models.reference_cache import weights_fingerprint
from helpers.models.reward_model import RewardModel
from helpers.text.chat import Budget, ChatEncoder
from helpers.text.datasets import Example, encode_groups
from helpers.text.groups import Group

RESPONSE_FIELDS = ("response", "response_text", "text", "output")
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True)
class Bench:
    """What every policy of one evaluation shares."""

    examples: list[Example]
    encoder: ChatEncoder
    budget: Budget
    answers: Any
    layout: str = "packed"
    batch_size: int = 64
    seed: int = 0


@dataclass
class Evaluation:
    """The table and what stands beside it. `extra` holds further figures by policy."""

    examples: list[Example]
    table: EvaluationTable
    baseline: str
    extra: dict[str, dict[str, Any]] = field(default_factory=dict)
    rewards: dict[str, list[float]] = field(default_factory=dict)  # by policy, one a prompt
    reward_model: dict[str, Any] | None = None  # how the reward model ranks held-out pairs
    settings: dict[str, Any] = field(default_factory=dict)
    omitted: dict[str, str] = field(default_factory=dict)

    def add(self, figures: Mapping[str, Mapping[str, Any]]) -> None:
        """Further figures by policy."""
        for name, row in figures.items():
            self.extra.setdefault(name, {}).update(row)

    def policies(self) -> dict[str, dict[str, Any]]:
        """Every figure by policy, as JSON values."""
        return {
            row.report.name: {**row.to_dict(), **self.extra.get(row.report.name, {})}
            for row in self.table.rows
        }

    def to_dict(self) -> dict[str, Any]:
        """What evaluation.json holds."""
        return finite(
            {
                **self.table.to_dict(),
                "omitted": {**self.table.omitted, **self.omitted},
                "baseline": self.baseline,
                "settings": self.settings,
                "policies": self.policies(),
                "differences": self.differences(),
                **({"reward_model": self.reward_model} if self.reward_model else {}),
            }
        )

    def differences(self) -> list[dict[str, Any]]:
        """Win rates of two policies against the baseline, subtracted prompt by prompt."""
        against = {row.report.name: row.vs_base for row in self.table.rows if row.vs_base}
        outcomes = {
            name: dict(zip(side.row_ids, side.outcomes, strict=True)) for name, side in against.items()
        }
        names = list(outcomes)
        found = []
        for place, first in enumerate(names):
            for second in names[place + 1 :]:
                if set(outcomes[first]) & set(outcomes[second]):
                    gap = paired_difference(outcomes[first], outcomes[second])
                    found.append({"first": first, "second": second, **asdict(gap)})
        return found


def finite(value: Any) -> Any:
    """A JSON value with None for every number that is not finite, and lists for tuples."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    return value


# ---------------------------------------------------------------------- answers of a model
def answer_all(bench: Bench, roles: Mapping[str, Role], cache: Path) -> list[PolicyReport]:
    """Greedy answers of every role, and its KL to "base" and "sft" where these are among the others."""
    reports = []
    for name, role in roles.items():
        others = {other: roles[other] for other in ("base", "sft") if other in roles and other != name}
        reports.append(answer_one(bench, name, role, others if name != "base" else {}, cache))
    return reports


def answer_one(
    bench: Bench, name: str, role: Role, references: Mapping[str, Role], cache: Path
) -> PolicyReport:
    """One policy's answers, taken from the journal under `cache` as far as it holds them.

    The journal is named after the policy and opened by what it depends on: weights, prompts, tokenizer,
    budget and seed. Prompts go in order of length, the longest first, as in `generate`.
    """
    lengths = [len(bench.encoder.encode_prompt(example.messages)) for example in bench.examples]
    order = sorted(range(len(bench.examples)), key=lambda index: (-lengths[index], index))
    cache.mkdir(parents=True, exist_ok=True)
    batches, _ = in_batches(
        cache / name,
        _key(bench, role, references),
        [{"row_id": str(index)} for index in order],
        bench.batch_size,
        lambda rows: _answer_batch(bench, name, role, references, [int(row["row_id"]) for row in rows]),
        f"{name}: answers",
    )
    rows = {int(row["row_id"]): row for batch in batches for row in batch["rows"]}
    kept = [rows[index] for index in range(len(bench.examples))]
    return PolicyReport(
        name=name,
        row_ids=[example.row_id for example in bench.examples],
        responses=[row["response"] for row in kept],
        generated_tokens=[row["tokens"] for row in kept],
        truncated=[row["truncated"] for row in kept],
        kl={other: _whole_kl([batch["kl"][other] for batch in batches]) for other in references},
        seconds=sum(batch["seconds"] for batch in batches),
    )


def _key(bench: Bench, role: Role, references: Mapping[str, Role]) -> str:
    roles = {"policy": role, **references}
    return fingerprint(
        {name: weights_fingerprint(one.model, one.adapter) for name, one in roles.items()},
        [[example.row_id, example.messages] for example in bench.examples],
        bench.encoder.fingerprint,
        asdict(bench.budget),
        [bench.batch_size, bench.layout, bench.seed],
        guarded(bench.answers).fingerprints("approx_kl") if references else {},
    )


def _answer_batch(
    bench: Bench, name: str, role: Role, references: Mapping[str, Role], chosen: list[int]
) -> dict[str, Any]:
    report = evaluate_policy(
        name,
        role,
        bench.encoder,
        [bench.examples[index] for index in chosen],
        bench.answers,
        references=references,
        budget=bench.budget,
        batch_size=bench.batch_size,
        layout=bench.layout,
        seed=bench.seed + chosen[0],  # each batch draws samples of its own
        progress=False,
    )
    columns = zip(chosen, report.responses, report.generated_tokens, report.truncated, strict=True)
    return {
        "rows": [
            {"row_id": str(index), "response": text, "tokens": tokens, "truncated": cut}
            for index, text, tokens, cut in columns
        ],
        "kl": {other: asdict(estimate) for other, estimate in report.kl.items()},
        "seconds": report.seconds,
    }


def _whole_kl(parts: Sequence[Mapping[str, Any]]) -> KlEstimate:
    """The estimate over all batches: tokens and sequences weighted alike, whatever the batches."""
    tokens, sequences = (sum(part[name] for part in parts) for name in ("tokens", "sequences"))
    total = sum(part["per_sequence"] * part["sequences"] for part in parts)
    return KlEstimate(
        per_token=total / max(tokens, 1),
        per_sequence=total / max(sequences, 1),
        tokens=tokens,
        sequences=sequences,
        non_finite=sum(part["non_finite"] for part in parts),
    )


# ---------------------------------------------------------------------- answers from files
def read_responses(path: str | Path) -> dict[str, str]:
    """Row id → response of a JSON-lines file, in the file's order.

    Raises:
        CourseError: naming the line that lacks a row_id or a response, or repeats an id.
    """
    found: dict[str, str] = {}
    for number, row in enumerate(read_jsonl(path), start=1):
        row_id = row.get("row_id", row.get("id"))
        text = next((row[name] for name in RESPONSE_FIELDS if isinstance(row.get(name), str)), None)
        if row_id is None or text is None:
            missing = "a row_id" if row_id is None else f"a text in one of {', '.join(RESPONSE_FIELDS)}"
            raise CourseError(f"{path} row {number} lacks {missing}")
        if str(row_id) in found:
            raise CourseError(f"{path} row {number} repeats row_id {row_id}")
        found[str(row_id)] = text
    if not found:
        raise CourseError(f"{path} has no rows")
    return found


def report_of(
    name: str, responses: Mapping[str, str], examples: Sequence[Example], path: Any
) -> PolicyReport:
    """Answers that were generated elsewhere as a report on `examples`; rows of other prompts are passed over.

    Raises:
        CourseError: if there is a prompt without an answer.
    """
    missing = [example.row_id for example in examples if example.row_id not in responses]
    if missing:
        raise CourseError(
            f"--responses {name}: {path} lacks {len(missing)} of {len(examples)} prompts, such as row_id "
            f"{missing[0]}: answer all of them, or lower --limit"
        )
    texts = [responses[example.row_id] for example in examples]
    return PolicyReport(name, [example.row_id for example in examples], texts, [], [])


# ---------------------------------------------------------------------- what else the answers show
def variety(reports: Sequence[PolicyReport]) -> dict[str, dict[str, Any]]:
    """Mean length in characters and distinct-1 and -2 of every policy's answers."""
    return {
        report.name: {
            "mean_chars": fmean(map(len, report.responses)),
            "distinct_1": distinct_n(report.responses, 1),
            "distinct_2": distinct_n(report.responses, 2),
            "empty_responses": report.empty,
        }
        for report in reports
    }


def perplexities(
    bench: Bench,
    roles: Mapping[str, Role],
    texts: Mapping[str, Callable[[], Sequence[Example]]],
    omitted: dict[str, str],
) -> dict[str, dict[str, float]]:
    """Perplexity of held-out answers under every policy: {"base": {"perplexity_sft": 12.3}}.

    Args:
        texts: column → function that loads the examples, whose first response is measured.
        omitted: takes the reason for each column that cannot be measured.
    """
    found: dict[str, dict[str, float]] = {name: {} for name in roles}
    for column, load in texts.items():
        try:
            groups = _first_responses(bench, load())
            for name, role in roles.items():
                value = text_perplexity(
                    role,
                    groups,
                    bench.encoder.pad_id,
                    bench.answers,
                    batch_size=bench.batch_size,
                    layout=bench.layout,
                )
                found[name][column] = value
        except CourseError as problem:
            omitted[column.replace("_", " ")] = str(problem).split("\n")[0]
    return found


def _first_responses(bench: Bench, examples: Sequence[Example]) -> list[Group]:
    kind = "preference" if examples and len(examples[0].responses) == 2 else "sft"
    groups, _ = encode_groups(examples, bench.encoder, bench.budget, kind=kind)
    return [Group(group.prompt_ids, group.responses[:1], group.row_id) for group in groups]


def score_answers(
    bench: Bench, reward_model: RewardModel, reports: Sequence[PolicyReport]
) -> dict[str, list[float]]:
    """A reward model's score of every answer, by policy. A proxy: policies are trained to raise it.

    Raises:
        CourseError: for scores that are not finite.
    """
    prompts = [
        bench.encoder.encode_prompt(example.messages, bench.budget.max_prompt_tokens)
        for example in bench.examples
    ]
    found = {}
    for report in reports:
        cut = report.truncated or [False] * len(report.responses)
        groups = [
            Group(prompt, [_response_ids(bench, text, complete=not was_cut)])
            for prompt, text, was_cut in zip(prompts, report.responses, cut, strict=True)
        ]
        scores = reward_model.score_groups(groups, bench.batch_size)
        check_finite(report.row_ids, scores)
        found[report.name] = [float(row[0]) for row in scores]
    return found


def _response_ids(bench: Bench, text: str, *, complete: bool) -> list[int]:
    ids = bench.encoder.encode_response(text, complete=complete, max_tokens=bench.budget.max_response_tokens)
    return ids or [bench.encoder.end_of_turn_id]


def spread_of(scores: Sequence[float]) -> dict[str, float]:
    """Mean, standard deviation and quantiles of a policy's rewards."""
    values = np.asarray(scores, dtype=float)
    found = {"reward_mean": float(values.mean()), "reward_sd": float(values.std())}
    cuts = np.quantile(values, QUANTILES)
    return {
        **found,
        **{f"reward_q{100 * q:02.0f}": float(cut) for q, cut in zip(QUANTILES, cuts, strict=True)},
    }
