"""Pairs out of a run: the reward model's mistakes by gold's word, in the schema that trains the next one."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import solutions.answers as answers
from helpers.apps.cli import main
from helpers.course.bench_hacking import compare_remedies, table_of
from helpers.course.hacked_pairs import mine_pairs, prefers_second, write_mix
from helpers.course.held_out import gold_verdicts, held_out_by, verdicts_against_references
from helpers.course.stages import run_stage
from helpers.errors import CourseError
from helpers.files import find_data, read_jsonl
from helpers.judging.gold import GoldJudge, gold_scores
from helpers.text.datasets import Example, load_examples
from helpers.training.setup import RunResult

DATA = find_data("data/tiny")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    """Two steps of GRPO on the bundled world, from the SFT model: worse at nothing yet, but not the same."""
    settings: dict[str, Any] = {"profile": "tiny", "max_steps": 2, "eval_samples": 4, "eval_steps": 1}
    settings |= {"reward_model": f"{DATA}/adapters/reward", "init_adapter": f"{DATA}/adapters/sft"}
    return run_stage("grpo", tmp_path_factory.mktemp("runs") / "run", answers, **settings)


@pytest.fixture(scope="module")
def mined(run: RunResult) -> Any:
    return mine_pairs(run.run_dir, answers, prompts=60, samples=2)


def test_on_the_bundled_world_a_run_is_judged_by_gold_unasked(run: RunResult) -> None:
    samples = read_jsonl(run.run_dir / "samples.jsonl")
    facts = {
        e.row_id: e.metadata["metadata"]
        for e in load_examples(DATA, split="dev_gen", kind="prompts").examples
    }
    assert len(samples) == 12
    assert all(row["gold"] == gold_scores(facts[row["row_id"]], row["response"]).total for row in samples)


def test_every_pair_is_one_that_gold_sees_the_other_way_round(mined: Any) -> None:
    assert 0 < len(mined.rows) < mined.compared == 120
    for row in mined.rows:
        chosen, rejected = (
            gold_scores(row["metadata"], row[f"{side}_text"]).total for side in ("chosen", "rejected")
        )
        assert chosen > rejected + 0.1


def test_no_hacked_answer_is_given_twice(mined: Any) -> None:
    texts = [(row["prompt_text"], row["rejected_text"]) for row in mined.rows]
    assert len(set(texts)) == len(texts)


def test_the_mix_is_the_training_pairs_and_the_new_ones(mined: Any, tmp_path: Path) -> None:
    mix = write_mix(mined.rows, "data/tiny", tmp_path / "mix", copies=2)
    loaded = load_examples(mix, split="train_prefs", kind="preference")
    assert loaded.report.kept == 4000 + 2 * len(mined.rows)
    assert len({example.row_id for example in loaded.examples}) == loaded.report.kept
    assert read_jsonl(mix / "dev_prefs.jsonl") == read_jsonl(f"{DATA}/dev_prefs.jsonl")


def test_the_command_writes_the_mix(
    run: RunResult, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(tmp_path / "mix")
    words = [
        "hacking",
        "pairs",
        str(run.run_dir),
        "--output_dir",
        target,
        "--prompts",
        "20",
        "--samples",
        "1",
    ]
    assert main(words) == 0
    assert "of 20 pairs were ranked the wrong way round" in capsys.readouterr().out
    assert main(["hacking", "pairs", str(tmp_path), "--output_dir", target]) == 2
    assert "no finished online run" in capsys.readouterr().err


def test_what_is_no_online_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"algo": "dpo"}))
    with pytest.raises(CourseError, match="no finished online run"):
        mine_pairs(tmp_path, answers)


# ---------------------------------------------------------------- judges
def held_out() -> list[Example]:
    return load_examples(DATA, split="dev_gen", kind="prompts", limit=8).examples


def test_gold_judges_prompts_with_facts_and_no_others() -> None:
    verdicts = gold_verdicts(held_out())
    assert verdicts is not None and len(verdicts(["no idea"] * 8)) == 8
    bare = Example("x", ({"role": "user", "content": "hi"},), (), {})
    assert gold_verdicts([bare]) is None and gold_verdicts([]) is None


def test_the_judge_by_name() -> None:
    assert held_out_by("none") is None
    assert held_out_by(None) is held_out_by("gold") is gold_verdicts
    with pytest.raises(CourseError, match="nobody"):
        held_out_by("nobody")


def test_another_judge_compares_with_the_datas_own_answers() -> None:
    examples = held_out()
    own = [example.metadata["reference_response_text"] for example in examples]
    verdicts = verdicts_against_references(GoldJudge(), examples)
    assert verdicts is not None
    assert verdicts(own) == [0.5] * 8, "an equal answer ties"
    assert set(verdicts([""] * 8)) <= {0.0, 0.5} and 0.0 in verdicts([""] * 8)
    bare = [SimpleNamespace(messages=(), responses=(), metadata={})]
    assert verdicts_against_references(GoldJudge(), bare) is None  # type: ignore[arg-type]


def test_a_tie_is_no_reason_to_teach() -> None:
    examples = held_out()
    own = [example.metadata["reference_response_text"] for example in examples]
    assert prefers_second(GoldJudge(), examples, own, own) == [False] * 8
    assert any(prefers_second(GoldJudge(), examples, [""] * 8, own))


# ---------------------------------------------------------------- the comparison
def test_a_comparison_is_a_table_and_goes_on_where_it_was(tmp_path: Path) -> None:
    arms = {"nothing": {"max_steps": 1, "eval_samples": 4}}
    result = compare_remedies(answers, tmp_path, [3], arms, limit=20)
    (figures,) = result["arms"]["nothing"]
    assert len(figures["gold"]) == 20 and 0 <= figures["win_rate"] <= 1 and figures["steps"] == [0, 1]
    table = table_of(result, answers)
    assert "| the base |" in table and "| nothing |" in table
    assert compare_remedies(answers, tmp_path, [3], arms, limit=20) == result
