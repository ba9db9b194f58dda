"""The grader measures what it says, and grades what it can."""

from __future__ import annotations

import json
import re

import pytest

import solutions.answers as answers
from helpers.course import autograder
from helpers.course.autograder import WIN_THRESHOLDS, grade
from helpers.course.results import render_results
from helpers.errors import CourseError
from helpers.files import write_jsonl
from helpers.judging.judge import Verdict
from tests.course.grading import (
    POLICY,
    REWARD,
    LongerWins,
    add_sft,
    graded,
    part,
    policy_rows,
    score_rows,
)

# ---------------------------------------------------------------------- what is measured


def test_a_policy_over_its_threshold_passes_and_ties_count_one_half(tmp_path, public):
    write_jsonl(tmp_path / "sub" / POLICY, policy_rows(wins=8, losses=2))
    test = part(graded(tmp_path / "sub", public), "dpo")
    assert test["extra_data"]["value"] == pytest.approx((8 + 10 / 2) / 20)
    assert (test["status"], test["score"], test["max_score"]) == ("passed", 1.0, 1.0)
    assert "8 won, 2 lost, 10 tied, 0 unparsed" in test["output"]


def test_a_policy_under_its_threshold_fails_and_is_told_what_to_do(tmp_path, public):
    write_jsonl(tmp_path / "sub" / POLICY, policy_rows(wins=4, losses=2))
    test = part(graded(tmp_path / "sub", public), "dpo")
    assert (test["status"], test["score"]) == ("failed", 0.0)
    assert "under the threshold 0.65: choose a checkpoint" in test["output"]


def test_the_thresholds_are_the_designs():
    assert WIN_THRESHOLDS == {
        "dpo": 0.65,
        "ipo": 0.60,
        "aot": 0.65,
        "grpo": 0.60,
        "dr_grpo": 0.60,
        "gspo": 0.60,
        "ppo": 0.75,
    }


@pytest.mark.parametrize(("right", "status"), [(15, "passed"), (14, "failed")])
def test_the_reward_model_needs_74_percent(tmp_path, public, right, status):
    write_jsonl(tmp_path / "sub" / REWARD, score_rows(right))
    test = part(graded(tmp_path / "sub", public), "reward_model")
    assert (test["extra_data"]["value"], test["status"]) == (right / 20, status)


def test_equal_scores_count_as_wrong(tmp_path, public):
    rows = [{**row, "chosen_score": 0.5} for row in score_rows(20)]
    write_jsonl(tmp_path / "sub" / REWARD, rows)
    test = part(graded(tmp_path / "sub", public), "reward_model")
    assert test["extra_data"]["value"] == 0.0
    assert "20 pairs scored equal count as wrong" in test["output"]


def test_ppo_is_measured_against_sft_and_only_where_its_responses_are_there(tmp_path, public):
    write_jsonl(tmp_path / "sub" / "policy_generations" / "ppo.jsonl", policy_rows(wins=16))
    without = graded(tmp_path / "sub", public)
    assert "ppo" not in [test["name"] for test in without["tests"]]
    assert "ppo is no part of this grade: public_eval has no public_test_gen_sft" in without["output"]
    add_sft(public)
    test = part(graded(tmp_path / "sub", public), "ppo")
    assert "against the SFT model" in test["output"]
    assert test["status"] == "passed"


@pytest.mark.parametrize("name", ["drgrpo", "dr_grpo"])
def test_dr_grpo_is_found_under_the_projects_name_and_the_courses(tmp_path, public, name):
    write_jsonl(tmp_path / "sub" / "policy_generations" / f"{name}.jsonl", policy_rows(wins=20))
    assert part(graded(tmp_path / "sub", public), "dr_grpo")["status"] == "passed"


def test_a_win_rate_with_many_verdicts_missing_is_no_grade(tmp_path, public):
    class Mute(LongerWins):
        def compare(self, comparisons):
            return [Verdict(None) if index < 2 else v for index, v in enumerate(super().compare(comparisons))]

    write_jsonl(tmp_path / "sub" / POLICY, policy_rows(wins=20))
    test = part(graded(tmp_path / "sub", public, Mute()), "dpo")
    assert test["status"] == "failed"
    assert "2 of 20 verdicts are missing" in test["output"]


