"""What goes wrong in the functions of lessons 11 and 12."""

import torch

from solutions.mistakes.base import mistake


# ---------------------------------------------------------------- length_penalty
@mistake("length_penalty", "length_rewarded", "The sign is wrong: long responses earn more here.")
def rewarded(rewards, lengths, coef):
    return rewards.float() + coef * lengths.float()


@mistake(
    "length_penalty",
    "length_scales_reward",
    "The price is multiplied into the reward. A bad long response then costs less than a bad short one:"
    " take coef for each token off it.",
)
def scaled(rewards, lengths, coef):
    return rewards.float() * (1 - coef * lengths.float())


@mistake(
    "length_penalty",
    "length_divides_reward",
    "Dividing by the length turns the penalty round where rewards are negative. Each token costs coef.",
)
def divided(rewards, lengths, coef):
    return rewards.float() - coef * rewards.float() / lengths.float().clamp(min=1)


@mistake(
    "length_penalty",
    "length_mean_for_all",
    "Every response pays for the mean length. Each pays for its own.",
)
def mean_for_all(rewards, lengths, coef):
    return rewards.float() - coef * lengths.float().mean()


@mistake(
    "length_penalty",
    "length_relative",
    "The mean length is taken off first. By the contract each token costs coef, also in a short response.",
)
def relative(rewards, lengths, coef):
    return rewards.float() - coef * (lengths.float() - lengths.float().mean())


@mistake("length_penalty", "length_once", "The price is paid once a response. It is a price for every token.")
def once(rewards, lengths, coef):
    return rewards.float() - coef * (lengths > 0).float()


@mistake("length_penalty", "length_coef_ignored", "coef has no effect: each token costs 1 here.")
def coef_ignored(rewards, lengths, coef):
    return rewards.float() - lengths.float()


# ---------------------------------------------------------------- repetition_fraction
def grams(token_ids, n):
    """Overlapping n-grams."""
    return [tuple(token_ids[i : i + n]) for i in range(len(token_ids) - n + 1)]


@mistake(
    "repetition_fraction",
    "repetition_distinct_share",
    "This is the share of distinct n-grams. What repeats is the rest: 1 minus it.",
)
def distinct_share(token_ids, n=3):
    found = grams(token_ids, n)
    return len(set(found)) / len(found) if found else 0.0


@mistake(
    "repetition_fraction",
    "repetition_of_tokens",
    "Single tokens are counted. A word may come twice; a phrase of n tokens should not.",
)
def of_tokens(token_ids, n=3):
    return 1 - len(set(token_ids)) / len(token_ids) if len(token_ids) >= n else 0.0


@mistake(
    "repetition_fraction",
    "repetition_first_counted",
    "The first occurrence counts as a repeat too. Only the later ones repeat an earlier one.",
)
def first_counted(token_ids, n=3):
    found = grams(token_ids, n)
    return sum(found.count(gram) > 1 for gram in found) / len(found) if found else 0.0


@mistake(
    "repetition_fraction",
    "repetition_not_overlapping",
    "n-grams overlap: they begin at every token, not at every n-th.",
)
def not_overlapping(token_ids, n=3):
    found = grams(token_ids, n)[::n]
    return 1 - len(set(found)) / len(found) if found else 0.0


@mistake(
    "repetition_fraction",
    "repetition_order_ignored",
    "The order within an n-gram is lost. The same tokens in another order are another phrase.",
)
def order_ignored(token_ids, n=3):
    found = [tuple(sorted(gram)) for gram in grams(token_ids, n)]
    return 1 - len(set(found)) / len(found) if found else 0.0


@mistake(
    "repetition_fraction",
    "repetition_per_token",
    "The repeats are divided by the number of tokens. L tokens have L - n + 1 n-grams.",
)
def per_token(token_ids, n=3):
    found = grams(token_ids, n)
    return (len(found) - len(set(found))) / len(token_ids) if found else 0.0


@mistake(
    "repetition_fraction",
    "repetition_counted",
    "This is the number of repeats. Their share of all n-grams is asked, so that long responses compare.",
)
def counted(token_ids, n=3):
    found = grams(token_ids, n)
    return float(len(found) - len(set(found)))


@mistake(
    "repetition_fraction",
    "repetition_n_ignored",
    "n has no effect: it is always 3 here.",
)
def n_ignored(token_ids, n=3):
    found = grams(token_ids, 3)
    return 1 - len(set(found)) / len(found) if found else 0.0


@mistake(
    "repetition_fraction",
    "repetition_digits_joined",
    "Joined without a mark between them, 1 and 23 look like 12 and 3. Compare tuples.",
)
def digits_joined(token_ids, n=3):
    found = ["".join(map(str, gram)) for gram in grams(token_ids, n)]
    return 1 - len(set(found)) / len(found) if found else 0.0


@mistake(
    "repetition_fraction",
    "repetition_last_lost",
    "The last n-gram is missing: there are L - n + 1 of them, not L - n.",
)
def last_lost(token_ids, n=3):
    found = grams(token_ids, n)[:-1]
    return 1 - len(set(found)) / len(found) if found else 0.0


# ---------------------------------------------------------------- best_of_n
@mistake("best_of_n", "best_is_worst", "This is the candidate with the lowest score.")
def worst(scores):
    return scores.masked_fill(scores.isnan(), float("inf")).argmin(dim=1)


@mistake(
    "best_of_n",
    "best_over_prompts",
    "The maximum is over prompts. Each prompt chooses among its own candidates: dim=1.",
)
def over_prompts(scores):
    return scores.masked_fill(scores.isnan(), float("-inf")).argmax(dim=0)


@mistake("best_of_n", "best_of_all", "One index for all prompts. Each prompt has a best candidate: dim=1.")
def of_all(scores):
    return scores.masked_fill(scores.isnan(), float("-inf")).argmax()


@mistake("best_of_n", "best_score_returned", "These are the scores. The index of the candidate is asked.")
def score_returned(scores):
    return scores.masked_fill(scores.isnan(), float("-inf")).amax(dim=1)


@mistake(
    "best_of_n",
    "best_is_nan",
    "A NaN is chosen: to PyTorch it is the largest of numbers. A score that is missing must never win.",
)
def nan_wins(scores):
    return scores.argmax(dim=1)


@mistake(
    "best_of_n",
    "best_nan_is_zero",
    "NaN becomes 0 and beats all negative scores. It counts as -inf.",
)
def nan_is_zero(scores):
    return scores.nan_to_num(nan=0.0, posinf=float("inf"), neginf=float("-inf")).argmax(dim=1)


@mistake("best_of_n", "best_last_of_equals", "Of equal candidates the first is asked, this takes the last.")
def last_of_equals(scores):
    usable = scores.masked_fill(scores.isnan(), float("-inf"))
    return scores.shape[1] - 1 - usable.flip(1).argmax(dim=1)


@mistake("best_of_n", "best_one_hot", "This marks the best candidate. Its index is asked, one a prompt.")
def one_hot(scores):
    usable = scores.masked_fill(scores.isnan(), float("-inf"))
    return torch.nn.functional.one_hot(usable.argmax(dim=1), scores.shape[1])


@mistake(
    "best_of_n", "best_keeps_axis", "The axis of the candidates is still there: one index a prompt, (P,)."
)
def keeps_axis(scores):
    return scores.masked_fill(scores.isnan(), float("-inf")).argmax(dim=1, keepdim=True)
