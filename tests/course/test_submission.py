"""A submission is complete, in budget, in the project's format, and survives kill -9."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import textwrap
import time
import zipfile
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from helpers.course import submission
from helpers.course.layout import policy_file
from helpers.course.submission import (
    check_budget,
    export_submission,
    write_policy_submission,
    write_reward_submission,
    zip_submission,
)
from helpers.errors import CourseError
from helpers.files import read_jsonl, write_jsonl
from helpers.journal import Journal
from helpers.models.sampling import Completion
from helpers.text.chat import Budget


class WordEncoder:
    """Encodes a prompt as the code points of its text."""

    pad_id, eos_ids, fingerprint = 0, frozenset({1}), "words"

    def encode_prompt(self, messages, max_tokens=None):
        return [ord(char) for char in messages[-1]["content"]][-(max_tokens or 10**6) :]

    def encode_response(self, text, *, complete=True, max_tokens=None):
        return [*map(ord, text), 1][:max_tokens]


class FakeRole(submission.Role):
    def active(self):
        return nullcontext()


ROLE = FakeRole(None)


def echo(model, encoder, prompts, sampling, **options):
    """Answer with the prompt in capitals."""
    texts = ["".join(map(chr, ids)).upper() for ids in prompts]
    return [[Completion([*map(ord, text), 1][: sampling.max_new_tokens], text, True)] for text in texts]


@pytest.fixture
def prompts(tmp_path):
    rows = [
        {
            "row_id": f"r{index}",
            "prompt_text": f"ask {index}",
            "prompt_messages": [{"role": "user", "content": f"ask {index}"}],
        }
        for index in range(7)
    ]
    write_jsonl(tmp_path / "prompts.jsonl", rows)
    return tmp_path / "prompts.jsonl"


@pytest.fixture
def calls(monkeypatch):
    """Replace generation by `echo` and record the batches it is asked for."""
    made = []

    def generate(model, encoder, prompts, sampling, **options):
        made.append(["".join(map(chr, ids)) for ids in prompts])
        assert sampling.greedy
        return echo(model, encoder, prompts, sampling)

    monkeypatch.setattr(submission, "generate", generate)
    return made


def write(directory, prompts, **options):
    options = {"policy_fingerprint": "adapter", "batch_size": 2, **options}
    return write_policy_submission(directory, "dpo", prompts, ROLE, WordEncoder(), **options)


# ---------------------------------------------------------------------- format and budgets


def test_the_policy_file_has_the_projects_fields_in_the_prompts_order(tmp_path, prompts, calls):
    written = write(tmp_path / "sub", prompts)
    rows = read_jsonl(tmp_path / "sub" / "policy_generations" / "dpo.jsonl")
    assert [row["row_id"] for row in rows] == [f"r{index}" for index in range(7)]
    assert rows[3] == {
        "row_id": "r3",
        "prompt_text": "ask 3",
        "response_text": "ASK 3",
        "generated_num_tokens": 6,
    }
    assert (written.rows, written.resumed, written.retried) == (7, 0, [])
    assert [path.name for path in (tmp_path / "sub" / "policy_generations").iterdir()] == ["dpo.jsonl"]


@pytest.mark.parametrize(
    ("method", "name"), [("dpo", "dpo"), ("dr_grpo", "drgrpo"), ("dr-grpo", "drgrpo"), ("DrGRPO", "drgrpo")]
)
def test_files_are_named_as_the_project_names_them(method, name):
    assert policy_file(method) == f"policy_generations/{name}.jsonl"


def test_an_unknown_method_is_refused_with_the_known_ones():
    with pytest.raises(CourseError, match="'rlhf'.*dpo, ipo"):
        policy_file("rlhf")


@pytest.mark.parametrize("name", ["max_prompt_tokens", "max_new_tokens", "max_response_tokens"])
def test_a_budget_over_the_benchmarks_is_refused_before_anything_is_generated(tmp_path, prompts, calls, name):
    limit = getattr(Budget(), name)
    with pytest.raises(CourseError, match=f"--{name} {limit + 1} is outside"):
        write(tmp_path / "sub", prompts, budget=Budget(**{name: limit + 1}))
    assert calls == []
    assert not (tmp_path / "sub").exists()


def test_a_smaller_budget_is_allowed_and_noted(tmp_path, prompts, calls):
    assert check_budget(Budget()) == []
    written = write(tmp_path / "sub", prompts, budget=Budget(max_new_tokens=64))
    assert written.notes == ["--max_new_tokens is 64, under the 256 that the benchmark allows"]
    assert "--max_new_tokens is 64" in written.render()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt_text": "x"}, "row 1 lacks row_id"),
        ({"row_id": "a"}, "row 1 lacks prompt_messages and prompt_text"),
    ],
)
def test_public_prompts_without_what_is_needed_are_named(tmp_path, row, message):
    write_jsonl(tmp_path / "p.jsonl", [row])
    with pytest.raises(CourseError, match=message):
        submission.read_public_rows(tmp_path / "p.jsonl")


def test_public_prompts_that_repeat_an_id_are_refused(tmp_path):
    write_jsonl(tmp_path / "p.jsonl", [{"row_id": "a", "prompt_text": "x"}] * 2)
    with pytest.raises(CourseError, match="row 2 repeats row_id a"):
        submission.read_public_rows(tmp_path / "p.jsonl")


# ---------------------------------------------------------------------- empty answers


def test_an_empty_answer_is_generated_again_with_a_minimum_length_and_counted(tmp_path, prompts, monkeypatch):
    minimums = []

    def generate(model, encoder, prompts, sampling, **options):
        minimums.append((len(prompts), sampling.min_new_tokens))
        results = echo(model, encoder, prompts, sampling)
        empty = [[Completion([1], " ", True)]]
        return [
            empty[0] if ids[-1] == ord("3") and sampling.min_new_tokens < 8 else done
            for ids, done in zip(prompts, results, strict=True)
        ]

    monkeypatch.setattr(submission, "generate", generate)
    written = write(tmp_path / "sub", prompts, batch_size=7)
    assert minimums == [(7, 0), (1, 1), (1, 8)]
    assert written.retried == ["r3"]
    assert "1 greedy answers were empty" in written.render()
    assert read_jsonl(written.path)[3]["response_text"] == "ASK 3"


def test_answers_that_stay_empty_are_named_and_nothing_is_written(tmp_path, prompts, monkeypatch):
    def generate(model, encoder, prompts, sampling, **options):
        return [
            [Completion([1], "", True)] if ids[-1] in (ord("2"), ord("5")) else done
            for ids, done in zip(prompts, echo(model, encoder, prompts, sampling), strict=True)
        ]

    monkeypatch.setattr(submission, "generate", generate)
    with pytest.raises(CourseError, match="was not written.*r2, r5 stay empty.*earlier checkpoint"):
        write(tmp_path / "sub", prompts)
    assert not (tmp_path / "sub" / "policy_generations" / "dpo.jsonl").exists()


# ---------------------------------------------------------------------- resuming

SLOW = """
    import sys, time
    from test_submission import ROLE, WordEncoder, echo
    from helpers.course import submission

    def generate(model, encoder, prompts, sampling, **options):
        with open(sys.argv[3], "a") as log:
            log.write(",".join("".join(map(chr, ids)) for ids in prompts) + chr(10))
        time.sleep(float(sys.argv[4]))
        return echo(model, encoder, prompts, sampling)

    submission.generate = generate
    submission.write_policy_submission(
        sys.argv[1], "dpo", sys.argv[2], ROLE, WordEncoder(), policy_fingerprint="adapter", batch_size=2
    )
