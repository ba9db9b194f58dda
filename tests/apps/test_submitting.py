"""`submit best`, `submit export` and `release` from the command line: what they refuse before any work."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.apps.submitting import method_of


@pytest.fixture
def run_of(tmp_path: Path):
    """`run_of("dpo")`: the directory of a finished run of a method, with an adapter that is none inside."""

    def make(algo: str) -> str:
        adapter = tmp_path / algo / "final" / "adapter"
        adapter.mkdir(parents=True)
        (adapter / "adapter_config.json").write_text("{}")
        (tmp_path / algo / "config.json").write_text(json.dumps({"algo": algo}))
        return str(tmp_path / algo)

    return make


def refused(result, said: str) -> bool:
    return result.status == 2 and said in result.err and result.out == ""


def test_the_method_of_an_adapter_is_read_from_its_run(run_of, tmp_path):
    assert method_of(Path(run_of("ipo")) / "final" / "adapter") == "ipo"
    assert method_of(Path(run_of("typo")) / "final" / "adapter") is None
    assert method_of(tmp_path) is None


def test_best_names_the_flag_that_is_missing_or_wrong(helpers, run_of):
    dpo = ["--adapters", f"mine={run_of('dpo')}"]
    first = [*dpo, "--selector", "first"]
    for words, said in [
        (first, "needs --kind offline or --kind online"),
        (["--kind", "offline", *dpo], "--selector reward_model needs --reward_model DIR"),
        (["--kind", "offline", "--selector", "first"], "needs --adapters NAME=DIR"),
        (["--kind", "both", *first], "--kind both: part 2 has two kinds"),
        (["--kind", "online", *first], "--adapters mine: dpo is no online method (ppo, grpo"),
        (["--kind", "offline", *first, "--n", "0"], "--n 0: draw 1 to 1024"),
        (["--kind", "offline", *dpo, "--selector", "typo"], "--selector typo is not one of"),
        (["--kind", "offline", *first, "--temperature", "0"], "--temperature must be greater than 0"),
        (["--kind", "offline", *dpo, "--reward_model", "/nowhere"], "/nowhere is no reward model"),
    ]:
        assert refused(helpers("submit", "best", *words), said), said


def test_export_copies_the_files_of_the_layout_and_says_which(helpers, tmp_path):
    source = tmp_path / "sub" / "policy_generations" / "dpo.jsonl"
    source.parent.mkdir(parents=True)
    source.write_text("{}\n")
    assert refused(helpers("submit", "export", "--output_dir", str(tmp_path / "sub")), "needs --export DIR")
    result = helpers(
        "submit", "export", "--output_dir", str(tmp_path / "sub"), "--export", str(tmp_path / "out")
    )
    target = tmp_path / "out" / "llm_rl_final_proj_public_submission"
    assert result.out.splitlines() == [f"{target}: 1 files", "policy_generations/dpo.jsonl"]
    assert (target / "policy_generations" / "dpo.jsonl").read_text() == "{}\n"


def test_grade_has_a_judge_to_name_and_a_flag_for_its_server(helpers, tmp_path):
    (tmp_path / "sub" / "policy_generations").mkdir(parents=True)
    (tmp_path / "sub" / "policy_generations" / "dpo.jsonl").write_text("{}\n")
    place = str(tmp_path / "sub")
    assert refused(helpers("grade", place, "--judge", "typo"), "--judge typo is not one of gold, openai")
    result = helpers("grade", place, "--judge", "openai", "--judge_base_url", "http://127.0.0.1:9/v1")
    assert result.status == 1  # the parts fail, each with its reason; the grader does not
    assert "total" in result.out and (tmp_path / "sub_results.json").is_file()
