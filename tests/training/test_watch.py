"""The watch on online runs, early stopping, and the penalties: off they change nothing, on they act."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import solutions.answers as answers
from helpers.errors import CourseError
from helpers.models.sampling import Completion
from helpers.text.datasets import Example
from helpers.training.configs import OnlineConfig
from helpers.training.mitigations import penalised, penalties_used
from helpers.training.ppo import train_ppo
from helpers.training.ppo_config import PPOConfig
from tests.support import adapter_weights, assert_equal_weights, metric_rows
from tests.training.test_online import EvenIds, train, training_rows


def charge(rewards: torch.Tensor, lengths: torch.Tensor, coef: float) -> torch.Tensor:
    """Some price of length."""
    return rewards - coef * lengths


def share_of_first(ids: Sequence[int], n: int = 3) -> float:
    """Some number from 0 to 1 that depends on the tokens."""
    return sum(token == ids[0] for token in ids) / len(ids)


PENALTIES = SimpleNamespace(
    **{name: getattr(answers, name) for name in answers.__all__ if name not in ("length_penalty",)},
)
PENALTIES.length_penalty, PENALTIES.repetition_fraction = charge, share_of_first


def falling(*values: float) -> Callable[[Sequence[Example]], Any]:
    """A held-out judge with one verdict for all answers of an evaluation, in the order it is asked."""
    queue = list(values)

    def make(examples: Sequence[Example]) -> Any:
        return lambda responses: [queue.pop(0)] * len(responses)

    return make


# ---------------------------------------------------------------- penalties
def completions(*ids: list[int]) -> list[list[Completion]]:
    return [[Completion(tokens, "", True) for tokens in ids]]


def test_penalties_are_taken_off_and_a_missing_reward_stays_missing() -> None:
    config = OnlineConfig(length_penalty=0.5, diversity_penalty=2.0)
    raw = torch.tensor([1.0, float("nan"), 3.0])
    less, columns = penalised(raw, completions([7, 7], [1], [1, 2, 3, 1]), PENALTIES, config)
    assert less[0] == 1.0 - 0.5 * 2 - 2.0 * 1.0
    assert less[1].isnan()
    assert less[2] == 3.0 - 0.5 * 4 - 2.0 * 0.5
    assert columns["penalty"] == pytest.approx((3.0 + 3.0) / 3)
    assert columns["repetition"] == pytest.approx((1.0 + 1.0 + 0.5) / 3)


def test_without_penalties_the_rewards_are_the_very_ones() -> None:
    raw = torch.tensor([1.0, 2.0])
    less, columns = penalised(raw, completions([1], [2]), object(), OnlineConfig(length_penalty=0.0))
    assert less is raw and columns == {} and penalties_used(OnlineConfig()) == ()


@pytest.mark.parametrize("algo", ["grpo", "dr_grpo"])
def test_the_advantages_see_the_penalty_and_the_reward_column_does_not(algo: str, settings: Any) -> None:
    plain = training_rows(train(settings(OnlineConfig, "plain", algo=algo, max_steps=2)))
    run = train(settings(OnlineConfig, "less", algo=algo, max_steps=2, length_penalty=3.0), answers=PENALTIES)
    rows = training_rows(run)
    assert rows[0]["reward"] == plain[0]["reward"], "the first samples come from the same policy"
    assert rows[0]["grad_norm"] != plain[0]["grad_norm"]
    assert float(rows[0]["penalty"]) == pytest.approx(3.0 * float(rows[0]["tokens"]))
    assert json.loads((run.run_dir / "config.json").read_text())["answers.length_penalty"]


def test_ppos_score_is_less_the_penalty(settings: Any) -> None:
    config = settings(PPOConfig, group_size=1, max_steps=1, length_penalty=3.0, missing_eos_penalty=0.0)
    row = training_rows(train_ppo(config, PENALTIES, scorer=EvenIds()))[0]
    assert float(row["score"]) == pytest.approx(float(row["reward"]) - 3.0 * float(row["tokens"]), rel=1e-5)


def test_a_penalty_whose_exercise_is_missing_names_it(settings: Any) -> None:
    lacking = SimpleNamespace(**{name: getattr(answers, name) for name in answers.__all__})
    vars(lacking).pop("repetition_fraction", None)
    with pytest.raises(CourseError, match="repetition_fraction"):
        train(settings(OnlineConfig, diversity_penalty=1.0), answers=lacking)


@pytest.mark.parametrize("flag", ["length_penalty", "diversity_penalty", "stop_kl"])
def test_a_setting_below_zero_is_refused(flag: str, settings: Any) -> None:
    with pytest.raises(CourseError, match=flag):
        train(settings(OnlineConfig, **{flag: -1.0}), answers=PENALTIES)


# ---------------------------------------------------------------- the watch
def test_a_judge_changes_no_weight_and_no_other_column(settings: Any) -> None:
    alone = train(settings(OnlineConfig, "alone"))
    judged = train(settings(OnlineConfig, "judged"), held_out=falling(0.2, 0.5, 0.6))
    assert_equal_weights(adapter_weights(alone.final), adapter_weights(judged.final))
    rows = metric_rows(judged.run_dir)
    assert [row.pop("gold") for row in rows if row.get("gold")] == ["0.2", "0.5", "0.6"]
    timing = ("tokens_per_second", "rollout_share", "gold")
    assert [{k: v for k, v in row.items() if k not in timing} for row in rows] == [
        {k: v for k, v in row.items() if k not in timing} for row in metric_rows(alone.run_dir)
    ]


class Rising:
    """A reward that rises whatever is written."""

    def __init__(self) -> None:
        self.value = 0.0

    def score_groups(self, groups: Sequence[Any], *, batch_size: int = 16) -> list[list[float]]:
        self.value += 0.1
        return [[self.value + 0.01 * i for i, _ in enumerate(group.responses)] for group in groups]


def test_a_judge_that_falls_while_the_reward_rises_is_told_and_kept(
    settings: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(settings(OnlineConfig), scorer=Rising(), held_out=falling(0.4, 0.8, 0.3))
    (sign,) = json.loads((run.run_dir / "signs.json").read_text())
    assert sign["kind"] == "judge falls" and sign["step"] == 6
    assert sign["numbers"]["best"] == 0.8 and sign["numbers"]["gold"] == 0.3
    assert "run, step 6: judge falls: the held-out judge fell from 0.80 (step 3)" in capsys.readouterr().err
    assert json.loads((run.run_dir / "best" / "best.json").read_text()) == {"step": 3, "gold": 0.8}


def test_stop_on_hacking_ends_the_run_with_the_weights_the_judge_liked_best(settings: Any) -> None:
    config = settings(OnlineConfig, max_steps=30, stop_on_hacking=True, save_steps=0)
    run = train(config, scorer=Rising(), held_out=falling(0.4, 0.8, 0.3))
    assert run.metrics["kept_step"] == 3 and "0.80 (step 3) to 0.30" in run.metrics["stopped"]
    assert [row["step"] for row in training_rows(run)][-1] == "6"
    whole = train(
        settings(OnlineConfig, "three", max_steps=30, save_steps=3), scorer=Rising(), stop_at_step=3
    )
    at_three = whole.run_dir / "checkpoints" / "step_000003"
    assert_equal_weights(adapter_weights(run.final), adapter_weights(at_three))
    again = train(config, scorer=Rising(), held_out=falling())
    assert again.metrics == run.metrics, "a run that was stopped is finished"


def test_stop_kl_ends_the_run_and_keeps_the_last_weights(settings: Any) -> None:
    config = settings(OnlineConfig, max_steps=30, learning_rate=5e-2, kl_coef=0.0, stop_kl=1e-4)
    run = train(config)
    assert run.metrics["steps"] < 30 and "--stop_kl 0.0001" in run.metrics["stopped"]
    assert run.final.is_dir() and not (run.run_dir / "best").exists()


def test_an_interrupted_run_knows_again_what_it_knew(settings: Any) -> None:
    how: dict[str, Any] = {"max_steps": 9, "save_steps": 3, "stop_on_hacking": True}
    whole = train(
        settings(OnlineConfig, "whole", **how), scorer=Rising(), held_out=falling(0.4, 0.8, 0.7, 0.3)
    )
    train(
        settings(OnlineConfig, "parts", **how),
        scorer=Rising(),
        held_out=falling(0.4, 0.8, 0.7),
        stop_at_step=7,
    )
    later = Rising()
    later.value = 5.0
    parts = train(settings(OnlineConfig, "parts", **how), scorer=later, held_out=falling(0.3))
    assert parts.metrics["kept_step"] == whole.metrics["kept_step"] == 3
    assert_equal_weights(adapter_weights(whole.final), adapter_weights(parts.final))


def test_overwriting_a_run_removes_its_signs(settings: Any) -> None:
    train(settings(OnlineConfig), scorer=Rising(), held_out=falling(0.4, 0.8, 0.3))
    run = train(settings(OnlineConfig, overwrite=True), held_out=falling(0.4, 0.4, 0.4))
    assert not (run.run_dir / "signs.json").exists()


def test_stop_on_hacking_without_a_judge_is_refused(settings: Any) -> None:
    with pytest.raises(CourseError, match="--stop_on_hacking needs a judge"):
        train(settings(OnlineConfig, stop_on_hacking=True))
    with pytest.raises(CourseError, match="--eval_steps"):
        train(settings(OnlineConfig, "b", stop_on_hacking=True, eval_steps=0), held_out=falling(0.4))


def test_a_finished_run_of_an_older_version_is_still_the_same_run(settings: Any) -> None:
    """Its config.json lacks the settings that were added since."""
    config = settings(OnlineConfig)
    run = train(config)
    place = run.run_dir / "config.json"
    known = json.loads(place.read_text())
    added = ("length_penalty", "diversity_penalty", "stop_kl", "stop_on_hacking", "held_out_judge")
    place.write_text(json.dumps({key: value for key, value in known.items() if key not in added}))
    assert train(config).metrics == run.metrics
