"""Statements about what the numbers of a comparison are worth."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import solutions.answers as answers
from helpers.errors import CourseError
from helpers.judging.head_to_head import head_to_head
from helpers.judging.judge import Verdict
from helpers.judging.power import can_tell, outcome_variance, power, prompts_needed
from helpers.judging.statistics import (
    agreement,
    cluster_bootstrap,
    cohens_kappa,
    distinct_n,
    length_controlled,
    length_overlap,
    paired_difference,
    positions,
)
from helpers.text.datasets import Example

FIT = answers.length_controlled_win_rate


def verdicts(letters: str, **detail) -> list[Verdict]:
    """One verdict a letter; a dot is one that could not be read."""
    return [Verdict(None if letter == "." else letter, detail=dict(detail)) for letter in letters]


def draws(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# ---------------------------------------------------------------------- judges that prefer a place
class Fixed:
    """Says what it is told to say, whatever it reads."""

    name, is_proxy = "fixed", True

    def __init__(self, say) -> None:
        self.say = say

    def compare(self, comparisons):
        return [self.say(pair) for pair in comparisons]


def fight(say, ours: list[str], theirs: list[str]):
    message = {"role": "user", "content": "Say hello."}
    rows = [Example(f"row{index}", (message,), (), {}) for index in range(len(ours))]
    return head_to_head(Fixed(say), rows, ours, theirs, answers)


def longest(pair) -> Verdict:
    return Verdict("A" if len(pair.response_a) >= len(pair.response_b) else "B")


def test_a_judge_that_always_says_the_first_is_found_out():
    result = fight(lambda pair: Verdict("A"), ["mine"] * 9, ["theirs"] * 9)
    assert (result.win_rate, result.first_position_rate, result.consistency) == (0.5, 1.0, 0.0)
    assert (result.agreement.win_rate, result.agreement.n, result.agreement.rows) == (None, 0, 9)


def test_self_against_self_is_one_half_whatever_the_judge():
    same = [f"answer {index}" for index in range(40)]
    coin = draws()
    for say in (longest, lambda pair: Verdict("B"), lambda pair: Verdict(coin.choice(["A", "B"]))):
        assert fight(say, same, same).win_rate == pytest.approx(0.5, abs=0.15)
    assert fight(longest, same, same).win_rate == 0.5


def test_a_judge_that_reads_the_answers_is_consistent_and_prefers_no_place():
    result = fight(longest, ["long answer", "x"] * 5, ["short", "longer"] * 5)
    assert (result.consistency, result.first_position_rate) == (1.0, 0.5)


def test_a_coin_is_consistent_half_the_time():
    coin = draws()
    result = fight(lambda pair: Verdict(coin.choice(["A", "B"])), ["x"] * 2000, ["y"] * 2000)
    assert result.consistency == pytest.approx(0.5, abs=0.05)
    assert result.first_position_rate == pytest.approx(0.5, abs=0.03)


def test_equal_scores_in_both_orders_say_nothing_about_the_place():
    tied = [Verdict("A", 0.5, 0.5), Verdict("A", 0.9, 0.1)]
    found = positions(tied, [Verdict("A", 0.5, 0.5), Verdict("B", 0.1, 0.9)])
    assert (found.consistency, found.first_position_rate, found.n, found.equal) == (1.0, 0.5, 1, 1)
    assert positions(tied[:1], tied[:1]).consistency is None


def test_verdicts_in_one_order_only_count_for_no_statistic_of_both():
    found = positions(verdicts("AA.."), verdicts("B.A."))
    assert (found.n, found.consistency) == (1, 1.0)


# ---------------------------------------------------------------------- the project's own statistic
def test_the_projects_statistic_counts_only_rows_on_which_both_orders_agree():
    found = agreement(verdicts("AAABBA"), verdicts("BBBAAA"))  # three wins, two losses, one contradiction
    assert (found.win_rate, found.n, found.rows) == (0.6, 5, 6)
    low, high = found.ci95
    assert low < 0.6 < high


def test_the_projects_statistic_leaves_out_what_either_order_calls_unusable():
    usable, not_usable = verdicts("AA", usable=True), [*verdicts("B", usable=False), *verdicts("B")]
    assert agreement(usable, not_usable).n == 1


def test_ties_pull_the_win_rate_to_one_half_and_not_the_projects_statistic():
    """Three agreed wins, one agreed loss, six contradictions."""
    first, second = "AAAB" + "AAAAAA", "BBBA" + "AAAAAA"
    combined = answers.win_rate(answers.combine_orders(list(first), list(second)))
    assert (combined, agreement(verdicts(first), verdicts(second)).win_rate) == (0.6, 0.75)


# ---------------------------------------------------------------------- what is left out
def test_every_prompt_that_is_left_out_has_one_reason_and_the_reasons_sum_up():
    status = iter(["ok", "refused", "odd", "ok", "ok", "missing", "unparsed", "refused"])

    def say(pair):
        word = next(status)
        return Verdict("A" if word == "ok" else None, detail={"status": word})

    result = fight(say, ["x"] * 4, ["y"] * 4)  # first order: ok refused odd ok; second: ok missing …
    assert result.left_out == {"unparsed": 1, "refused": 1, "missing": 1}
    assert result.unparsed == sum(result.left_out.values()) == 3


def test_lengths_are_those_of_the_responses_that_were_judged():
    say = lambda pair: Verdict(None if "?" in pair.response_a + pair.response_b else "A")  # noqa: E731
    result = fight(say, ["four", "sixsix", "????????"], ["ab", "ab", "ab"])
    assert (result.mean_chars, result.mean_chars_baseline) == (5, 2)


def test_rows_that_share_an_id_keep_their_own_lengths():
    message = {"role": "user", "content": "Say hello."}
    rows = [Example("same", (message,), (), {})] * 2
    result = head_to_head(Fixed(longest), rows, ["a", "abc"], ["ab", "ab"], answers)
    assert result.mean_chars == 2


def test_without_the_exercise_the_length_controlled_rate_is_left_out_and_nothing_else():
    class Some:
        combine_orders, win_rate = staticmethod(answers.combine_orders), staticmethod(answers.win_rate)
        bootstrap_ci = staticmethod(answers.bootstrap_ci)

    message = {"role": "user", "content": "Say hello."}
    result = head_to_head(Fixed(longest), [Example("a", (message,), (), {})], ["xx"], ["x"], Some)
    assert (result.win_rate, result.length_controlled, result.mean_chars) == (1.0, None, 2)
    assert result.to_dict()["length_controlled"] is None


# ---------------------------------------------------------------------- intervals
def test_the_interval_of_a_mean_is_the_lessons_interval():
    outcomes = draws(1).choice([0, 0.5, 1], 120).tolist()
    assert cluster_bootstrap(np.mean, [outcomes]) == pytest.approx(answers.bootstrap_ci(outcomes), abs=0.015)


@pytest.mark.parametrize("clustered", [True, False])
def test_ten_answers_to_one_prompt_are_no_ten_prompts(clustered):
    """30 prompts of 10 answers, prompts differ: only whole prompts resampled cover as often as claimed."""
    covered = 0
    for trial in range(150):
        draw = draws(trial)
        ease = np.repeat(draw.normal(0.6, 0.25, 30), 10)
        values = ease + draw.normal(0, 0.1, 300)
        prompts = np.repeat(np.arange(30), 10).tolist() if clustered else None
        low, high = cluster_bootstrap(np.mean, [values], prompts, n_resamples=200, seed=trial)
        covered += low <= 0.6 <= high
    assert (covered >= 0.87 * 150) if clustered else (covered <= 0.6 * 150)


def test_the_order_of_rows_within_clusters_does_not_matter():
    values, prompts = [1.0, 0.0, 0.5, 1.0, 0.2], ["a", "b", "a", "c", "b"]
    order = [3, 0, 1, 2, 4]
    shuffled = cluster_bootstrap(np.mean, [[values[i] for i in order]], [prompts[i] for i in order])
    assert cluster_bootstrap(np.mean, [values], prompts) == pytest.approx(shuffled, abs=0.1)


def test_any_statistic_of_several_columns_has_an_interval():
    draw = draws()
    x = draw.normal(size=200)
    y = 0.8 * x + 0.6 * draw.normal(size=200)
    low, high = cluster_bootstrap(lambda a, b: np.corrcoef(a, b)[0, 1], [x, y])
    assert 0.7 < low < 0.8 < high < 0.88


def test_an_interval_of_one_prompt_has_no_width_and_of_none_is_refused():
    assert cluster_bootstrap(np.mean, [[0.2, 0.4]], ["a", "a"]) == pytest.approx((0.3, 0.3))
    for columns in ([[]], [[1.0], [1.0, 2.0]]):
        with pytest.raises(CourseError, match="at least one row, and columns of one length"):
            cluster_bootstrap(np.mean, columns)


def test_the_same_seed_gives_the_same_interval():
    values = draws().random(30)
    assert cluster_bootstrap(np.mean, [values], seed=3) == cluster_bootstrap(np.mean, [values], seed=3)
    assert cluster_bootstrap(np.mean, [values], seed=3) != cluster_bootstrap(np.mean, [values], seed=4)


# ---------------------------------------------------------------------- two systems on the same prompts
def test_a_difference_is_taken_prompt_by_prompt():
    """Every prompt 0.01 better: no doubt at all, although prompts differ by a hundred times that."""
    ease = draws().random(50)
    first, second = dict(enumerate(ease + 0.01)), dict(enumerate(ease))
    found = paired_difference(first, second)
    assert found.value == pytest.approx(0.01)
    assert found.ci95 == pytest.approx((0.01, 0.01))
    apart = np.subtract(*answers.bootstrap_ci(list(second.values()))[::-1])
    assert apart > 0.1  # what resampling each system for itself would have to live with


def test_prompts_of_only_one_system_are_left_out_and_counted():
    found = paired_difference({"a": 1.0, "b": 0.0}, {"b": 1.0, "c": 0.0})
    assert (found.value, found.n, found.left_out) == (-1.0, 1, 2)
    with pytest.raises(CourseError, match="no prompt in common"):
        paired_difference({"a": 1.0}, {"b": 1.0})


# ---------------------------------------------------------------------- kappa
def labels(counts: list[tuple[str, str, int]]) -> tuple[list[str], list[str]]:
    rows = [(a, b) for a, b, count in counts for _ in range(count)]
    return [a for a, _ in rows], [b for _, b in rows]


def test_kappa_by_hand():
    """20 + 65 agreed of 100; they say yes 25 and 30 times: p_o 0.85, p_e 0.60, kappa 0.25 / 0.40."""
    found = cohens_kappa(*labels([("y", "y", 20), ("y", "n", 5), ("n", "y", 10), ("n", "n", 65)]))
    assert found.value == pytest.approx(0.625)
    assert (found.agreement, found.n) == (0.85, 100)


def test_kappa_agrees_with_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    for seed in range(5):
        a = draws(seed).choice(list("ABC"), 60, p=[0.6, 0.3, 0.1])
        b = np.where(draws(seed + 50).random(60) < 0.6, a, draws(seed + 99).choice(list("ABC"), 60))
        assert cohens_kappa(a.tolist(), b.tolist()).value == pytest.approx(metrics.cohen_kappa_score(a, b))


def test_kappa_is_one_for_agreement_zero_for_chance_and_negative_for_contradiction():
    assert cohens_kappa("ABAB", "ABAB").value == 1
    assert cohens_kappa("AABB", "ABAB").value == 0
    assert cohens_kappa("AABB", "BBAA").value == -1


def test_a_judge_that_always_says_one_thing_agrees_by_chance_alone():
    assert cohens_kappa("AAAA", "AAAB").value == 0
    same = cohens_kappa("AAAA", "AAAA")
    assert math.isnan(same.value) and same.agreement == 1
    assert same.to_dict()["value"] is None and same.to_dict()["ci95"] is None


def test_the_names_of_the_labels_do_not_matter():
    a, b = "ABBABABBAB", "ABABABBBAA"
    swapped = str.maketrans("AB", "BA")
    assert cohens_kappa(a, b).value == pytest.approx(
        cohens_kappa(a.translate(swapped), b.translate(swapped)).value
    )


def test_missing_labels_are_left_out_and_counted():
    found = cohens_kappa(["A", None, "B", "A"], ["A", "A", None, "B"])
    assert (found.n, found.left_out, found.agreement) == (2, 2, 0.5)
    with pytest.raises(CourseError, match="no row has a label from both"):
        cohens_kappa([None], ["A"])
    with pytest.raises(CourseError, match="2 labels against 1"):
        cohens_kappa(["A", "B"], ["A"])


def test_the_interval_of_kappa_covers_the_truth():
    """Two judges that copy the truth with probability 0.7 and toss a coin otherwise: kappa 0.49."""
    covered = 0
    for trial in range(200):
        draw = draws(trial)
        truth = draw.integers(0, 2, 150)
        a, b = (np.where(draw.random(150) < 0.7, truth, draw.integers(0, 2, 150)) for _ in range(2))
        low, high = cohens_kappa(a.tolist(), b.tolist(), n_resamples=400, seed=trial).ci95
        covered += low <= 0.49 <= high
    assert covered >= 0.9 * 200


# ---------------------------------------------------------------------- power
def test_128_prompts_cannot_tell_065_from_060_and_742_can():
    assert prompts_needed(0.60, 0.65) == 742
    assert power(128, 0.60, 0.65) == pytest.approx(0.20, abs=0.01)
    assert not can_tell(128, 0.60, 0.65)
    assert can_tell(742, 0.60, 0.65) and not can_tell(741, 0.60, 0.65)


def test_128_prompts_do_tell_070_from_one_half():
    assert can_tell(128, 0.5, 0.7, power_wanted=0.99)


def test_the_power_is_how_often_simulated_experiments_find_the_difference():
    n, p0, p1 = 200, 0.5, 0.6
    wins = draws().binomial(n, p1, 20000) / n
    found = np.mean(np.abs(wins - p0) > 1.96 * math.sqrt(p0 * (1 - p0) / n))
    assert power(n, p0, p1) == pytest.approx(found, abs=0.02)


def test_ties_lower_the_variance_of_an_outcome():
    outcomes = draws().choice([1, 0.5, 0], 100000, p=[0.5, 0.2, 0.3])
    assert outcome_variance(0.6, ties=0.2) == pytest.approx(outcomes.var(), abs=0.002)
    assert prompts_needed(0.6, 0.65, ties=0.3) < prompts_needed(0.6, 0.65)
    with pytest.raises(CourseError, match="allows a share of ties from 0 to 0.2"):
        outcome_variance(0.9, ties=0.3)


def test_pairing_two_systems_saves_prompts_in_proportion_to_their_correlation():
    apart = prompts_needed(0.60, 0.65, correlation=0.0)
    assert apart == pytest.approx(2 * prompts_needed(0.60, 0.65), rel=0.02)  # two noisy rates, not one
    assert prompts_needed(0.60, 0.65, correlation=0.5) == pytest.approx(apart / 2, rel=0.01)


def test_a_smaller_difference_takes_the_square_more_prompts():
    assert prompts_needed(0.5, 0.51) == pytest.approx(25 * prompts_needed(0.5, 0.55), rel=0.02)


def test_what_no_number_of_prompts_can_tell_is_refused():
    with pytest.raises(CourseError, match="no number of prompts tells"):
        prompts_needed(0.6, 0.6)
    with pytest.raises(CourseError, match="from 0 to 1, not 60"):
        power(128, 60, 65)
    with pytest.raises(CourseError, match="power is a number between 0 and 1"):
        prompts_needed(0.6, 0.7, power=1.0)
    with pytest.raises(CourseError, match="at least 1"):
        power(0, 0.6, 0.7)


# ---------------------------------------------------------------------- length
def lengths(shift: float, count: int = 300, spread: float = 300) -> tuple[np.ndarray, np.ndarray]:
    theirs = draws(7).integers(800, 1200, count)
    return theirs + draws(8).normal(shift, spread, count), theirs


def test_the_interval_of_the_whole_fit_is_wider_where_lengths_hardly_overlap():
    """The same wins; what is not known of the length term shows in the interval."""
    wins = draws().integers(0, 2, 300).tolist()
    near, far = (length_controlled(FIT, wins, *lengths(shift)) for shift in (0, 700))
    assert far.ci95[1] - far.ci95[0] > 2 * (near.ci95[1] - near.ci95[0])
    assert near.warning is None
    assert "longer than the baseline's on 9" in far.warning and "extrapolation" in far.warning


def test_the_interval_covers_the_rate_at_equal_length():
    """theta 0.4 and phi 1: at equal length 0.599."""
    covered = 0
    for trial in range(60):
        draw = draws(trial)
        theirs = draw.integers(800, 1200, 200)
        gap = draw.normal(100, 300, 200)
        chance = 1 / (1 + np.exp(-0.4 - np.tanh(gap / 300)))
        wins = (draw.random(200) < chance).astype(float)
        found = length_controlled(FIT, wins, theirs + gap, theirs, n_resamples=100, seed=trial)
        covered += found.ci95[0] <= 1 / (1 + math.exp(-0.4)) <= found.ci95[1]
    assert covered >= 51


def test_overlap_is_one_for_balanced_lengths_and_zero_where_one_is_always_longer():
    assert length_overlap([1, 3, 1, 3], [2, 2, 2, 2]) == 1
    assert length_overlap([3, 3], [2, 2]) == length_overlap([1, 1], [2, 2]) == 0
    assert length_overlap([2, 2], [2, 2]) == 1
    assert length_overlap([1, 3, 3, 3], [2, 2, 2, 2]) == 0.5


def test_short_answers_are_called_short():
    wins = draws().integers(0, 2, 300).tolist()
    assert "shorter than the baseline's" in length_controlled(FIT, wins, *lengths(-700)).warning


def test_500_refits_of_150_prompts_are_cheap():
    calls = itertools.count()

    def counted(*columns):
        next(calls)
        return FIT(*columns)

    length_controlled(counted, draws().random(150), *lengths(0, 150))
    assert next(calls) == 501  # a fit is some tens of microseconds of work: no one waits for it


# ---------------------------------------------------------------------- variety
def test_distinct_n_counts_different_word_sequences():
    assert distinct_n(["a b a b"], 1) == 0.5
    assert distinct_n(["a b a b"], 2) == pytest.approx(2 / 3)
    assert distinct_n(["The cat", "the cat"], 2) == 0.5
    assert distinct_n(["no repeats here at all"], 2) == 1


def test_distinct_n_of_texts_shorter_than_n_is_zero():
    assert distinct_n(["one", "", "two"], 2) == 0
    assert distinct_n([], 1) == 0
    with pytest.raises(CourseError, match="at least 1 word"):
        distinct_n(["x"], 0)
