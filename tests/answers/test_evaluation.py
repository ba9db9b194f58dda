"""Lesson 10: what a head-to-head comparison is worth."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from solutions.answers import bootstrap_ci, combine_orders, length_controlled_win_rate, win_rate
from tests.answers.numerics import separates


def judged(first: str, second: str) -> list[str]:
    """Verdicts of a string of A and B for each order."""
    return combine_orders(list(first), list(second))


# ---------------------------------------------------------------- combine_orders and win_rate
def test_a_verdict_counts_only_if_both_orders_agree() -> None:
    assert judged("ABAB", "BAAB") == ["win", "loss", "tie", "tie"]


def test_exchanging_the_policies_exchanges_wins_and_losses() -> None:
    first, second = "AABBA", "ABABB"
    mirrored = {"win": "loss", "loss": "win", "tie": "tie"}
    assert judged(second, first) == [mirrored[verdict] for verdict in judged(first, second)]
    assert win_rate(judged(second, first)) == pytest.approx(1 - win_rate(judged(first, second)))


def test_lists_of_unequal_length_and_unreadable_verdicts_are_refused() -> None:
    """The slip winrate_parse_failures lets a verdict that could not be read pass for a tie or a loss."""
    with pytest.raises(ValueError):
        combine_orders(["A"], [])
    for unreadable in (None, "C", "a", ""):
        with pytest.raises(ValueError, match="'A' or 'B'"):
            combine_orders(["A", "A"], ["B", unreadable])


def test_a_tie_is_half_a_win() -> None:
    for verdicts in itertools.product(("win", "loss", "tie"), repeat=4):
        by_hand = (verdicts.count("win") + verdicts.count("tie") / 2) / 4
        assert win_rate(verdicts) == by_hand


def test_no_verdicts_show_nothing() -> None:
    assert win_rate([]) == 0.5


def test_a_verdict_of_another_name_is_refused() -> None:
    with pytest.raises(KeyError):
        win_rate(["win", "draw"])


def test_slips_of_the_win_rate() -> None:
    mixed = ["win"] * 3 + ["loss"] + ["tie"] * 6
    separates("winrate_ties_as_losses", win_rate(mixed), 0.6, 0.3)
    for wrong in (0.0, 1.0, 1.5):
        separates("winrate_tie_code_mismapped", win_rate(["tie"]), 0.5, wrong)

    always_first = ("A" * 6, "A" * 6)
    separates("winrate_single_order", win_rate(judged(*always_first)), 0.5, always_first[0].count("A") / 6)
    prefers_policy = ("A" * 6, "B" * 6)
    unmapped = (prefers_policy[0].count("A") + prefers_policy[1].count("A")) / 12
    separates("winrate_swap_not_undone", win_rate(judged(*prefers_policy)), 1.0, unmapped)
    unmapped = (always_first[0].count("A") + always_first[1].count("A")) / 12
    separates("winrate_swap_not_undone", win_rate(judged(*always_first)), 0.5, unmapped)

    verdicts = judged("AAAB" + "ABABAB", "BBBA" + "ABABAB")  # 3 agreed wins, 1 agreed loss, 6 disagreements
    separates("winrate_agree_only_denominator", win_rate(verdicts), 0.6, 0.75)
    separates("winrate_orders_as_independent", float(len(verdicts)), 10, 20)


# ---------------------------------------------------------------- bootstrap_ci
def enumerated(outcomes: list[float]) -> tuple[float, float]:
    """The percentile interval over every possible resample, not a random sample of them."""
    means = [sum(draw) / len(outcomes) for draw in itertools.product(outcomes, repeat=len(outcomes))]
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


@pytest.mark.parametrize("outcomes", [[0, 1, 0.5, 1], [0, 0, 1, 1, 0.5], [0.1, 0.4, 0.45, 0.8, 0.9, 1.0]])
def test_the_interval_is_that_of_the_percentiles_of_all_resamples(outcomes: list[float]) -> None:
    ours, right = bootstrap_ci(outcomes, n_resamples=20000), enumerated(outcomes)
    assert ours == pytest.approx(right, abs=0.02)


def test_the_interval_of_many_outcomes_is_the_normal_one() -> None:
    """Mean ± 1.96 standard errors: an independent check where both methods must agree."""
    outcomes = np.random.default_rng(1).choice([0.0, 0.5, 1.0], size=400, p=[0.3, 0.1, 0.6])
    error = 1.96 * outcomes.std() / math.sqrt(400)
    assert bootstrap_ci(outcomes) == pytest.approx(
        (outcomes.mean() - error, outcomes.mean() + error), abs=0.006
    )


def test_in_95_of_100_experiments_the_interval_covers_the_truth() -> None:
    """400 experiments of 80 prompts, true win rate 0.6; a percentile interval covers a little less."""
    draws = np.random.default_rng(0).binomial(1, 0.6, size=(400, 80)).astype(float)
    intervals = [bootstrap_ci(row, n_resamples=300, seed=i) for i, row in enumerate(draws)]
    covered = np.mean([low <= 0.6 <= high for low, high in intervals])
    assert 0.91 <= covered <= 0.98


def test_the_same_seed_gives_the_same_interval_and_the_outcomes_order_hardly_matters() -> None:
    outcomes = np.random.default_rng(5).random(40).tolist()  # hardly two resamples share a mean
    assert bootstrap_ci(outcomes, seed=3) == bootstrap_ci(outcomes, seed=3) != bootstrap_ci(outcomes, seed=4)
    assert bootstrap_ci(outcomes) == pytest.approx(bootstrap_ci(outcomes[::-1]), abs=0.08)
    state = np.random.get_state()[1].copy()  # noqa: NPY002 - the global generator must not move
    bootstrap_ci(outcomes)
    assert (np.random.get_state()[1] == state).all()  # noqa: NPY002


def test_one_outcome_or_equal_ones_have_an_interval_of_no_width() -> None:
    assert bootstrap_ci([1.0]) == (1.0, 1.0)
    assert bootstrap_ci([0.5] * 9) == (0.5, 0.5)
    with pytest.raises(ValueError):
        bootstrap_ci([])


def test_outcomes_are_not_touched_and_the_bounds_are_plain_floats() -> None:
    outcomes = [0.0, 1.0, 1.0]
    low, high = bootstrap_ci(outcomes)
    assert outcomes == [0.0, 1.0, 1.0]
    assert type(low) is float and type(high) is float


def test_slips_of_the_bootstrap() -> None:
    ours = np.random.default_rng(2).random(50)
    theirs = ours + 0.01  # the same prompts, each a little better
    paired = bootstrap_ci(theirs - ours)
    unpaired = bootstrap_ci(np.random.default_rng(3).permutation(theirs) - ours)
    separates("bootstrap_unpaired_difference", paired[1] - paired[0], 0.0, unpaired[1] - unpaired[0])

    outcomes = [0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0] * 10
    low, high = bootstrap_ci(outcomes)
    inside = float(low <= np.mean(outcomes) <= high)
    separates("bootstrap_other_statistic", inside, 1.0, float(low <= max(outcomes) <= high))
    separates("bootstrap_other_statistic", inside, 1.0, float(low <= 100 * np.mean(outcomes) <= high))

    few, many = (np.subtract(*bootstrap_ci(outcomes, n_resamples=n)[::-1]) for n in (500, 8000))
    shrunk = few * math.sqrt(500 / 8000)
    separates("bootstrap_std_as_interval", float(many / few), 1.0, float(shrunk / few), 0.05)


# ---------------------------------------------------------------- length_controlled_win_rate
def prompts(theta: float, phi: float, shift: float, count: int = 4000) -> tuple[np.ndarray, ...]:
    """Chances of a win under the model itself: no noise, so that the fit must find theta again."""
    draw = np.random.default_rng(0)
    theirs = draw.integers(100, 3000, count).astype(float)
    ours = theirs + shift + draw.normal(0, 400, count)
    gap = ours - theirs
    return 1 / (1 + np.exp(-theta - phi * np.tanh(gap / gap.std()))), ours, theirs


@pytest.mark.parametrize(("theta", "phi", "shift"), [(0.4, 1.0, 0), (-0.8, 2.0, 300), (0.0, -1.5, -300)])
def test_the_fit_finds_the_chance_at_equal_lengths(theta: float, phi: float, shift: float) -> None:
    assert length_controlled_win_rate(*prompts(theta, phi, shift)) == pytest.approx(
        1 / (1 + math.exp(-theta)), abs=1e-4
    )


def test_a_judge_that_only_counts_letters_is_found_out() -> None:
    """Nine of ten answers are longer, and wins go with length alone: raw 0.82, controlled one half."""
    draw = np.random.default_rng(1)
    theirs = draw.integers(500, 1500, 3000)
    ours = theirs + draw.normal(400, 300, 3000)
    gap = (ours - theirs) / (ours - theirs).std()
    wins = draw.random(3000) < 1 / (1 + np.exp(-2.0 * np.tanh(gap)))
    assert wins.mean() > 0.75
    assert length_controlled_win_rate(wins, ours, theirs) == pytest.approx(0.5, abs=0.04)


def test_exchanging_model_and_baseline_mirrors_the_controlled_rate() -> None:
    chances, ours, theirs = prompts(0.7, 1.0, 200, 50)
    mirrored = length_controlled_win_rate(1 - chances, theirs, ours)
    assert mirrored == pytest.approx(1 - length_controlled_win_rate(chances, ours, theirs))


def test_the_unit_of_length_does_not_matter() -> None:
    chances, ours, theirs = prompts(0.7, 1.0, 200, 50)
    assert length_controlled_win_rate(chances, ours / 4, theirs / 4) == pytest.approx(
        length_controlled_win_rate(chances, ours, theirs)
    )


def test_equal_differences_leave_the_plain_mean() -> None:
    assert length_controlled_win_rate([1, 0, 0.5, 1], [9, 8, 7, 6], [5, 4, 3, 2]) == 0.625
    assert length_controlled_win_rate([1], [9], [5]) == 1.0


def test_lengths_that_tell_wins_and_losses_apart_stay_finite() -> None:
    gaps = np.array([-400.0, -200.0, -90.0, 100.0, 250.0, 380.0])
    for preferences in (gaps > 0, gaps < 0, gaps > 200, np.ones(6), np.zeros(6)):
        rate = length_controlled_win_rate(preferences.astype(float), gaps + 900, [900] * 6)
        assert 0.0 <= rate <= 1.0
    assert length_controlled_win_rate(gaps > 0, gaps + 900, [900] * 6) == pytest.approx(0.5, abs=0.2)


def test_what_cannot_be_fitted_is_refused() -> None:
    for wrong in (([], [], []), ([1], [2, 3], [4]), ([1, 0], [2, 3], [4]), ([-1.0], [2], [3])):
        with pytest.raises(ValueError):
            length_controlled_win_rate(*wrong)
    with pytest.raises(ValueError, match="leave out the prompts without one"):
        length_controlled_win_rate([float("nan")], [2], [3])
