"""The command evaluate: what it writes, that it goes on after a kill, and answers that come from files."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from helpers.course import evaluation
from helpers.files import read_json, read_jsonl

PUBLIC = Path("data/tiny/public_eval")


@pytest.fixture
def evaluate(helpers: Any, pocket: Any) -> Any:
    """`evaluate("--seed", "1")`: an evaluation in the pocket world, other flags behind it."""

    def call(*words: str) -> Any:
        place = ["--model_name", pocket.model, "--dataset_name", pocket.data, "--profile", "tiny"]
        splits = ["--split", "dev_gen", "--pairs_split", "dev_prefs", "--sft_split", "sft_val"]
        return helpers("evaluate", *place, *splits, "--max_new_tokens", "4", "--batch_size", "3", *words)

    return call


@pytest.fixture
def adapter(train: Any, tmp_path: Path) -> str:
    """A trained adapter of the pocket world."""
    assert train("dpo").status == 0
    return str(tmp_path / "run")


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of prompts answered, a batch each."""
    seen: list[int] = []
    answer = evaluation.evaluate_policy

    def count(name: str, role: Any, encoder: Any, examples: Any, *rest: Any, **options: Any) -> Any:
        if len(seen) == getattr(count, "stop_at", -1):
            raise KeyboardInterrupt
        seen.append(len(examples))
        return answer(name, role, encoder, examples, *rest, **options)

    seen_by: Any = count
    monkeypatch.setattr(evaluation, "evaluate_policy", seen_by)
    monkeypatch.setattr(evaluation, "_counter", seen_by, raising=False)
    return seen


# ------------------------------------------------------------------ what it writes
def test_everything_is_in_one_folder(evaluate: Any, adapter: str, tmp_path: Path) -> None:
    place = tmp_path / "evaluation"
    result = evaluate("--adapters", f"mine={adapter}", "--output_dir", str(place))
    assert result.status == 0, result.err
    figures = read_json(place / "evaluation.json")
    assert list(figures["policies"]) == ["base", "mine"]
    mine = figures["policies"]["mine"]
    assert mine["perplexity_sft"] > 1 and mine["perplexity_chosen"] > 1
    assert 0 <= mine["distinct_2"] <= 1 and mine["mean_chars"] >= 0 and mine["kl"] is not None
    assert figures["omitted"]["win rates"] == "no judge was given"
    assert figures["settings"]["seed"] == 0

    header, *rows = list(csv.reader((place / "table.csv").open(encoding="utf-8")))
    assert [row[0] for row in rows] == ["base", "mine"] and "perplexity_sft" in header
    assert "| mine |" in (place / "table.md").read_text(encoding="utf-8")
    assert {"lengths.png", "kl.png"} <= {file.name for file in (place / "figures").iterdir()}
    assert figures["figures_omitted"]["rewards"].startswith("The rewards are left out")
    assert len(read_jsonl(place / "responses" / "mine.jsonl")) == 8


def test_its_responses_can_be_evaluated_again_without_a_model(
    evaluate: Any, adapter: str, helpers: Any, tmp_path: Path
) -> None:
    place = tmp_path / "evaluation"
    assert evaluate("--adapters", f"mine={adapter}", "--output_dir", str(place)).status == 0
    files = ",".join(f"{name}={place}/responses/{name}.jsonl" for name in ("base", "mine"))
    again = tmp_path / "again.json"
    assert helpers("evaluate", "--responses", files, "--output", str(again)).status == 0
    first, second = read_json(place / "evaluation.json"), read_json(again)
    for name in ("base", "mine"):
        assert second["policies"][name]["mean_chars"] == first["policies"][name]["mean_chars"]
        assert second["policies"][name]["mean_tokens"] is None


# ------------------------------------------------------------------ killed and called again
def test_a_killed_evaluation_goes_on_and_answers_no_prompt_twice(
    evaluate: Any, adapter: str, tmp_path: Path, counted: list[int]
) -> None:
    whole, place = tmp_path / "whole", tmp_path / "evaluation"
    words = ["--adapters", f"mine={adapter}", "--perplexity_rows", "0", "--output_dir"]
    assert evaluate(*words, str(whole)).status == 0
    assert counted == [3, 3, 2] * 2
    counted.clear()

    evaluation._counter.stop_at = 4  # type: ignore[attr-defined]
    assert evaluate(*words, str(place)).status == 130
    del evaluation._counter.stop_at  # type: ignore[attr-defined]
    assert evaluate(*words, str(place)).status == 0
    assert sum(counted) == 16 and len(counted) == 6

    for name in ("base", "mine"):
        lines = [(folder / "responses" / f"{name}.jsonl").read_bytes() for folder in (whole, place)]
        assert lines[0] == lines[1]
    kls = [read_json(folder / "evaluation.json")["policies"]["mine"]["kl"] for folder in (whole, place)]
    assert kls[0] == kls[1]

    counted.clear()
    assert evaluate(*words, str(place)).status == 0
    assert counted == []


