"""What goes wrong in the functions of lesson 10."""

import math

import numpy as np
from scipy.optimize import minimize

from solutions.mistakes.base import mistake

POINTS = {"win": 1.0, "tie": 0.5, "loss": 0.0}


# ---------------------------------------------------------------- combine_orders
def by_table(first, second, table):
    """One word for each pair of verdicts."""
    return [table[a + b] for a, b in zip(first, second, strict=True)]


@mistake(
    "combine_orders",
    "winrate_single_order",
    "The second pass is not looked at. A judge who always says A must give ties alone.",
)
def first_pass_alone(first, second):
    return ["win" if a == "A" else "loss" for a in first]


@mistake(
    "combine_orders",
    "winrate_single_order",
    "The first pass is not looked at. A judge who always says A must give ties alone.",
)
def second_pass_alone(first, second):
    return ["win" if b == "B" else "loss" for b in second]


@mistake(
    "combine_orders",
    "winrate_swap_not_undone",
    "The policy sits in seat B in the second pass: chosen both times means A, then B. A judge who always says"
    " A must give ties alone.",
)
def swap_not_undone(first, second):
    return by_table(first, second, {"AA": "win", "BB": "loss", "AB": "tie", "BA": "tie"})


@mistake("combine_orders", "winrate_sides_exchanged", "Wins and losses are exchanged: the policy is A first.")
def sides_exchanged(first, second):
    return by_table(first, second, {"AB": "loss", "BA": "win", "AA": "tie", "BB": "tie"})


@mistake(
    "combine_orders",
    "winrate_disagreement_decided",
    "Where the two passes contradict each other nobody has won or lost: that is a tie.",
)
def disagreement_lost(first, second):
    return by_table(first, second, {"AB": "win", "BA": "loss", "AA": "loss", "BB": "loss"})


@mistake(
    "combine_orders",
    "winrate_disagreement_decided",
    "One vote of two is no win. Where the two passes contradict each other it is a tie.",
)
def disagreement_won(first, second):
    return by_table(first, second, {"AB": "win", "BA": "loss", "AA": "win", "BB": "win"})


@mistake(
    "combine_orders",
    "winrate_agree_only_denominator",
    "Prompts on which the passes disagree are gone. They are ties, and the list keeps its length.",
)
def disagreement_dropped(first, second):
    return [{"AB": "win", "BA": "loss"}[a + b] for a, b in zip(first, second, strict=True) if a != b]


@mistake(
    "combine_orders",
    "winrate_orders_as_independent",
    "Two passes over one prompt are one verdict, not two: the list has one entry a prompt.",
)
def passes_apart(first, second):
    return ["win" if a == "A" else "loss" for a in first] + ["win" if b == "B" else "loss" for b in second]


@mistake(
    "combine_orders",
    "winrate_seats_counted",
    "This counts the seat, not the policy: the policy is A in the first pass and B in the second.",
)
def seats_counted(first, second):
    return by_table(first, second, {"AA": "win", "BB": "loss", "AB": "loss", "BA": "win"})


# ---------------------------------------------------------------- win_rate
def counted(verdicts):
    """Wins, ties and losses."""
    return [verdicts.count(word) for word in ("win", "tie", "loss")]


@mistake(
    "win_rate",
    "winrate_ties_as_losses",
    "Ties give no credit here. A model against itself must score one half.",
)
def ties_as_losses(verdicts):
    wins, _, _ = counted(verdicts)
    return wins / len(verdicts) if verdicts else 0.5


@mistake(
    "win_rate", "winrate_tie_code_mismapped", "A tie counts as a whole win here. It counts one half to each."
)
def ties_as_wins(verdicts):
    wins, ties, _ = counted(verdicts)
    return (wins + ties) / len(verdicts) if verdicts else 0.5


@mistake(
    "win_rate",
    "winrate_agree_only_denominator",
    "Ties are left out of the denominator. They stay, and count one half.",
)
def ties_dropped(verdicts):
    wins, _, losses = counted(verdicts)
    return wins / (wins + losses) if wins + losses else 0.5


@mistake("win_rate", "winrate_margin", "Losses count -1 here. They count 0, so that the rate is in [0, 1].")
def margin(verdicts):
    wins, _, losses = counted(verdicts)
    return (wins - losses) / len(verdicts) if verdicts else 0.5


@mistake("win_rate", "winrate_percent", "This is in percent. The rate is a number in [0, 1].")
def percent(verdicts):
    wins, ties, _ = counted(verdicts)
    return 100 * (wins + ties / 2) / len(verdicts) if verdicts else 50.0


