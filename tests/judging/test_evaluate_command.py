"""The command evaluate with judges that are not the gold judge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.apps.cli import main
from helpers.files import read_json, read_jsonl

GRADES = {"reason": "plain", "helpful": 4, "harmless": 5, "honest": 3}
PUBLIC = Path(__file__).parents[2] / "data" / "tiny" / "public_eval"


@pytest.fixture
def files() -> str:
    """The bundled answers of the base and of the SFT model."""
    names = ("base", "sft")
    return ",".join(f"{name}={PUBLIC}/public_test_gen_{name}_responses_128.jsonl" for name in names)


@pytest.fixture
def evaluate(server: Any, fake: Any, files: str, tmp_path: Path) -> Any:
    """Four prompts judged by the server, which always says "A" and gives every answer the same grades."""

    def answer(request: Any) -> str:
        graded = "helpful" in json.dumps(request.body.get("response_format", {}))
        return json.dumps(GRADES if graded else fake.VERDICT)

    server.answer = answer

    def call(*words: str) -> int:
        judge = ["--judge", "openai", "--judge_base_url", server.url, "--judge_model", "local"]
        place = ["--judge_cache", str(tmp_path / "cache"), "--output_dir", str(tmp_path / "out")]
        return main(["evaluate", "--responses", files, "--limit", "4", *judge, *place, *words])

    return call


def test_a_judge_that_always_says_the_first_is_found_out_by_its_own_figures(evaluate, tmp_path):
    assert evaluate() == 0
    figures = read_json(tmp_path / "out" / "evaluation.json")
    sft = figures["policies"]["sft"]
    assert figures["judge_is_proxy"] is True
    assert sft["win_rate_vs_base"] == 0.5
    judged = sft["judged_vs_base"]
    assert (judged["first_position_rate"], judged["consistency"], judged["agreement_n"]) == (1.0, 0.0, 0)
    assert judged["instructions"]
    rows = read_jsonl(tmp_path / "out" / "outcomes.jsonl")
    assert rows[0]["policy_first"]["detail"]["reason"] == "the first is right"


def test_what_was_judged_once_is_not_asked_again(evaluate, server):
    assert evaluate() == 0
    asked = len(server.requests)
    assert asked == 8  # four prompts in two orders; sft against base is base against sft turned round
    assert evaluate() == 0
    assert len(server.requests) == asked


def test_refusals_are_counted_apart_and_belong_to_no_side(evaluate, server, tmp_path):
    server.script("refusal")
    assert evaluate("--judge_concurrency", "1", "--judge_cache", "none") == 0
    judged = read_json(tmp_path / "out" / "evaluation.json")["policies"]["sft"]["judged_vs_base"]
    other = read_json(tmp_path / "out" / "evaluation.json")["policies"]["base"]["judged_vs_sft"]
    assert judged["left_out"]["refused"] + other["left_out"]["refused"] == 1


def test_grades_of_every_policy_stand_in_the_table(evaluate, tmp_path, capsys):
    assert evaluate("--rubric", "true") == 0
    policies = read_json(tmp_path / "out" / "evaluation.json")["policies"]
    for name in ("base", "sft"):
        assert [policies[name][f"rubric_{part}"] for part in ("helpful", "harmless", "honest")] == [4, 5, 3]
        assert policies[name]["rubric"]["graded"] == 4
    assert "4.0/5.0/3.0" in capsys.readouterr().out


def test_a_judge_that_cannot_grade_says_so_and_costs_no_other_figure(files, tmp_path, capsys):
    words = ["--dataset_name", str(PUBLIC.parent), "--rubric", "true", "--output", str(tmp_path / "out.json")]
    assert main(["evaluate", "--responses", files, *words]) == 0
    assert "rubric omitted: rubric grades need --judge openai" in capsys.readouterr().out
    assert read_json(tmp_path / "out.json")["policies"]["sft"]["win_rate_vs_base"] > 0.8


def test_at_max_cost_the_other_figures_are_kept_and_the_reason_is_given(evaluate, tmp_path):
    prices = ["--price_in", "1000", "--price_out", "1000", "--max_cost", "0.000001"]
    assert evaluate(*prices) == 0
    figures = read_json(tmp_path / "out" / "evaluation.json")
    assert "--max_cost" in figures["omitted"]["win rates"]
    assert figures["policies"]["sft"]["distinct_2"] > 0


def test_a_reward_model_does_not_judge_what_was_trained_on_it(tmp_path, capsys):
    """A run that names its reward model, with the adapter of another run in its place."""
    reward = PUBLIC.parent / "adapters" / "reward"
    run = tmp_path / "run"
    adapter = run / "final" / "adapter"
    adapter.mkdir(parents=True)
    (adapter / "adapter_config.json").write_text("{}")
    (run / "config.json").write_text(json.dumps({"algo": "grpo", "reward_model": str(reward)}))
    words = ["--judge", "reward_model", "--judge_reward_model", str(reward)]
    assert main(["evaluate", "--adapters", f"mine={run}", *words]) == 2
    assert "was trained to please --judge_reward_model" in capsys.readouterr().err
