"""A choice among several candidates, and what it says of a pair."""

from __future__ import annotations

import pytest

from helpers.judging.gold import GoldJudge
from helpers.judging.judge import Candidates, Choice, Comparison, verdict_of
from helpers.text.datasets import load_examples


@pytest.fixture(scope="module")
def pairs(tiny_data):
    return load_examples(tiny_data, split="test_prefs", kind="preference", limit=40).examples


@pytest.fixture(scope="module")
def tiny_data():
    from helpers.files import find_data

    return find_data("data/tiny")


def test_gold_names_best_and_worst_and_agrees_with_its_own_comparison(pairs):
    judge = GoldJudge()
    choices = judge.choose([Candidates(pair, pair.responses) for pair in pairs])
    verdicts = judge.compare([Comparison(pair, *pair.responses) for pair in pairs])
    for choice, verdict in zip(choices, verdicts, strict=True):
        assert verdict_of(choice).winner == verdict.winner
        assert {choice.best, choice.worst} == {0, 1}
        assert choice.scores == (verdict.score_a, verdict.score_b)
        assert 0.5 <= choice.confidence <= 1 and 1 <= choice.strength <= 5


def test_equal_candidates_are_no_pair_to_train_on(pairs):
    text = pairs[0].responses[0]
    choice = GoldJudge().choose([Candidates(pairs[0], (text, text, text))])[0]
    assert (choice.best, choice.worst, choice.usable, choice.strength) == (0, 2, False, 1)
    assert "near_equal" in choice.exclude_tags


@pytest.mark.parametrize("status", ["unparsed", "refused", "missing"])
def test_a_failure_is_never_a_win(status):
    verdict = verdict_of(Choice(best=0, worst=1, status=status))
    assert verdict.winner is None and verdict.detail["status"] == status
