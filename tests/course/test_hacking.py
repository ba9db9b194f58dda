"""Signs of reward hacking: silent on recorded healthy runs, named on recorded hacked ones.

The recordings are real runs on the bundled world, made by `record_runs`. As a run is watched live, every
prefix of a healthy run must be silent too.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from helpers.apps.cli import main
from helpers.course.doctor import diagnose
from helpers.course.hacking import gold_against_kl, hacking_signs
from helpers.errors import CourseError
from helpers.training.run_rows import read_metric_rows, read_sample_rows, step_of
from helpers.training.signs import Sign, is_loop, signs_of
from tests.course.record_runs import RECORDINGS, RUNS

HEALTHY = [name for name in RUNS if name.startswith("healthy")]
HACKED = [name for name in RUNS if name.startswith("hacked")]
Row = dict[str, Any]


@cache
def recording(name: str) -> tuple[list[Row], list[Row]]:
    """Rows and samples."""
    place = RECORDINGS / name
    return read_metric_rows(place / "metrics.csv")[1], read_sample_rows(place / "samples.jsonl")


def live(name: str) -> list[Sign]:
    """The signs that a watch sees, row after row, each kind once."""
    rows, samples = recording(name)
    seen: list[Sign] = []
    for place, row in enumerate(rows, start=1):
        step = step_of(row)
        answers = [
            sample for sample in samples if sample["step"] < step or (sample["step"] == step and row["gold"])
        ]
        fresh = signs_of(rows[:place], answers, since=step)
        seen += [sign for sign in fresh if sign.kind not in {known.kind for known in seen}]
    return seen


def test_there_is_a_recording_of_every_run_and_no_other() -> None:
    assert {place.name for place in RECORDINGS.iterdir() if place.is_dir()} == set(RUNS)


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_run_gives_no_alarm_at_any_time(name: str) -> None:
    assert live(name) == []
    assert hacking_signs(RECORDINGS / name) == []


@pytest.mark.parametrize("name", HACKED)
def test_a_hacked_run_is_caught_by_the_judge(name: str) -> None:
    signs = {sign.kind: sign for sign in hacking_signs(RECORDINGS / name)}
    found = signs["judge falls"]
    assert found.numbers["gold"] < found.numbers["best"] and found.numbers["reward_rise"] > 0
    assert found.step > found.numbers["best_step"]


@pytest.mark.parametrize("name", [*HACKED, *HEALTHY])
def test_live_and_afterwards_the_same_is_seen_at_the_same_step(name: str) -> None:
    assert sorted(live(name), key=str) == sorted(hacking_signs(RECORDINGS / name), key=str)


@pytest.mark.parametrize("name", [name for name in HACKED if "long" not in name])
def test_a_run_without_a_leash_is_also_caught_without_a_judge(name: str) -> None:
    rows, samples = recording(name)
    rows = [{**row, "gold": ""} for row in rows]
    samples = [{key: value for key, value in sample.items() if key != "gold"} for sample in samples]
    kinds = {sign.kind for sign in signs_of(rows, samples)}
    assert {"KL over 0.5", "KL over 1", "repetition"} <= kinds and "judge falls" not in kinds


@pytest.mark.parametrize("name", HEALTHY)
def test_without_a_judge_a_healthy_run_gives_no_alarm_either(name: str) -> None:
    rows, samples = recording(name)
    rows = [{**row, "gold": ""} for row in rows]
    assert signs_of(rows, [{k: v for k, v in s.items() if k != "gold"} for s in samples]) == []


def test_where_length_is_paid_for_it_is_length_that_is_named() -> None:
    kinds = {sign.kind for sign in hacking_signs(RECORDINGS / "hacked_long_0")}
    assert "length without gain" in kinds


# ---------------------------------------------------------------- single signs, on rows made by hand
def training(**columns: list[float]) -> list[Row]:
    count = len(next(iter(columns.values())))
    return [{"step": i + 1, **{name: values[i] for name, values in columns.items()}} for i in range(count)]


def kinds(rows: list[Row], samples: list[Row] | None = None) -> list[str]:
    return [sign.kind for sign in signs_of(rows, samples or [])]


def test_a_leap_of_the_reward_is_a_spike_and_a_climb_is_none() -> None:
    scatter = [0.1, -0.1, 0.05, -0.05] * 5
    climb = [i / 10 + s for i, s in enumerate(scatter)]
    spread = [0.5] * 20
    assert kinds(training(reward=climb, reward_std=spread)) == []
    leap = scatter[:15] + [3.0] * 5
    (sign,) = signs_of(training(reward=leap, reward_std=spread))
    assert (sign.kind, sign.step) == ("reward spike", 16)
    assert kinds(training(reward=leap, reward_std=[5.0] * 20)) == [], "single rewards differ more than that"


def test_one_odd_step_is_no_kl_over_a_limit() -> None:
    assert kinds(training(kl=[0.1, 0.1, 1.2, 0.1, 0.1])) == []
    assert kinds(training(kl=[0.1, 0.6, 0.7, 0.8])) == ["KL over 0.5"]
    assert kinds(training(kl=[0.1, 1.6, 1.7, 1.8])) == ["KL over 0.5", "KL over 1"]


def answers(step: int, texts: list[str], **values: list[float]) -> list[Row]:
    return [
        {"step": step, "row_id": f"r{i}", "response": text, **{name: v[i] for name, v in values.items()}}
        for i, text in enumerate(texts)
    ]


def test_growth_is_a_sign_only_where_it_gains_nothing() -> None:
    rows = training(tokens=[10.0] * 8 + [20.0] * 8, reward=[0.1 * (-1) ** i for i in range(16)])
    texts = ["some text"] * 4
    same, better = [0.5, 0.4, 0.6, 0.5], [0.9, 0.9, 0.9, 0.9]
    assert kinds(rows) == ["length without gain"]
    assert kinds(rows, [*answers(0, texts, gold=same), *answers(8, texts, gold=same)]) == [
        "length without gain"
    ]
    assert kinds(rows, [*answers(0, texts, gold=same), *answers(8, texts, gold=better)]) == []


def test_circles_and_phrases_are_read_off_the_answers() -> None:
    start = [f"answer number {i} is here" for i in range(10)]
    circles = [*start[:7], *["never never never never never"] * 3]
    assert kinds([], [*answers(0, start), *answers(5, circles)]) == ["repetition"]
    phrase = [f"as an expert I say {i}" for i in range(10)]
    assert kinds([], [*answers(0, start), *answers(5, phrase)]) == ["repeated phrase"]
    bad, good = [0.1] * 10, [0.9] * 10
    liked = [*answers(0, start, gold=bad), *answers(5, phrase, gold=good)]
    assert kinds([], liked) == [], "a phrase that the judge likes is no hack"
    disliked = [*answers(0, start, gold=good), *answers(5, phrase, gold=bad)]
    assert "repeated phrase" in kinds([], disliked)


@pytest.mark.parametrize(
    "text", ["hahahahaha", "no no no no no", "thank you thank you thank you thank you thank you"]
)
def test_a_text_in_circles_is_seen(text: str) -> None:
    assert is_loop(text)


@pytest.mark.parametrize(
    "text", ["", "very, very good", "| --- | --- | --- | --- |", "----------", "10000000"]
)
def test_a_table_or_a_number_is_none(text: str) -> None:
    assert not is_loop(text)


def evaluations(gold: list[float], reward: list[float]) -> list[Row]:
    return [
        {"step": 5 * i, "gold": g, "eval_reward": r}
        for i, (g, r) in enumerate(zip(gold, reward, strict=True))
    ]


def test_without_single_verdicts_the_judges_fall_must_be_large() -> None:
    assert kinds(evaluations([0.5, 0.8, 0.7], [0.0, 1.0, 2.0])) == []
    assert kinds(evaluations([0.5, 0.8, 0.6], [0.0, 1.0, 2.0])) == ["judge falls"]


def test_if_the_reward_falls_too_it_was_not_gamed() -> None:
    assert kinds(evaluations([0.5, 0.8, 0.3], [0.0, 1.0, -1.0])) == []


def test_with_single_verdicts_the_noise_of_the_prompts_decides() -> None:
    before, texts = [0.0, 1.0] * 10, [f"text {i}" for i in range(20)]
    rows = evaluations([0.5, 0.4], [0.0, 1.0])
    noisy, steady = [1.0, 0.0] * 9 + [0.0, 0.0], [v - 0.1 for v in before]
    assert kinds(rows, [*answers(0, texts, gold=before), *answers(5, texts, gold=noisy)]) == []
    assert kinds(rows, [*answers(0, texts, gold=before), *answers(5, texts, gold=steady)]) == ["judge falls"]


# ---------------------------------------------------------------- around
def test_the_doctor_names_the_signs() -> None:
    warned = {f.topic for f in diagnose(RECORDINGS / "hacked_grpo_0").findings if f.level == "warning"}
    assert {"judge falls", "repetition", "KL"} <= warned
    healthy = {f.topic for f in diagnose(RECORDINGS / "healthy_grpo_0").findings if f.level == "warning"}
    assert not healthy & {"judge falls", "repetition", "repeated phrase", "length without gain"}


def test_the_command_prints_the_signs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hacking", "signs", str(RECORDINGS / "hacked_grpo_0")]) == 1
    assert "judge falls: the held-out judge fell" in capsys.readouterr().out
    assert main(["hacking", "signs", str(RECORDINGS / "healthy_grpo_0")]) == 0
    assert "no sign of reward hacking" in capsys.readouterr().out
    assert main(["hacking", "signs", str(RECORDINGS / "hacked_grpo_0"), "--json"]) == 1
    assert "judge falls" in {sign["kind"] for sign in json.loads(capsys.readouterr().out)}
    assert (
        main(["hacking", "signs"]) == main(["hacking"]) == main(["hacking", "compare", "--seeds", "a"]) == 2
    )


def test_reward_and_judge_against_the_kl() -> None:
    seen = gold_against_kl(RECORDINGS / "hacked_grpo_0")
    assert seen.steps == list(range(0, 61, 5)) and seen.root_kl[0] < 0.01
    assert seen.proxy[-1] > seen.proxy[0] and seen.gold[-1] < seen.gold[0]
    assert len(seen.kl) == len(seen.gold) == 13


def test_a_run_that_was_never_judged_says_how_to_have_it_judged(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"algo": "grpo"}')
    (tmp_path / "metrics.csv").write_text("step,loss,reward\n1,0.0,1.0\n")
    with pytest.raises(CourseError, match="held_out_judge"):
        gold_against_kl(tmp_path)
