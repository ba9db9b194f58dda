"""Verdicts of two orders into pairs: agreement, thresholds, the fields of a row."""

from __future__ import annotations

from dataclasses import asdict

import pytest

from helpers.dataset_build.pairs import agree, judge_pair, pair_row, prompt_row, same_answer, sft_row
from helpers.dataset_build.settings import BuildSettings
from helpers.dataset_build.verdicts import turned
from helpers.judging.judge import Choice

SETTINGS = BuildSettings(source="a", output_dir="b")


def choice(best: int | None, worst: int | None, **fields) -> dict:
    known = {"confidence": 0.9, "strength": 4, "usable": True, "training_quality": 5}
    return asdict(Choice(best, worst, **{**known, **fields}))


def test_a_choice_in_the_opposite_order_is_turned_back():
    back = turned(Choice(0, 2, scores=(0.9, 0.5, 0.1)), 3)
    assert (back.best, back.worst, back.scores) == (2, 0, (0.1, 0.5, 0.9))
    assert turned(back, 3) == Choice(0, 2, scores=(0.9, 0.5, 0.1))
    assert turned(Choice(None, None, status="refused"), 3).best is None


def test_both_orders_naming_the_same_answers_make_a_pair_with_the_mean_qualities():
    outcome = agree(choice(1, 0, confidence=0.9, strength=4), choice(1, 0, confidence=0.7, strength=5))
    assert (outcome.reason, outcome.best, outcome.worst) == ("", 1, 0)
    assert (outcome.confidence, outcome.strength, outcome.quality) == (0.8, 4.5, 5)


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (choice(0, 2), choice(1, 2), "the orders disagree on the best"),
        (choice(0, 2), choice(0, 1), "the orders disagree on the worst"),
        (choice(0, 2), choice(None, None, status="refused"), "judge: refused"),
        (choice(None, None, status="unparsed"), choice(0, 2), "judge: unparsed"),
        (choice(0, 0), choice(0, 0), "best and worst are one"),
    ],
)
def test_there_is_no_pair_and_the_reason_is_named(first, second, reason):
    assert agree(first, second).reason == reason


def test_equal_scores_of_the_judge_itself_count_as_agreement():
    scores = (0.8, 0.1, 0.1)
    assert same_answer("worst", choice(0, 1, scores=scores), choice(0, 2, scores=scores))
    assert not same_answer("best", choice(0, 1, scores=scores), choice(2, 1, scores=scores))
    assert not same_answer("worst", choice(0, 1), choice(0, 2))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"confidence": 0.4}, "confidence too low"),
        ({"strength": 1}, "preference too weak"),
        ({"training_quality": 1}, "training quality too low"),
        ({"usable": False}, "unusable"),
        ({"confidence": None, "strength": None, "training_quality": None, "usable": None}, ""),
        ({}, ""),
    ],
)
def test_thresholds(fields, reason):
    settings = BuildSettings(source="a", output_dir="b", min_strength=2, min_quality=2)
    assert judge_pair(choice(0, 1, **fields), choice(0, 1, **fields), settings).reason == reason


def test_one_order_that_calls_it_unusable_is_enough_unless_kept_on_request():
    verdicts = choice(0, 1), choice(0, 1, usable=False)
    assert judge_pair(*verdicts, SETTINGS).reason == "unusable"
    kept = BuildSettings(source="a", output_dir="b", keep_unusable=True)
    assert judge_pair(*verdicts, kept).reason == ""


def test_rows_have_the_fields_of_the_bundled_data(tiny_dir):
    from helpers.files import read_jsonl

    row = {
        "row_id": "r",
        "prompt_messages": [{"role": "user", "content": "Hello?"}],
        "metadata": {"family": "greeting"},
        "answers": [{"text": "Good day."}, {"text": "Go away."}],
    }
    pair = pair_row(row, agree(choice(0, 1), choice(0, 1)), "gold")
    assert (pair["chosen_text"], pair["rejected_text"], pair["score"]) == ("Good day.", "Go away.", 4.5)
    for name, made in (
        ("train_prefs", pair),
        ("train_gen", prompt_row(row, pair)),
        ("sft_val", sft_row(pair)),
    ):
        assert set(made) == set(read_jsonl(tiny_dir / f"{name}.jsonl")[0])
    assert prompt_row(row, None)["reference_response_text"] is None
