"""What goes wrong in the advantage, the two means and the KL term of grpo_loss and dr_grpo_loss."""

import torch

from solutions.mistakes.base import mistake
from solutions.mistakes.parts import assembled, difference, k3, smaller_gain, two_means, wrong


# ---------------------------------------------------------------- advantage and means
@wrong(
    "adv_broadcast_wrong_axis",
    "The advantages run along time, which shows only where B = T hides it. An advantage belongs to its"
    " row: advantages[:, None].",
)
def adv_broadcast_wrong_axis(lp, old, ref, adv, mask, eps, kl_coef, high, reduction):
    ratio = difference(lp, old, mask).exp()
    gain = smaller_gain(ratio, adv.float(), eps, high)
    return reduction(kl_coef * k3(difference(lp, ref, mask)) - gain, mask)


@wrong(
    "token_mean_for_sequence_mean",
    "The mean is over all tokens of the batch, so long responses weigh more. Average within each"
    " response first.",
    "grpo_loss",
)
def token_mean(*given):
    return assembled(*given, reduce=lambda x, m: torch.where(m, x, 0.0).sum() / m.sum().clamp(min=1))


@wrong(
    "norm_ignores_mask_count",
    "It is divided by the padded width. Padding has no vote: divide each row by its own number of tokens.",
    "grpo_loss",
)
def padded_width(*given):
    return assembled(*given, reduce=lambda x, m: torch.where(m, x, 0.0).mean())


@wrong("mask_ignored", "The mask has no effect: padding counts as if it had been generated.")
def mask_ignored(lp, old, ref, adv, mask, eps, kl_coef, high, reduction):
    return assembled(lp, old, ref, adv, torch.ones_like(mask), eps, kl_coef, high, reduction)


@wrong(
    "sum_within_responses",
    "Tokens are added up within a response. Divide by their number.",
    "grpo_loss",
)
def sum_within(*given):
    return assembled(*given, reduce=lambda x, m: torch.where(m, x, 0.0).sum(dim=1).mean())


@wrong(
    "sum_over_responses",
    "Responses are added up at the end. Average them.",
    "grpo_loss",
)
def sum_over(*given):
    return assembled(*given, reduce=lambda x, m: two_means(x, m) * len(m))


@wrong(
    "mean_over_responses_first",
    "mean(dim=0) runs over responses, one position at a time. Average along time first: dim=1.",
    "grpo_loss",
)
def mean_over_responses_first(*given):
    def columns(x, m):
        return (torch.where(m, x, 0.0).sum(dim=0) / m.sum(dim=0).clamp(min=1)).mean()

    return assembled(*given, reduce=columns)


@wrong(
    "bt_not_reduced",
    "One loss a response comes back. Finish with the mean over responses.",
    "grpo_loss",
)
def not_reduced(*given):
    return assembled(
        *given, reduce=lambda x, m: torch.where(m, x, 0.0).sum(dim=1) / m.sum(dim=1).clamp(min=1)
    )


@wrong(
    "normalise_twice",
    "It is divided twice, once too often by the number of responses. Each mean is taken once.",
    "grpo_loss",
)
def twice(*given):
    return assembled(*given, reduce=lambda x, m: two_means(x, m) / len(m))


@wrong(
    "hardcoded_batch_size",
    "The divisor is 2, whatever the number of responses. Take it from the tensor.",
    "grpo_loss",
)
def hardcoded_batch_size(*given):
    return assembled(*given, reduce=lambda x, m: two_means(x, m) * len(m) / 2)


@wrong(
    "empty_rows_dropped",
    "Responses without tokens are left out of the mean. They add 0 and still count.",
    "grpo_loss",
)
def empty_rows_dropped(*given):
    def filled(per_token, mask):
        return two_means(per_token, mask) * len(mask) / mask.any(dim=1).sum().clamp(min=1)

    return assembled(*given, reduce=filled)


@wrong(
    "empty_mask_zero_division",
    "A response without tokens gives 0/0. It adds 0: keep its divisor at 1 or more.",
    "grpo_loss",
)
def no_guard(*given):
    return assembled(*given, reduce=lambda x, m: (torch.where(m, x, 0.0).sum(dim=1) / m.sum(dim=1)).mean())


@wrong(
    "nan_survives_mask",
    "0 times NaN is NaN, so a mask that multiplies lets it through. Select the tokens by torch.where.",
    "grpo_loss",
)
def multiplied(lp, old, ref, adv, mask, eps, kl_coef, high, reduction):
    gain = smaller_gain((lp - old).float().exp(), adv.float()[:, None], eps, high)
    per_token = (kl_coef * k3((lp - ref).float()) - gain) * mask
    return (per_token.sum(dim=1) / mask.sum(dim=1).clamp(min=1)).mean()


# ---------------------------------------------------------------- KL
@wrong(
    "kl_penalty_sign",
    "The KL is subtracted from a loss, so drift is rewarded. A larger distance must cost more.",
)
def kl_subtracted(*given):
    return assembled(*given, kl=lambda drift: -k3(drift))


@wrong("kl_k3_missing_term", "The linear term of k3 is missing: exp(-d) - 1 alone can be negative.")
def kl_without_linear(*given):
    return assembled(*given, kl=lambda drift: (-drift).exp() - 1)


@wrong(
    "kl_k3_missing_term",
    "The -1 of k3 is missing. KL of a policy with itself is zero; check that first.",
)
def kl_without_one(*given):
    return assembled(*given, kl=lambda drift: (-drift).exp() + drift)


@wrong(
    "kl_k1_as_loss_term",
    "The KL term is k1. As a loss its gradient ignores the reference: use k3.",
)
def kl_k1(*given):
    return assembled(*given, kl=lambda drift: drift)


