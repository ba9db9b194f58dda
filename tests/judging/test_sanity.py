"""Sanity commands, recorded verdicts, rubric grades, and a reward model kept out of its own case."""

from __future__ import annotations

import json

import pytest

from helpers.errors import CourseError
from helpers.judging import sanity
from helpers.judging.gold import GoldJudge
from helpers.judging.judge import Candidates, Comparison, Verdict
from helpers.judging.recorded import RecordedJudge, RecordingJudge
from helpers.judging.registry import JudgeSettings, make_judge
from helpers.judging.reward_judge import refuse_if_trained_on
from helpers.judging.rubric import rubric_scores
from helpers.text.datasets import load_examples


class Letters:
    """Names the letters it was made with, in turn."""

    name, is_proxy = "letters", True

    def __init__(self, choose):
        self.choose_letter = choose

    def compare(self, comparisons):
        return [Verdict(self.choose_letter(one)) for one in comparisons]


ALWAYS_A = Letters(lambda one: "A")
LONGER = Letters(lambda one: "A" if len(one.response_a) >= len(one.response_b) else "B")
SILENT = Letters(lambda one: None)


@pytest.fixture(scope="module")
def pairs(tiny_dir):
    examples = load_examples(tiny_dir, split="test_prefs", kind="preference", limit=40).examples
    return [Comparison(one, *one.responses) for one in examples]


def test_a_judge_that_always_says_a_is_found_out(pairs):
    found = sanity.examine(ALWAYS_A, pairs)
    assert (found.win_rate, found.first_rate, found.positions.consistency) == (0.5, 1.0, 0.0)
    assert "shown first got 100%" in found.warning


def test_a_judge_that_does_not_care_for_the_order_is_not_warned_of(pairs):
    found = sanity.examine(GoldJudge(), pairs)
    assert (found.first_rate, found.positions.consistency, found.warning) == (0.5, 1.0, None)


@pytest.mark.parametrize("judge", [GoldJudge(), ALWAYS_A, LONGER])
def test_self_against_self_is_one_half(pairs, judge):
    same = [Comparison(one.example, one.response_a, one.response_a) for one in pairs]
    assert sanity.examine(judge, same, same=True).win_rate == 0.5


def test_a_judge_without_verdicts_has_no_rate(pairs):
    found = sanity.examine(SILENT, pairs)
    assert found.win_rate is None and found.left_out["unparsed"] == 80 and "could be read" in found.warning


def test_one_without_verdicts_is_not_taken_for_one_that_calls_equals_equal(pairs):
    same = [Comparison(one.example, one.response_a, one.response_a) for one in pairs]
    assert "only 0 of 80 verdicts" in sanity.examine(SILENT, same, same=True).warning


def test_agreement_with_itself_is_perfect_and_with_position_none(pairs):
    assert sanity.agree(GoldJudge(), GoldJudge(), pairs).kappa.value == 1
    found = sanity.agree(GoldJudge(), ALWAYS_A, pairs)
    assert found.kappa.value == pytest.approx(0) and found.table["first"]["tie"] > 0


def command(*words, capsys):
    from helpers.apps.cli import main

    status = main(["judge", *words])
    return status, capsys.readouterr()


def test_the_commands(server, tmp_path, capsys):
    flags = ["--judge", "openai", "--judge_base_url", server.url, "--judge_model", "m", "--limit", "12",
             "--judge-cache", str(tmp_path / "c"), "--profile", "tiny"]  # fmt: skip
    status, said = command("cost", *flags, capsys=capsys)
    assert status == 0 and "24 verdicts to ask for" in said.out and not server.requests
    status, said = command("position", *flags, "--output", str(tmp_path / "p.json"), capsys=capsys)
    assert status == 0 and "warning: the response shown first got 100%" in said.out
    assert json.loads((tmp_path / "p.json").read_text())["first_position_rate"] == 1
    status, said = command("self", *flags, capsys=capsys)
    assert status == 0 and "win rate of the first response  0.500" in said.out
    status, said = command("agree", *flags, "--second_judge", "gold", capsys=capsys)
    assert status == 0 and "Cohen's kappa  0.000" in said.out


@pytest.mark.parametrize("name", ["self", "position", "rubric"])
def test_a_server_that_is_down_is_a_failure_with_its_reason(server, capsys, name):
    flags = ["--judge", "openai", "--judge_base_url", "http://127.0.0.1:9/v1", "--judge_model", "m"]
    flags += ["--limit", "2", "--judge_cache", "none", "--judge_retries", "0", "--profile", "tiny"]
    status, said = command(name, *flags, capsys=capsys)
    assert status == 1
    assert name == "rubric" or "0 of 4 verdicts could be read: the others did not come (conn" in said.out


@pytest.mark.parametrize("flag", ["--judge_model", "--judge_base_url"])
def test_a_language_model_that_would_not_be_asked_is_refused(capsys, flag):
    status, said = command("self", "--judge", "gold", flag, "http://x/v1", capsys=capsys)
    assert status == 2 and flag in said.err and "--judge openai" in said.err