@mistake("win_rate", "winrate_loser", "This is the opponent's rate: wins and losses are exchanged.")
def opponents(verdicts):
    _, ties, losses = counted(verdicts)
    return (losses + ties / 2) / len(verdicts) if verdicts else 0.5


@mistake(
    "win_rate", "winrate_no_verdicts", "Right but for no verdicts at all, which give 0.5 by the contract."
)
def nothing_is_zero(verdicts):
    wins, ties, _ = counted(verdicts)
    return (wins + ties / 2) / max(len(verdicts), 1)


@mistake("win_rate", "winrate_no_verdicts", "Without verdicts this divides by zero. The contract gives 0.5.")
def nothing_divides(verdicts):
    wins, ties, _ = counted(verdicts)
    return (wins + ties / 2) / len(verdicts)


# ---------------------------------------------------------------- bootstrap_ci
def resampled(outcomes, n_resamples, seed):
    """(n_resamples, n) outcomes, drawn with replacement."""
    values = np.asarray(outcomes, dtype=float)
    return values[np.random.default_rng(seed).integers(0, len(values), (n_resamples, len(values)))]


def bounds(numbers, low=2.5, high=97.5):
    """Percentiles as a pair of floats."""
    return tuple(float(x) for x in np.percentile(numbers, [low, high]))


@mistake(
    "bootstrap_ci",
    "bootstrap_std_as_interval",
    "One standard error to either side holds two thirds. Take the 2.5th and 97.5th percentile of the means.",
)
def one_standard_error(outcomes, n_resamples=2000, seed=0):
    means = resampled(outcomes, n_resamples, seed).mean(axis=1)
    return float(means.mean() - means.std()), float(means.mean() + means.std())


@mistake(
    "bootstrap_ci",
    "bootstrap_other_statistic",
    "These are percentiles of the resamples' medians. The interval is for the mean that is reported.",
)
def of_medians(outcomes, n_resamples=2000, seed=0):
    return bounds(np.median(resampled(outcomes, n_resamples, seed), axis=1))


@mistake("bootstrap_ci", "bootstrap_other_statistic", "This is in percent, the outcomes are not.")
def in_percent(outcomes, n_resamples=2000, seed=0):
    low, high = bounds(resampled(outcomes, n_resamples, seed).mean(axis=1))
    return 100 * low, 100 * high


@mistake(
    "bootstrap_ci",
    "bootstrap_of_outcomes",
    "These are percentiles of the outcomes. Resample, take the mean of each resample, then percentiles of the"
    " means.",
)
def of_outcomes(outcomes, n_resamples=2000, seed=0):
    return bounds(outcomes)


@mistake(
    "bootstrap_ci",
    "bootstrap_without_replacement",
    "The interval has next to no width. Draw with replacement, or every resample is the sample itself; and do"
    " not divide the spread by the number of draws: more of them must not shrink it.",
)
def without_replacement(outcomes, n_resamples=2000, seed=0):
    rng = np.random.default_rng(seed)
    return bounds([np.mean(rng.permutation(outcomes)) for _ in range(min(n_resamples, 200))])


@mistake("bootstrap_ci", "bootstrap_ninety", "The 5th and 95th percentile hold 90 %. For 95 %: 2.5 and 97.5.")
def ninety(outcomes, n_resamples=2000, seed=0):
    return bounds(resampled(outcomes, n_resamples, seed).mean(axis=1), 5, 95)


@mistake(
    "bootstrap_ci",
    "bootstrap_quantile_of_percentile",
    "np.percentile counts to 100: 0.025 is the 0.025th percentile. Use 2.5 and 97.5, or np.quantile.",
)
def quantile_of_percentile(outcomes, n_resamples=2000, seed=0):
    return bounds(resampled(outcomes, n_resamples, seed).mean(axis=1), 0.025, 0.975)


@mistake("bootstrap_ci", "bootstrap_exchanged", "The bounds are exchanged: low comes first.")
def exchanged(outcomes, n_resamples=2000, seed=0):
    return bounds(resampled(outcomes, n_resamples, seed).mean(axis=1))[::-1]


