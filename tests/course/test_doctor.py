"""The run doctor says what a curve means: on recorded curves, and on runs of the pocket world."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from helpers.apps.cli import main
from helpers.course.doctor import Diagnosis, diagnose
from helpers.errors import CourseError

STEPS = 20
Column = float | Sequence[float]


def write_run(
    path: Path, algo: str, columns: dict[str, Column], finished: bool = True, **settings: Any
) -> Path:
    """A run directory with curves of 20 steps; a single number is a constant curve."""
    path.mkdir()
    defaults = {"algo": algo, "beta": 0.1, "learning_rate": 1e-3, "max_grad_norm": 1.0, "clip_eps": 0.2}
    defaults |= {"max_new_tokens": 48, "top_p": 1.0, "min_new_tokens": 0}
    (path / "config.json").write_text(json.dumps(defaults | settings))
    lists = {name: [c] * STEPS if isinstance(c, (int, float)) else list(c) for name, c in columns.items()}
    count = len(next(iter(lists.values())))
    lines = [",".join(["step", *lists])]
    lines += [",".join([str(i + 1), *(str(values[i]) for values in lists.values())]) for i in range(count)]
    (path / "metrics.csv").write_text("\n".join(lines) + "\n")
    if finished:
        (path / "finished.json").write_text("{}")
    return path


def line(start: float, end: float, count: int = STEPS) -> list[float]:
    """A straight line."""
    return [start + (end - start) * i / (count - 1) for i in range(count)]


GOOD_ONLINE: dict[str, Column] = {
    "loss": [0.01 * (-1) ** i for i in range(STEPS)],
    "reward": line(-1.0, 1.0),
    "reward_std": 1.0,
    "kl": line(0.0, 0.05),
    "kl_k1": line(0.0, 0.05),
    "entropy": line(1.0, 0.8),
    "tokens": line(15, 16),
    "truncated": 0.01,
    "groups_without_variance": 0.1,
    "clip_fraction": 0.02,
    "ratio_max": 1.3,
    "first_ratio_error": 0.0,
    "grad_norm": 0.5,
    "abstained": 0.0,
    "skipped_steps": 0,
}
GOOD_DPO: dict[str, Column] = {
    "loss": line(math.log(2), 0.4),
    "margin": line(0.0, 1.5),
    "accuracy": line(0.5, 0.9),
    "reward_chosen": line(0.0, 0.5),
    "reward_rejected": line(0.0, -1.0),
    "grad_norm": 1.0,
    "eval_accuracy": 0.85,
    "eval_loss": line(0.6, 0.45),
}


def topics(found: Diagnosis, level: str) -> set[str]:
    """What the findings of a level are about."""
    return {finding.topic for finding in found.findings if finding.level == level}


def warned(found: Diagnosis, topic: str) -> str:
    """The one warning on a topic; there must be no other."""
    assert topics(found, "warning") == {topic}, found.render()
    return next(f.message for f in found.findings if f.topic == topic and f.level == "warning")


# ---------------------------------------------------------------- healthy runs
def test_of_a_healthy_dpo_run_it_says_what_is_normal(tmp_path: Path) -> None:
    found = diagnose(write_run(tmp_path / "run", "dpo", GOOD_DPO))
    assert found.warnings == 0
    assert {"start", "loss", "held-out pairs"} <= topics(found, "note")
    assert "nothing to worry about" in found.render() and "ln 2" in found.render()


@pytest.mark.parametrize("algo", ["grpo", "dr_grpo", "gspo"])
def test_of_a_healthy_online_run_it_explains_the_loss_near_zero(algo: str, tmp_path: Path) -> None:
    found = diagnose(write_run(tmp_path / "run", algo, GOOD_ONLINE))
    assert found.warnings == 0
    assert {"loss near 0", "reward", "KL", "entropy", "length"} <= topics(found, "note")


# ---------------------------------------------------------------- what can be wrong
def test_stuck_at_ln_2_without_a_margin_is_a_learning_rate_that_is_too_small(tmp_path: Path) -> None:
    """TRL #3452, #1627: "stuck at 0.693, is it broken?"."""
    curves = GOOD_DPO | {"loss": 0.6929, "margin": 0.001, "accuracy": 0.6, "reward_chosen": 0.0}
    curves |= {"eval_accuracy": 0.6, "eval_loss": 0.693}
    said = warned(diagnose(write_run(tmp_path / "run", "dpo", curves, learning_rate=1e-7)), "plateau")
    assert "0.6929" in said and "1e-07" in said and "too small" in said


