"""What goes wrong in gspo_loss: one ratio a response, the mean of its log-ratios, clipped as one."""

from typing import Any

import torch

from solutions.mistakes.base import mistake
from solutions.mistakes.parts import difference, k3, smaller_gain, two_means


def lengths(mask):
    """(N,) tokens, at least 1."""
    return mask.sum(dim=1).clamp(min=1)


def kl_mean(lp, ref, mask):
    """(N,) k3, mean over the tokens of a response."""
    return k3(difference(lp, ref, mask)).sum(dim=1) / lengths(mask)


def mean_ratio(lp, old, mask):
    """(N,) the right ratio."""
    return (difference(lp, old, mask).sum(dim=1) / lengths(mask)).exp()


def worth_of(adv, mask):
    """(N,) advantages, 0 for a response without tokens."""
    return torch.where(mask.any(dim=1), adv, 0.0).float()


def gspo(name, hint):
    """A mistake of gspo_loss, written with short names."""

    def enter(function):
        def gspo_loss(
            logprobs, old_logprobs, ref_logprobs, advantages, mask, clip_eps, kl_coef, clip_eps_high=None
        ):
            tensors = (logprobs, old_logprobs, ref_logprobs, advantages, mask)
            return function(*tensors, clip_eps, kl_coef, clip_eps_high)

        mistake("gspo_loss", name, hint)(gspo_loss)
        return function

    return enter


def whole(lp, old, ref, adv, mask, eps, kl_coef, high, **parts: Any):
    """The whole loss with some parts replaced."""
    ratio = parts.get("ratio", mean_ratio)(lp, old, mask)
    gain = parts.get("gain", smaller_gain)(ratio, worth_of(adv, mask), eps, high)
    per_response = kl_coef * parts.get("kl", kl_mean)(lp, ref, mask) - gain
    return parts.get("reduce", lambda x, m: x.mean())(per_response, mask)


# ---------------------------------------------------------------- the ratio
@gspo(
    "gspo_ratio_of_sums",
    "Your ratio sums the log-ratios; GSPO averages them over the response's tokens.",
)
def ratio_of_sums(*given):
    return whole(*given, ratio=lambda lp, old, m: difference(lp, old, m).sum(dim=1).exp())


@gspo(
    "gspo_mean_of_ratios",
    "Each token's ratio is exponentiated and then averaged. Average the log-ratios first, exponentiate"
    " second.",
)
def mean_of_ratios(*given):
    def arithmetic(lp, old, mask):
        each = torch.where(mask, difference(lp, old, mask).exp(), 0.0)
        return each.sum(dim=1) / lengths(mask)

    return whole(*given, ratio=arithmetic)


@gspo(
    "gspo_token_ratios",
    "Each token has its own ratio, as in GRPO. GSPO has one for the whole response.",
)
def token_ratios(lp, old, ref, adv, mask, eps, kl_coef, high):
    gain = smaller_gain(difference(lp, old, mask).exp(), adv.float()[:, None], eps, high)
    return two_means(kl_coef * k3(difference(lp, ref, mask)) - gain, mask)


@gspo(
    "gspo_unmasked_mean",
    "The mean of log-ratios is over padding too. Divide by the response's own number of tokens.",
)
def unmasked_mean(*given):
    return whole(*given, ratio=lambda lp, old, m: difference(lp, old, m).mean(dim=1).exp())


@gspo("ratio_reversed", "The ratio is upside down: new over old, logprobs - old_logprobs.")
def ratio_reversed(*given):
    return whole(*given, ratio=lambda lp, old, m: 1 / mean_ratio(lp, old, m))


@gspo("ratio_without_exp", "The mean log-ratio is used as if it were the ratio: exponentiate it.")
def ratio_without_exp(*given):
    return whole(*given, ratio=lambda lp, old, m: mean_ratio(lp, old, m).log())


@gspo("old_logprobs_recomputed", "The ratio is always 1: old_logprobs, frozen at sampling, are not used.")
def own_detached(*given):
    return whole(*given, ratio=lambda lp, old, m: mean_ratio(lp, lp.detach(), m))


@gspo(
    "ratio_detached",
    "The ratio is detached, so the advantages teach nothing: the gradient flows through it.",
)
def ratio_detached(*given):
    return whole(*given, ratio=lambda lp, old, m: mean_ratio(lp, old, m).detach())


@gspo(
    "gspo_stop_gradient_leak",
    "A frozen ratio times log-probabilities leaks gradient into clipped responses, which must have none.",
)
def stop_gradient_leak(lp, old, ref, adv, mask, eps, kl_coef, high):
    ratio = mean_ratio(lp, old, mask).detach()
    upper = eps if high is None else high
    chosen = torch.minimum(ratio * worth_of(adv, mask), ratio.clamp(1 - eps, 1 + upper) * worth_of(adv, mask))
    own = torch.where(mask, lp - lp.detach(), 0.0).float().sum(dim=1) / lengths(mask)
    return (kl_coef * kl_mean(lp, ref, mask) - chosen * (1 + own)).mean()


@gspo(
    "gspo_bxb_broadcast",
    "Every ratio meets every advantage, an N × N matrix: print the shape before the mean, it must be (N,).",
)
def bxb_broadcast(lp, old, ref, adv, mask, eps, kl_coef, high):
    gain = smaller_gain(mean_ratio(lp, old, mask), worth_of(adv, mask)[:, None], eps, high)
    return (kl_coef * kl_mean(lp, ref, mask) - gain).mean()


