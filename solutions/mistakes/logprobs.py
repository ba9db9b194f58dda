"""What goes wrong in response_mask and token_logprobs."""

import torch

from solutions.mistakes.base import mistake


# ---------------------------------------------------------------- response_mask
def places(attention_mask):
    """Positions 0 .. T-1 as one row."""
    return torch.arange(attention_mask.shape[1])[None]


@mistake(
    "response_mask",
    "mask_off_by_one_late",
    "The first response token is missing. It stands at position prompt_lengths itself: count from 0.",
)
def off_by_one_late(prompt_lengths, attention_mask):
    return (places(attention_mask) > prompt_lengths[:, None]) & attention_mask.bool()


@mistake(
    "response_mask",
    "mask_off_by_one_early",
    "The last prompt token is marked too. The shift by one belongs to the log-probabilities, not to"
    " this mask, which is aligned with the tokens.",
)
def off_by_one_early(prompt_lengths, attention_mask):
    return (places(attention_mask) >= prompt_lengths[:, None] - 1) & attention_mask.bool()


@mistake(
    "response_mask",
    "mask_whole_sequence",
    "The prompt is marked too. The policy did not write the prompt: leave it out.",
)
def whole_sequence(prompt_lengths, attention_mask):
    return attention_mask.bool()


@mistake(
    "response_mask",
    "mask_includes_padding",
    "The mask opens at the response and never closes. Padding was never generated: combine with the"
    " attention mask.",
)
def includes_padding(prompt_lengths, attention_mask):
    return places(attention_mask) >= prompt_lengths[:, None]


@mistake(
    "response_mask",
    "mask_prompt_instead",
    "This marks the prompt. The response is what comes after it.",
)
def prompt_instead(prompt_lengths, attention_mask):
    return (places(attention_mask) < prompt_lengths[:, None]) & attention_mask.bool()


@mistake(
    "response_mask",
    "eos_excluded_from_mask",
    "The last real token of each row is left out. It ends the turn, and stopping is an action too:"
    " without it the model never learns to stop.",
)
def eos_excluded(prompt_lengths, attention_mask):
    last = attention_mask.sum(dim=1, keepdim=True) - 1
    return (places(attention_mask) >= prompt_lengths[:, None]) & (places(attention_mask) < last)


@mistake(
    "response_mask",
    "prompt_len_is_batch_size",
    "The mask starts at the number of rows. Count tokens, not prompts: each row has its own prompt length.",
)
def prompt_length_is_batch_size(prompt_lengths, attention_mask):
    return (places(attention_mask) >= len(prompt_lengths)) & attention_mask.bool()


@mistake(
    "response_mask",
    "prompt_len_of_first_row",
    "Every row uses the prompt length of the first. Compare each row with its own.",
)
def prompt_length_of_first_row(prompt_lengths, attention_mask):
    return (places(attention_mask) >= prompt_lengths[0]) & attention_mask.bool()


@mistake(
    "response_mask",
    "left_pad_prompt_length",
    "The prompt is looked for behind padding on the left. These rows are padded on the right: the"
    " prompt starts at 0.",
)
def padding_on_the_left(prompt_lengths, attention_mask):
    pads = (attention_mask == 0).sum(dim=1)
    return (places(attention_mask) >= (prompt_lengths + pads)[:, None]) & attention_mask.bool()


@mistake(
    "response_mask",
    "prompt_len_zero_negative_slice",
    "A slice from the end goes wrong where nothing is left: [-0:] is the whole row to Python. Compare"
    " positions instead.",
)
def negative_slice(prompt_lengths, attention_mask):
    mask = torch.zeros_like(attention_mask, dtype=torch.bool)
    for i, prompt in enumerate(prompt_lengths.tolist()):
        mask[i, -(attention_mask.shape[1] - prompt) :] = True
    return mask & attention_mask.bool()


@mistake(
    "response_mask",
    "prompt_len_zero_negative_slice",
    "A prompt of 0 tokens makes the index -1, the last place to Python. Compare positions instead of"
    " cutting slices.",
)
def negative_index(prompt_lengths, attention_mask):
    mask = attention_mask.bool().clone()
    for i, prompt in enumerate(prompt_lengths.tolist()):
        mask[i, : prompt - 1] = False
        mask[i, prompt - 1] = False
    return mask


@mistake(
    "response_mask",
    "mask_dtype_or_batch_truthiness",
    "The mask is of whole numbers. It must be bool: as an index, 0 and 1 pick rows 0 and 1.",
)
def of_whole_numbers(prompt_lengths, attention_mask):
    return (places(attention_mask) >= prompt_lengths[:, None]).long() * attention_mask


@mistake(
    "response_mask",
    "mask_dtype_or_batch_truthiness",
    "The mask is of floats. Compare element by element and leave the result bool.",
)
def of_floats(prompt_lengths, attention_mask):
    return (places(attention_mask) >= prompt_lengths[:, None]).float() * attention_mask


@mistake(
    "response_mask",
    "mask_dtype_or_batch_truthiness",
    "Python's `and` asks for the truth of a whole tensor. Use & between the two masks.",
)
def python_and(prompt_lengths, attention_mask):
    return (places(attention_mask) >= prompt_lengths[:, None]) and attention_mask.bool()


@mistake(
    "response_mask",
    "mask_broadcast_wrong_axis",
    "The prompt lengths meet the positions along the wrong axis, which shows only where B = T hides it:"
    " give them a trailing axis, prompt_lengths[:, None].",
)
def wrong_axis(prompt_lengths, attention_mask):
    return (places(attention_mask) >= prompt_lengths) & attention_mask.bool()


