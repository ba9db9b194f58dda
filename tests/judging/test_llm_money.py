"""Cache, cost and keys: nothing is paid for twice, more than allowed, or shown to anybody."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from pathlib import Path

import pytest

from helpers.errors import CourseError
from helpers.judging.llm_cache import VerdictCache
from helpers.judging.llm_cost import Budget, OverBudget, Price, Usage, is_local, price_of

ROOT = Path(__file__).resolve().parents[2]
KEY = "sk-marker-7f3a9c"


# ---------------------------------------------------------------------- cache
def test_what_was_answered_is_not_asked_again(server, judge_of, make_pair):
    pairs = [make_pair(number) for number in range(5)]
    first = judge_of().compare(pairs)
    assert judge_of().compare(pairs) == first and len(server.requests) == 5


def test_equal_questions_in_one_batch_are_asked_once(server, judge_of, make_pair):
    assert len(judge_of().compare([make_pair()] * 6)) == 6 and len(server.requests) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"judge_model": "other"},
        {"judge_temperature": 0.5},
        {"judge_max_tokens": 500},
        {"judge_format": "letter"},
    ],
    ids=str,
)
def test_another_judge_or_parameter_is_another_verdict(server, judge_of, make_pair, change):
    judge_of().compare([make_pair()])
    judge_of(**change).compare([make_pair()])
    assert len(server.requests) == 2


def test_prompt_texts_and_order_are_in_the_key(server, judge_of, make_pair):
    judge = judge_of()
    judge.compare(
        [make_pair(1), make_pair(2), make_pair(1, a="Rome."), make_pair(1, "I do not know.", "Paris.")]
    )
    assert len(server.requests) == 4


def test_so_are_the_instructions(server, judge_of, make_pair, monkeypatch):
    from helpers.judging import llm_prompt

    judge = judge_of()
    judge.compare([make_pair()])
    judge.instructions = llm_prompt.Instructions("choice_v1", "Choose well.")
    judge.compare([make_pair()])
    assert len(server.requests) == 2
    assert judge.instructions_hash != llm_prompt.instructions("choice_v1").hash


DAMAGE = [
    lambda text: "",
    lambda text: text[: len(text) // 2],
    lambda text: "null",
    lambda text: text.replace('"best": 0', '"best": 1').replace('"worst": 1', '"worst": 0'),
    lambda text: text.replace('"format": 1', '"format": 0'),
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_judged_anew(server, judge_of, make_pair, tmp_path, damage):
    judge_of().compare([make_pair()])
    (file,) = (tmp_path / "cache").rglob("*.json")
    file.write_text(damage(file.read_text()))
    assert judge_of().compare([make_pair()])[0].winner == "A" and len(server.requests) == 2
    judge_of().compare([make_pair()])
    assert len(server.requests) == 2, "and mended"


def test_threads_that_write_one_entry_leave_a_whole_one(tmp_path):
    cache = VerdictCache(tmp_path)
    answers = [{"status": "ok", "text": str(number) * 5000} for number in range(8)]
    threads = [threading.Thread(target=cache.put, args=("ab12", answer, {})) for answer in answers]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert cache.get("ab12") in answers
    assert [path.name for path in (tmp_path / "ab").iterdir()] == ["ab12.json"]


def test_a_cache_that_is_a_file_is_named(tmp_path):
    (tmp_path / "x").write_text("")
    with pytest.raises(CourseError, match="--judge_cache"):
        VerdictCache(tmp_path / "x")


WORK = """
import sys
from helpers.judging.judge import Comparison
from helpers.judging.registry import JudgeSettings, make_judge
from helpers.text.datasets import Example

