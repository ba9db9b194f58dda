"""Part 2: candidates of a declared family, one kept by a selector, and a manifest that says so."""

from __future__ import annotations

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

import solutions.answers as answers
from helpers.course import best, submission
from helpers.course.best import Member, Selection, write_best_submission
from helpers.course.manifest import read_manifest
from helpers.errors import CourseError
from helpers.files import read_json, read_jsonl, write_jsonl
from helpers.models.sampling import Completion
from tests.course.grading import IDS, part, policy_rows
from tests.course.grading import graded as grade_all

BEST, MANIFEST = "part2/offline_best.jsonl", "part2/offline_best.manifest.json"


class WordEncoder:
    """Encodes a prompt as the code points of its text."""

    pad_id, eos_ids, fingerprint = 0, frozenset({1}), "words"

    def encode_prompt(self, messages, max_tokens=None):
        return [ord(char) for char in messages[-1]["content"]]


class FakeRole(submission.Role):
    def active(self):
        return nullcontext()


ANSWERS = SimpleNamespace(
    **{name: getattr(answers, name) for name in ("combine_orders", "win_rate", "bootstrap_ci")},
    best_of_n=lambda scores: scores.argmax(dim=1),
)
FAMILY = {
    "dpo": Member(FakeRole("d"), "hash of dpo", "dpo"),
    "mine": Member(FakeRole("m"), "hash of mine", None),
}


def completion(text: str) -> Completion:
    return Completion([*map(ord, text), 1], text, True)


@pytest.fixture
def seeds(monkeypatch):
    """Replace generation: candidate i of a policy is its letter (i + 1) times. Records the seeds."""
    used = []

    def generate(model, encoder, prompts, sampling, *, k, seed, **options):
        assert not sampling.greedy
        used.append((model, seed))
        return [[completion(model * (index + 1)) for index in range(k)] for _ in prompts]

    monkeypatch.setattr(best, "generate", generate)
    return used


class LikesM:
    """A reward model: two points a letter m, minus the length."""

    def score_groups(self, groups, batch_size):
        return [[2.0 * ids.count(ord("m")) - len(ids) for ids in group.responses] for group in groups]


def write(place, public, family=FAMILY, **changes):
    options = {"n": 3, "reward_model": LikesM(), "reward_fingerprint": "hash of reward", **changes}
    return write_best_submission(
        place,
        "offline",
        public / "public_test_gen_prompts_20.jsonl",
        family,
        WordEncoder(),
        ANSWERS,
        Selection(**options),
        base_model="tiny",
        batch_size=12,
    )


def test_the_reward_model_chooses_among_all_policies_and_the_manifest_says_so(tmp_path, public, seeds):
    written = write(tmp_path, public)
    rows, manifest = read_jsonl(tmp_path / BEST), read_json(tmp_path / MANIFEST)
    assert [row["response_text"] for row in rows] == ["mmm"] * 20
    assert rows[0] == {
        "row_id": "r0",
        "prompt_text": "ask",
        "response_text": "mmm",
        "generated_num_tokens": 4,
    }
    assert manifest["family"] == [
        {"name": "dpo", "method": "dpo", "fingerprint": "hash of dpo"},
        {"name": "mine", "method": None, "fingerprint": "hash of mine"},
    ]
    assert (manifest["n"], manifest["chosen"]) == (3, {"dpo": 0, "mine": 20})
    assert manifest["selector"] == {"name": "reward_model", "fingerprint": "hash of reward"}
    assert read_manifest((tmp_path / MANIFEST).read_bytes(), "offline", (tmp_path / BEST).read_bytes(), 20)
    assert sorted(path.name for path in (tmp_path / "part2").iterdir()) == [
        "offline_best.jsonl",
        "offline_best.manifest.json",
    ]
    assert "dpo 0, mine 20" in written.render()


@pytest.mark.parametrize(("selector", "text"), [("longest", "ddd"), ("first", "d")])
def test_other_selectors_need_no_reward_model(tmp_path, public, seeds, selector, text):
    write(tmp_path, public, selector=selector, reward_model=None, reward_fingerprint=None)
    assert {row["response_text"] for row in read_jsonl(tmp_path / BEST)} == {text}


def test_every_policy_and_every_batch_draws_from_a_stream_of_its_own(tmp_path, public, seeds):
    write(tmp_path / "a", public)
    assert len({seed for _, seed in seeds}) == len(seeds) == 10  # 20 prompts in fours, two policies
    first = list(seeds)
    write(tmp_path / "b", public)
    assert seeds[10:] == first
    write(tmp_path / "c", public, seed=1)
    assert not {seed for _, seed in seeds[20:]} & {seed for _, seed in first}


