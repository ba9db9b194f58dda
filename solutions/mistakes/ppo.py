"""What goes wrong in kl_shaped_rewards, ppo_policy_loss and ppo_value_loss."""

import torch

from solutions.mistakes.base import mistake
from solutions.mistakes.parts import difference, smaller_gain


# ---------------------------------------------------------------- kl_shaped_rewards
def last_of(mask):
    """True on the last token of each row."""
    return mask & (mask.long().flip(1).cumsum(1).flip(1) == 1)


def shaped(name, hint):
    """A mistake of kl_shaped_rewards: a function of charge, scores, mask, T."""

    def enter(place):
        def kl_shaped_rewards(scores, logprobs, ref_logprobs, mask, kl_coef):
            charge = -kl_coef * difference(logprobs, ref_logprobs, mask)
            return place(charge, scores.float()[:, None], mask)

        mistake("kl_shaped_rewards", name, hint)(kl_shaped_rewards)
        return place

    return enter


@shaped(
    "reward_at_first_pad", "The score lands on the first pad, where nobody collects it: on the last token."
)
def at_first_pad(charge, score, mask):
    return charge + score * (~mask & last_of(mask).roll(1, 1))


@shaped("reward_on_last_column", "The score lands in the last column. Each row ends at its own last token.")
def on_last_column(charge, score, mask):
    return charge + score * (torch.arange(mask.shape[1]) == mask.shape[1] - 1)


@shaped(
    "reward_on_every_token", "Every token earns the score, so long answers collect it many times: pay once."
)
def on_every_token(charge, score, mask):
    return charge + score * mask


@shaped("reward_on_first_token", "The score is on the first response token. It belongs to the last.")
def on_first_token(charge, score, mask):
    return charge + score * (mask & (mask.long().cumsum(1) == 1))


@shaped("reward_spread", "The score is shared out over the tokens. It is paid once, on the last one.")
def spread(charge, score, mask):
    return charge + score * mask / mask.sum(dim=1, keepdim=True).clamp(min=1)


@shaped("reward_replaces_kl", "On the last token the score replaces the KL charge. Add the two.")
def replaces_kl(charge, score, mask):
    return torch.where(last_of(mask), score.expand(charge.shape), charge)


@shaped("reward_missing", "The scores do not enter: add each to its last response token.")
def score_missing(charge, score, mask):
    return charge + 0 * score


@shaped("kl_penalty_sign", "The KL is added to the reward, so drift is paid for. Subtract it.")
def kl_added(charge, score, mask):
    return -charge + score * last_of(mask)


@shaped("kl_missing", "kl_coef does not enter: charge each token its own log-ratio.")
def kl_left_out(charge, score, mask):
    return 0 * charge + score * last_of(mask)


@shaped("kl_as_scalar_shift", "The whole row's KL is charged to its last token. Charge each token its own.")
def kl_at_the_end(charge, score, mask):
    return (charge.sum(dim=1, keepdim=True) + score) * last_of(mask)


@shaped("kl_as_scalar_shift", "Each token is charged the row's mean KL. Charge each token its own.")
def kl_averaged(charge, score, mask):
    mean = charge.sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    return mean * mask + score * last_of(mask)


@shaped("kl_per_sequence_reward", "One reward a response comes back. One a token is asked, (B, T).")
def per_sequence(charge, score, mask):
    return charge.sum(dim=1) + score[:, 0]


def shaped_whole(name, hint):
    """A mistake of kl_shaped_rewards in its tensors."""
    return mistake("kl_shaped_rewards", name, hint)


@shaped_whole(
    "nan_survives_mask", "0 times NaN is NaN: select the tokens by torch.where instead of multiplying."
)
def shaped_multiplied(scores, logprobs, ref_logprobs, mask, kl_coef):
    return -kl_coef * ((logprobs - ref_logprobs).float() * mask) + scores.float()[:, None] * last_of(mask)


@shaped_whole(
    "pool_count_minus_one_left_pad", "The last token is sought at the count less one: padding may be left."
)
def shaped_by_count(scores, logprobs, ref_logprobs, mask, kl_coef):
    last = torch.arange(mask.shape[1]) == mask.sum(dim=1, keepdim=True) - 1
    return -kl_coef * difference(logprobs, ref_logprobs, mask) + scores.float()[:, None] * last


@shaped_whole("empty_rows_gain", "A row without tokens has no place to be paid at: it stays 0.")
def shaped_empty(scores, logprobs, ref_logprobs, mask, kl_coef):
    last = torch.arange(mask.shape[1]) == (torch.arange(mask.shape[1]) * mask).argmax(dim=1, keepdim=True)
    return -kl_coef * difference(logprobs, ref_logprobs, mask) + scores.float()[:, None] * last


@shaped_whole(
    "kl_k3_in_reward", "The charge is k3. In the reward the plain log-ratio is right: its mean is the KL."
)
def shaped_k3(scores, logprobs, ref_logprobs, mask, kl_coef):
    d = difference(logprobs, ref_logprobs, mask)
    return -kl_coef * ((-d).exp() - 1 + d) + scores.float()[:, None] * last_of(mask)