url, cache, rows = sys.argv[1:]
settings = JudgeSettings(judge_base_url=url, judge_model="m", judge_cache=cache, judge_concurrency=2)
examples = [Example(str(n), ({"role": "user", "content": f"Q{n}"},), (), {}) for n in range(int(rows))]
verdicts = make_judge("openai", settings).compare([Comparison(one, "x", "y") for one in examples])
print(sum(verdict.winner == "A" for verdict in verdicts))
"""


def start(url: str, cache: Path, rows: int) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WORK, url, str(cache), str(rows)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def test_a_killed_evaluation_resumes_without_paying_twice(server, tmp_path):
    """Counted on the server: beyond the two under way at the kill, no question arrives a second time."""
    server.delay = 0.05
    process = start(server.url, tmp_path / "cache", 60)
    while len(server.requests) < 15:
        assert process.poll() is None
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    kept = len(list((tmp_path / "cache").rglob("*.json")))
    before = len(server.requests)
    assert 0 < kept <= before < 60
    again = start(server.url, tmp_path / "cache", 60)
    assert again.communicate(timeout=60)[0].strip() == "60"
    asked = Counter(request.user for request in server.requests)
    assert len(asked) == 60
    assert len(server.requests) == before + 60 - kept
    assert sum(count - 1 for count in asked.values()) <= 2


def test_two_processes_share_a_cache(server, tmp_path):
    server.delay = 0.01
    both = [start(server.url, tmp_path / "cache", 25) for _ in range(2)]
    assert [process.communicate(timeout=60)[0].strip() for process in both] == ["25", "25"]
    cache = VerdictCache(tmp_path / "cache")
    files = list((tmp_path / "cache").rglob("*.json"))
    assert len(files) == 25 and all(cache.get(path.stem) for path in files)


# ---------------------------------------------------------------------- cost
def test_cost_is_estimated_before_anything_is_sent(server, judge_of, make_pair, capsys):
    judge = judge_of("responses", judge_model="gpt-4o-mini-2024-07-18")
    judge.compare([make_pair(number) for number in range(3)])
    said = capsys.readouterr().err
    assert "3 verdicts to ask for, 0 from the cache; about $" in said and "at most $" in said
    assert said.index("about $") < said.index("verdict/s")
    assert judge.client.budget.spent == pytest.approx(3 * (1000 * 0.15 + 100 * 0.60) / 1e6)


def test_max_cost_stops_and_keeps_and_a_rerun_continues(server, judge_of, make_pair):
    pairs = [make_pair(number) for number in range(30)]
    prices = {"price_in": 1.0, "price_out": 10.0}  # an answer costs $0.002, and may cost some $0.01
    judge = judge_of(max_cost=0.04, judge_concurrency=4, **prices)
    with pytest.raises(CourseError, match=r"--max_cost .* \d+ verdicts are there and kept"):
        judge.compare(pairs)
    paid = len(server.requests)
    assert 5 <= paid < 30 and judge.client.budget.spent == pytest.approx(0.002 * paid)
    assert judge.client.budget.spent <= 0.04
    assert all(verdict.winner == "A" for verdict in judge_of(max_cost=1.0, **prices).compare(pairs))
    assert len(server.requests) == 30, "none was paid for twice"


def test_max_cost_zero_asks_nothing(server, judge_of, make_pair):
    with pytest.raises(CourseError, match="0 verdicts"):
        judge_of(max_cost=0.0, price_in=1.0, price_out=1.0).compare([make_pair()])
    assert not server.requests


@pytest.mark.parametrize("mode", ["timeout:1", "cut", "no_usage"])
def test_what_may_have_been_billed_counts_as_billed(server, judge_of, make_pair, mode):
    server.default = mode
    judge = judge_of(price_in=1.0, price_out=10.0, judge_timeout=0.3, judge_retries=1)
    judge.compare([make_pair()])
    budget = judge.client.budget
    assert budget.unknown == len(server.requests) and budget.spent > 0.008 * budget.unknown


def test_a_refused_request_costs_nothing(server, judge_of, make_pair):
    server.script("429:0", "500")
    judge = judge_of(price_in=1.0, price_out=10.0)
    judge.compare([make_pair()])
    assert judge.client.budget.spent == pytest.approx(0.002)


def test_reservations_in_flight_count():
    budget = Budget(1.0, Price(1e6, 0.0, "test"))  # a dollar a byte
    budget = Budget(10.0, budget.price)
    ticket = budget.reserve(6, 0)
    waited = []
    thread = threading.Thread(target=lambda: waited.append(budget.reserve(6, 0)))
    thread.start()
    time.sleep(0.15)
    assert not waited, "6 + 6 would pass 10"
    budget.settle(ticket, Usage(2, 0))
    thread.join(2)
    assert waited and budget.spent == 2
    budget.settle(waited[0], Usage(6, 0))
    with pytest.raises(OverBudget):
        budget.reserve(3, 0)


def test_prices():
    assert price_of("gpt-4.1-mini", None, None, None).of(1e6, 1e6) == pytest.approx(2.0)
    assert price_of("gpt-4.1-mini-2025-04-14", None, None, None).per_million_in == 0.4
    assert price_of("qwen", "http://localhost:8000/v1", None, None).of(1e9, 1e9) == 0
    assert price_of("gpt-4.1-mini", "https://example.org/v1", None, None) is None
    with pytest.raises(CourseError, match="--price_in"):
        Budget(1.0, None)
    with pytest.raises(CourseError, match="together"):
        price_of("m", None, 1.0, None)
    for pair in ((-1.0, 1.0), (1.0, -1.0), (float("nan"), 1.0), (1.0, float("nan"))):
        with pytest.raises(CourseError, match="--price_in and --price_out"):
            price_of("m", "http://localhost:1/v1", *pair)
    assert (
        is_local("http://192.168.1.5:11434/v1")
        and is_local("http://[::1]:1/v1")
        and is_local("http://vllm/v1")
    )
    assert not is_local("https://api.example.org/v1")


# ---------------------------------------------------------------------- keys
def whole(problem: BaseException | None) -> str:
    """All that a traceback printer might show of an exception: its chain, and what the frames hold."""
    shown = []
    while problem is not None:
        frames = traceback.TracebackException.from_exception(problem, capture_locals=False)
        shown += ["".join(frames.format()), repr(problem), repr(vars(problem))]
        problem = problem.__cause__ or problem.__context__
    return "\n".join(shown)


@pytest.mark.parametrize("mode", ["ok", "echo_key:401", "echo_key:400", "echo_key:500", "drop", "say:" + KEY])
def test_the_key_is_nowhere(server, judge_of, make_pair, monkeypatch, tmp_path, capfd, caplog, api, mode):
    caplog.set_level("DEBUG")
    server.default = mode
    judge = judge_of(api, judge_retries=1)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("JUDGE_API_KEY", KEY)
    judge = judge_of(api, judge_retries=1) if api == "chat" else remade(judge_of, api, monkeypatch)
    said = ""
    try:
        said = repr(judge.compare([make_pair(number) for number in range(3)]))
    except CourseError as problem:
        assert problem.__context__ is None and problem.__cause__ is None
        said = whole(problem)
    assert any(KEY in str(request.headers) for request in server.requests), "it was sent"
    captured = capfd.readouterr()
    files = "".join(path.read_text() for path in tmp_path.rglob("*") if path.is_file())
    for place in (said, captured.out, captured.err, caplog.text, files, repr(judge), repr(vars(judge))):
        assert KEY not in place


def remade(judge_of, api, monkeypatch):
    """judge_of sets a key of its own; ours again, before the judge reads it."""
    original = monkeypatch.setenv
    monkeypatch.setattr(
        monkeypatch, "setenv", lambda name, value: original(name, KEY if "KEY" in name else value)
    )
    return judge_of(api, judge_retries=1)


def test_a_server_of_ones_own_never_gets_the_key_to_openai(server, judge_of, make_pair, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    judge_of("chat").compare([make_pair()])
    assert KEY not in json.dumps(server.requests[0].headers)


def test_a_proxy_that_the_client_cannot_use_is_named(server, judge_of, monkeypatch):
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for proxy in ("socks9://localhost:1", "http://[::1"):
        for name in ("all_proxy", "http_proxy"):
            monkeypatch.setenv(name, proxy)
        with pytest.raises(CourseError, match="NO_PROXY"):
            judge_of()


def test_without_a_key_the_error_says_what_to_do(server):
    from helpers.judging.registry import make_judge

    with pytest.raises(CourseError, match="OPENAI_API_KEY.*--judge_base_url.*--judge gold"):
        make_judge("openai")


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://x/v1", "http://", "http://u:p@x/v1", "http://x/v1?key=1"]
)
def test_addresses_that_are_none_or_hold_secrets(judge_of, url):
    with pytest.raises(CourseError, match="--judge_base_url") as caught:
        judge_of("chat", judge_base_url=url)
    assert "u:p" not in str(caught.value)
