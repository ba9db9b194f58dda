"""What goes wrong in group_advantages."""

import torch

from solutions.mistakes.base import mistake


def centred(rewards, group_size):
    """(groups, G): rewards less the mean of their siblings."""
    groups = rewards.float().view(-1, group_size)
    return groups - groups.mean(dim=1, keepdim=True)


def scaled(values, scale_by_std, eps, deviation):
    """Divide where it is asked, and leave groups of one alone."""
    return values / (deviation + eps) if scale_by_std and values.shape[1] > 1 else values


def finished(values, scale_by_std, eps):
    """The right division, for mistakes that come before it."""
    return scaled(values, scale_by_std, eps, values.std(dim=1, keepdim=True)).reshape(-1)


@mistake(
    "group_advantages",
    "adv_flat_group_nan",
    "Equal rewards give 0/0. All siblings equal means no signal: add eps to the deviation.",
)
def no_eps(rewards, group_size, scale_by_std=True, eps=1e-4):
    return finished(centred(rewards, group_size), scale_by_std, 0.0)


@mistake(
    "group_advantages",
    "adv_group_of_one",
    "A response without siblings has no deviation: std of one number is NaN. Its advantage is 0.",
)
def group_of_one(rewards, group_size, scale_by_std=True, eps=1e-4):
    values = centred(rewards, group_size)
    if scale_by_std:
        values = values / (values.std(dim=1, keepdim=True) + eps)
    return values.reshape(-1)


@mistake(
    "group_advantages",
    "adv_ddof",
    "Your values are off by sqrt(G/(G-1)): the unbiased deviation is asked, which divides by G - 1.",
)
def population_deviation(rewards, group_size, scale_by_std=True, eps=1e-4):
    values = centred(rewards, group_size)
    return scaled(values, scale_by_std, eps, values.std(dim=1, keepdim=True, correction=0)).reshape(-1)


@mistake(
    "group_advantages",
    "adv_reshape_order",
    "Siblings are neighbours: response i belongs to group i // G. Here every G-th one does: view(-1,"
    " group_size).",
)
def tiled(rewards, group_size, scale_by_std=True, eps=1e-4):
    groups = rewards.float().view(group_size, -1).T
    values = groups - groups.mean(dim=1, keepdim=True)
    return scaled(values, scale_by_std, eps, values.std(dim=1, keepdim=True)).T.reshape(-1)


@mistake(
    "group_advantages",
    "adv_missing_keepdim",
    "The means lost their axis and meet the wrong one, which shows only where there are as many groups"
    " as siblings: keepdim=True.",
)
def axis_lost(rewards, group_size, scale_by_std=True, eps=1e-4):
    groups = rewards.float().view(-1, group_size)
    values = groups - groups.mean(dim=1)
    return scaled(values, scale_by_std, eps, groups.std(dim=1)).reshape(-1)


@mistake(
    "group_advantages",
    "adv_eps_as_divisor",
    "Without the deviation nothing at all is divided, least of all by eps.",
)
def divided_by_eps(rewards, group_size, scale_by_std=True, eps=1e-4):
    values = centred(rewards, group_size)
    return finished(values, True, eps) if scale_by_std else (values / eps).reshape(-1)


@mistake(
    "group_advantages",
    "adv_eps_as_divisor",
    "Without the deviation nothing at all is divided, also not by 1 + eps.",
)
def divided_by_one_and_eps(rewards, group_size, scale_by_std=True, eps=1e-4):
    values = centred(rewards, group_size)
    return finished(values, True, eps) if scale_by_std else (values / (1 + eps)).reshape(-1)


@mistake(
    "group_advantages",
    "adv_std_switch_on_wrong_algorithm",
    "The switch acts the wrong way round: scale_by_std=True divides (GRPO, GSPO), False does not (Dr.GRPO).",
)
def switch_reversed(rewards, group_size, scale_by_std=True, eps=1e-4):
    return finished(centred(rewards, group_size), not scale_by_std, eps)


@mistake(
    "group_advantages",
    "adv_switch_ignored",
    "scale_by_std=False has no effect: then nothing is to be divided.",
)
def always_divided(rewards, group_size, scale_by_std=True, eps=1e-4):
    return finished(centred(rewards, group_size), True, eps)


@mistake(
    "group_advantages",
    "adv_never_divided",
    "Nothing is divided. With scale_by_std, the default, the deviation of the group is the unit.",
)
def never_divided(rewards, group_size, scale_by_std=True, eps=1e-4):
    return centred(rewards, group_size).reshape(-1)