"""


def start(root, directory, prompts, log, delay):
    paths = [str(root), str(root / "tests" / "course"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [
        sys.executable,
        "-c",
        textwrap.dedent(SLOW),
        str(directory),
        str(prompts),
        str(log),
        str(delay),
    ]
    return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)


def test_a_generation_killed_by_kill_9_resumes_to_the_same_file(tmp_path, prompts, calls, root):
    log, partial = tmp_path / "log", tmp_path / "sub" / "policy_generations" / "dpo.jsonl.partial"
    process = start(root, tmp_path / "sub", prompts, log, 1.0)
    deadline = time.monotonic() + 60
    while not (partial.is_file() and partial.read_bytes().count(b"\n") >= 3):  # header and two batches
        assert time.monotonic() < deadline and process.poll() is None, "the generation never got going"
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not partial.with_name("dpo.jsonl").exists()
    finished = sum(len(json.loads(line)["rows"]) for line in partial.read_text().splitlines()[1:])
    assert finished >= 4
    asked = [prompt for line in log.read_text().splitlines()[: finished // 2] for prompt in line.split(",")]

    resumed = write(tmp_path / "sub", prompts)
    assert resumed.resumed == finished
    assert not set(asked) & {prompt for batch in calls for prompt in batch}  # nothing is generated twice
    assert not partial.exists()
    whole = write(tmp_path / "other", prompts)
    assert resumed.path.read_bytes() == whole.path.read_bytes()


def interrupted(directory, prompts, monkeypatch, after=2):
    """Run until `after` batches are on disk, then fail as a crash would."""
    made = []

    def generate(model, encoder, batch, sampling, **options):
        if len(made) == after:
            raise KeyboardInterrupt
        made.append(batch)
        return echo(model, encoder, batch, sampling)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(submission, "generate", generate)
        write(directory, prompts)
    return directory / "policy_generations" / "dpo.jsonl.partial"


def test_a_torn_last_line_costs_that_batch_only(tmp_path, prompts, calls, monkeypatch):
    partial = interrupted(tmp_path / "sub", prompts, monkeypatch)
    with partial.open("ab") as stream:
        stream.write(b'{"rows": [{"row_id": "r4", "resp')
    written = write(tmp_path / "sub", prompts)
    assert written.resumed == 4
    assert calls == [["ask 4", "ask 5"], ["ask 6"]]
    assert len(read_jsonl(written.path)) == 7


@pytest.mark.parametrize(
    "change", [{"policy_fingerprint": "another adapter"}, {"budget": Budget(max_new_tokens=99)}, {"seed": 1}]
)
def test_another_adapter_or_budget_starts_anew(tmp_path, prompts, calls, monkeypatch, change):
    interrupted(tmp_path / "sub", prompts, monkeypatch)
    assert write(tmp_path / "sub", prompts, **change).resumed == 0
    assert sum(map(len, calls)) == 7


def test_a_resumed_run_may_use_smaller_batches(tmp_path, prompts, calls, monkeypatch):
    interrupted(tmp_path / "sub", prompts, monkeypatch)
    assert write(tmp_path / "sub", prompts, batch_size=1).resumed == 4
    assert calls == [["ask 4"], ["ask 5"], ["ask 6"]]


@pytest.mark.parametrize(
    "junk", [b"", b"\xff\xfe\n", b"[]\n", b'{"fingerprint": 1}\n{"rows": 3}\n', b"null\nnull\n"]
)
def test_a_damaged_journal_is_started_anew(tmp_path, junk):
    path = tmp_path / "x.partial"
    path.write_bytes(junk)
    assert Journal(path, "key").load() == []
    assert read_jsonl(path) == [{"fingerprint": "key"}]


# ---------------------------------------------------------------------- the reward model


@pytest.fixture
def prefs(tmp_path):
    rows = [
        {"row_id": f"p{index}", "prompt_text": "ask", "chosen_text": "c" * (index + 1), "rejected_text": "r"}
        for index in range(5)
    ]
    write_jsonl(tmp_path / "prefs.jsonl", rows)
    return tmp_path / "prefs.jsonl"


def score(directory, prefs, score_groups, **options):
    model = SimpleNamespace(score_groups=score_groups)
    return write_reward_submission(directory, prefs, model, WordEncoder(), reward_fingerprint="rm", **options)


def lengths(groups, batch_size):
    return [[float(len(response)) for response in group.responses] for group in groups]


def test_the_reward_file_scores_every_pair_even_one_that_training_would_drop(tmp_path, prefs):
    written = score(tmp_path / "sub", prefs, lengths, batch_size=2, budget=Budget(max_response_tokens=3))
    rows = read_jsonl(tmp_path / "sub" / "reward_model" / "public_test_pref_scores.jsonl")
    assert rows[0] == {"row_id": "p0", "chosen_score": 2.0, "rejected_score": 2.0}
    assert rows[4] == {"row_id": "p4", "chosen_score": 3.0, "rejected_score": 2.0}  # cut at 3 tokens
    assert written.rows == 5


def test_scores_that_are_not_finite_are_refused(tmp_path, prefs):
    with pytest.raises(CourseError, match="NaN or infinite scores on 5 rows"):
        score(tmp_path / "sub", prefs, lambda groups, _: [[math.inf, 0.0] for _ in groups])
    assert not (tmp_path / "sub" / "reward_model" / "public_test_pref_scores.jsonl").exists()


# ---------------------------------------------------------------------- zip


def test_the_zip_has_the_layout_the_project_looks_for_and_is_reproducible(tmp_path, prompts, prefs, calls):
    write(tmp_path / "sub", prompts)
    score(tmp_path / "sub", prefs, lengths)
    (tmp_path / "sub" / "notes.txt").write_text("not part of it")
    first = zip_submission(tmp_path / "sub", tmp_path / "a.zip").read_bytes()
    second = zip_submission(tmp_path / "sub").read_bytes()
    assert first == second
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.namelist() == [
            "llm_rl_final_proj_public_submission/policy_generations/dpo.jsonl",
            "llm_rl_final_proj_public_submission/reward_model/public_test_pref_scores.jsonl",
        ]


def test_the_export_is_the_directory_that_the_projects_grader_looks_for(tmp_path, prompts, prefs, calls):
    write(tmp_path / "sub", prompts)
    score(tmp_path / "sub", prefs, lengths)
    (tmp_path / "sub" / "notes.txt").write_text("not part of it")
    target, names = export_submission(tmp_path / "sub", tmp_path / "out")
    assert target == tmp_path / "out" / "llm_rl_final_proj_public_submission"
    assert [path.parent for path in (tmp_path / "out").rglob(target.name)] == [tmp_path / "out"]
    written = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
    assert (
        written
        == set(names)
        == {
            "policy_generations/dpo.jsonl",
            "reward_model/public_test_pref_scores.jsonl",
        }
    )
    for name in names:
        assert (target / name).read_bytes() == (tmp_path / "sub" / name).read_bytes()
    assert export_submission(tmp_path / "sub", tmp_path / "out")[1] == names  # again, over the first


def test_an_unfinished_or_empty_submission_is_not_zipped(tmp_path, prompts, monkeypatch):
    interrupted(tmp_path / "sub", prompts, monkeypatch)
    with pytest.raises(CourseError, match=r"unfinished files \(dpo.jsonl.partial\)"):
        zip_submission(tmp_path / "sub")
    (tmp_path / "none").mkdir()
    with pytest.raises(CourseError, match="holds neither"):
        zip_submission(tmp_path / "none")


# ---------------------------------------------------------------------- the real files


def test_real_prompts_and_pairs_become_a_submission_in_the_format_of_the_real_base_file(
    tmp_path, real_data, calls
):
    public = real_data / "public_eval"
    written = write(tmp_path / "sub", public / "public_test_gen_prompts_128.jsonl", batch_size=64)
    theirs = read_jsonl(public / "public_test_gen_base_responses_128.jsonl")
    ours = read_jsonl(written.path)
    assert [set(row) for row in ours] == [set(row) for row in theirs]
    assert [row["row_id"] for row in ours] == [row["row_id"] for row in theirs]
    assert [row["prompt_text"] for row in ours] == [row["prompt_text"] for row in theirs]
    assert score(tmp_path / "sub", public / "public_test_prefs_256.jsonl", lengths).rows == 256
