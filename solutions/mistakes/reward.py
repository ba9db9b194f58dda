"""What goes wrong in last_token_index, bradley_terry_loss and pair_accuracy."""

import torch
import torch.nn.functional as F

from solutions.mistakes.base import mistake


# ---------------------------------------------------------------- last_token_index
def last_of(attention_mask):
    """The right index, for mistakes that come after it."""
    return (torch.arange(attention_mask.shape[1]) * attention_mask).argmax(dim=1)


@mistake(
    "last_token_index",
    "pool_first_pad_minus_one",
    "The place before the first pad is wrong without pads and with pads on the left. Look for the last"
    " attended position instead.",
)
def first_pad_minus_one(attention_mask):
    return (attention_mask == 0).int().argmax(dim=1) - 1


@mistake(
    "last_token_index",
    "pool_count_minus_one_left_pad",
    "The number of tokens less one is an index only if the row starts at 0; padding may be on the left.",
)
def count_minus_one(attention_mask):
    return (attention_mask.sum(dim=1) - 1).clamp(min=0)


@mistake(
    "last_token_index",
    "pool_count_minus_one_left_pad",
    "The number of tokens less one is an index only if the row starts at 0, and -1 for a row without tokens.",
)
def count_minus_one_unclamped(attention_mask):
    return attention_mask.sum(dim=1) - 1


@mistake(
    "last_token_index", "pool_count", "This counts the tokens. The index of the last of n tokens is n - 1."
)
def count(attention_mask):
    return attention_mask.sum(dim=1)


@mistake(
    "last_token_index",
    "pool_before_eos",
    "This is the token before the last. Train and score at the last one: it has read the whole answer.",
)
def before_last(attention_mask):
    return (last_of(attention_mask) - 1).clamp(min=0)


@mistake(
    "last_token_index", "pool_last_column", "This is the last column. Rows padded on the right end earlier."
)
def last_column(attention_mask):
    return torch.full((len(attention_mask),), attention_mask.shape[1] - 1)


@mistake(
    "last_token_index",
    "pool_first_token",
    "argmax finds the first 1, the first token. The last one is asked.",
)
def first_token(attention_mask):
    return attention_mask.argmax(dim=1)


@mistake(
    "last_token_index",
    "pool_empty_row",
    "Right but for a row without real tokens, which gives 0 by the contract.",
)
def empty_row(attention_mask):
    return attention_mask.shape[1] - 1 - attention_mask.flip(1).argmax(dim=1)


@mistake(
    "last_token_index",
    "pool_keeps_axis",
    "The reduced axis is still there: the result is one index a row, (B,).",
)
def keeps_axis(attention_mask):
    return last_of(attention_mask)[:, None]


@mistake(
    "last_token_index", "pool_one_for_all", "One index for the whole batch. Each row ends at its own place."
)
def one_for_all(attention_mask):
    return last_of(attention_mask).max()


@mistake(
    "last_token_index",
    "pool_wrong_axis",
    "The search runs along the batch. Positions are the second axis, dim=1.",
)
def wrong_axis(attention_mask):
    return (torch.arange(attention_mask.shape[1]) * attention_mask).argmax(dim=0)


@mistake(
    "last_token_index",
    "pool_float",
    "An index must be of whole numbers (long): floats index nothing.",
)
def as_float(attention_mask):
    return last_of(attention_mask).float()


# ---------------------------------------------------------------- bradley_terry_loss
def gap_of(chosen_rewards, rejected_rewards, margin=None):
    """The right argument of the sigmoid."""
    gap = chosen_rewards.float() - rejected_rewards.float()
    return gap if margin is None else (gap - margin).float()


@mistake(
    "bradley_terry_loss",
    "bt_margin_reversed",
    "The difference is the wrong way round: give the chosen answer a higher score, and the loss must go"
    " down.",
)
def gap_reversed(chosen_rewards, rejected_rewards, margin=None):
    return -F.logsigmoid(gap_of(rejected_rewards, chosen_rewards, margin)).mean()


