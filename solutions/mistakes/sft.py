"""What goes wrong in sft_loss and perplexity."""

import math

import torch
import torch.nn.functional as F

from solutions.mistakes.base import mistake


# ---------------------------------------------------------------- sft_loss
def nll_of(logits, input_ids):
    """(B, T - 1) surprise at every token after the first."""
    logprobs = logits[:, :-1].float().log_softmax(-1)
    return -logprobs.gather(-1, input_ids[:, 1:, None])[..., 0]


def chosen(values, keep):
    """The masked-in values, others 0."""
    return torch.where(keep, values, 0.0)


def mean_of(values, keep):
    """The right reduction, for mistakes that come before it."""
    return chosen(values, keep).sum() / keep.sum().clamp(min=1)


@mistake(
    "sft_loss",
    "sft_loss_on_prompt",
    "The mask has no effect: prompt and padding are learnt too. Train on what the assistant says, not"
    " on what it was told.",
)
def on_prompt(logits, input_ids, mask):
    return nll_of(logits, input_ids).mean()


@mistake(
    "sft_loss",
    "sft_label_boundary_off_by_one",
    "The mask is not shifted with the tokens, so the last prompt token is learnt and the last answer"
    " token is not: use mask[:, 1:], which goes with input_ids[:, 1:].",
)
def mask_not_shifted(logits, input_ids, mask):
    return mean_of(nll_of(logits, input_ids), mask[:, :-1])


@mistake(
    "sft_loss",
    "sft_label_boundary_off_by_one",
    "The first answer token is never learnt. It is predicted from the last prompt position, so mask[:,"
    " 1:] already starts at the right place.",
)
def first_answer_token_lost(logits, input_ids, mask):
    return mean_of(nll_of(logits, input_ids), mask[:, 1:] & mask[:, :-1])


@mistake(
    "sft_loss",
    "sft_counts_first_token",
    "The divisor counts the first token of a row, which has no prediction: count mask[:, 1:].",
)
def counts_first_token(logits, input_ids, mask):
    return chosen(nll_of(logits, input_ids), mask[:, 1:]).sum() / mask.sum().clamp(min=1)


@mistake(
    "sft_loss",
    "hardcoded_batch_size",
    "The divisor is 2, the batch size of some example. Take the number of masked tokens from the mask.",
)
def hardcoded_batch_size(logits, input_ids, mask):
    keep = mask[:, 1:]
    rows = chosen(nll_of(logits, input_ids), keep).sum(dim=1) / keep.sum(dim=1).clamp(min=1)
    return rows.sum() / 2


@mistake(
    "sft_loss",
    "accum_mean_of_means",
    "Each row is averaged first, then the rows: short answers weigh more. Divide the total by all"
    " masked tokens of the batch.",
)
def mean_of_means(logits, input_ids, mask):
    keep = mask[:, 1:]
    rows = chosen(nll_of(logits, input_ids), keep).sum(dim=1) / keep.sum(dim=1).clamp(min=1)
    return rows.mean()


@mistake(
    "sft_loss",
    "mean_over_padded_width",
    "The sum is divided by all positions, B times T - 1. Padding may not change the loss: divide by the"
    " number of masked tokens.",
)
def padded_width(logits, input_ids, mask):
    return chosen(nll_of(logits, input_ids), mask[:, 1:]).mean()


@mistake(
    "sft_loss",
    "sft_divides_by_rows",
    "The sum is divided by the number of rows. Divide by the number of masked tokens.",
)
def divides_by_rows(logits, input_ids, mask):
    return chosen(nll_of(logits, input_ids), mask[:, 1:]).sum() / len(mask)


@mistake(
    "sft_loss",
    "masked_sum_divides_by_count",
    "Sum and mean are mixed up. Test it on two tokens of loss 2 and 4: the mean is 3, this gives 6.",
)
def sum_for_mean(logits, input_ids, mask):
    return chosen(nll_of(logits, input_ids), mask[:, 1:]).sum()


@mistake(
    "sft_loss",
    "normalise_twice",
    "It is divided twice, by the tokens and by the rows. Pick one denominator: the masked tokens.",
)
def twice(logits, input_ids, mask):
    return mean_of(nll_of(logits, input_ids), mask[:, 1:]) / len(mask)