@mistake(
    "bootstrap_ci",
    "bootstrap_small_resamples",
    "A resample is as large as the sample. Smaller ones make the interval too wide.",
)
def half_resamples(outcomes, n_resamples=2000, seed=0):
    values = np.asarray(outcomes, dtype=float)
    size = max(len(values) // 2, 1)
    return bounds(
        values[np.random.default_rng(seed).integers(0, len(values), (n_resamples, size))].mean(axis=1)
    )


@mistake(
    "bootstrap_ci",
    "bootstrap_around_zero",
    "This is the interval of the difference from the mean. Leave the mean in.",
)
def around_zero(outcomes, n_resamples=2000, seed=0):
    return bounds(resampled(outcomes, n_resamples, seed).mean(axis=1) - np.mean(outcomes))


# ---------------------------------------------------------------- length_controlled_win_rate
def fitted(wins, x):
    """theta and phi of the logistic model."""
    wins, x = np.asarray(wins, dtype=float), np.asarray(x, dtype=float)

    def cost(w):
        z = w[0] + w[1] * x
        return np.sum(np.logaddexp(0, z) - wins * z) + 0.0005 * np.sum(w**2)

    return minimize(cost, [0.0, 0.0], method="BFGS").x


def squashed(model_lengths, baseline_lengths):
    """tanh of the length difference in standard deviations; zeros where there is no difference."""
    gaps = np.subtract(model_lengths, baseline_lengths)
    return np.tanh(gaps / gaps.std()) if np.ptp(gaps) else np.zeros(len(gaps))


def chance(z):
    """The logistic function."""
    return float(1 / (1 + math.exp(-z)))


@mistake(
    "length_controlled_win_rate",
    "lc_length_term_not_zeroed",
    "This is the raw rate, which is also what the fit says of the lengths as they are. Ask it about equal"
    " lengths: the length term is 0 there.",
)
def not_zeroed(preferences, model_lengths, baseline_lengths):
    x = squashed(model_lengths, baseline_lengths)
    theta, phi = fitted(preferences, x)
    return float(np.mean([chance(theta + phi * value) for value in x]))


@mistake(
    "length_controlled_win_rate",
    "lc_raw_ratio_adjustment",
    "Multiplying by the ratio of lengths is no control. Fit the length term, then leave it out.",
)
def ratio(preferences, model_lengths, baseline_lengths):
    return float(np.mean(preferences) * np.mean(baseline_lengths) / np.mean(model_lengths))


@mistake(
    "length_controlled_win_rate",
    "lc_long_answers_dropped",
    "Leaving out the longer answers is no control: it looks at other prompts. Fit the length term instead.",
)
def long_dropped(preferences, model_lengths, baseline_lengths):
    rows = zip(preferences, model_lengths, baseline_lengths, strict=True)
    kept = [p for p, ours, theirs in rows if ours <= theirs]
    return float(np.mean(kept)) if kept else 0.5


@mistake("length_controlled_win_rate", "lc_theta_returned", "This is θ. The rate is σ(θ), in [0, 1].")
def theta_itself(preferences, model_lengths, baseline_lengths):
    return float(fitted(preferences, squashed(model_lengths, baseline_lengths))[0])


@mistake(
    "length_controlled_win_rate",
    "lc_phi_read",
    "This is σ(φ), the weight of the length. The policy's part is θ.",
)
def phi_read(preferences, model_lengths, baseline_lengths):
    return chance(fitted(preferences, squashed(model_lengths, baseline_lengths))[1])


@mistake(
    "length_controlled_win_rate",
    "lc_no_tanh",
    "The difference enters without tanh, so that a few very long answers decide the fit.",
)
def without_tanh(preferences, model_lengths, baseline_lengths):
    gaps = np.subtract(model_lengths, baseline_lengths)
    return chance(fitted(preferences, gaps / gaps.std() if np.ptp(gaps) else 0 * gaps)[0])


@mistake(
    "length_controlled_win_rate",
    "lc_centred",
    "The difference is centred, so θ is read at the mean difference. Equal lengths are a difference of 0.",
)
def centred(preferences, model_lengths, baseline_lengths):
    gaps = np.subtract(model_lengths, baseline_lengths)
    gaps = gaps - gaps.mean()
    return chance(fitted(preferences, np.tanh(gaps / gaps.std()) if np.ptp(gaps) else gaps)[0])


@mistake(
    "length_controlled_win_rate",
    "lc_not_scaled",
    "The difference is not divided by its standard deviation, so tanh only sees its sign.",
)
def not_scaled(preferences, model_lengths, baseline_lengths):
    gaps = np.subtract(model_lengths, baseline_lengths)
    return chance(fitted(preferences, np.tanh(gaps) if np.ptp(gaps) else 0 * gaps)[0])


@mistake(
    "length_controlled_win_rate",
    "lc_no_policy_term",
    "Without θ the length has to explain everything, and at equal lengths the answer is always 0.5.",
)
def no_policy_term(preferences, model_lengths, baseline_lengths):
    return 0.5