@mistake(
    "group_advantages",
    "adv_not_centred",
    "The mean of the group is not subtracted: better than its siblings is what counts.",
)
def not_centred(rewards, group_size, scale_by_std=True, eps=1e-4):
    groups = rewards.float().view(-1, group_size)
    return scaled(groups, scale_by_std, eps, groups.std(dim=1, keepdim=True)).reshape(-1)


@mistake(
    "group_advantages",
    "adv_sign_flipped",
    "The sign is wrong: a response above the mean of its group must get a positive advantage.",
)
def sign_flipped(rewards, group_size, scale_by_std=True, eps=1e-4):
    return -finished(centred(rewards, group_size), scale_by_std, eps)


@mistake(
    "group_advantages",
    "adv_remainder_duplicated",
    "The result is longer than the input: a tail without remainder is rewards[-0:], the whole vector.",
)
def tail_appended(rewards, group_size, scale_by_std=True, eps=1e-4):
    tail = rewards[-(len(rewards) % group_size) :].float()
    return torch.cat([finished(centred(rewards, group_size), scale_by_std, eps), tail])


@mistake(
    "group_advantages",
    "adv_rank_breaks_ties",
    "Ranks replace the rewards, so equal rewards get unequal advantages and sizes are lost.",
)
def ranks(rewards, group_size, scale_by_std=True, eps=1e-4):
    order = rewards.view(-1, group_size).argsort(dim=1, stable=True).argsort(dim=1).float()
    return finished(order - order.mean(dim=1, keepdim=True), scale_by_std, eps)


@mistake(
    "group_advantages",
    "adv_max_as_baseline",
    "The best sibling is the baseline, so no advantage is ever positive. Subtract the mean.",
)
def best_as_baseline(rewards, group_size, scale_by_std=True, eps=1e-4):
    groups = rewards.float().view(-1, group_size)
    return finished(groups - groups.max(dim=1, keepdim=True).values, scale_by_std, eps)


@mistake(
    "group_advantages",
    "adv_leave_one_out",
    "The baseline is the mean of the other siblings (RLOO). GRPO's is the mean of the whole group.",
)
def leave_one_out(rewards, group_size, scale_by_std=True, eps=1e-4):
    values = centred(rewards, group_size)
    right = finished(values, scale_by_std, eps)
    return right * group_size / max(group_size - 1, 1)


@mistake(
    "group_advantages",
    "adv_batch_statistics",
    "Mean and deviation are those of the whole batch. Compare a response with the other answers to its"
    " prompt.",
)
def over_the_batch(rewards, group_size, scale_by_std=True, eps=1e-4):
    values = rewards.float() - rewards.float().mean()
    return values / (values.std() + eps) if scale_by_std else values


@mistake(
    "group_advantages",
    "adv_batch_statistics",
    "The deviation is that of the whole batch. It is taken within each group, as the mean is.",
)
def deviation_of_the_batch(rewards, group_size, scale_by_std=True, eps=1e-4):
    values = centred(rewards, group_size)
    return scaled(values, scale_by_std, eps, rewards.float().std()).reshape(-1)


@mistake(
    "group_advantages",
    "adv_variance_for_std",
    "The variance divides, not the deviation: a square root is missing.",
)
def variance(rewards, group_size, scale_by_std=True, eps=1e-4):
    values = centred(rewards, group_size)
    return scaled(values, scale_by_std, eps, values.var(dim=1, keepdim=True)).reshape(-1)


@mistake(
    "group_advantages",
    "adv_eps_inside_root",
    "eps stands under the square root, where it acts as its own root. Add it to the deviation.",
)
def eps_inside_root(rewards, group_size, scale_by_std=True, eps=1e-4):
    values = centred(rewards, group_size)
    return scaled(values, scale_by_std, 0.0, (values.var(dim=1, keepdim=True) + eps).sqrt()).reshape(-1)


@mistake(
    "group_advantages",
    "adv_eps_fixed",
    "eps is a fixed number instead of the argument.",
)
def eps_fixed(rewards, group_size, scale_by_std=True, eps=1e-4):
    return finished(centred(rewards, group_size), scale_by_std, 1e-4)


@mistake(
    "group_advantages",
    "adv_grouped_shape",
    "The result is still in groups. One advantage for each reward is asked, (N,): reshape(-1).",
)
def grouped_shape(rewards, group_size, scale_by_std=True, eps=1e-4):
    return finished(centred(rewards, group_size), scale_by_std, eps).view(-1, group_size)


@mistake(
    "group_advantages",
    "adv_raw_rewards_overwritten",
    "The rewards that came in are changed: -= on a view writes into them. Compute a new tensor.",
)
def overwritten(rewards, group_size, scale_by_std=True, eps=1e-4):
    groups = rewards.view(-1, group_size)
    groups -= groups.mean(dim=1, keepdim=True)
    return finished(groups.float(), scale_by_std, eps)