def test_other_weights_prompts_or_seeds_are_not_answered_from_the_cache(
    evaluate: Any, adapter: str, tmp_path: Path, counted: list[int]
) -> None:
    words = ["--adapters", f"mine={adapter}", "--perplexity_rows", "0", "--output_dir", str(tmp_path / "e")]
    for more in ([], ["--seed", "1"], ["--limit", "4"], ["--max_new_tokens", "3"]):
        counted.clear()
        assert evaluate(*words, *more).status == 0
        assert sum(counted) == (8 if "--limit" in more else 16)


# ------------------------------------------------------------------ answers from files
def rows_file(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_files_of_answers_are_judged_without_a_model(helpers: Any, root: Path, tmp_path: Path) -> None:
    base, sft = (root / PUBLIC / f"public_test_gen_{name}_responses_128.jsonl" for name in ("base", "sft"))
    files = f"base={base},sft={sft},copy={base}"
    result = helpers(
        "evaluate", "--responses", files, "--dataset_name", str(root / "data" / "tiny"),
        "--output_dir", str(tmp_path),
    )  # fmt: skip
    assert result.status == 0, result.err
    policies = read_json(tmp_path / "evaluation.json")["policies"]
    assert policies["copy"]["win_rate_vs_base"] == 0.5
    assert policies["copy"]["judged_vs_base"]["consistency"] is None  # equal texts show no preference
    assert policies["sft"]["win_rate_vs_base"] > 0.8
    judged = policies["sft"]["judged_vs_base"]
    assert judged["consistency"] == 1.0 and judged["first_position_rate"] == 0.5
    low, high = judged["length_controlled_ci95"]
    assert low <= judged["length_controlled"] <= high

    outcomes = read_jsonl(tmp_path / "outcomes.jsonl")
    ours = [row["outcome"] for row in outcomes if (row["policy"], row["opponent"]) == ("sft", "base")]
    assert sum(ours) / len(ours) == pytest.approx(policies["sft"]["win_rate_vs_base"])
    assert {(row["policy_first"]["winner"], row["policy_second"]["winner"]) for row in outcomes} <= {
        ("A", "B"), ("B", "A"), ("A", "A")
    }  # fmt: skip
    (gap,) = read_json(tmp_path / "evaluation.json")["differences"]
    assert gap["value"] == pytest.approx(policies["sft"]["win_rate_vs_base"] - 0.5)


def test_another_policy_may_be_the_baseline(helpers: Any, root: Path, tmp_path: Path) -> None:
    base, sft = (root / PUBLIC / f"public_test_gen_{name}_responses_128.jsonl" for name in ("base", "sft"))
    words = ["--dataset_name", str(root / "data" / "tiny"), "--output", str(tmp_path / "out.json")]
    assert helpers("evaluate", "--responses", f"a={base},b={sft}", "--baseline", "b", *words).status == 0
    figures = read_json(tmp_path / "out.json")
    assert figures["baseline"] == "b" and figures["policies"]["a"]["win_rate_vs_base"] < 0.2


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"row_id": "a"}], "row 1 lacks a text in one of response"),
        ([{"response": "x"}], "row 1 lacks a row_id"),
        ([{"row_id": "a", "response": "x"}] * 2, "row 2 repeats row_id a"),
        ([{"row_id": "b", "response": "x"}], "lacks 1 of 1 prompts, such as row_id a"),
        ([], "has no rows"),
    ],
)
def test_faults_of_a_file_of_answers_are_named(
    helpers: Any, tmp_path: Path, rows: list[dict[str, Any]], said: str
) -> None:
    good = rows_file(tmp_path / "good.jsonl", [{"row_id": "a", "prompt_text": "Hi", "response_text": "x"}])
    bad = rows_file(tmp_path / "bad.jsonl", rows)
    result = helpers("evaluate", "--responses", f"base={good},mine={bad}")
    assert result.status == 2 and said in result.err and "Traceback" not in result.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--responses", ","], "--responses , names nothing"),
        (["--responses", "a=/nowhere.jsonl"], "/nowhere.jsonl does not exist"),
        (["--responses", "a=/x.jsonl,a=/y.jsonl"], "the name 'a' is taken"),
        (["--perplexity_rows", "-1"], "--perplexity_rows must be 0 or more"),
        (["--judge", "typo"], "typo"),
    ],
)
def test_faults_of_the_flags_are_named(helpers: Any, words: list[str], said: str) -> None:
    result = helpers("evaluate", *words)
    assert result.status == 2 and said in result.err


def test_an_unknown_baseline_is_named_before_anything_is_generated(evaluate: Any, counted: list[int]) -> None:
    result = evaluate("--baseline", "typo")
    assert result.status == 2 and "--baseline typo is none of the policies base" in result.err
    assert counted == []