@pytest.mark.parametrize(
    ("words", "flag"),
    [(["maybe"], "judge maybe"), (["self"], "--judge"), (["self", "--judge", "oracle"], "oracle"),
     (["agree", "--judge", "gold"], "--second_judge"), (["self", "--judge", "openai"], "OPENAI_API_KEY"),
     (["self", "--judge", "openai", "--judge_base_url", "http://x/v1"], "--judge_model"),
     (["self", "--judge", "recorded"], "--judge_record"),
     (["self", "--judge", "reward_model"], "--judge_reward_model"),
     (["rubric", "--judge", "gold"], "--judge openai"),
     (["self", "--judge", "gold", "--responses", "x.jsonl"], "--baseline_responses")],
)  # fmt: skip
def test_mistakes_name_their_flag(server, capsys, words, flag):
    status, said = (
        command(*words, "--profile", "tiny", capsys=capsys)
        if words[0] != "maybe"
        else command(*words, capsys=capsys)
    )
    assert status == 2 and flag in said.err and "Traceback" not in said.err


# ---------------------------------------------------------------------- recorded
def test_what_was_recorded_is_replayed(pairs, tmp_path):
    path = tmp_path / "verdicts.jsonl"
    recorder = RecordingJudge(GoldJudge(), path)
    verdicts = recorder.compare(pairs)
    sets = [Candidates(one.example, (one.response_a, one.response_b, "I do not know.")) for one in pairs[:5]]
    choices = recorder.choose(sets)
    replay = RecordedJudge(path)
    assert replay.compare(pairs) == verdicts and replay.choose(sets) == choices
    assert replay.name == "recorded: gold" and replay.is_proxy is False
    other = Comparison(pairs[0].example, "new", "texts")
    assert (replay.compare([other])[0].winner, replay.compare([other])[0].detail["status"]) == (
        None,
        "missing",
    )
    size = path.stat().st_size
    RecordingJudge(GoldJudge(), path).compare(pairs)
    assert path.stat().st_size == size, "nothing is recorded twice"


def test_failures_are_not_recorded(server, judge_of, make_pair, tmp_path):
    server.default = "refusal"
    path = tmp_path / "verdicts.jsonl"
    judge_of(judge_record=str(path)).compare([make_pair()])
    assert not path.exists()
    server.default = "ok"
    judge_of(judge_record=str(path)).compare([make_pair()])
    replay = make_judge("recorded", JudgeSettings(judge_record=str(path)))
    assert replay.compare([make_pair()])[0].winner == "A" and replay.is_proxy
    assert replay.instructions_hash == judge_of().instructions_hash


WRONG = {"key": "x", "kind": "compare", "judge": "j", "is_proxy": True, "verdict": {"winner": "C"}}


@pytest.mark.parametrize("row", ['{"key": "x"}', json.dumps(WRONG), "not json"])
def test_a_damaged_record_is_named(tmp_path, row):
    (tmp_path / "r.jsonl").write_text(row + "\n")
    with pytest.raises(CourseError, match="r.jsonl"):
        RecordedJudge(tmp_path / "r.jsonl")


# ---------------------------------------------------------------------- rubric
def test_grades_come_from_the_same_client_and_cache(server, judge_of, make_pair):
    server.answer = lambda request: json.dumps({"reason": "x", "helpful": 4, "harmless": 5, "honest": 3})
    examples = [make_pair(number).example for number in range(4)]
    judge = judge_of()
    found = rubric_scores(judge, examples, ["Paris."] * 4)
    assert found.means == {"helpful": 4, "harmless": 5, "honest": 3} and found.judge == judge.name
    rubric_scores(judge_of(), examples, ["Paris."] * 4)
    assert len(server.requests) == 4


@pytest.mark.parametrize("bad", [{"helpful": 6}, {"helpful": "4"}, {"honest": None}])
def test_a_grade_off_the_scale_is_none(server, judge_of, make_pair, bad):
    server.answer = lambda _: json.dumps({"reason": "x", "helpful": 4, "harmless": 5, "honest": 3, **bad})
    found = rubric_scores(judge_of(), [make_pair().example], ["Paris."])
    assert found.means["helpful"] is None and found.left_out["unparsed"] == 1


# ---------------------------------------------------------------------- reward model
@pytest.fixture
def reward(tiny_dir):
    return tiny_dir / "adapters" / "reward"


def policy(path, reward_model, init=None):
    (path / "final" / "adapter").mkdir(parents=True)
    settings = {
        "algo": "grpo",
        "reward_model": str(reward_model) if reward_model else None,
        "init_adapter": init,
    }
    (path / "config.json").write_text(json.dumps(settings))
    return path / "final" / "adapter"


def test_a_reward_model_does_not_judge_what_it_trained(tmp_path, reward):
    import shutil

    shutil.copytree(reward, tmp_path / "copy")
    trained = policy(tmp_path / "a", reward)
    by_copy = policy(tmp_path / "b", tmp_path / "copy")
    inherited = policy(tmp_path / "c", None, init=str(trained))
    free = policy(tmp_path / "d", None)
    for adapter in (trained, by_copy, inherited):
        with pytest.raises(CourseError, match="--force_proxy"):
            refuse_if_trained_on(reward, [free, adapter])
        assert refuse_if_trained_on(reward, [adapter], force=True) == [adapter]
    assert refuse_if_trained_on(reward, [free]) == []


def test_a_reward_model_judges_as_a_labelled_proxy(pairs, reward):
    from helpers.course import stand_ins

    judge = make_judge("reward_model", JudgeSettings(judge_reward_model=str(reward)), stand_ins)
    assert judge.is_proxy and "proxy" in judge.name
    found = sanity.examine(judge, pairs[:16])
    assert found.positions.consistency == 1 and found.win_rate > 0.5
    same = [Comparison(pairs[0].example, "Hello.", "Hello.")]
    assert judge.compare(same)[0].winner == "A", "equal scores read as a tie"
