"""Verdicts on file: one judge writes them, another reads them back, on any machine and for nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from helpers.errors import CourseError
from helpers.files import fingerprint, read_jsonl, writing
from helpers.judging.judge import Candidates, Choice, Comparison, Judge, Verdict, verdict_of
from helpers.text.datasets import Example


def question_key(example: Example, responses: Sequence[str]) -> str:
    """What a verdict belongs to: the conversation and the responses in their order."""
    turns = [[turn["role"], turn["content"]] for turn in example.messages]
    return fingerprint(turns, list(responses))


class RecordingJudge:
    """Another judge, whose readable verdicts are added to a JSON-lines file; failures are not."""

    def __init__(self, judge: Judge, path: str | Path) -> None:
        self.judge, self.path = judge, Path(path)
        self.name, self.is_proxy = judge.name, judge.is_proxy
        self.instructions_hash = getattr(judge, "instructions_hash", None)
        self.known = {_row_key(row) for row in read_jsonl(self.path)} if self.path.exists() else set()

    def compare(self, comparisons: Sequence[Comparison]) -> list[Verdict]:
        """The judge's verdicts."""
        verdicts = self.judge.compare(comparisons)
        for one, verdict in zip(comparisons, verdicts, strict=True):
            if verdict.winner is not None:
                self._add("compare", one.example, (one.response_a, one.response_b), asdict(verdict))
        return verdicts

    def choose(self, candidates: Sequence[Candidates]) -> list[Choice]:
        """The judge's choices."""
        choices = self.judge.choose(candidates)
        for one, choice in zip(candidates, choices, strict=True):
            if choice.status == "ok":
                self._add("choose", one.example, one.responses, asdict(choice))
        return choices

    def _add(self, kind: str, example: Example, responses: Sequence[str], verdict: dict[str, Any]) -> None:
        key = question_key(example, responses)
        if (kind, key) in self.known:
            return
        self.known.add((kind, key))
        about = {"judge": self.name, "is_proxy": self.is_proxy, "instructions": self.instructions_hash}
        row = {"key": key, "kind": kind, "row_id": example.row_id, **about, "verdict": verdict}
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(row, ensure_ascii=False) + "\n")


class RecordedJudge:
    """Reads verdicts that a RecordingJudge wrote; a question that is not on file is "missing"."""

    def __init__(self, path: str | Path) -> None:
        rows = read_jsonl(path)
        if not rows:
            raise CourseError(f"--judge_record {path} holds no verdicts")
        self._choices: dict[str, Choice] = {}
        self._verdicts: dict[str, Verdict] = {}
        for number, row in enumerate(rows, start=1):
            try:
                self._take(row)
            except (KeyError, TypeError, ValueError):
                raise CourseError(f"{path} row {number} is no recorded verdict") from None
        self.name = f"recorded: {', '.join(sorted({str(row['judge']) for row in rows}))}"
        self.is_proxy = any(row["is_proxy"] for row in rows)
        hashes = {row.get("instructions") for row in rows}
        if len(hashes) > 1:
            raise CourseError(f"{path} mixes verdicts under different instructions; record them apart")
        self.instructions_hash = hashes.pop()

    def _take(self, row: dict[str, Any]) -> None:
        kind, key, fields, _ = row["kind"], row["key"], row["verdict"], (row["judge"], row["is_proxy"])
        if kind == "compare":
            verdict = Verdict(**fields)
            if verdict.winner not in ("A", "B"):
                raise ValueError("winner")
            self._verdicts[key] = verdict
        else:
            choice = Choice(**fields)
            scores = tuple(choice.scores) if choice.scores is not None else None
            self._choices[key] = replace(choice, exclude_tags=tuple(choice.exclude_tags), scores=scores)

    def compare(self, comparisons: Sequence[Comparison]) -> list[Verdict]:
        """The verdicts on file; a choice among the same two serves too."""
        found = []
        for one in comparisons:
            key = question_key(one.example, (one.response_a, one.response_b))
            known = self._verdicts.get(key)
            found.append(known or verdict_of(self._choices.get(key, NOT_ON_FILE)))
        return found

    def choose(self, candidates: Sequence[Candidates]) -> list[Choice]:
        """The choices on file."""
        return [
            self._choices.get(question_key(one.example, one.responses), NOT_ON_FILE) for one in candidates
        ]


NOT_ON_FILE = Choice(None, None, reason="not on file", status="missing")


def _row_key(row: dict[str, Any]) -> tuple[str, str]:
    return str(row.get("kind")), str(row.get("key"))