# ---------------------------------------------------------------- ppo_policy_loss
def token_mean(x, mask):
    """The right mean."""
    return torch.where(mask, x, 0.0).sum() / mask.sum().clamp(min=1)


def policy(name, hint):
    """A mistake of ppo_policy_loss: how gain, ratio or mean is made."""

    def enter(function):
        def ppo_policy_loss(logprobs, old_logprobs, advantages, mask, clip_eps, clip_eps_high=None):
            return function(logprobs, old_logprobs, advantages, mask, clip_eps, clip_eps_high)

        mistake("ppo_policy_loss", name, hint)(ppo_policy_loss)
        return function

    return enter


def surrogate(lp, old, adv, mask, eps, high, *, gain=smaller_gain, ratio=torch.exp, reduce=token_mean):
    """The loss with one part replaced."""
    worth = torch.where(mask, adv, 0.0).float()
    return -reduce(gain(ratio(difference(lp, old, mask)), worth, eps, high), mask)


@policy(
    "clip_max_objective", "The larger of the two objectives is taken. The pessimistic one is the smaller."
)
def policy_max(*given):
    def larger(ratio, worth, eps, high):
        return torch.maximum(ratio * worth, ratio.clamp(1 - eps, 1 + (eps if high is None else high)) * worth)

    return surrogate(*given, gain=larger)


@policy("clip_only", "Only the clipped term is left, and it cuts the way back too: keep the minimum of both.")
def policy_clip_only(*given):
    def clipped(ratio, worth, eps, high):
        return ratio.clamp(1 - eps, 1 + (eps if high is None else high)) * worth

    return surrogate(*given, gain=clipped)


@policy("clip_not_wired", "Nothing is clipped.")
def policy_unclipped(*given):
    return surrogate(*given, gain=lambda ratio, worth, eps, high: ratio * worth)


@policy("clip_high_ignored", "clip_eps_high does not enter: the ratio may rise to 1 + clip_eps_high.")
def policy_high_ignored(*given):
    return surrogate(*given, gain=lambda ratio, worth, eps, high: smaller_gain(ratio, worth, eps))


@policy("clip_sign_not_negated", "This is the objective. The optimiser minimises: negate.")
def policy_not_negated(*given):
    return -surrogate(*given)


@policy(
    "clip_without_advantage", "The minimum is taken of the ratios. Compare the products with the advantage."
)
def policy_early_minimum(*given):
    def early(ratio, worth, eps, high):
        return torch.minimum(ratio, ratio.clamp(1 - eps, 1 + (eps if high is None else high))) * worth

    return surrogate(*given, gain=early)


@policy("ratio_reversed", "The ratio is upside down: new over old, exp(logprobs - old_logprobs).")
def policy_ratio_reversed(*given):
    return surrogate(*given, ratio=lambda d: (-d).exp())


@policy("ratio_without_exp", "The log-ratio is used as if it were the ratio: exponentiate it.")
def policy_without_exp(*given):
    return surrogate(*given, ratio=lambda d: d)


@policy("ratio_detached", "The ratio is detached, so nothing is learnt: the gradient flows through it.")
def policy_ratio_detached(*given):
    return surrogate(*given, ratio=lambda d: d.exp().detach())


@policy("old_logprobs_recomputed", "The ratio is always 1: old_logprobs, frozen at sampling, are not used.")
def policy_own(lp, old, adv, mask, eps, high):
    return surrogate(lp, lp.detach(), adv, mask, eps, high)


@policy("ratio_of_whole_sequence", "The log-ratios are summed over the response. PPO has one ratio a token.")
def policy_whole_sequence(*given):
    return surrogate(*given, ratio=lambda d: d.sum(dim=1, keepdim=True).exp().expand(d.shape))


@policy("ratio_exp_then_divide", "exp of each, then a division: 0/0 for unlikely tokens. Subtract first.")
def policy_divided(lp, old, adv, mask, eps, high):
    ratio = torch.where(mask, lp, 0.0).float().exp() / torch.where(mask, old, 0.0).float().exp()
    return -token_mean(smaller_gain(ratio, torch.where(mask, adv, 0.0).float(), eps, high), mask)


@policy("norm_ignores_mask_count", "It is divided by all positions. Divide by the number of masked tokens.")
def policy_padded(*given):
    return surrogate(*given, reduce=lambda x, m: torch.where(m, x, 0.0).mean())


@policy(
    "sequence_mean_for_token_mean", "Rows are averaged first. PPO's mean is over all tokens of the batch."
)
def policy_rows(*given):
    return surrogate(
        *given, reduce=lambda x, m: (torch.where(m, x, 0.0).sum(1) / m.sum(1).clamp(min=1)).mean()
    )


@policy("masked_sum_divides_by_count", "The tokens are added up. Divide by their number.")
def policy_sum(*given):
    return surrogate(*given, reduce=lambda x, m: torch.where(m, x, 0.0).sum())