@mistake(
    "bradley_terry_loss", "bt_not_reduced", "One loss a pair comes back: finish with the mean over pairs."
)
def not_reduced(chosen_rewards, rejected_rewards, margin=None):
    return -F.logsigmoid(gap_of(chosen_rewards, rejected_rewards, margin))


@mistake(
    "bradley_terry_loss",
    "bt_margin_added",
    "The margin is a lead that the chosen answer has to earn: subtract it.",
)
def margin_added(chosen_rewards, rejected_rewards, margin=None):
    return -F.logsigmoid(gap_of(chosen_rewards, rejected_rewards, None if margin is None else -margin)).mean()


@mistake(
    "bradley_terry_loss", "bt_margin_ignored", "The margin does not enter: subtract it from the difference."
)
def margin_ignored(chosen_rewards, rejected_rewards, margin=None):
    return -F.logsigmoid(gap_of(chosen_rewards, rejected_rewards)).mean()


@mistake(
    "bradley_terry_loss",
    "bt_margin_outside",
    "The margin is subtracted from the loss, where it changes no gradient. It belongs inside the sigmoid.",
)
def margin_outside(chosen_rewards, rejected_rewards, margin=None):
    loss = -F.logsigmoid(gap_of(chosen_rewards, rejected_rewards))
    return (loss if margin is None else (loss - margin).float()).mean()


@mistake(
    "bradley_terry_loss",
    "bt_margin_truthiness",
    "`if margin:` asks for the truth of a whole tensor. Ask `if margin is not None:`.",
)
def margin_truthiness(chosen_rewards, rejected_rewards, margin=None):
    gap = gap_of(chosen_rewards, rejected_rewards)
    return -F.logsigmoid((gap - margin).float() if margin else gap).mean()


@mistake(
    "bradley_terry_loss", "bt_not_negated", "The optimiser minimises: the loss is minus the log-likelihood."
)
def not_negated(chosen_rewards, rejected_rewards, margin=None):
    return F.logsigmoid(gap_of(chosen_rewards, rejected_rewards, margin)).mean()


@mistake("bradley_terry_loss", "bt_sum_for_mean", "This adds the pairs up. Average them.")
def sum_for_mean(chosen_rewards, rejected_rewards, margin=None):
    return -F.logsigmoid(gap_of(chosen_rewards, rejected_rewards, margin)).sum()


@mistake(
    "bradley_terry_loss",
    "hardcoded_batch_size",
    "The divisor is 2, whatever the number of pairs: use .mean().",
)
def hardcoded_batch_size(chosen_rewards, rejected_rewards, margin=None):
    return -F.logsigmoid(gap_of(chosen_rewards, rejected_rewards, margin)).sum() / 2


@mistake(
    "bradley_terry_loss",
    "bt_mean_inside",
    "The mean is taken before the sigmoid. Each pair has its own loss; average those.",
)
def mean_inside(chosen_rewards, rejected_rewards, margin=None):
    return -F.logsigmoid(gap_of(chosen_rewards, rejected_rewards, margin).mean())


@mistake(
    "bradley_terry_loss",
    "bt_log_missing",
    "The logarithm is missing: −log of the probability, not 1 minus it.",
)
def log_missing(chosen_rewards, rejected_rewards, margin=None):
    return (1 - torch.sigmoid(gap_of(chosen_rewards, rejected_rewards, margin))).mean()


@mistake(
    "bradley_terry_loss",
    "bt_log_missing",
    "The sigmoid is missing: the difference itself has no floor, so the loss would fall for ever.",
)
def sigmoid_missing(chosen_rewards, rejected_rewards, margin=None):
    return -gap_of(chosen_rewards, rejected_rewards, margin).mean()