# ---------------------------------------------------------------- token_logprobs
def pick(logprobs, targets):
    """One number for each target along the last axis."""
    return logprobs.gather(-1, targets[..., None])[..., 0]


def normalised(logits):
    """Log-probabilities over the vocabulary."""
    return logits.float().log_softmax(-1)


@mistake(
    "token_logprobs",
    "logprob_sign_flipped",
    "The sign is wrong: a log-probability can never be positive, and cross-entropy is its negative.",
)
def sign_flipped(logits, input_ids):
    return -pick(normalised(logits)[:, :-1], input_ids[:, 1:])


@mistake(
    "token_logprobs",
    "logprob_no_shift",
    "Each token is scored by the logits that come after reading it. The logits at t predict token t +"
    " 1: drop the last logits and the first token before you gather.",
)
def no_shift(logits, input_ids):
    return pick(normalised(logits), input_ids)


@mistake(
    "token_logprobs",
    "logprob_no_shift",
    "Logits and tokens both lose their first place, so each token is scored by the logits after it. The"
    " logits at t predict token t + 1: of the logits drop the last.",
)
def both_shifted(logits, input_ids):
    return pick(normalised(logits)[:, 1:], input_ids[:, 1:])


@mistake(
    "token_logprobs",
    "logprob_no_shift",
    "Logits and tokens both lose their last place, so nothing is shifted. The logits at t predict token"
    " t + 1: of the tokens drop the first.",
)
def both_cut(logits, input_ids):
    return pick(normalised(logits)[:, :-1], input_ids[:, :-1])


@mistake(
    "token_logprobs",
    "logprob_double_shift",
    "Logits at t are compared with token t + 2. Shift exactly once.",
)
def double_shift(logits, input_ids):
    return pick(normalised(logits)[:, :-2], input_ids[:, 2:])


@mistake(
    "token_logprobs",
    "logprob_shift_backwards",
    "The shift goes the wrong way: token t is scored by the logits at t + 1, which have read it. Drop"
    " the last logits and the first token.",
)
def backwards(logits, input_ids):
    return pick(normalised(logits)[:, 1:], input_ids[:, :-1])


@mistake(
    "token_logprobs",
    "logsoftmax_wrong_or_missing_dim",
    "Probabilities are normalised over the batch. They must sum to one over the vocabulary: name the"
    " last axis.",
)
def over_the_batch(logits, input_ids):
    return pick(logits.float().log_softmax(0)[:, :-1], input_ids[:, 1:])


@mistake(
    "token_logprobs",
    "logsoftmax_wrong_or_missing_dim",
    "Probabilities are normalised over time. They must sum to one over the vocabulary: name the last axis.",
)
def over_time(logits, input_ids):
    return pick(logits[:, :-1].float().log_softmax(1), input_ids[:, 1:])


@mistake(
    "token_logprobs",
    "raw_logits_as_logprobs",
    "These are logits, not log-probabilities: a constant added to all of them may change nothing."
    " Normalise first.",
)
def raw_logits(logits, input_ids):
    return pick(logits.float()[:, :-1], input_ids[:, 1:])


@mistake(
    "token_logprobs",
    "log_missing",
    "These are probabilities. Take their logarithm, best by log_softmax.",
)
def probabilities(logits, input_ids):
    return pick(normalised(logits)[:, :-1], input_ids[:, 1:]).exp()


@mistake(
    "token_logprobs",
    "logprob_wrong_gather_axis",
    "The whole vocabulary comes back. Take one number a position: the index needs a trailing axis of"
    " size one, which you remove again.",
)
def whole_vocabulary(logits, input_ids):
    return normalised(logits)[:, :-1]


@mistake(
    "token_logprobs",
    "logprob_wrong_gather_axis",
    "Every position meets every target: indexing with [:, :, ids] crosses the two. Use gather along the"
    " last axis.",
)
def crossed(logits, input_ids):
    return normalised(logits)[:, :-1][:, :, input_ids[:, 1:]]


@mistake(
    "token_logprobs",
    "logprob_wrong_gather_axis",
    "The axis that gather needs is still there: remove it, .squeeze(-1), so that the result is (B, T - 1).",
)
def axis_kept(logits, input_ids):
    return normalised(logits)[:, :-1].gather(-1, input_ids[:, 1:, None])


@mistake(
    "token_logprobs",
    "logprob_summed",
    "The log-probabilities are added up over the row. One number for each token is asked.",
)
def summed(logits, input_ids):
    return pick(normalised(logits)[:, :-1], input_ids[:, 1:]).sum(dim=1)


@mistake(
    "token_logprobs",
    "logprob_under_no_grad",
    "The result carries no gradient, so the policy could not learn. Only old and reference"
    " log-probabilities are frozen, and by the trainer: no torch.no_grad() or .detach() here.",
)
def under_no_grad(logits, input_ids):
    with torch.no_grad():
        return pick(normalised(logits)[:, :-1], input_ids[:, 1:])


@mistake(
    "token_logprobs",
    "squeeze_all_axes",
    ".squeeze() removes every axis of size one, so a batch of one loses its batch axis. Name the axis:"
    " .squeeze(-1).",
)
def squeeze_all(logits, input_ids):
    return normalised(logits)[:, :-1].gather(-1, input_ids[:, 1:, None]).squeeze()


@mistake(
    "token_logprobs",
    "log_of_softmax",
    "softmax first and log afterwards gives minus infinity for unlikely tokens. Use log_softmax, or"
    " subtract logsumexp from the logit.",
)
def log_of_softmax(logits, input_ids):
    return pick(logits.float().softmax(-1)[:, :-1], input_ids[:, 1:]).log()