# ---------------------------------------------------------------------- results and partial submissions


def test_results_are_gradescopes_and_the_table_shows_every_part(tmp_path, public):
    write_jsonl(tmp_path / "sub" / POLICY, policy_rows(wins=20))
    write_jsonl(tmp_path / "sub" / REWARD, score_rows(20))
    results = graded(tmp_path / "sub", public, output=tmp_path / "out" / "results.json")
    assert json.loads((tmp_path / "out" / "results.json").read_text()) == results
    assert results["score"] == 2.0
    assert all(
        {"name", "score", "max_score", "status", "output", "visibility"} <= set(test)
        for test in results["tests"]
    )
    assert all(test["extra_data"]["seconds"] >= 0 for test in results["tests"])
    assert results["execution_time"] >= 0
    table = render_results(results)
    assert re.search(r"^dpo +1\.000 +0\.65 +1/1 .*passed$", table, re.M)
    assert re.search(r"^total +2/8", table, re.M)


def test_a_partial_submission_is_graded_in_part_and_told_what_is_missing(tmp_path, public):
    write_jsonl(tmp_path / "sub" / POLICY, policy_rows(wins=20))
    results = graded(tmp_path / "sub", public)
    assert results["score"] == 1.0
    assert "policy_generations/gspo.jsonl is missing: make it with" in part(results, "gspo")["output"]
    assert f"{REWARD} is missing: make it with" in part(results, "reward_model")["output"]


def test_a_crash_in_one_part_leaves_the_others_alone(tmp_path, public):
    class Broken(LongerWins):
        def compare(self, comparisons):
            if comparisons[0].response_a == "longer":
                raise ZeroDivisionError("the judge is broken\n\x1b[31m")
            return super().compare(comparisons)

    write_jsonl(tmp_path / "sub" / POLICY, policy_rows(wins=20))
    write_jsonl(tmp_path / "sub" / "policy_generations" / "ipo.jsonl", policy_rows(wins=0))
    write_jsonl(tmp_path / "sub" / REWARD, score_rows(20))
    results = graded(tmp_path / "sub", public, Broken())
    assert (
        "the grader failed on this part (ZeroDivisionError: the judge is broken"
        in part(results, "dpo")["output"]
    )
    assert "\x1b" not in render_results(results)
    assert part(results, "ipo")["extra_data"]["value"] == 0.5
    assert part(results, "reward_model")["status"] == "passed"


def test_without_a_judge_the_reward_model_is_graded_and_the_policies_are_checked(tmp_path, public):
    write_jsonl(tmp_path / "sub" / POLICY, policy_rows(wins=20))
    write_jsonl(tmp_path / "sub" / REWARD, score_rows(20))
    results = grade(tmp_path / "sub", public, None, answers)
    assert part(results, "reward_model")["status"] == "passed"
    assert "sound but was not graded: no judge" in part(results, "dpo")["output"]


def test_why_there_is_no_judge_is_said_in_every_part_that_needs_one(tmp_path, public):
    write_jsonl(tmp_path / "sub" / POLICY, policy_rows(wins=20))
    results = grade(tmp_path / "sub", public, None, answers, no_judge="OPENAI_API_KEY is not set")
    assert (
        part(results, "dpo")["output"] == f"{POLICY} is sound but was not graded: OPENAI_API_KEY is not set"
    )


def test_an_interrupted_grading_writes_what_it_has(tmp_path, public):
    class Interrupted(LongerWins):
        def compare(self, comparisons):
            if comparisons[0].response_a == "longer":
                raise KeyboardInterrupt
            return super().compare(comparisons)

    write_jsonl(tmp_path / "sub" / POLICY, policy_rows(wins=0))
    write_jsonl(tmp_path / "sub" / "policy_generations" / "aot.jsonl", policy_rows(wins=20))
    write_jsonl(tmp_path / "sub" / REWARD, score_rows(20))
    with pytest.raises(KeyboardInterrupt):
        graded(tmp_path / "sub", public, Interrupted(), output=tmp_path / "results.json")
    results = json.loads((tmp_path / "results.json").read_text())
    assert part(results, "reward_model")["status"] == "passed"
    assert part(results, "dpo")["extra_data"]["value"] == 0.5
    for name in ("aot", "gspo", "part2"):
        assert part(results, name)["output"] == "not graded: the grader was interrupted; run it again"


