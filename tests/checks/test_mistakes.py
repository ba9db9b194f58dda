"""Every known mistake is rejected by its own id and sentence; every listed one is known or accounted for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.course.checks import check, exercises
from solutions.mistakes import MISTAKES, NOT_HERE, mistakes_of
from solutions.oracles import ORACLES, verify

ROOT = Path(__file__).resolve().parents[2]
EVERY = pytest.mark.parametrize("name", sorted(ORACLES))
# The others are for trainers, for lesson text, or for exercises to come.
TOPICS = """shifted_logprobs completion_mask masked_reduction sft_loss perplexity reward_pooling bradley_terry
pair_accuracy dpo ipo aot group_advantages grpo_surrogate loss_normalisation dr_grpo gspo kl_estimator entropy
ppo_reward ppo_value ppo_gae judge_winrate length_control bootstrap_ci reward_hacking meta_test_gaming"""


@EVERY
def test_every_mistake_is_named(name: str) -> None:
    for key, known in mistakes_of(name).items():
        result = check(name, known.function, quiet=True)
        assert (result.mistake, result.hint) == (known.id, known.hint), key


@EVERY
def test_graders_reject_every_mistake(name: str) -> None:
    for key, known in mistakes_of(name).items():
        assert verify(name, known.function, draws=1, seed=0), key


def test_a_mistake_is_entered_for_an_exercise_that_exists() -> None:
    assert {known.exercise for known in MISTAKES} == set(ORACLES) == set(exercises())


def test_hints_are_sentences() -> None:
    for known in MISTAKES:
        assert known.hint.endswith(".") and len(known.hint) < 240, known
        assert not set(known.hint) & set("!"), known


def test_every_listed_mistake_is_known_or_accounted_for() -> None:
    path = ROOT.parent / "shared" / "mistakes.jsonl"
    if not path.exists():
        pytest.skip("the list of mistakes is not beside this checkout")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    listed = {row["id"] for row in rows if row["exercise"] in TOPICS.split()}
    known = {mistake.id for mistake in MISTAKES}
    assert listed - known - set(NOT_HERE) == set()
    assert not known & set(NOT_HERE), "a mistake is in one place"


def test_the_tests_that_stand_in_for_a_check_exist() -> None:
    for reason in NOT_HERE.values():
        for word in reason.split():
            assert not word.startswith("tests/") or (ROOT / word).exists(), reason