@wrong(
    "kl_k2_for_k3",
    "The KL term is k2, half the square of the log-ratio. GRPO uses k3, exp(-d) - 1 + d.",
)
def kl_k2(*given):
    return assembled(*given, kl=lambda drift: drift.square() / 2)


@wrong(
    "kl_direction",
    "Policy and reference are exchanged in k3: with d = logprobs - ref_logprobs it is exp(-d) - 1 + d.",
)
def kl_direction(*given):
    return assembled(*given, kl=lambda drift: k3(-drift))


@wrong("kl_missing", "kl_coef does not enter: add kl_coef times k3 of each token.")
def kl_missing(*given):
    return assembled(*given, kl=lambda drift: 0.0)


@wrong("kl_against_old", "The KL is measured against old_logprobs. The leash is tied to the reference.")
def kl_against_old(lp, old, ref, adv, mask, eps, kl_coef, high, reduction):
    return assembled(lp, old, old, adv, mask, eps, kl_coef, high, reduction)


@wrong("kl_without_gradient", "The KL is detached: it is counted, but pulls at nothing.")
def kl_detached(*given):
    return assembled(*given, kl=lambda drift: k3(drift).detach())


def separate(lp, old, ref, adv, mask, eps, kl_coef, high, reduction, kl_mean):
    """The surrogate as it should be, plus a KL of its own averaging."""
    rest = assembled(lp, old, ref, adv, mask, eps, 0.0, high, reduction)
    return rest + kl_coef * kl_mean(k3(difference(lp, ref, mask)), mask)


@wrong(
    "kl_row_sum_then_batch_mean",
    "The KL is summed within a response. Average it over the tokens, as the surrogate is: it may not"
    " grow with length.",
    "grpo_loss",
)
def kl_summed(lp, old, ref, adv, mask, eps, kl_coef, high, reduction):
    return separate(
        lp, old, ref, adv, mask, eps, kl_coef, high, reduction, lambda kl, m: kl.sum(dim=1).mean()
    )


@wrong(
    "kl_mean_outside_mask",
    "The KL is averaged over padding too. Padding has none: divide by the number of tokens.",
    "grpo_loss",
)
def kl_over_padding(lp, old, ref, adv, mask, eps, kl_coef, high, reduction):
    return separate(lp, old, ref, adv, mask, eps, kl_coef, high, reduction, lambda kl, m: kl.mean())


@wrong(
    "kl_token_mean",
    "The KL is averaged over all tokens of the batch, the surrogate within responses. Average both alike.",
    "grpo_loss",
)
def kl_token_mean(lp, old, ref, adv, mask, eps, kl_coef, high, reduction):
    return separate(
        lp, old, ref, adv, mask, eps, kl_coef, high, reduction, lambda kl, m: kl.sum() / m.sum().clamp(min=1)
    )


# ---------------------------------------------------------------- the constant of Dr.GRPO
def dr(name, hint):
    """A mistake of dr_grpo_loss in its own normalisation."""

    def enter(reduce):
        def dr_grpo_loss(
            logprobs,
            old_logprobs,
            ref_logprobs,
            advantages,
            mask,
            clip_eps,
            kl_coef,
            clip_eps_high=None,
            *,
            max_new_tokens,
        ):
            tensors = (logprobs, old_logprobs, ref_logprobs, advantages, mask)

            def reduction(per_token, mask):
                return reduce(torch.where(mask, per_token, 0.0), mask, max_new_tokens)

            return assembled(*tensors, clip_eps, kl_coef, clip_eps_high, reduction)

        mistake("dr_grpo_loss", name, hint)(dr_grpo_loss)
        return reduce

    return enter


@dr(
    "drgrpo_row_mean",
    "Each response is still divided by its own length, as in GRPO, so long wrong answers are let off:"
    " divide by max_new_tokens.",
)
def own_length(x, mask, budget):
    return (x.sum(dim=1) / mask.sum(dim=1).clamp(min=1)).mean()


@dr(
    "drgrpo_batch_max_length",
    "The longest response of this batch divides. A constant is known before the batch: max_new_tokens.",
)
def longest_response(x, mask, budget):
    return (x.sum(dim=1) / mask.sum(dim=1).max().clamp(min=1)).mean()


@dr(
    "drgrpo_batch_max_length",
    "The padded width of this batch divides. A constant is known before the batch: max_new_tokens.",
)
def padded_batch_width(x, mask, budget):
    return x.mean()


@dr(
    "drgrpo_token_mean",
    "The tokens of the batch divide. Use max_new_tokens and the number of rows.",
)
def all_tokens(x, mask, budget):
    return x.sum() / mask.sum().clamp(min=1)


@dr("drgrpo_no_constant", "The sums are not divided by max_new_tokens.")
def no_constant(x, mask, budget):
    return x.sum(dim=1).mean()


@dr("sum_over_responses", "Responses are added up at the end. Average them.")
def constant_sum(x, mask, budget):
    return x.sum() / budget


@dr("normalise_twice", "It is divided by max_new_tokens and by the length too. Pick one denominator.")
def constant_and_length(x, mask, budget):
    return (x.sum(dim=1) / mask.sum(dim=1).clamp(min=1) / budget).mean()


@dr("bt_not_reduced", "One loss a response comes back. Finish with the mean over responses.")
def constant_not_reduced(x, mask, budget):
    return x.sum(dim=1) / budget


@dr("empty_rows_dropped", "Responses without tokens are left out of the mean. They add 0 and still count.")
def constant_without_empty_rows(x, mask, budget):
    return x.sum() / budget / mask.any(dim=1).sum().clamp(min=1)
