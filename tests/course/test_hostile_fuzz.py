"""Two thousand submissions, each sound but for some damage, are graded without a fault of the grader."""

from __future__ import annotations

import io
import json
import os
import zipfile
from functools import cache
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import solutions.answers as answers
from helpers.course.autograder import grade
from helpers.course.manifest import digest
from helpers.course.results import render_results
from helpers.files import write_jsonl
from helpers.judging import statistics
from tests.course.grading import POLICY, REWARD, LongerWins

IDS = ["a", "b", "c"]
BEST = "part2/online_best.jsonl"
ANSWERS = SimpleNamespace(
    **{name: getattr(answers, name) for name in ("combine_orders", "win_rate", "pair_accuracy")},
    bootstrap_ci=lambda outcomes: (0.0, 1.0),
)
WRAPPERS = ["", "llm_rl_final_proj_public_submission/", "x/y/", "__MACOSX/", "../", "/", "C:/", "A\\"]
NASTY = [
    None, True, False, 0, -1, 257, 2**63, 10**400, 1e308, 1e-320, float("nan"), float("inf"), float("-inf"),
    "", " ", "0.5", "NaN", "\ud800", "\x1b[2J", "\u202e", "\0", "a" * 300, "é", "a", "b", [], {}, [[]],
    {"a": 1}, ["a"],
]  # fmt: skip
VALUES = st.sampled_from(NASTY) | st.text(max_size=5) | st.integers() | st.floats()
JUNK = [
    b"", b"\0", b"\xff\xfe", b"\xfe\xff\0{", b"\xef\xbb\xbf", b"\xe9", b"[" * 30_000, b'{"a":' * 20_000,
    b"{}", b"null", b'{"row_id": "a"', b"9" * 6_000, b'{"row_id": ' + b"9" * 6_000 + b"}", b"\r",
    b"\n" * 25_000, b'"' + b"x" * 250_000 + b'"', b"\xe2\x80\xa8", b"NaN", b'{"row_id":"a","row_id":"b"}',
]  # fmt: skip


@cache
def sound() -> dict[str, bytes]:
    """A small submission with nothing wrong in it."""
    rows = [
        {"row_id": i, "prompt_text": "p", "response_text": "longer", "generated_num_tokens": 2} for i in IDS
    ]
    scores = [{"row_id": i, "chosen_score": 1.0, "rejected_score": 0.0} for i in IDS]
    files = {name: "\n".join(map(json.dumps, rows)).encode() for name in (POLICY, BEST)}
    files[REWARD] = "\n".join(map(json.dumps, scores)).encode()
    manifest = {
        "format": 1, "kind": "online", "base_model": "m", "n": 2, "seed": 0, "rows": 3,
        "family": [{"name": "a", "fingerprint": "f", "method": "grpo"}], "chosen": {"a": 3},
        "sampling": {"temperature": 1.0, "top_p": 1.0}, "selector": {"name": "first"},
        "budget": {"max_prompt_tokens": 700, "max_new_tokens": 256}, "sha256": digest(files[BEST]),
    }  # fmt: skip
    files["part2/online_best.manifest.json"] = json.dumps(manifest).encode()
    return files


NAMES = sorted(sound())
PLACES = st.integers(0, 400)
DAMAGE = st.one_of(
    st.tuples(st.just("field"), st.sampled_from(NAMES), PLACES, VALUES),
    st.tuples(st.just("drop field"), st.sampled_from(NAMES), PLACES, st.none()),
    st.tuples(
        st.just("line"), st.sampled_from(NAMES), PLACES, st.sampled_from(JUNK) | st.binary(max_size=20)
    ),
    st.tuples(st.just("drop line"), st.sampled_from(NAMES), PLACES, st.none()),
    st.tuples(st.just("repeat"), st.sampled_from(NAMES), PLACES, st.integers(2, 3)),
    st.tuples(st.just("bytes"), st.sampled_from(NAMES), PLACES, st.binary(min_size=1, max_size=4)),
    st.tuples(
        st.just("encode"), st.sampled_from(NAMES), PLACES, st.sampled_from(["utf-16", "utf-32", "cp037"])
    ),
    st.tuples(st.just("whole"), st.sampled_from(NAMES), PLACES, st.sampled_from(JUNK)),
)