def test_an_empty_candidate_is_never_kept_and_nothing_but_empty_ones_is_an_error(
    tmp_path, public, monkeypatch
):
    def generate(model, encoder, prompts, sampling, *, k, **options):
        return [[completion(" "), completion("d" if model == "d" else "")] for _ in prompts]

    monkeypatch.setattr(best, "generate", generate)
    write(tmp_path, public, n=2)
    assert {row["response_text"] for row in read_jsonl(tmp_path / BEST)} == {"d"}
    with pytest.raises(CourseError, match="response_text is empty; where every candidate is empty"):
        write(tmp_path / "empty", public, {"mine": FAMILY["mine"]}, n=2)
    assert not (tmp_path / "empty" / BEST).exists()


def test_an_interrupted_run_goes_on_and_ends_like_one_that_was_not(tmp_path, public, seeds, monkeypatch):
    write(tmp_path / "whole", public)
    real, made = best.generate, []

    def crash(*args, **options):
        if len(made) == 5:
            raise KeyboardInterrupt
        made.append(1)
        return real(*args, **options)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(best, "generate", crash)
        write(tmp_path / "cut", public)
    assert not (tmp_path / "cut" / BEST).exists()
    assert write(tmp_path / "cut", public).resumed == 8
    for name in (BEST, MANIFEST):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize(
    ("kind", "family", "changes", "message"),
    [
        ("both", FAMILY, {}, "--kind both"),
        ("offline", {}, {}, "--adapters"),
        ("online", {"dpo": FAMILY["dpo"]}, {}, "dpo is no online method .ppo, grpo"),
        ("offline", FAMILY, {"n": 0}, "--n 0"),
        ("offline", FAMILY, {"selector": "judge"}, "--selector judge is not one of"),
        ("offline", FAMILY, {"temperature": 0.0}, "--temperature"),
    ],
)
def test_what_no_grader_would_take_is_refused_before_a_model_is_loaded(kind, family, changes, message):
    methods = {name: member.method for name, member in family.items()}
    with pytest.raises(CourseError, match=message):
        best.check_selection(kind, methods, Selection(**changes))


def test_an_answer_of_best_of_n_outside_the_candidates_is_told(tmp_path, public, seeds, monkeypatch):
    monkeypatch.setattr(ANSWERS, "best_of_n", lambda scores: torch.full((len(scores),), 6))
    with pytest.raises(CourseError, match="best_of_n returned"):
        write(tmp_path, public)


# ---------------------------------------------------------------------- grading it


def hand_in(place, wins: int, which: str = "offline", **changes) -> None:
    """A part-2 file of `wins` longer answers and its manifest, with `changes` to it; ... drops a field."""
    path = place / f"part2/{which}_best.jsonl"
    write_jsonl(path, policy_rows(wins, losses=20 - wins))
    method = "dpo" if which == "offline" else "grpo"
    manifest = {
        "format": 1,
        "kind": which,
        "base_model": "tiny",
        "family": [{"name": "a", "method": method, "fingerprint": "f"}],
        "n": 4,
        "sampling": {"temperature": 1.0, "top_p": 1.0},
        "selector": {"name": "reward_model", "fingerprint": "f"},
        "seed": 0,
        "budget": {"max_prompt_tokens": 700, "max_response_tokens": 512, "max_new_tokens": 256},
        "rows": 20,
        "sha256": best.digest(path.read_bytes()),
        "chosen": {"a": 20},
        **changes,
    }
    manifest = {name: value for name, value in manifest.items() if value is not ...}
    (place / f"part2/{which}_best.manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("wins", "status"),
    [
        ({"offline": 17}, "passed"),  # 0.85
        ({"offline": 16}, "failed"),  # 0.80
        ({"online": 14}, "passed"),
        ({"online": 13}, "failed"),
        ({"offline": 10, "online": 15}, "passed"),  # one of the two is enough
        ({"offline": 17, "online": 0}, "passed"),
    ],
)
def test_one_of_the_two_thresholds_is_enough(tmp_path, public, wins, status):
    for kind, count in wins.items():
        hand_in(tmp_path / "sub", count, kind)
    test = part(grade_all(tmp_path / "sub", public), "part2")
    assert test["status"] == status
    assert [line.split(":")[0] for line in test["output"].split("\n")] == list(wins)
    assert "chosen by reward_model from 4 candidates each of a (20)" in test["output"]
    assert test["extra_data"]["value"] in [count / 20 for count in wins.values()]
    assert test["extra_data"]["threshold"] in (0.82, 0.70)