@mistake(
    "sft_loss",
    "nan_survives_mask",
    "0 times NaN is NaN, so a mask that multiplies lets it through. Select the wanted entries, by"
    " torch.where or by indexing.",
)
def multiplied(logits, input_ids, mask):
    keep = mask[:, 1:].float()
    return (nll_of(logits, input_ids) * keep).sum() / keep.sum().clamp(min=1)


@mistake(
    "sft_loss",
    "empty_mask_zero_division",
    "Where no token is masked in this is 0/0. The mean of nothing is 0 here: keep the divisor at 1 or more.",
)
def no_guard(logits, input_ids, mask):
    keep = mask[:, 1:]
    return chosen(nll_of(logits, input_ids), keep).sum() / keep.sum()


@mistake(
    "sft_loss",
    "sft_ce_on_logprobs_or_mask_target",
    "Log-probabilities and mask are fed to a cross-entropy as if they were logits and labels. You have"
    " log p of each label already: only the minus sign and the mean are left.",
)
def mask_as_target(logits, input_ids, mask):
    return F.cross_entropy(-nll_of(logits, input_ids), mask[:, 1:].float())


@mistake(
    "sft_loss",
    "logprob_sign_flipped",
    "This is the mean log-probability. The optimiser minimises: put the minus sign in front.",
)
def not_negated(logits, input_ids, mask):
    return -mean_of(nll_of(logits, input_ids), mask[:, 1:])


@mistake(
    "sft_loss",
    "logprob_no_shift",
    "Each token is scored by the logits that come after reading it. The logits at t predict token t +"
    " 1: shift once, logits[:, :-1] against input_ids[:, 1:].",
)
def no_shift(logits, input_ids, mask):
    logprobs = logits.float().log_softmax(-1).gather(-1, input_ids[..., None])[..., 0]
    return mean_of(-logprobs, mask)


@mistake(
    "sft_loss",
    "logprob_double_shift",
    "Logits at t are compared with token t + 2. Shift exactly once.",
)
def double_shift(logits, input_ids, mask):
    return mean_of(nll_of(logits[:, :-1], input_ids[:, 1:]), mask[:, 2:])


@mistake(
    "sft_loss",
    "raw_logits_as_logprobs",
    "The logits are not normalised. Adding a constant to all of them may change nothing: use"
    " log_softmax, or F.cross_entropy, which does it.",
)
def raw_logits(logits, input_ids, mask):
    return mean_of(-logits[:, :-1].float().gather(-1, input_ids[:, 1:, None])[..., 0], mask[:, 1:])


@mistake(
    "sft_loss",
    "logsoftmax_wrong_or_missing_dim",
    "Probabilities are normalised over another axis than the vocabulary, the last one.",
)
def over_the_batch(logits, input_ids, mask):
    logprobs = logits[:, :-1].float().log_softmax(0)
    return mean_of(-logprobs.gather(-1, input_ids[:, 1:, None])[..., 0], mask[:, 1:])


@mistake(
    "sft_loss",
    "log_of_softmax",
    "softmax first and log afterwards gives infinity for unlikely tokens. Use log_softmax or"
    " F.cross_entropy.",
)
def log_of_softmax(logits, input_ids, mask):
    p = logits[:, :-1].float().softmax(-1).gather(-1, input_ids[:, 1:, None])[..., 0]
    return mean_of(-p.log(), mask[:, 1:])


@mistake(
    "sft_loss",
    "logprob_under_no_grad",
    "The loss carries no gradient, so nothing would be learnt: no .detach(), .item() or torch.no_grad()"
    " on the way.",
)
def detached(logits, input_ids, mask):
    return mean_of(nll_of(logits, input_ids), mask[:, 1:]).detach()


@mistake(
    "sft_loss",
    "bt_not_reduced",
    "One loss a token comes back. Finish with the mean over the masked tokens.",
)
def not_reduced(logits, input_ids, mask):
    return chosen(nll_of(logits, input_ids), mask[:, 1:])


# ---------------------------------------------------------------- perplexity
def surprise(logprobs, mask):
    """Sum of the masked negative log-probabilities."""
    return -torch.where(mask, logprobs, 0.0).double().sum()


@mistake(
    "perplexity",
    "ppl_mean_of_batch_means",
    "Each row is averaged first, then the rows. Divide the surprise of all tokens by the number of all"
    " tokens.",
)
def mean_of_row_means(logprobs, mask):
    rows = -torch.where(mask, logprobs, 0.0).double().sum(dim=1) / mask.sum(dim=1).clamp(min=1)
    return rows.mean().exp().item()


