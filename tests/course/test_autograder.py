"""The grader measures what it says, grades what it can, and answers hostile input with one clear line."""

from __future__ import annotations

import io
import json
import math
import os
import re
import stat
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import solutions.answers as answers
from helpers.course import submission_reader as reader
from helpers.course.autograder import WIN_THRESHOLDS, grade, render_results
from helpers.course.submission import zip_submission
from helpers.course.submission_reader import Faults, open_submission, read_policy_rows, read_score_rows
from helpers.errors import CourseError
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
    assert re.search(r"^total +2/7", table, re.M)


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


def test_a_missing_public_file_is_the_instructors_mistake_and_costs_only_its_part(tmp_path, public):
    (public / "public_test_prefs_20.jsonl").unlink()
    write_jsonl(tmp_path / "sub" / POLICY, policy_rows(wins=20))
    write_jsonl(tmp_path / "sub" / REWARD, score_rows(20))
    results = graded(tmp_path / "sub", public)
    assert "holds 0 files like public_test_prefs" in part(results, "reward_model")["output"]
    assert part(results, "dpo")["status"] == "passed"
    with pytest.raises(CourseError, match="is not a directory"):
        graded(tmp_path / "sub", tmp_path / "nowhere")


# ---------------------------------------------------------------------- damaged files


def changed(rows: list[dict], index: int, **fields) -> list[dict]:
    row = {name: value for name, value in {**rows[index], **fields}.items() if value is not ...}
    return [*rows[:index], row, *rows[index + 1 :]]


GOOD = policy_rows(20)


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (GOOD[1:], "'r0': 1 of 20 rows are missing"),
        (GOOD[5:], "'r0', 'r1', 'r2' and 2 more: 5 of 20 rows are missing"),
        ([*GOOD, {**GOOD[0], "row_id": "r99"}], "line 21 ('r99'): row_id is not among the 20 rows asked for"),
        ([*GOOD, GOOD[0]], "line 21 ('r0'): row_id appears a second time"),
        (changed(GOOD, 2, response_text=" \n"), "line 3: response_text is empty"),
        (changed(GOOD, 2, response_text=...), "line 3: response_text is missing"),
        (changed(GOOD, 2, response_text=["x"]), "line 3: response_text is not a string"),
        (changed(GOOD, 2, response_text="\ud800"), "line 3: response_text has broken Unicode"),
        (
            changed(GOOD, 0, generated_num_tokens=257),
            "line 1: generated_num_tokens is over the budget of 256",
        ),
        (
            changed(GOOD, 0, generated_num_tokens=0),
            "line 1: generated_num_tokens is not a positive whole number",
        ),
        (changed(GOOD, 0, generated_num_tokens=True), "line 1: generated_num_tokens is not a positive"),
        (changed(GOOD, 0, generated_num_tokens="9"), "line 1: generated_num_tokens is not a positive"),
        (changed(GOOD, 0, generated_num_tokens=...), "line 1: generated_num_tokens is missing"),
    ],
)
def test_each_fault_of_a_policy_file_is_one_line(tmp_path, public, rows, line):
    path = tmp_path / "sub" / POLICY
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(map(json.dumps, rows)))
    assert one_line_about(graded(tmp_path / "sub", public), "dpo").startswith(line)


SCORES = score_rows(20)


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        (SCORES[1:], "'r0': 1 of 20 rows are missing"),
        (changed(SCORES, 1, chosen_score=math.nan), "line 2: chosen_score is NaN or infinite"),
        (changed(SCORES, 1, rejected_score=math.inf), "line 2: rejected_score is NaN or infinite"),
        (changed(SCORES, 1, chosen_score="0.5"), "line 2: chosen_score is a string: write a number"),
        (changed(SCORES, 1, chosen_score=None), "line 2: chosen_score is missing"),
        (changed(SCORES, 1, chosen_score=True), "line 2: chosen_score is not a number"),
        (changed(SCORES, 1, chosen_score=10**400), "line 2: chosen_score is too large for a float"),
        ([*SCORES, SCORES[3]], "line 21 ('r3'): row_id appears a second time"),
    ],
)
def test_each_fault_of_a_reward_file_is_one_line(tmp_path, public, rows, line):
    path = tmp_path / "sub" / REWARD
    path.parent.mkdir(parents=True)
    path.write_text("\n".join(map(json.dumps, rows)))
    assert one_line_about(graded(tmp_path / "sub", public), "reward_model").startswith(line)