@policy("bt_not_reduced", "One loss a token comes back. Finish with the mean over the masked tokens.")
def policy_not_reduced(*given):
    return surrogate(*given, reduce=lambda x, m: torch.where(m, x, 0.0))


@policy("empty_mask_zero_division", "Without tokens this is 0/0. It has to be 0.")
def policy_no_guard(*given):
    return surrogate(*given, reduce=lambda x, m: torch.where(m, x, 0.0).sum() / m.sum())


@policy(
    "nan_survives_mask", "0 times NaN is NaN, so a mask that multiplies lets it through: use torch.where."
)
def policy_multiplied(lp, old, adv, mask, eps, high):
    gain = smaller_gain((lp - old).float().exp(), adv.float(), eps, high)
    return -(gain * mask).sum() / mask.sum().clamp(min=1)


# ---------------------------------------------------------------- ppo_value_loss
def value(name, hint):
    """A mistake of ppo_value_loss: a function of the masked tensors that gives each token's error."""

    def enter(function):
        def ppo_value_loss(values, old_values, returns, mask, clip_eps):
            now, old, target = (torch.where(mask, x, 0.0).float() for x in (values, old_values, returns))
            return 0.5 * token_mean(function(now, old, target, clip_eps), mask)

        mistake("ppo_value_loss", name, hint)(ppo_value_loss)
        return function

    return enter


def errors(now, old, target, eps):
    """The unclipped and the clipped squared error."""
    return (now - target).square(), (old + (now - old).clamp(-eps, eps) - target).square()


@value("value_clip_min", "The smaller error is taken. Pessimistic for a loss means the larger one.")
def value_min(*given):
    return torch.minimum(*errors(*given))


@value("clip_not_wired", "Nothing is clipped: the step from old_values has no bound.")
def value_unclipped(*given):
    return errors(*given)[0]


@value("clip_only", "Only the clipped error is left. Take the larger of the two.")
def value_clipped(*given):
    return errors(*given)[1]


@value("value_clips_the_value", "The value itself is clipped to ±clip_eps. Clip the step from old_values.")
def value_itself(now, old, target, eps):
    return torch.maximum((now - target).square(), (now.clamp(-eps, eps) - target).square())


@value("value_clips_around_return", "The error is clipped around the return. Clip the step from old_values.")
def value_around_return(now, old, target, eps):
    return (now - target).clamp(-eps, eps).square()


@value(
    "value_clips_relatively", "The bounds are old · (1 ± clip_eps), a ratio's. A value moves by ± clip_eps."
)
def value_relative(now, old, target, eps):
    low, high = old - eps * old.abs(), old + eps * old.abs()
    return torch.maximum((now - target).square(), (now.clamp(low, high) - target).square())


@value("value_not_squared", "The error is not squared.")
def value_absolute(*given):
    return torch.maximum(*(error.sqrt() for error in errors(*given)))


@value("value_not_halved", "The factor of one half is missing.")
def value_not_halved(*given):
    return 2 * torch.maximum(*errors(*given))


@value("value_against_old", "The target is old_values. The values are to meet the returns.")
def value_against_old(now, old, target, eps):
    return torch.maximum(*errors(now, old, old, eps))


def value_whole(name, hint):
    """A mistake of ppo_value_loss in its mean."""

    def enter(reduce):
        def ppo_value_loss(values, old_values, returns, mask, clip_eps):
            now, old, target = (torch.where(mask, x, 0.0).float() for x in (values, old_values, returns))
            return 0.5 * reduce(torch.maximum(*errors(now, old, target, clip_eps)), mask)

        mistake("ppo_value_loss", name, hint)(ppo_value_loss)
        return reduce

    return enter


@value_whole(
    "norm_ignores_mask_count", "It is divided by all positions. Divide by the number of masked tokens."
)
def value_padded(x, mask):
    return x.mean()


@value_whole("sequence_mean_for_token_mean", "Rows are averaged first. The mean is over all masked tokens.")
def value_rows(x, mask):
    return (x.sum(dim=1) / mask.sum(dim=1).clamp(min=1)).mean()


@value_whole("masked_sum_divides_by_count", "The tokens are added up. Divide by their number.")
def value_sum(x, mask):
    return x.sum()


@value_whole("bt_not_reduced", "One loss a token comes back. Finish with the mean over the masked tokens.")
def value_each(x, mask):
    return x


@value_whole("empty_mask_zero_division", "Without tokens this is 0/0. It has to be 0.")
def value_no_guard(x, mask):
    return x.sum() / mask.sum()


@value_whole("logprob_under_no_grad", "The loss carries no gradient, so the values would not learn.")
def value_detached(x, mask):
    return token_mean(x, mask).detach()


@mistake(
    "ppo_value_loss",
    "nan_survives_mask",
    "0 times NaN is NaN, so a mask that multiplies lets it through: use torch.where.",
)
def value_multiplied(values, old_values, returns, mask, clip_eps):
    each = torch.maximum(*errors(values.float(), old_values.float(), returns.float(), clip_eps)) * mask
    return 0.5 * each.sum() / mask.sum().clamp(min=1)