def damaged(data: bytes, kind: str, place: int, value) -> bytes:
    """Apply one damage to a file."""
    lines = data.split(b"\n")
    at = place % len(lines)
    if kind in ("field", "drop field"):
        try:
            row = json.loads(lines[at])
            name = sorted(row)[place // 7 % len(row)]
        except (ValueError, TypeError, ZeroDivisionError, RecursionError):
            return data
        if not isinstance(row, dict):
            return data
        row = {**row, name: value} if kind == "field" else {k: v for k, v in row.items() if k != name}
        lines[at] = json.dumps(row).encode() if value != 10**400 else lines[at]
    elif kind == "line":
        lines.insert(at, value)
    elif kind == "drop line":
        del lines[at]
    elif kind == "repeat":
        lines += [lines[at]] * value
    elif kind == "bytes":
        at = place % (len(data) + 1)
        return data[:at] + value + data[at + len(value) :]
    elif kind == "encode":
        return data.decode("latin-1").encode(value, errors="replace")
    else:
        return value
    return b"\n".join(lines)


def packed(files: dict[str, bytes], wrapper: str, twice: str | None) -> bytes:
    """The files as a zip; `twice` goes in under the same name again, in other letters."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(f"{wrapper}{name}", data)
        if twice:
            archive.writestr(f"{wrapper}{twice.upper()}", b"{}")
    return buffer.getvalue()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """One folder for all cases: the public files, and whatever is handed in next."""
    folder = tmp_path_factory.mktemp("fuzz")
    prompts = [{"row_id": i, "prompt_text": "p"} for i in IDS]
    base = [{**row, "response_text": "base", "generated_num_tokens": 1} for row in prompts]
    pairs = [{**row, "chosen_text": "c", "rejected_text": "r"} for row in prompts]
    write_jsonl(folder / "public" / "public_test_gen_prompts_3.jsonl", prompts)
    write_jsonl(folder / "public" / "public_test_gen_base_responses_3.jsonl", base)
    write_jsonl(folder / "public" / "public_test_prefs_3.jsonl", pairs)
    with pytest.MonkeyPatch.context() as patch:  # intervals are the slowest part, and not what is tested
        patch.setattr(statistics, "cluster_bootstrap", lambda *_, **__: (0.0, 1.0))
        yield folder


@settings(
    max_examples=2000,
    deadline=None,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)
@given(
    damages=st.lists(DAMAGE, max_size=4),
    wrapper=st.sampled_from(WRAPPERS) | st.just(""),
    twice=st.none() | st.sampled_from(NAMES),
    flips=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), max_size=2),
    cut=st.none() | st.floats(0, 1),
)
def test_no_damage_whatever_gets_a_fault_out_of_the_grader(place, damages, wrapper, twice, flips, cut):
    files = dict(sound())
    for kind, name, at, value in damages:
        files[name] = damaged(files[name], kind, at, value)
    data = bytearray(packed(files, wrapper, twice))
    for share, byte in flips:
        data[int(share * (len(data) - 1))] = byte
    (place / "s.zip").write_bytes(data[: int(cut * len(data))] if cut is not None and cut > 0.5 else data)

    results = grade(place / "s.zip", place / "public", LongerWins(), ANSWERS)

    said = [results["output"], *(test["output"] for test in results["tests"])]
    assert not [text for text in said if "the grader failed" in text or "Traceback" in text]
    assert all(line.isprintable() for text in said for line in text.split("\n"))
    assert render_results(results)
    assert json.dumps(results, ensure_ascii=False, allow_nan=False).encode()
    assert sorted(os.listdir(place)) == ["public", "s.zip"]


def test_the_undamaged_submission_passes_in_every_part_it_has(place):
    (place / "s.zip").write_bytes(packed(sound(), "", None))
    results = grade(place / "s.zip", place / "public", LongerWins(), answers)
    passed = [test["name"] for test in results["tests"] if test["status"] == "passed"]
    assert passed == ["reward_model", "dpo", "part2"]
