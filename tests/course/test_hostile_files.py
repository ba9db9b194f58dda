"""Damaged and hostile files of a submission each get one clear line."""

from __future__ import annotations

import json
import math

import pytest

from helpers.course.submission_reader import Faults, read_policy_rows
from helpers.files import write_jsonl
from tests.course.grading import GOOD, IDS, POLICY, REWARD, SCORES, TEXT, graded, one_line_about


def changed(rows: list[dict], index: int, **fields) -> list[dict]:
    row = {name: value for name, value in {**rows[index], **fields}.items() if value is not ...}
    return [*rows[:index], row, *rows[index + 1 :]]


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
        (changed(GOOD, 2, response_text="x" * 20_000), "line 3: response_text has more characters than 256"),
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


@pytest.mark.parametrize(
    ("data", "line"),
    [
        ((TEXT + "\n{oops\n").encode(), "line 21: not JSON"),
        ((TEXT + "\n[1]\n").encode(), "line 21: not a JSON object"),
        ((TEXT + "\n" + "[" * 50_000).encode(), "line 21: not JSON"),
        ((TEXT + "\n" + '{"a": ' + "9" * 6_000 + "}").encode(), "line 21: not JSON"),
        ((TEXT + "\n" + '{"a": "' + "x" * 300_000 + '"}').encode(), "line 21: longer than 200000 characters"),
        ((TEXT + "\n" + "\n" * 30_000).encode(), "the file has more than 20000 lines"),
        (TEXT.encode("utf-16"), "the file is not UTF-8 text (UTF-16, or binary): save it as UTF-8"),
        (TEXT.encode("utf-16-le"), "the file is not UTF-8 text (UTF-16, or binary): save it as UTF-8"),
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
