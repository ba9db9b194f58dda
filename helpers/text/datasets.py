"""Load data sets of many formats into one schema, with a report of all that was dropped.

`load_examples` reads text; `encode_groups` turns it into token ids under the benchmark's budgets.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

from tqdm.auto import tqdm

from helpers.errors import CourseError
from helpers.text.chat import Budget, ChatEncoder
from helpers.text.formats import FORMATS, ID_FIELDS, KINDS, Example, Format, RowError
from helpers.text.groups import Group
from helpers.text.report import LoadReport
from helpers.text.rows import SourceRow
from helpers.text.sources import find_source, read_source, splits_of
from helpers.text.trees import NAME as TREES
from helpers.text.trees import is_tree_row, tree_examples

__all__ = ["Example", "LoadReport", "Loaded", "encode_groups", "load_examples", "report_source"]

SAMPLE = 100  # rows looked at to detect a format
LENGTH_NAMES = {"preference": ("chosen", "rejected"), "sft": ("response",), "prompts": ()}


@dataclass(frozen=True)
class Loaded:
    """Usable examples, in the order of the source, and what became of the rest."""

    examples: list[Example]
    report: LoadReport


def load_examples(
    source: str | Path,
    *,
    split: str | None = None,
    kind: str,
    limit: int | None = None,
    seed: int = 0,
    format: str | None = None,
) -> Loaded:
    """Load `source`: a file, a directory with a split, or a hub id (`owner/name`, or `owner/name:config`).

    `kind` is "preference", "sft" or "prompts". The format is detected from the rows' fields unless named.
    `limit` takes a random sample by `seed`, in the order of the source. Raises CourseError if the source
    cannot be found, holds nothing of that kind, or has no usable row; then the report is in the message.
    """
    if kind not in KINDS:
        raise CourseError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
    if limit is not None and limit < 1:
        raise CourseError(f"limit must be at least 1, not {limit}")
    rows = list(read_source(source, split))
    name = format or detect_format(rows, find_source(source, split))
    report = LoadReport(str(source), name, kind, split, read=len(rows))
    unique = _distinct_rows(rows, report)
    examples = _parse(unique, name, kind, report)
    if not examples:
        raise CourseError(f"no usable row in {source}:\n{report.render()}")
    _count_duplicates(examples, report)
    if limit is not None and limit < len(examples):
        report.not_taken = len(examples) - limit
        chosen = sorted(random.Random(seed).sample(range(len(examples)), limit))
        examples = [examples[place] for place in chosen]
    report.kept = len(examples)
    _measure_characters(examples, kind, report)
    return Loaded(examples, report)


def detect_format(rows: Sequence[SourceRow], source: str) -> str:
    """Name of the format that most of the first rows have; none at all raises CourseError."""
    votes: dict[str, int] = {}
    fields: set[str] = set()
    for row in [row for row in rows if row.data is not None][:SAMPLE]:
        fields |= set(row.data or {})
        name = _format_of(row.data or {})
        if name:
            votes[name] = votes.get(name, 0) + 1
    if votes:
        return max(votes, key=lambda name: votes[name])
    known = "; ".join(f"{known.name}: {known.fields}" for known in FORMATS)
    if not fields:
        bad = "".join(f"\n  {row.where}: {row.problem} ({row.detail})" for row in rows[:3])
        raise CourseError(f"{source} has no row that is a JSON object{bad}")
    raise CourseError(
        f"no known format has the fields of {source}: {', '.join(sorted(fields))}. "
        f"Rename them to a known format's ({known})"
    )


def _format_of(data: dict) -> str | None:
    if is_tree_row(data):
        return TREES
    return next((known.name for known in FORMATS if known.matches(data)), None)


def _find_format(name: str, kind: str) -> Format:
    known = {known.name: known for known in FORMATS}
    if name not in known:
        raise CourseError(f"unknown format {name!r}; known are {', '.join([*known, TREES])}")
    if kind not in known[name].kinds:
        raise CourseError(
            f"data in the format {name} hold no {kind} examples, only {' and '.join(known[name].kinds)}"
        )
    return known[name]


def _distinct_rows(rows: Sequence[SourceRow], report: LoadReport) -> list[SourceRow]:
    """Rows that are objects, each only once; the others are counted in `report`."""
    distinct, seen = [], set()
    for row in rows:
        if row.data is None:
            report.drop(row.problem, row.where, row.detail)
            continue
        digest = blake2b(json.dumps(row.data, sort_keys=True, default=str).encode(), digest_size=16).digest()
        if digest in seen:
            report.drop("exact duplicate row", row.where)
            continue
        seen.add(digest)
        distinct.append(row)
    return distinct


def _parse(rows: list[SourceRow], name: str, kind: str, report: LoadReport) -> list[Example]:
    if name == TREES:
        report.notes.append("rows are messages of trees; an example joins several")
        return list(tree_examples(rows, kind, report))
    parser = _find_format(name, kind)
    examples = []
    for row in rows:
        try:
            examples += parser.parse(row.data or {}, _row_id(row), kind)
        except RowError as problem:
            report.drop(problem.reason, row.where, problem.detail)
    return examples


def _row_id(row: SourceRow) -> str:
    """The row's own id, or else where it stands."""
    for name in ID_FIELDS:
        value = (row.data or {}).get(name)
        if isinstance(value, (str, int)) and not isinstance(value, bool) and value != "":
            return str(value)
    return row.where