TEXT = "\n".join(map(json.dumps, GOOD))


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ((TEXT + "\n{oops\n").encode(), "line 21: not JSON"),
        ((TEXT + "\n[1]\n").encode(), "line 21: not a JSON object"),
        ((TEXT + "\n" + "[" * 50_000).encode(), "line 21: not JSON"),
        ((TEXT + "\n" + '{"a": ' + "9" * 6_000 + "}").encode(), "line 21: not JSON"),
        ((TEXT + "\n" + '{"a": "' + "x" * 300_000 + '"}').encode(), "line 21: longer than 200000 characters"),
        ((TEXT + "\n" + "\n" * 30_000).encode(), "the file has more than 20000 lines"),
        (TEXT.encode("utf-16"), "the file is not UTF-8 text (byte 0): save it as UTF-8"),
        ("é".encode("latin-1"), "the file is not UTF-8 text"),
    ],
)
def test_what_is_not_json_lines_is_named_with_its_line(data, line):
    faults = Faults()
    read_policy_rows(data, IDS, faults)
    assert faults.lines()[0].startswith(line)


def test_a_byte_order_mark_blank_lines_and_windows_line_ends_do_no_harm():
    faults = Faults()
    rows = read_policy_rows(b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n\r\n").encode(), IDS, faults)
    assert not faults
    assert len(rows) == 20


def test_submitted_text_cannot_paint_the_terminal(tmp_path, public):
    rows = [*GOOD, {**GOOD[0], "row_id": "\x1b[2J\u202e" + "x" * 500}]
    write_jsonl(tmp_path / "sub" / POLICY, rows)
    line = one_line_about(graded(tmp_path / "sub", public), "dpo")
    assert line.isascii() or "…" in line
    assert "\x1b" not in line
    assert len(line) < 200


# ---------------------------------------------------------------------- directories and zips


def zipped(path: Path, members: dict[str, bytes | str], **attributes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            for field, value in attributes.get(name, {}).items():
                setattr(info, field, value)
            archive.writestr(info, data)
    return path


@pytest.mark.parametrize(
    "wrapper", ["", "llm_rl_final_proj_public_submission/", "home/llm_rl_final_proj_public_submission/"]
)
def test_a_zip_is_graded_like_its_directory_at_whatever_depth(tmp_path, public, wrapper):
    source = zipped(
        tmp_path / "s.zip", {f"{wrapper}{POLICY}": TEXT, "__MACOSX/policy_generations/._dpo.jsonl": b"\0"}
    )
    before = sorted(tmp_path.rglob("*"))
    assert part(graded(source, public), "dpo")["status"] == "passed"
    assert sorted(tmp_path.rglob("*")) == before  # nothing is unpacked


def test_what_submit_zip_writes_is_what_grade_reads(tmp_path, public):
    write_jsonl(tmp_path / "sub" / POLICY, GOOD)
    write_jsonl(tmp_path / "sub" / REWARD, SCORES)
    assert graded(zip_submission(tmp_path / "sub"), public)["score"] == 2.0


@pytest.mark.parametrize(
    ("name", "notice"),
    [
        ("/etc/policy_generations/dpo.jsonl", "has an absolute path and was skipped"),
        ("C:/policy_generations/dpo.jsonl", "has an absolute path and was skipped"),
        ("../policy_generations/dpo.jsonl", "climbs out of the zip with '..' and was skipped"),
        ("policy_generations/../../dpo.jsonl", "climbs out of the zip with '..' and was skipped"),
    ],
)
def test_a_zip_member_that_points_elsewhere_is_skipped_and_named(tmp_path, public, name, notice):
    source = zipped(tmp_path / "s.zip", {name: TEXT, "policy_generations/ipo.jsonl": TEXT})
    results = graded(source, public)
    assert [line for line in results["extra_data"]["notices"] if notice in line]
    assert part(results, "dpo")["status"] == "failed"
    assert part(results, "ipo")["status"] == "passed"


def test_a_zip_member_that_is_a_link_is_skipped(tmp_path, public):
    link = {POLICY: {"external_attr": (stat.S_IFLNK | 0o777) << 16, "create_system": 3}}
    source = zipped(tmp_path / "s.zip", {POLICY: "/etc/passwd", "policy_generations/ipo.jsonl": TEXT}, **link)
    assert "is a link and was skipped" in graded(source, public)["output"]


def test_a_bomb_is_refused_before_and_while_it_unpacks(tmp_path, public, monkeypatch):
    monkeypatch.setattr(reader, "MAX_FILE_BYTES", 100_000)
    bomb = zipped(tmp_path / "s.zip", {POLICY: b"0" * 5_000_000, "policy_generations/ipo.jsonl": TEXT})
    assert "unpacks to more than" in graded(bomb, public)["output"]
    data = bytearray(bomb.read_bytes())
    size = (5_000_000).to_bytes(4, "little")
    lie = (10).to_bytes(4, "little")
    bomb.write_bytes(bytes(data).replace(size, lie))  # the directory promises ten bytes
    results = graded(bomb, public)
    assert "cannot be unpacked" in part(results, "dpo")["output"]
    assert part(results, "ipo")["status"] == "passed"


def test_a_member_that_appears_twice_is_graded_once_and_named(tmp_path, public):
    source = tmp_path / "s.zip"
    with zipfile.ZipFile(source, "w") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr(POLICY, TEXT)
        archive.writestr(POLICY, "{}")
    results = graded(source, public)
    assert "appears twice in the zip" in results["output"]
    assert part(results, "dpo")["status"] == "passed"


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04 no zip", b"{}"])
def test_a_file_that_is_no_zip_fails_every_part_with_the_reason(tmp_path, public, data):
    (tmp_path / "s.zip").write_bytes(data)
    results = graded(tmp_path / "s.zip", public)
    assert results["score"] == 0
    assert "neither a directory nor a readable zip" in results["output"]


def test_links_and_pipes_in_a_directory_are_not_followed(tmp_path, public):
    write_jsonl(tmp_path / "secret.jsonl", GOOD)
    folder = tmp_path / "sub" / "policy_generations"
    folder.mkdir(parents=True)
    (folder / "dpo.jsonl").symlink_to(tmp_path / "secret.jsonl")
    os.mkfifo(folder / "ipo.jsonl")
    (tmp_path / "sub" / "reward_model").symlink_to(tmp_path)
    results = graded(tmp_path / "sub", public)
    assert "policy_generations/dpo.jsonl is a link" in part(results, "dpo")["output"]
    assert "is not a regular file" in part(results, "ipo")["output"]
    assert "'reward_model' is a link to a directory and was skipped" in results["output"]


def test_a_directory_with_nothing_to_grade_says_what_belongs_there(tmp_path, public):
    (tmp_path / "sub").mkdir()
    results = graded(tmp_path / "sub", public)
    assert "holds neither policy_generations/*.jsonl nor reward_model" in results["output"]
    assert "does not exist" in graded(tmp_path / "nowhere", public)["output"]


# ---------------------------------------------------------------------- fuzz

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(IDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=4,
)
FIELDS = st.sampled_from(
    ["row_id", "response_text", "generated_num_tokens", "chosen_score", "rejected_score", "x"]
)
LINES = st.dictionaries(FIELDS, VALUES, max_size=6).map(json.dumps).map(str.encode) | st.binary(max_size=30)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    lines=st.lists(LINES, max_size=6),
    zipped_up=st.booleans(),
    cut=st.integers(0, 60),
    name=st.text(max_size=12),
)
def test_no_input_whatever_gets_a_traceback_out_of_the_reader(tmp_path_factory, lines, zipped_up, cut, name):
    data = b"\n".join(lines)
    for read in (read_policy_rows, read_score_rows):
        faults = Faults()
        read(data, IDS, faults)
        assert faults  # twenty rows are asked for, so something is always wrong
        assert all(line.isprintable() for line in faults.lines())
    if zipped_up:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            archive.writestr(name.replace("\ud800", "") or "x", data)
            archive.writestr(POLICY, data)
        path = tmp_path_factory.mktemp("fuzz") / "s.zip"
        path.write_bytes(buffer.getvalue()[: len(buffer.getvalue()) - cut] if cut < 50 else buffer.getvalue())
        try:
            opened = open_submission(path)
            for member in opened.readers:
                opened.read(member)
        except CourseError as problem:
            assert str(problem).isprintable()


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
