"""What goes wrong in the ratio and the clip of grpo_loss."""

import torch

from solutions.mistakes.parts import assembled, difference, k3, smaller_gain, wrong


# ---------------------------------------------------------------- the clip
@wrong(
    "clip_max_objective",
    "The larger of the two objectives is taken. The minimum of objectives is the maximum of losses; you"
    " mixed the two.",
)
def clip_max_objective(*given):
    def larger(ratio, worth, eps, high):
        upper = eps if high is None else high
        return torch.maximum(ratio * worth, ratio.clamp(1 - eps, 1 + upper) * worth)

    return assembled(*given, gain=larger)


@wrong(
    "clip_only",
    "Only the clipped term is left, and it cuts the way back too: keep the minimum with the unclipped one.",
)
def clip_only(*given):
    return assembled(
        *given, gain=lambda r, worth, eps, high: r.clamp(1 - eps, 1 + (eps if high is None else high)) * worth
    )


@wrong(
    "clip_not_wired",
    "Nothing is clipped: a ratio of 1.5 with a positive advantage must count as 1 + clip_eps.",
)
def clip_not_wired(*given):
    return assembled(*given, gain=lambda ratio, worth, eps, high: ratio * worth)


@wrong(
    "clip_sign_not_negated",
    "This is the objective. The optimiser minimises: negate the gain, and add the KL.",
)
def clip_sign_not_negated(*given):
    return assembled(*given, gain=lambda *parts: -smaller_gain(*parts))


@wrong(
    "clip_sign_not_negated",
    "The whole loss has the wrong sign: the optimiser minimises, so the gain is negated and the KL added.",
)
def all_negated(*given):
    return -assembled(*given)


@wrong(
    "clip_high_ignored",
    "clip_eps_high does not enter. Where it is given the ratio may rise to 1 + clip_eps_high.",
)
def clip_high_ignored(lp, old, ref, adv, mask, eps, kl_coef, high, reduction):
    return assembled(lp, old, ref, adv, mask, eps, kl_coef, None, reduction)


@wrong("clip_high_on_both_sides", "clip_eps_high moves both bounds. The lower one stays 1 - clip_eps.")
def clip_high_on_both_sides(lp, old, ref, adv, mask, eps, kl_coef, high, reduction):
    return assembled(lp, old, ref, adv, mask, eps if high is None else high, kl_coef, None, reduction)


@wrong(
    "clip_without_advantage",
    "The minimum is taken of the ratios, before the advantage multiplies. Compare the two products:"
    " where the advantage is negative the order turns round.",
)
def clip_without_advantage(*given):
    def early(ratio, worth, eps, high):
        upper = eps if high is None else high
        return torch.minimum(ratio, ratio.clamp(1 - eps, 1 + upper)) * worth

    return assembled(*given, gain=early)


@wrong(
    "clip_of_log_ratio",
    "The log-ratio is clipped to ±clip_eps. Clip the ratio itself, to 1 ± clip_eps.",
)
def clip_of_log_ratio(*given):
    def logs(ratio, worth, eps, high):
        upper = eps if high is None else high
        return torch.minimum(ratio * worth, ratio.log().clamp(-eps, upper).exp() * worth)

    return assembled(*given, gain=logs)


# ---------------------------------------------------------------- the ratio
@wrong(
    "ratio_of_whole_sequence",
    "The log-ratios are summed over the response before exp. GRPO weighs each token by its own ratio.",
)
def ratio_of_whole_sequence(lp, old, ref, adv, mask, eps, kl_coef, high, reduction):
    ratio = difference(lp, old, mask).sum(dim=1, keepdim=True).exp().expand(mask.shape)
    gain = smaller_gain(ratio, adv.float()[:, None], eps, high)
    return reduction(kl_coef * k3(difference(lp, ref, mask)) - gain, mask)


@wrong(
    "ratio_of_sequence_mean",
    "One ratio for the whole response is GSPO. GRPO weighs each token by its own.",
)
def ratio_of_sequence_mean(lp, old, ref, adv, mask, eps, kl_coef, high, reduction):
    mean = difference(lp, old, mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    gain = smaller_gain(mean.exp().expand(mask.shape), adv.float()[:, None], eps, high)
    return reduction(kl_coef * k3(difference(lp, ref, mask)) - gain, mask)


@wrong("ratio_reversed", "The ratio is upside down: new over old, exp(logprobs - old_logprobs).")
def ratio_reversed(*given):
    return assembled(*given, gain=lambda ratio, *rest: smaller_gain(1 / ratio, *rest))


@wrong(
    "ratio_exp_then_divide",
    "Each log-probability is exponentiated and then divided, 0/0 for unlikely tokens. Subtract first.",
)
def ratio_exp_then_divide(lp, old, ref, adv, mask, eps, kl_coef, high, reduction):
    ratio = torch.where(mask, lp, 0.0).float().exp() / torch.where(mask, old, 0.0).float().exp()
    gain = smaller_gain(ratio, adv.float()[:, None], eps, high)
    return reduction(kl_coef * k3(difference(lp, ref, mask)) - gain, mask)


@wrong("ratio_without_exp", "The log-ratio is used as if it were the ratio: exponentiate it.")
def ratio_without_exp(*given):
    return assembled(*given, gain=lambda ratio, *rest: smaller_gain(ratio.log(), *rest))


@wrong(
    "old_logprobs_recomputed",
    "The ratio is always 1: old_logprobs, frozen at the time of sampling, are not used.",
)
def own_detached(lp, old, ref, adv, mask, eps, kl_coef, high, reduction):
    return assembled(lp, lp.detach(), ref, adv, mask, eps, kl_coef, high, reduction)


@wrong(
    "old_logprobs_recomputed",
    "The ratio is always 1 and its gradient 0: the policy is compared with itself, and not with"
    " old_logprobs.",
)
def own(lp, old, ref, adv, mask, eps, kl_coef, high, reduction):
    return assembled(lp, lp, ref, adv, mask, eps, kl_coef, high, reduction)


@wrong(
    "ratio_detached",
    "The ratio is detached, so the advantages teach nothing: it is what the gradient flows through.",
)
def ratio_detached(*given):
    return assembled(*given, gain=lambda ratio, *rest: smaller_gain(ratio.detach(), *rest))


@wrong(
    "ratio_times_logprob",
    "The ratio is multiplied by the log-probability, which adds a factor 1 + log p to the gradient."
    " Differentiate the ratio alone.",
)
def ratio_times_logprob(lp, old, ref, adv, mask, eps, kl_coef, high, reduction):
    ratio = difference(lp, old, mask).exp() * torch.where(mask, lp, 0.0).float()
    gain = smaller_gain(ratio, adv.float()[:, None], eps, high)
    return reduction(kl_coef * k3(difference(lp, ref, mask)) - gain, mask)