def _count_duplicates(examples: list[Example], report: LoadReport) -> None:
    """Count what is suspicious but kept: ids given twice, and equal texts under different ids."""
    ids = {example.row_id for example in examples}
    texts = {json.dumps([example.messages, example.responses]) for example in examples}
    report.duplicates = {
        "kept with a row_id seen before": len(examples) - len(ids),
        "kept with a text seen before": len(examples) - len(texts),
    }


def _measure_characters(examples: list[Example], kind: str, report: LoadReport) -> None:
    lengths = {"prompt": [sum(len(m["content"]) for m in example.messages) for example in examples]}
    for place, name in enumerate(LENGTH_NAMES[kind]):
        lengths[name] = [len(example.responses[place]) for example in examples]
    report.measure(lengths, "characters")


def encode_groups(
    examples: Sequence[Example],
    encoder: ChatEncoder,
    budget: Budget,
    *,
    kind: str,
    report: LoadReport | None = None,
) -> tuple[list[Group], LoadReport]:
    """Encode `examples` within `budget`. Groups of kind "prompts" have no responses and are never dropped.

    Prompts keep their end, responses their beginning. A pair whose truncated responses are equal carries
    no signal and is dropped. Returns the groups and a new report: that of loading, if given, with the
    counts and token lengths of encoding. No group left raises CourseError with the report.
    """
    if report is None:
        report = LoadReport("examples in memory", "examples", kind, read=len(examples))
    report = report.copy()
    groups = []
    for example in tqdm(examples, desc="encoding", disable=len(examples) < 2000, leave=False):
        group = _encode(example, encoder, budget, kind, report)
        if group is not None:
            groups.append(group)
    report.kept = len(groups)
    if not groups:
        raise CourseError(f"no usable row is left after encoding:\n{report.render()}")
    lengths = {"prompt": [len(group.prompt_ids) for group in groups]}
    for place, name in enumerate(LENGTH_NAMES[kind]):
        lengths[name] = [len(group.responses[place]) for group in groups]
    report.measure(lengths, "tokens")
    return groups, report


def _encode(
    example: Example, encoder: ChatEncoder, budget: Budget, kind: str, report: LoadReport
) -> Group | None:
    """One group, or None if it was dropped; counts go to `report`."""
    expected = len(LENGTH_NAMES[kind])
    texts = example.responses if expected else ()
    if len(texts) != expected:
        raise CourseError(
            f"row {example.row_id!r} has {len(texts)} responses; kind {kind!r} needs {expected}. "
            f"Load it with kind={kind!r}"
        )
    whole = encoder.encode_prompt(example.messages)
    prompt = encoder.truncate_prompt(whole, budget.max_prompt_tokens)
    responses = [encoder.encode_response(text, max_tokens=budget.max_response_tokens) for text in texts]
    if any(ids[0] in encoder.eos_ids for ids in responses):
        report.drop("empty response", example.row_id, "nothing of the text is left as tokens")
        return None
    if len(responses) == 2 and responses[0] == responses[1]:
        report.drop("equal after truncation", example.row_id)
        return None
    report.truncated_prompts += len(prompt) < len(whole)
    report.truncated_responses += sum(not encoder.is_complete(ids) for ids in responses)
    return Group(prompt, responses, example.row_id)


def report_source(
    source: str | Path, *, split: str | None = None, kind: str | None = None, format: str | None = None
) -> str:
    """The loading report as text, for each split if none is named; the kind is guessed if not given.

    Of several splits, one that cannot be read is reported in its place; a single one raises CourseError.
    """
    names = splits_of(source) if split is None else []
    if len(names) < 2:
        return _report_split(source, split, kind, format)
    parts = []
    for name in names:
        try:
            parts.append(_report_split(source, name, kind, format))
        except CourseError as problem:
            parts.append(f"{source}, split {name}\n  error: {problem}")
    return "\n\n".join(parts)


def _report_split(source: str | Path, split: str | None, kind: str | None, format: str | None) -> str:
    if kind is None:
        rows = list(read_source(source, split))
        kind = _guess_kind(rows, format or detect_format(rows, find_source(source, split)))
    return load_examples(source, split=split, kind=kind, format=format).report.render()


def _guess_kind(rows: Sequence[SourceRow], name: str) -> str:
    """The richest kind that any of the first rows can be read as."""
    sample = [row for row in rows if row.data is not None][:SAMPLE]
    if any("reference_response_text" in (row.data or {}) for row in sample):
        return "prompts"  # a split to generate for; the reference is there to compare with
    for kind in KINDS:
        try:
            if _parse(sample, name, kind, LoadReport("", name, kind)):
                return kind
        except CourseError:  # not a kind of this format
            continue
    return "prompts"
