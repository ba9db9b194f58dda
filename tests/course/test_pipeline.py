"""The main job end to end, in a few steps on a few rows: every file that the course promises is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import solutions.answers as answers
from helpers.course.pipeline import CourseConfig, run_course
from helpers.errors import CourseError

METHODS = "dpo,ppo,grpo"  # one of each kind: offline, with a value, in groups


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory, tiny_dir: Path) -> tuple[Path, dict[str, Any]]:
    """A course of two steps a run, and where it lies."""
    place = tmp_path_factory.mktemp("course") / "run"
    config = CourseConfig("tiny", str(place), methods=METHODS, train_limit=32, eval_limit=15, max_steps=2)
    return place, run_course(config, answers)


def test_every_promised_file_is_written(course: tuple[Path, dict[str, Any]]) -> None:
    place, _ = course
    for name in ("course.json", "report.html", "grade.json", "submission.zip"):
        assert (place / name).is_file(), name
    for run in ("sft", "reward_model", "dpo", "ppo", "grpo"):
        assert (place / run / "finished.json").is_file(), run


def test_course_json_holds_the_figures_of_every_method(course: tuple[Path, dict[str, Any]]) -> None:
    place, result = course
    assert json.loads((place / "course.json").read_text(encoding="utf-8")) == json.loads(json.dumps(result))
    assert list(result["methods"]) == ["base", "sft", "dpo", "ppo", "grpo"]
    for name in ("sft", "dpo", "ppo", "grpo"):
        row = result["methods"][name]
        assert {"win_rate_vs_base", "ci95", "kl", "mean_tokens", "seconds", "threshold", "passed"} <= set(row)
    ppo = result["methods"]["ppo"]
    assert (ppo["threshold_on"], ppo["kl_limit"]) == ("win_rate_vs_sft", 0.5) and ppo[
        "kl_highest"
    ] is not None
    assert 0 <= result["reward_model"]["pair_accuracy"] <= 1
    assert result["reward_model"]["minimal_pairs"]


def test_the_grader_can_judge_what_the_course_submits(course: tuple[Path, dict[str, Any]]) -> None:
    place, _ = course
    parts = {part["name"]: part for part in json.loads((place / "grade.json").read_text())["tests"]}
    for name in METHODS.split(","):
        assert "win rate" in parts[name]["output"]
    assert "against the SFT model" in parts["ppo"]["output"]
    assert "pair accuracy" in parts["reward_model"]["output"]


def test_ppo_starts_from_the_courses_sft_model(course: tuple[Path, dict[str, Any]]) -> None:
    place, _ = course
    settings = json.loads((place / "ppo" / "config.json").read_text())
    assert Path(settings["init_adapter"]) == place / "sft" / "final" / "adapter"
    assert not json.loads((place / "grpo" / "config.json").read_text())["init_adapter"]


def test_a_second_call_trains_nothing_again(course: tuple[Path, dict[str, Any]]) -> None:
    place, result = course
    stamp = (place / "dpo" / "finished.json").stat().st_mtime_ns
    config = CourseConfig("tiny", str(place), methods=METHODS, train_limit=32, eval_limit=15, max_steps=2)
    again = run_course(config, answers)
    assert (place / "dpo" / "finished.json").stat().st_mtime_ns == stamp
    assert again["methods"]["dpo"]["win_rate_vs_base"] == result["methods"]["dpo"]["win_rate_vs_base"]


def test_an_unknown_method_is_named(tmp_path: Path) -> None:
    with pytest.raises(CourseError, match="ppoo"):
        run_course(CourseConfig("tiny", str(tmp_path), methods="dpo,ppoo"), answers)