def test_part_2_is_always_a_part_unless_the_caller_says_otherwise(tmp_path, public):
    (tmp_path / "sub" / "part2").mkdir(parents=True)
    test = part(grade_all(tmp_path / "sub", public), "part2")
    assert "part2/offline_best.jsonl or part2/online_best.jsonl is missing: make one with" in test["output"]
    names = [test["name"] for test in grade_all(tmp_path / "sub", public, part2=False)["tests"]]
    assert "part2" not in names


def test_answers_without_a_manifest_are_not_graded(tmp_path, public):
    hand_in(tmp_path / "sub", 20)
    (tmp_path / "sub" / MANIFEST).unlink()
    test = part(grade_all(tmp_path / "sub", public), "part2")
    assert test["status"] == "failed"
    assert test["output"] == f"offline: {MANIFEST} is missing: `python -m helpers submit best` " + (
        "writes it with the answers"
    )


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"n": ...}, "n missing"),
        ({"n": "8"}, "n of the wrong kind"),
        ({"n": True}, "n of the wrong kind"),
        ({"n": 10**30}, "n is 1000000000000000000000000000000, outside 1 to 1024"),
        ({"format": 2}, "format 2 is unknown here"),
        ({"kind": "both"}, "kind is 'both', and the file is part2/offline_best.jsonl"),
        ({"sha256": "0"}, "the answers were changed after it was written"),
        ({"rows": 19, "chosen": {"a": 19}}, "rows is 19, and 20 prompts are asked for"),
        ({"chosen": {"a": 19}}, "chosen adds up to 19, not to the 20 rows"),
        ({"chosen": {"b": 20}}, "chosen does not count the policies of the family"),
        ({"chosen": {"a": -1.5}}, "chosen holds something other than counts"),
        ({"family": []}, "family is no list of policies"),
        ({"family": [{"name": "a"}]}, "policy 'a' has no fingerprint"),
        (
            {"family": [{"name": "a", "fingerprint": "f", "method": "grpo"}]},
            "policy 'a': grpo is no offline method",
        ),
        ({"family": [{"name": "a", "fingerprint": "f", "method": {}}]}, "method {} is not one of"),
        ({"selector": {"name": "judge"}}, "selector.name is 'judge', not one of"),
        ({"selector": {"name": "reward_model"}}, "selector.fingerprint is missing"),
        ({"sampling": {"temperature": -1, "top_p": 1}}, "sampling.temperature is -1"),
        ({"budget": {"max_prompt_tokens": 700, "max_new_tokens": 257}}, "budget.max_new_tokens is 257"),
    ],
)
def test_each_fault_of_a_manifest_is_one_line(tmp_path, public, changes, line):
    hand_in(tmp_path / "sub", 20, **changes)
    output = part(grade_all(tmp_path / "sub", public), "part2")["output"]
    assert output.startswith(f"offline: {MANIFEST} does not hold: ")
    assert line in output
    assert "\n" not in output and ";" not in output


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b"[" * 100_000, b"\xff\xfe{", b'{"n": ' + b"9" * 9_000 + b"}", b"{" * 10, b"\xe9"],
)
def test_a_manifest_that_is_none_is_one_line(tmp_path, public, data):
    hand_in(tmp_path / "sub", 20)
    (tmp_path / "sub" / MANIFEST).write_bytes(data)
    output = part(grade_all(tmp_path / "sub", public), "part2")["output"]
    assert output.startswith(f"offline: {MANIFEST} does not hold: ") and "\n" not in output


def test_the_reward_model_that_chose_is_no_judge_of_its_choice(tmp_path, public):
    hand_in(tmp_path / "sub", 20)
    for fingerprint, status in (("f", "failed"), ("another", "passed")):
        test = part(grade_all(tmp_path / "sub", public, judging_reward_model=fingerprint), "part2")
        assert test["status"] == status
        assert ("is the judge here: take another judge" in test["output"]) == (status == "failed")


def test_a_name_in_a_manifest_cannot_paint_the_terminal(tmp_path, public):
    name = "\x1b[2J\n\u202e\ud800"
    family = [{"name": name, "method": None, "fingerprint": "f"}]
    hand_in(tmp_path / "sub", 20, family=family, chosen={name: 20})
    results = grade_all(tmp_path / "sub", public, output=tmp_path / "results.json")
    output = part(results, "part2")["output"]
    assert "\x1b" not in output and "\n" not in output
    assert json.loads((tmp_path / "results.json").read_text()) == results


def test_one_kind_that_is_damaged_leaves_the_other_alone(tmp_path, public):
    hand_in(tmp_path / "sub", 20, "online")
    hand_in(tmp_path / "sub", 20)
    (tmp_path / "sub" / BEST).write_text("{}")
    test = part(grade_all(tmp_path / "sub", public), "part2")
    assert test["status"] == "passed"
    assert "the answers were changed after it was written" in test["output"]
    assert len(IDS) == 20 and json.dumps(test)