def test_a_part_that_took_long_is_on_disk_before_the_next_begins(tmp_path, public, monkeypatch):
    monkeypatch.setattr(autograder, "SAVE_AFTER", 0.0)
    seen = []

    class Looks(LongerWins):
        def compare(self, comparisons):
            if (tmp_path / "results.json").is_file():
                seen.append(json.loads((tmp_path / "results.json").read_text()))
            return super().compare(comparisons)

    for name in ("dpo", "ipo"):
        write_jsonl(tmp_path / "sub" / "policy_generations" / f"{name}.jsonl", policy_rows(wins=20))
    results = graded(tmp_path / "sub", public, Looks(), output=tmp_path / "results.json")
    assert part(seen[-1], "dpo")["status"] == "passed"
    assert "interrupted" in part(seen[-1], "ipo")["output"]
    assert part(results, "ipo")["status"] == "passed"


def test_a_judge_that_stops_half_way_leaves_no_grade_and_says_to_go_on(tmp_path, public):
    class Poor(LongerWins):
        def compare(self, comparisons):
            verdicts = super().compare(comparisons)
            return [*verdicts[:10], *(Verdict(None, detail={"status": "missing"}) for _ in verdicts[10:])]

    write_jsonl(tmp_path / "sub" / POLICY, policy_rows(wins=20))
    test = part(graded(tmp_path / "sub", public, Poor()), "dpo")
    assert (test["status"], test["extra_data"]["value"]) == ("failed", 1.0)
    assert "10 of 20 verdicts are missing (10 missing), too many to grade" in test["output"]
    assert test["extra_data"]["left_out"]["missing"] == 10


def test_what_tells_how_far_to_believe_the_judge_stands_beside_the_rate(tmp_path, public):
    write_jsonl(tmp_path / "sub" / POLICY, policy_rows(wins=8, losses=2))
    test = part(graded(tmp_path / "sub", public), "dpo")
    assert "the project's own figure 0.800 on 10 prompts with agreeing orders" in test["output"]
    assert "at equal lengths" in test["output"]
    details = test["extra_data"]
    assert (details["agreement_win_rate"], details["agreement_n"]) == (0.8, 10)


def test_a_leaderboard_holds_what_was_measured_and_only_where_asked_for(tmp_path, public):
    write_jsonl(tmp_path / "sub" / POLICY, policy_rows(wins=20))
    assert "leaderboard" not in graded(tmp_path / "sub", public)
    results = graded(tmp_path / "sub", public, leaderboard=True)
    assert results["leaderboard"] == [{"name": "dpo", "value": 1.0}]


def test_a_missing_public_file_is_the_instructors_mistake_and_costs_only_its_part(tmp_path, public):
    (public / "public_test_prefs_20.jsonl").unlink()
    write_jsonl(tmp_path / "sub" / POLICY, policy_rows(wins=20))
    write_jsonl(tmp_path / "sub" / REWARD, score_rows(20))
    results = graded(tmp_path / "sub", public)
    assert "holds 0 files like public_test_prefs" in part(results, "reward_model")["output"]
    assert part(results, "dpo")["status"] == "passed"
    with pytest.raises(CourseError, match="is not a directory"):
        graded(tmp_path / "sub", tmp_path / "nowhere")


# ---------------------------------------------------------------------- the real files


def test_the_real_base_against_itself_is_one_half_and_real_pairs_score(tmp_path, real_data):
    public = real_data / "public_eval"
    base = (public / "public_test_gen_base_responses_128.jsonl").read_bytes()
    pairs = [json.loads(line) for line in (public / "public_test_prefs_256.jsonl").read_text().splitlines()]
    scores = [{"row_id": pair["row_id"], "chosen_score": 1, "rejected_score": 0} for pair in pairs]
    write_jsonl(tmp_path / "sub" / REWARD, scores)
    (tmp_path / "sub" / "policy_generations").mkdir()
    (tmp_path / "sub" / POLICY).write_bytes(base)
    results = graded(tmp_path / "sub", public)
    assert part(results, "dpo")["extra_data"]["value"] == 0.5
    assert "128 tied" in part(results, "dpo")["output"]
    assert part(results, "reward_model")["extra_data"]["value"] == 1.0
