"""Reading the files of submissions nobody vouches for: JSON lines, with one clear line per kind of fault.

Rows are read one after the other, so that what a line unfolds to never lies in memory for all of them. Text
that came from a submission is quoted before it is shown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from helpers.course.submission_files import listed, quoted

MAX_PROMPT_TOKENS, MAX_NEW_TOKENS, MAX_RESPONSE_TOKENS = 700, 256, 512  # the benchmark's budgets
MAX_LINE_CHARS = 200_000
MAX_ROWS = 20_000
MAX_RESPONSE_CHARS = (
    64 * MAX_NEW_TOKENS
)  # no tokenizer's tokens are that long on average; a judge pays by length

POLICY_FIELDS = ("row_id", "prompt_text", "response_text", "generated_num_tokens")
SCORE_FIELDS = ("row_id", "chosen_score", "rejected_score")


@dataclass
class Faults:
    """What is wrong with one file: kind of fault -> where it occurs. Empty means sound."""

    places: dict[str, list[str]] = field(default_factory=dict)

    def add(self, kind: str, place: str = "") -> None:
        """Count one occurrence of `kind` at `place`, such as "line 3"."""
        self.places.setdefault(kind, []).append(place)

    def lines(self) -> list[str]:
        """Return one line a kind: the first places, then how many more there are."""
        named = {kind: [place for place in places if place] for kind, places in self.places.items()}
        return [f"{listed(places)}: {kind}" if places else kind for kind, places in named.items()]

    def __bool__(self) -> bool:
        return bool(self.places)


# ---------------------------------------------------------------------- lines


def parse_jsonl(data: bytes, faults: Faults) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, object) for every sound line; faults are collected, nothing is raised."""
    if data.count(b"\n") >= MAX_ROWS:
        faults.add(f"the file has more than {MAX_ROWS} lines")
        return
    text = decoded(data, faults)
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        row = _parse_line(line, f"line {number}", faults)
        if row is not None:
            yield number, row


def decoded(data: bytes, faults: Faults) -> str:
    """The text of a file, or nothing and a fault. A byte order mark of UTF-8 does no harm."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in data[:MAX_LINE_CHARS]:
        faults.add("the file is not UTF-8 text (UTF-16, or binary): save it as UTF-8")
        return ""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        faults.add(f"the file is not UTF-8 text (byte {problem.start}): save it as UTF-8")
        return ""


def _parse_line(line: str, place: str, faults: Faults) -> dict[str, Any] | None:
    if len(line) > MAX_LINE_CHARS:
        faults.add(f"longer than {MAX_LINE_CHARS} characters", place)
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):  # also integers of thousands of digits, and nesting without end
        faults.add("not JSON", place)
        return None
    if not isinstance(row, dict):
        faults.add("not a JSON object", place)
        return None
    return row


def read_policy_rows(data: bytes, expected: Collection[str], faults: Faults) -> dict[str, str]:
    """Read a policy file: row_id -> response_text of the sound rows; everything else goes to `faults`.

    Args:
        expected: the row ids of the prompts, each to be answered exactly once.
    """
    responses: dict[str, str] = {}
    for place, row_id, row in _known_rows(data, expected, faults):
        fault = _response_fault(row.get("response_text")) or _token_count_fault(row)
        if fault:
            faults.add(fault, place)
        else:
            responses[row_id] = row["response_text"]
    return responses


def _response_fault(text: Any) -> str | None:
    if text is None:
        return "response_text is missing"
    if not isinstance(text, str):
        return "response_text is not a string"
    if not text.strip():
        return "response_text is empty"
    if len(text) > MAX_RESPONSE_CHARS:
        return f"response_text has more characters than {MAX_NEW_TOKENS} tokens can hold"
    if any("\ud800" <= char <= "\udfff" for char in text):
        return "response_text has broken Unicode (a lone surrogate)"
    return None


def _token_count_fault(row: Mapping[str, Any]) -> str | None:
    count = row.get("generated_num_tokens")
    if "generated_num_tokens" not in row:
        return "generated_num_tokens is missing"
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        return "generated_num_tokens is not a positive whole number"
    if count > MAX_NEW_TOKENS:
        return f"generated_num_tokens is over the budget of {MAX_NEW_TOKENS}"
    return None


def read_score_rows(data: bytes, expected: Collection[str], faults: Faults) -> dict[str, tuple[float, float]]:
    """Read a reward file: row_id -> (chosen_score, rejected_score) of the sound rows."""
    scores: dict[str, tuple[float, float]] = {}
    for place, row_id, row in _known_rows(data, expected, faults):
        found = {name: _score_fault(name, row) for name in SCORE_FIELDS[1:]}
        problems = [fault for fault in found.values() if fault]
        for fault in problems:
            faults.add(fault, place)
        if not problems:
            scores[row_id] = (float(row["chosen_score"]), float(row["rejected_score"]))
    return scores


def _score_fault(name: str, row: Mapping[str, Any]) -> str | None:
    value = row.get(name)
    if value is None:
        return f"{name} is missing"
    if isinstance(value, str):
        return f"{name} is a string: write a number without quotes"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return f"{name} is not a number"
    try:
        return None if math.isfinite(value) else f"{name} is NaN or infinite"
    except OverflowError:
        return f"{name} is too large for a float"


def _known_rows(
    data: bytes, expected: Collection[str], faults: Faults
) -> list[tuple[str, str, dict[str, Any]]]:
    """Return (place, row_id, row) of rows with an expected, unique row_id; report all others."""
    wanted, seen, known = set(expected), set(), []
    for number, row in parse_jsonl(data, faults):
        place, row_id = f"line {number}", row.get("row_id")
        if not isinstance(row_id, str):
            faults.add("row_id is missing" if row_id is None else "row_id is not a string", place)
        elif row_id not in wanted:
            faults.add(f"row_id is not among the {len(wanted)} rows asked for", f"{place} ({quoted(row_id)})")
        elif row_id in seen:
            faults.add("row_id appears a second time", f"{place} ({quoted(row_id)})")
        else:
            seen.add(row_id)
            known.append((place, row_id, row))
    if any(kind.startswith("the file ") for kind in faults.places):  # nothing was read, so nothing is missing
        return known
    missing = [row_id for row_id in expected if row_id not in seen]
    for row_id in missing:
        faults.add(f"{len(missing)} of {len(wanted)} rows are missing", quoted(row_id))
    return known
