"""What the tests of grading share: twenty prompts, a judge that likes length, and files made to order."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

import solutions.answers as answers
from helpers.course.autograder import grade
from helpers.files import write_jsonl
from helpers.judging.judge import Verdict

IDS = [f"r{index}" for index in range(20)]
POLICY, REWARD = "policy_generations/dpo.jsonl", "reward_model/public_test_pref_scores.jsonl"


class LongerWins:
    """The longer response wins; equal lengths say A in both orders."""

    name, is_proxy = "longer", False

    def compare(self, comparisons):
        return [
            Verdict("A" if len(pair.response_a) >= len(pair.response_b) else "B", 1.0, 1.0)
            for pair in comparisons
        ]


def policy_rows(wins: int, losses: int = 0) -> list[dict]:
    """Rows of which `wins` are longer than the base's "base", `losses` shorter, the rest as long."""
    texts = ["longer"] * wins + ["lo"] * losses + ["same"] * (len(IDS) - wins - losses)
    return [
        {"row_id": row_id, "prompt_text": "ask", "response_text": text, "generated_num_tokens": 3}
        for row_id, text in zip(IDS, texts, strict=True)
    ]


def score_rows(right: int) -> list[dict]:
    return [
        {"row_id": row_id, "chosen_score": float(index < right), "rejected_score": 0.5}
        for index, row_id in enumerate(IDS)
    ]


@pytest.fixture
def public(tmp_path):
    folder = tmp_path / "public_eval"
    prompts = [{"row_id": row_id, "prompt_text": "ask"} for row_id in IDS]
    base = [{**row, "response_text": "base"} for row in policy_rows(0)]
    pairs = [{**row, "chosen_text": "c", "rejected_text": "r"} for row in prompts]
    write_jsonl(folder / "public_test_gen_prompts_20.jsonl", prompts)
    write_jsonl(folder / "public_test_gen_base_responses_20.jsonl", base)
    write_jsonl(folder / "public_test_prefs_20.jsonl", pairs)
    return folder


def add_sft(public: Path) -> None:
    write_jsonl(public / "public_test_gen_sft_responses_20.jsonl", policy_rows(0))


GOOD, SCORES = policy_rows(20), score_rows(20)
TEXT = "\n".join(map(json.dumps, GOOD))


def part(results: dict, name: str) -> dict:
    return next(test for test in results["tests"] if test["name"] == name)


def graded(directory, public, judge=None, **options):
    return grade(directory, public, judge or LongerWins(), answers, **options)


def one_line_about(results: dict, name: str) -> str:
    """The single line that tells what is wrong with a part's file."""
    test = part(results, name)
    assert test["status"] == "failed"
    assert "Traceback" not in test["output"]
    head, *lines = test["output"].split("\n")
    assert "was not graded, mend it first" in head
    assert len(lines) == 1, lines
    return lines[0]


def zipped(path: Path, members: dict[str, bytes | str], **attributes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            for field, value in attributes.get(name, {}).items():
                setattr(info, field, value)
            archive.writestr(info, data)
    return path
