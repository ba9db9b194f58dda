"""What servers do to a judge: every misbehaviour through the real client, in both APIs."""

from __future__ import annotations

import json
import time

import pytest

from helpers.errors import CourseError


def one(judge, pair):
    return judge.compare([pair])[0]


def test_a_good_answer_fills_every_field(server, judge_of, make_pair, api):
    verdict = one(judge_of(api), make_pair())
    assert verdict.winner == "A"
    assert verdict.detail == {
        "status": "ok", "confidence": 0.9, "strength": 4, "usable": True, "training_quality": 4,
        "exclude_tags": [], "reason": "the first is right",
    }  # fmt: skip
    assert server.requests[0].path == {"responses": "/v1/responses", "chat": "/v1/chat/completions"}[api]


def test_the_schema_sent_is_strict(server, judge_of, make_pair, api):
    one(judge_of(api), make_pair())
    body = server.requests[0].body
    form = body["text"]["format"] if api == "responses" else body["response_format"]["json_schema"]
    schema = form["schema"]
    assert form["strict"] is True and schema["additionalProperties"] is False
    assert set(schema["required"]) == set(schema["properties"])
    assert schema["properties"]["best"]["enum"] == ["A", "B"]
    assert body["temperature"] == 0


@pytest.mark.parametrize("mode", ["429:0.2", "500", "503", "408", "drop", "cut", "html"])
def test_a_passing_failure_is_tried_again(server, judge_of, make_pair, api, mode):
    server.script(mode, mode)
    assert one(judge_of(api), make_pair()).winner == "A"
    assert len(server.requests) == 3


def test_retry_after_is_obeyed(server, judge_of, make_pair, api):
    server.script("429:1.2")
    one(judge_of(api), make_pair())
    first, second = server.requests
    assert second.at - first.at >= 1.2


def test_waits_grow_and_vary():
    from helpers.judging.llm_client import Attempt, Reply, _wait

    class State:
        def __init__(self, number):
            self.attempt_number = number
            self.outcome = type("F", (), {"result": lambda _: Attempt(Reply("", "missing"))})()

    waits = [[_wait(State(number)) for _ in range(20)] for number in (1, 2, 3, 12)]
    for seconds, base in zip(waits, (0.5, 1, 2, 20), strict=True):
        assert all(base <= each <= 1.25 * base for each in seconds) and len(set(seconds)) > 1


LOST = [
    ("500", "missing"),
    ("429:0", "missing"),
    ("drop", "missing"),
    ("400:whatever else", "missing"),
    ("400:content_filter", "refused"),
    ("refusal", "refused"),
    ("filter", "refused"),
    ("truncated", "unparsed"),
    ("html", "unparsed"),
    ("wrong_api", "unparsed"),
    ("say:", "missing"),
    ("say:A is better", "unparsed"),
    ('say:{"best": "A"}', "unparsed"),
]


@pytest.mark.parametrize(("mode", "status"), LOST, ids=[mode for mode, _ in LOST])
def test_a_lasting_failure_is_nobodys_win_and_is_not_cached(server, judge_of, make_pair, api, mode, status):
    server.default = mode
    judge = judge_of(api, judge_retries=0)
    verdict = one(judge, make_pair())
    assert (verdict.winner, verdict.detail["status"]) == (None, status)
    server.default = "ok"
    assert one(judge, make_pair()).winner == "A", "asked again, not remembered"


BROKEN = [
    {"best": "C"},
    {"best": "B"},  # the same as worst
    {"confidence": 90},
    {"confidence": "high"},
    {"preference_strength": 2.5},
    {"usable": "yes"},
    {"exclude_tags": ["made_up"]},
    {"winner": "A"},  # a field too many
]


@pytest.mark.parametrize("change", BROKEN, ids=str)
def test_the_schema_is_checked_here_too(server, fake, judge_of, make_pair, change):
    server.answer = lambda _: json.dumps({**fake.VERDICT, **change})
    assert one(judge_of(), make_pair()).detail["status"] == "unparsed"