def test_stuck_at_ln_2_with_a_margin_is_another_matter(tmp_path: Path) -> None:
    curves = GOOD_DPO | {"loss": line(math.log(2), 0.70), "margin": line(0, -0.6), "reward_chosen": 0.0}
    said = warned(diagnose(write_run(tmp_path / "run", "aot", curves)), "plateau")
    assert "mixed up" in said


def test_ipo_has_a_start_value_of_its_own(tmp_path: Path) -> None:
    curves = GOOD_DPO | {"loss": line(25.0, 9.0)}
    found = diagnose(write_run(tmp_path / "run", "ipo", curves, beta=0.1))
    assert found.warnings == 0 and "(1/(2 beta))^2" in found.render()
    stuck = diagnose(write_run(tmp_path / "stuck", "ipo", curves | {"loss": 25.0, "margin": 0.0}, beta=0.1))
    assert "plateau" in topics(stuck, "warning")


def test_a_first_loss_off_its_value_is_a_wrong_reference(tmp_path: Path) -> None:
    """TRL #2042, #1193."""
    curves = GOOD_DPO | {"loss": line(0.9, 0.4)}
    assert "reference" in warned(diagnose(write_run(tmp_path / "run", "dpo", curves)), "start")


def test_a_held_out_loss_that_turns_up_is_overfitting(tmp_path: Path) -> None:
    curves = GOOD_DPO | {"eval_loss": [*line(0.6, 0.4, 10), *line(0.4, 0.6, 10)]}
    assert "step 10" in warned(diagnose(write_run(tmp_path / "run", "dpo", curves)), "overfitting")


def test_chosen_answers_that_were_forgotten_are_seen_behind_a_good_loss(tmp_path: Path) -> None:
    curves = GOOD_DPO | {"logp_chosen": line(-5.0, -24.0)}
    said = warned(diagnose(write_run(tmp_path / "run", "aot", curves)), "falling apart")
    assert "-5.0 to -2" in said and "beta" in said


ONLINE_FAULTS: dict[str, tuple[str, dict[str, Column]]] = {
    "groups without variance": ("flat groups", {"groups_without_variance": line(0.2, 0.9)}),
    "KL far away": ("KL", {"kl": line(0.0, 1.5)}),
    "KL running away": ("KL", {"kl": [*line(0.0, 0.02, 14), *line(0.05, 0.45, 6)]}),
    "length creep": ("length creep", {"tokens": line(15, 45)}),
    "giving up": ("giving up", {"tokens": line(15, 1)}),
    "entropy collapse": ("entropy collapse", {"entropy": line(1.0, 0.01)}),
    "cut off": ("cut off", {"truncated": line(0.0, 0.8)}),
    "clipped": ("clipping", {"clip_fraction": 0.5}),
    "skipped": ("skipped steps", {"skipped_steps": line(0, 9)}),
    "first ratio": ("first ratio", {"first_ratio_error": 0.02}),
    "no reward": ("no reward", {"abstained": 1.0}),
    "reward falls": ("reward", {"reward": line(1.0, -1.0)}),
    "NaN": ("not finite", {"grad_norm": [0.5] * 10 + [math.nan] + [0.5] * 9}),
}