@gspo(
    "gspo_per_token_objective_averaged_by_length",
    "The response's loss is repeated for its tokens and averaged over them, so long ones weigh more:"
    " one response, one vote.",
)
def by_length(*given):
    return whole(*given, reduce=lambda x, m: (x * m.sum(dim=1)).sum() / m.sum().clamp(min=1))


# ---------------------------------------------------------------- the clip
@gspo(
    "clip_max_objective",
    "The larger of the two objectives is taken. The pessimistic one is the smaller.",
)
def clip_max_objective(*given):
    def larger(ratio, worth, eps, high):
        return torch.maximum(ratio * worth, ratio.clamp(1 - eps, 1 + (eps if high is None else high)) * worth)

    return whole(*given, gain=larger)


@gspo("clip_only", "Only the clipped term is left, and it cuts the way back too: keep the minimum of both.")
def clip_only(*given):
    def clipped(ratio, worth, eps, high):
        return ratio.clamp(1 - eps, 1 + (eps if high is None else high)) * worth

    return whole(*given, gain=clipped)


@gspo("clip_not_wired", "Nothing is clipped.")
def clip_not_wired(*given):
    return whole(*given, gain=lambda ratio, worth, eps, high: ratio * worth)


@gspo("clip_high_ignored", "clip_eps_high does not enter: the ratio may rise to 1 + clip_eps_high.")
def clip_high_ignored(*given):
    return whole(*given, gain=lambda ratio, worth, eps, high: smaller_gain(ratio, worth, eps))


@gspo(
    "clip_sign_not_negated",
    "This is the objective. The optimiser minimises: negate the gain, and add the KL.",
)
def clip_sign_not_negated(*given):
    return whole(*given, gain=lambda *parts: -smaller_gain(*parts))


@gspo("clip_sign_not_negated", "The whole loss has the wrong sign: negate the gain, and add the KL.")
def all_negated(*given):
    return -whole(*given)


# ---------------------------------------------------------------- KL and means
@gspo(
    "kl_penalty_sign",
    "The KL is subtracted from a loss, so drift is rewarded. A larger distance must cost more.",
)
def kl_penalty_sign(*given):
    return whole(*given, kl=lambda lp, ref, m: -kl_mean(lp, ref, m))


@gspo("kl_missing", "kl_coef does not enter: add kl_coef times the response's mean of k3.")
def kl_missing(*given):
    return whole(*given, kl=lambda lp, ref, m: 0.0)


@gspo("kl_row_sum_then_batch_mean", "The KL is summed within a response. Average it over its tokens.")
def kl_summed(*given):
    return whole(*given, kl=lambda lp, ref, m: kl_mean(lp, ref, m) * lengths(m))


@gspo("kl_k1_as_loss_term", "The KL term is k1. As a loss its gradient ignores the reference: use k3.")
def kl_k1(*given):
    return whole(*given, kl=lambda lp, ref, m: difference(lp, ref, m).sum(dim=1) / lengths(m))


@gspo("kl_of_the_mean", "k3 is taken of the mean log-ratio. Take it of each token, and average afterwards.")
def kl_of_the_mean(*given):
    return whole(*given, kl=lambda lp, ref, m: k3(difference(lp, ref, m).sum(dim=1) / lengths(m)))


@gspo("sum_over_responses", "Responses are added up at the end. Average them.")
def sum_over_responses(*given):
    return whole(*given, reduce=lambda x, m: x.sum())


@gspo("bt_not_reduced", "One loss a response comes back. Finish with the mean over responses.")
def not_reduced(*given):
    return whole(*given, reduce=lambda x, m: x)


@gspo(
    "empty_rows_dropped",
    "Responses without tokens are left out of the mean. They add 0 and still count.",
)
def empty_rows_dropped(*given):
    return whole(*given, reduce=lambda x, m: x.sum() / m.any(dim=1).sum().clamp(min=1))


@gspo(
    "empty_rows_gain",
    "A response without tokens counts with ratio 1, so its advantage enters the loss. It has to add 0.",
)
def empty_rows_gain(lp, old, ref, adv, mask, eps, kl_coef, high):
    gain = smaller_gain(mean_ratio(lp, old, mask), adv.float(), eps, high)
    return (kl_coef * kl_mean(lp, ref, mask) - gain).mean()


@gspo("empty_mask_zero_division", "A response without tokens gives 0/0. It adds 0.")
def no_guard(lp, old, ref, adv, mask, eps, kl_coef, high):
    count = mask.sum(dim=1)
    ratio = (difference(lp, old, mask).sum(dim=1) / count).exp()
    kl = k3(difference(lp, ref, mask)).sum(dim=1) / count
    return (kl_coef * kl - smaller_gain(ratio, adv.float(), eps, high)).mean()


@gspo(
    "nan_survives_mask",
    "0 times NaN is NaN, so a mask that multiplies lets it through: use torch.where.",
)
def multiplied(lp, old, ref, adv, mask, eps, kl_coef, high):
    ratio = (((lp - old).float() * mask).sum(dim=1) / lengths(mask)).exp()
    kl = (k3((lp - ref).float()) * mask).sum(dim=1) / lengths(mask)
    return (kl_coef * kl - smaller_gain(ratio, worth_of(adv, mask), eps, high)).mean()