def test_one_code_fence_is_read_and_two_objects_are_not(server, fake, judge_of, make_pair):
    good = json.dumps(fake.VERDICT)
    server.answer = lambda _: f"```json\n{good}\n```"
    assert one(judge_of(), make_pair(1)).winner == "A"
    server.answer = lambda _: good + good
    assert one(judge_of(), make_pair(2)).winner is None


def test_a_timeout_ends_the_wait(server, judge_of, make_pair, api):
    server.default = "timeout:5"
    started = time.monotonic()
    verdict = one(judge_of(api, judge_timeout=0.3, judge_retries=1), make_pair())
    assert time.monotonic() - started < 3
    assert verdict.detail["status"] == "missing" and "0.3 s" in verdict.detail["reason"]
    assert len(server.requests) == 2


def test_a_slow_stream_is_read_to_its_end(server, judge_of, make_pair, api):
    server.default = "slow:0.5"
    assert one(judge_of(api), make_pair()).winner == "A"


def test_a_stream_that_drips_for_ever_is_cut_off(server, judge_of, make_pair, api):
    server.default = "slow:8"  # each wait is below the limit, their sum is not
    started = time.monotonic()
    verdict = one(judge_of(api, judge_timeout=1.0, judge_retries=0), make_pair())
    assert time.monotonic() - started < 4 and verdict.detail["status"] == "missing"


@pytest.mark.parametrize(
    ("mode", "words"), [("401", "API_KEY"), ("404", "--judge_model"), ("quota", "credit")]
)
def test_what_every_request_would_meet_stops_at_once(server, judge_of, make_pair, api, mode, words):
    server.default = mode
    judge = judge_of(api, judge_concurrency=2)
    with pytest.raises(CourseError, match=words):
        judge.compare([make_pair(number) for number in range(40)])
    assert len(server.requests) <= 4


def test_a_server_that_takes_no_schema_is_asked_without(server, judge_of, make_pair, capsys, api):
    server.default = "no_schema"
    judge = judge_of(api, judge_concurrency=1)
    assert [verdict.winner for verdict in judge.compare([make_pair(1), make_pair(2)])] == ["A", "A"]
    assert len(server.requests) == 3, "asked with it once"
    assert "takes no JSON schema" in capsys.readouterr().err


def test_a_model_that_takes_no_temperature_is_asked_without(server, judge_of, make_pair, capsys, api):
    server.default = "no_temperature"
    assert one(judge_of(api), make_pair()).winner == "A"
    assert "takes no temperature" in capsys.readouterr().err


def test_nobody_at_the_address(judge_of, make_pair):
    judge = judge_of("chat", judge_base_url="http://127.0.0.1:9/v1", judge_retries=0)
    with pytest.raises(CourseError, match="gave no answer"):
        judge.compare([make_pair(number) for number in range(50)])


# ---------------------------------------------------------------------- letters
@pytest.mark.parametrize(
    ("said", "winner"),
    [("A", "A"), ("B", "B"), (" B.\n", "B"), ("**A**", "A"), ("(B)", "B"), ("a", None), ("C", None),
     ("A or B", None), ("Answer A", None), ("AB", None), ("", None), ("I think A", None)],
)  # fmt: skip
def test_a_letter_is_read_strictly(server, judge_of, make_pair, said, winner):
    server.answer = lambda _: said
    assert one(judge_of(judge_format="letter"), make_pair()).winner == winner
    assert "response_format" not in server.requests[0].body


def test_three_candidates_take_two_letters(server, judge_of, make_pair):
    from helpers.judging.judge import Candidates

    server.answer = lambda request: "C" if "is the best" in request.user else "A"
    choice = judge_of(judge_format="letter").choose([Candidates(make_pair().example, ("x", "y", "z"))])[0]
    assert (choice.best, choice.worst, choice.status) == (2, 0, "ok")