@mistake(
    "bradley_terry_loss",
    "bt_log_of_sigmoid",
    "log(sigmoid(x)) and log(1 + exp(-x)) leave the finite numbers far below zero: F.logsigmoid never does.",
)
def log_of_sigmoid(chosen_rewards, rejected_rewards, margin=None):
    return -torch.sigmoid(gap_of(chosen_rewards, rejected_rewards, margin)).log().mean()


@mistake(
    "bradley_terry_loss",
    "bt_sigmoid_of_each",
    "Each reward goes through its own sigmoid. Only their difference has a meaning: subtract first.",
)
def sigmoid_of_each(chosen_rewards, rejected_rewards, margin=None):
    return -(
        F.logsigmoid(chosen_rewards.float())
        - F.logsigmoid(gap_of(rejected_rewards, 0 * rejected_rewards, margin))
    ).mean()


# ---------------------------------------------------------------- pair_accuracy
@mistake(
    "pair_accuracy",
    "accuracy_ties_as_wins",
    "A tie counts as wrong: the chosen answer must score strictly higher.",
)
def ties_as_wins(chosen_rewards, rejected_rewards):
    if not len(chosen_rewards):
        return 0.0
    return (chosen_rewards >= rejected_rewards).float().mean().item()


@mistake("pair_accuracy", "accuracy_ties_as_half", "A tie counts as wrong here, not as a half.")
def ties_as_half(chosen_rewards, rejected_rewards):
    if not len(chosen_rewards):
        return 0.0
    return (0.5 + 0.5 * torch.sign(chosen_rewards - rejected_rewards)).mean().item()


@mistake("pair_accuracy", "accuracy_reversed", "This counts the pairs whose rejected answer scores higher.")
def reversed_pairs(chosen_rewards, rejected_rewards):
    if not len(chosen_rewards):
        return 0.0
    return (chosen_rewards < rejected_rewards).float().mean().item()


@mistake("pair_accuracy", "accuracy_count", "This is a number of pairs. Divide by how many there are.")
def counted(chosen_rewards, rejected_rewards):
    return float((chosen_rewards > rejected_rewards).sum())


@mistake("pair_accuracy", "accuracy_percent", "A share lies between 0 and 1, not between 0 and 100.")
def percent(chosen_rewards, rejected_rewards):
    if not len(chosen_rewards):
        return 0.0
    return 100 * (chosen_rewards > rejected_rewards).float().mean().item()


@mistake(
    "pair_accuracy",
    "accuracy_of_signs",
    "The chosen rewards are compared with 0. Rewards have no zero point: compare the two answers of a pair.",
)
def of_signs(chosen_rewards, rejected_rewards):
    if not len(chosen_rewards):
        return 0.0
    return (chosen_rewards > 0).float().mean().item()


@mistake(
    "pair_accuracy",
    "accuracy_of_means",
    "Only the two means are compared. Compare pair by pair, and average the outcomes.",
)
def of_means(chosen_rewards, rejected_rewards):
    return float(chosen_rewards.mean() > rejected_rewards.mean())


@mistake(
    "pair_accuracy",
    "accuracy_mean_gap",
    "This is the mean difference of the rewards. Accuracy is the share of pairs with a positive one.",
)
def mean_gap(chosen_rewards, rejected_rewards):
    if not len(chosen_rewards):
        return 0.0
    return (chosen_rewards - rejected_rewards).mean().item()


@mistake(
    "pair_accuracy",
    "empty_mask_zero_division",
    "Without pairs this is 0/0. The share of nothing is 0 here.",
)
def no_guard(chosen_rewards, rejected_rewards):
    return (chosen_rewards > rejected_rewards).float().mean().item()


@mistake(
    "pair_accuracy",
    "accuracy_tensor",
    "This is a tensor. A Python float is asked: .item() makes one.",
)
def a_tensor(chosen_rewards, rejected_rewards):
    return (chosen_rewards > rejected_rewards).float().mean().nan_to_num(0.0)