@pytest.mark.parametrize(("topic", "change"), ONLINE_FAULTS.values(), ids=ONLINE_FAULTS)
def test_each_fault_of_an_online_run_is_named(topic: str, change: dict[str, Column], tmp_path: Path) -> None:
    found = diagnose(write_run(tmp_path / "run", "grpo", GOOD_ONLINE | change))
    warned(found, topic)
    assert all(f.numbers for f in found.findings), "every finding has its numbers"


def test_a_policy_that_does_not_move_is_told_its_learning_rate(tmp_path: Path) -> None:
    curves = GOOD_ONLINE | {"kl": 1e-6, "kl_k1": 1e-6, "ratio_max": 1.0001, "reward": 0.0}
    found = diagnose(write_run(tmp_path / "run", "grpo", curves, learning_rate=1e-8))
    assert {"learning rate", "reward"} == topics(found, "warning")
    assert "1e-08" in found.render()


def test_a_negative_kl_is_explained_by_how_was_sampled(tmp_path: Path) -> None:
    curves = GOOD_ONLINE | {"kl_k1": line(0.0, -0.05)}
    found = diagnose(write_run(tmp_path / "run", "grpo", curves, top_p=0.95))
    assert found.warnings == 0 and "top_p" in found.render()


def test_gspo_that_never_clips_is_told_the_papers_range(tmp_path: Path) -> None:
    curves = GOOD_ONLINE | {"clip_fraction": 0.0, "ratio_max": 1.02}
    found = diagnose(write_run(tmp_path / "run", "gspo", curves))
    assert found.warnings == 0 and "3e-4" in found.render()


def test_a_value_worse_than_a_constant_is_named(tmp_path: Path) -> None:
    curves = GOOD_ONLINE | {"explained_variance": line(0.1, -0.5)}
    warned(diagnose(write_run(tmp_path / "run", "ppo", curves)), "value")


def test_a_short_or_unfinished_run_is_said_to_be_one(tmp_path: Path) -> None:
    short = {name: c if isinstance(c, (int, float)) else c[:4] for name, c in GOOD_ONLINE.items()}
    short = {name: [c] * 4 if isinstance(c, (int, float)) else c for name, c in short.items()}
    found = diagnose(write_run(tmp_path / "run", "grpo", short, finished=False))
    assert {"short", "unfinished"} <= topics(found, "note") and found.warnings == 0


# ---------------------------------------------------------------- bad input
def test_what_is_no_run_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CourseError, match="no such directory"):
        diagnose(tmp_path / "nowhere")
    write_run(tmp_path / "dpo", "dpo", GOOD_DPO)
    with pytest.raises(CourseError, match=r"config\.json.*it holds the runs dpo"):
        diagnose(tmp_path)
    for text, said in (("", "is missing"), ("step,loss\n", "no rows"), ("a,b\n1,2\n", "no table")):
        (tmp_path / "dpo" / "metrics.csv").write_text(text)
        with pytest.raises(CourseError, match=said):
            diagnose(tmp_path / "dpo")
    (tmp_path / "dpo" / "config.json").write_text("{}")
    with pytest.raises(CourseError, match="algo"):
        diagnose(tmp_path / "dpo")


def test_rubbish_in_a_column_is_passed_over(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", "grpo", GOOD_ONLINE)
    text = (path / "metrics.csv").read_text().replace("0.05", "often", 1)
    (path / "metrics.csv").write_text(text)
    assert diagnose(path).warnings == 0


# ---------------------------------------------------------------- command line and real runs
def test_the_command_prints_words_or_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_run(tmp_path / "run", "dpo", GOOD_DPO)
    assert main(["doctor", str(path)]) == 0
    assert "nothing to worry about" in capsys.readouterr().out
    assert main(["doctor", str(path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["algo"] == "dpo" and told["warnings"] == 0 and told["findings"][0]["numbers"]
    assert main(["doctor", str(tmp_path / "nowhere")]) == 2
    assert main(["doctor"]) == 2
