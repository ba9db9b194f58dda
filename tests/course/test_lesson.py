"""The run time of a lesson: functions are checked before they train, runs kept or replaced, answers shown."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

import solutions.answers as reference_answers
from helpers.course.lesson import Lesson, adapter_of, close_lesson
from helpers.course.lesson_display import FigureData, Plot, Table, tint_of, written
from helpers.course.stand_ins import STAND_INS
from helpers.errors import CourseError
from helpers.models.loading import count_bases


@pytest.fixture(scope="module")
def lesson(tmp_path_factory):
    place = tmp_path_factory.mktemp("lesson")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_RUNS", str(place))
        patch.setenv("COURSE_PROFILE", "tiny")
        yield Lesson("99_test")
    close_lesson()


SHORT = {"max_steps": 2, "train_limit": 16, "eval_limit": 4, "per_device_train_batch_size": 8}


# ---------------------------------------------------------------------- the learner's functions
def test_a_function_that_does_not_pass_its_check_does_not_train(lesson):
    with pytest.raises(CourseError, match="exercise dpo_loss"):
        lesson.use(dpo_loss=lambda pc, pr, rc, rr, beta: -reference_answers.dpo_loss(pc, pr, rc, rr, beta))


def test_an_unwritten_function_is_named(lesson):
    def dpo_loss(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
        raise NotImplementedError

    with pytest.raises(CourseError, match="dpo_loss"):
        lesson.use(dpo_loss=dpo_loss)


def test_a_deliberate_mistake_may_train(lesson):
    answers = lesson.use(unchecked=True, dpo_loss=lambda *_: torch.tensor(7.0))
    four = [torch.zeros(2)] * 4
    assert answers.dpo_loss(*four, 0.1) == 7


def test_the_learners_function_is_the_one_that_is_called(lesson):
    calls = []

    def dpo_loss(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
        calls.append(beta)
        return reference_answers.dpo_loss(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta)

    lesson.train("dpo", lesson.use(unchecked=True, dpo_loss=dpo_loss), name="called", **SHORT)
    assert len(calls) >= 2


# ---------------------------------------------------------------------- runs
def test_the_same_run_is_returned_and_another_replaces_it(lesson):
    answers = lesson.use(unchecked=True, dpo_loss=reference_answers.dpo_loss)
    first = lesson.train("dpo", answers, name="run", **SHORT)
    written_at = (first.run_dir / "finished.json").stat().st_mtime_ns
    again = lesson.train("dpo", answers, name="run", **SHORT)
    assert (again.run_dir / "finished.json").stat().st_mtime_ns == written_at
    other = lesson.train("dpo", answers, name="run", **{**SHORT, "max_steps": 3})
    assert other.metrics["steps"] == 3


def test_a_setting_that_does_not_exist_is_named(lesson):
    with pytest.raises(CourseError, match="learning_rat\\b"):
        lesson.train("dpo", lesson.use(), learning_rat=1e-3)


def test_columns_that_a_run_lacks_are_named_with_those_it_has(lesson):
    answers = lesson.use(unchecked=True, dpo_loss=reference_answers.dpo_loss)
    run = lesson.train("dpo", answers, name="columns", **SHORT, logging_steps=1)
    with pytest.raises(CourseError, match="perplexity.*loss"):
        lesson.curves({"run": run}, "perplexity", "", "")
    assert lesson.curves({"run": run}, "loss", "Loss", "loss").numbers()["lines"]


# ---------------------------------------------------------------------- policies
def test_twelve_prompts_from_the_evaluation_split_each_of_its_own_family(lesson):
    families = [prompt.metadata["metadata"]["family"] for prompt in lesson.prompts]
    assert len(families) == 12 == len(set(families))


def test_base_and_policies_share_one_base(lesson):
    sft = lesson.bundled("sft")
    roles = [lesson.role(None), lesson.role(sft), lesson.role(str(sft))]
    assert count_bases([role.model for role in roles]) == 1
    assert roles[1].adapter == roles[2].adapter, "one adapter is loaded once"


def test_the_base_stays_the_base_beside_adapters(lesson):
    before = lesson.show({"base": None}).data["base"].responses
    lesson.show({"SFT": lesson.bundled("sft")})
    lesson._replies.clear()
    assert lesson.show({"base": None}).data["base"].responses == before


def test_evaluation_compares_with_the_first_policy(lesson):
    table = lesson.evaluate({"base": None, "SFT": lesson.bundled("sft")}, limit=32)
    assert table.data["base"]["win_rate_vs_base"] is None
    assert table.data["SFT"]["win_rate_vs_base"] > 0.7
    assert "win rate vs base" in repr(table)


def test_a_directory_without_an_adapter_is_named(tmp_path):
    with pytest.raises(CourseError, match="holds no adapter"):
        adapter_of(tmp_path)


def test_a_second_lesson_lets_go_of_the_first_ones_model(lesson, monkeypatch):
    first = Lesson("98_first")
    first.model()
    Lesson("98_second")
    assert first._model is None


# ---------------------------------------------------------------------- display
def test_what_a_figure_draws_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_FIGURE_DATA", str(tmp_path / "figures.json"))
    plot = Plot("loss", "Loss", "step", "loss", FigureData()).line([1, 2, 3], [3.0, 2.0, math.nan], "run")
    plot.axes.bar([0, 1], [0.5, 0.25])
    assert plot._repr_png_().startswith(b"\x89PNG")
    recorded = json.loads((tmp_path / "figures.json").read_text())["loss"]
    assert recorded["lines"][0] == [1, 2, 3, 3, 2, 0]
    assert [bar[3] for bar in recorded["bars"]] == [0.5, 0.25]


def test_answers_are_shown_as_text_whatever_they_hold():
    table = Table("<b>caption</b>", ["prompt", "base"], [["<script>x</script>", "two\nlines"]])
    html = table._repr_html_()
    assert "<script>" not in html and "&lt;script&gt;" in html and "two ⏎ lines" in html
    assert written("x" * 500).endswith("…") and written(None) == "–" and written(0.125) == "0.12"


def test_tints_follow_the_score():
    assert tint_of(None) is None
    assert len({tint_of(0.0), tint_of(0.5), tint_of(1.0)}) == 3


# ---------------------------------------------------------------------- stand-ins
def test_stand_ins_agree_with_the_answers_where_both_are_defined():
    rng = np.random.default_rng(0)
    outcomes = rng.choice([0.0, 0.5, 1.0], 60).tolist()
    verdicts = [{0.0: "loss", 0.5: "tie", 1.0: "win"}[value] for value in outcomes]
    assert STAND_INS["win_rate"](verdicts) == pytest.approx(reference_answers.win_rate(verdicts))
    mine, theirs = STAND_INS["bootstrap_ci"](outcomes), reference_answers.bootstrap_ci(outcomes)
    assert mine == pytest.approx(theirs, abs=0.03)
    first, second = rng.choice(["A", "B"], 20).tolist(), rng.choice(["A", "B"], 20).tolist()
    assert STAND_INS["combine_orders"](first, second) == reference_answers.combine_orders(first, second)
    chosen, rejected = torch.randn(9), torch.randn(9)
    assert STAND_INS["pair_accuracy"](chosen, rejected) == pytest.approx(
        reference_answers.pair_accuracy(chosen, rejected)
    )


def test_stand_ins_would_not_pass_for_the_exercises():
    left_padded = torch.tensor([[0, 0, 1, 1]])
    assert STAND_INS["last_token_index"](left_padded) != reference_answers.last_token_index(left_padded)
    logprobs, mask = torch.zeros(1, 3), torch.ones(1, 3, dtype=torch.bool)
    assert STAND_INS["approx_kl"](logprobs, logprobs, mask, "k3").isnan()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"name": "../elsewhere"}, "no plain name"),
        ({"name": ".."}, "no plain name"),
        ({"name": "a\0b"}, "no plain name"),
        ({"beta": "0.1"}, "beta='0.1' is a text"),
        ({"max_steps": "2"}, "max_steps='2' is a text"),
        ({"output_dir": "elsewhere"}, "no setting output_dir"),
    ],
)
def test_train_refuses_other_places_and_texts_for_numbers(lesson, words, message):
    with pytest.raises(CourseError, match=message):
        lesson.train("dpo", lesson.use(), **words)


def test_unknown_kinds_of_rows_and_an_empty_evaluation_are_refused(lesson):
    for read in (lesson.examples, lesson.held_out):
        with pytest.raises(CourseError, match="kind='pairs' is none of sft"):
            read(kind="pairs")
    with pytest.raises(CourseError, match="no policy"):
        lesson.evaluate({})