@mistake(
    "perplexity",
    "ppl_mean_of_batch_means",
    "Perplexities of rows are averaged. Average the surprise over all tokens first, then exponentiate once.",
)
def mean_of_row_perplexities(logprobs, mask):
    rows = -torch.where(mask, logprobs, 0.0).double().sum(dim=1) / mask.sum(dim=1).clamp(min=1)
    return rows.exp().mean().item()


@mistake(
    "perplexity",
    "ppl_mean_of_token_perplexities",
    "1/p is averaged over tokens. Average the surprise, -log p, then exponentiate.",
)
def mean_of_token_perplexities(logprobs, mask):
    each = torch.where(mask, -logprobs, 0.0).double().exp()
    return (torch.where(mask, each, 0.0).sum() / mask.sum()).item() if mask.any() else 1.0


@mistake(
    "perplexity",
    "ppl_counts_padding_or_T",
    "Padding is counted. Divide by the number of masked tokens, not by the size of the tensor.",
)
def counts_padding(logprobs, mask):
    return (surprise(logprobs, mask) / logprobs.numel()).exp().item()


@mistake(
    "perplexity",
    "ppl_counts_padding_or_T",
    "One token too many is counted in each row. The first token has no prediction, and logprobs leave"
    " it out already.",
)
def ppl_counts_first_token(logprobs, mask):
    return (surprise(logprobs, mask) / (mask.sum() + len(mask))).exp().item()


@mistake(
    "perplexity",
    "masked_value_discarded",
    "The mask has no effect: the mean is taken over all positions.",
)
def mask_ignored(logprobs, mask):
    return (-logprobs.double().mean()).exp().item()


@mistake(
    "perplexity",
    "logprob_sign_flipped",
    "The sign is wrong: perplexity is at least 1, this is its inverse.",
)
def inverse(logprobs, mask):
    return (-surprise(logprobs, mask) / mask.sum().clamp(min=1)).exp().item()


@mistake(
    "perplexity",
    "ppl_not_exponentiated",
    "This is the mean surprise in nats. Perplexity is its exponential.",
)
def not_exponentiated(logprobs, mask):
    return (surprise(logprobs, mask) / mask.sum().clamp(min=1)).item()


@mistake(
    "perplexity",
    "ppl_base_two",
    "Powers of 2 go with logarithms of base 2. These log-probabilities are natural: use exp.",
)
def base_two(logprobs, mask):
    return (surprise(logprobs, mask) / mask.sum().clamp(min=1)).exp2().item()


@mistake(
    "perplexity", "ppl_of_the_sum", "The surprise is added up. Divide by the number of tokens before exp."
)
def of_the_sum(logprobs, mask):
    return surprise(logprobs, mask).exp().item()


@mistake(
    "perplexity",
    "normalise_twice",
    "It is divided twice, by the tokens and by the rows. Divide by the number of masked tokens alone.",
)
def ppl_twice(logprobs, mask):
    return (surprise(logprobs, mask) / mask.sum().clamp(min=1) / len(mask)).exp().item()


@mistake(
    "perplexity",
    "nan_survives_mask",
    "0 times NaN is NaN, and 0 times infinity too. Select the masked entries instead of multiplying.",
)
def ppl_multiplied(logprobs, mask):
    total = -(logprobs * mask).double().sum()
    return (total / mask.sum().clamp(min=1)).exp().item()


@mistake(
    "perplexity",
    "empty_mask_zero_division",
    "Without tokens this is 0/0. No surprise at all is a perplexity of 1: keep the divisor at 1 or more.",
)
def ppl_no_guard(logprobs, mask):
    return (surprise(logprobs, mask) / mask.sum()).exp().item()


@mistake(
    "perplexity",
    "empty_mask_zero_division",
    "Without tokens this divides by zero. No surprise at all is a perplexity of 1.",
)
def python_zero_division(logprobs, mask):
    return math.exp(surprise(logprobs, mask).item() / int(mask.sum()))


@mistake(
    "perplexity",
    "ppl_overflows",
    "math.exp raises beyond 709. A model that is so wrong has a perplexity of inf: torch's exp gives it.",
)
def ppl_overflows(logprobs, mask):
    return math.exp(surprise(logprobs, mask).item() / max(int(mask.sum()), 1))
