"""What goes wrong in the DPO loss."""

import torch
import torch.nn.functional as F

from solutions.mistakes.base import mistake

Tensor = torch.Tensor


def each(policy_chosen: Tensor, policy_rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor) -> Tensor:
    """The right difference of log-ratios, for mistakes that come after it."""
    return (policy_chosen.float() - ref_chosen.float()) - (policy_rejected.float() - ref_rejected.float())


@mistake(
    "dpo_loss",
    "dpo_reference_is_policy",
    "A loss that stays at 0.693 means that policy and reference are the same thing: use ref_chosen and"
    " ref_rejected, not the policy's own numbers.",
)
def reference_is_policy(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    same = each(policy_chosen, policy_rejected, policy_chosen, policy_rejected)
    return -F.logsigmoid(beta * same).mean()


@mistake(
    "dpo_loss",
    "dpo_reference_is_policy",
    "A loss that stays at 0.693 means that policy and reference are the same thing: a detached copy of"
    " the policy is no reference.",
)
def reference_is_detached_policy(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    same = each(policy_chosen, policy_rejected, policy_chosen.detach(), policy_rejected.detach())
    return -F.logsigmoid(beta * same).mean()


@mistake(
    "dpo_loss",
    "dpo_missing_reference",
    "The reference is left out. At the start, where policy and reference agree, the loss must be ln 2,"
    " however likely the answers are.",
)
def missing_reference(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return -F.logsigmoid(beta * (policy_chosen.float() - policy_rejected.float())).mean()


@mistake(
    "dpo_loss",
    "dpo_reference_sign_swapped",
    "The reference is what you subtract, each answer's own: here its margin is added.",
)
def reference_added(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    both = (policy_chosen.float() - policy_rejected.float()) + (ref_chosen.float() - ref_rejected.float())
    return -F.logsigmoid(beta * both).mean()


@mistake(
    "dpo_loss",
    "dpo_reference_sign_swapped",
    "The margin has the wrong sign: it is policy minus reference and chosen minus rejected, and a"
    " likelier chosen answer must lower the loss.",
)
def margin_reversed(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return -F.logsigmoid(-beta * each(policy_chosen, policy_rejected, ref_chosen, ref_rejected)).mean()


@mistake(
    "dpo_loss",
    "dpo_rejected_ignored",
    "Only the chosen answer counts here. The loss looks at the difference between the two log-ratios.",
)
def rejected_ignored(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return -F.logsigmoid(beta * (policy_chosen.float() - ref_chosen.float())).mean()


@mistake(
    "dpo_loss",
    "dpo_not_negated",
    "The optimiser minimises, and a log-likelihood is to be made large: put the minus sign in front.",
)
def not_negated(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return F.logsigmoid(beta * each(policy_chosen, policy_rejected, ref_chosen, ref_rejected)).mean()


@mistake(
    "dpo_loss",
    "dpo_beta_missing",
    "beta does not enter. It scales the difference of log-ratios, inside the sigmoid.",
)
def beta_missing(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return -F.logsigmoid(each(policy_chosen, policy_rejected, ref_chosen, ref_rejected)).mean()


@mistake(
    "dpo_loss",
    "dpo_beta_outside",
    "beta multiplies the loss instead of the log-ratios: outside the sigmoid it is just a learning rate.",
)
def beta_outside(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return -beta * F.logsigmoid(each(policy_chosen, policy_rejected, ref_chosen, ref_rejected)).mean()


@mistake(
    "dpo_loss",
    "dpo_beta_divides",
    "beta is a factor, not a temperature: multiply the log-ratios by it.",
)
def beta_divides(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return -F.logsigmoid(each(policy_chosen, policy_rejected, ref_chosen, ref_rejected) / beta).mean()


@mistake(
    "dpo_loss",
    "dpo_log_missing",
    "The logarithm is missing: the loss is −log of the probability of the preference, not 1 minus it.",
)
def log_missing(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    h = each(policy_chosen, policy_rejected, ref_chosen, ref_rejected)
    return (1 - torch.sigmoid(beta * h)).mean()


@mistake(
    "dpo_loss",
    "dpo_log_missing",
    "The logarithm is missing: the loss is −log of the probability of the observed preference.",
)
def log_missing_negated(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return -torch.sigmoid(beta * each(policy_chosen, policy_rejected, ref_chosen, ref_rejected)).mean()


@mistake(
    "dpo_loss",
    "dpo_log_of_sigmoid",
    "log(sigmoid(x)) and log(1 + exp(-x)) leave the finite numbers far below zero: F.logsigmoid never does.",
)
def log_of_sigmoid(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    h = each(policy_chosen, policy_rejected, ref_chosen, ref_rejected)
    return -torch.log(torch.sigmoid(beta * h)).mean()


@mistake(
    "dpo_loss",
    "dpo_mean_inside",
    "The mean is taken before the sigmoid. Each pair has its own loss; average those.",
)
def mean_inside(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    h = each(policy_chosen, policy_rejected, ref_chosen, ref_rejected)
    return -F.logsigmoid(beta * h.mean())


@mistake(
    "dpo_loss",
    "dpo_sum_for_mean",
    "This adds the pairs up. Average them, or the learning rate grows with B.",
)
def sum_for_mean(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return -F.logsigmoid(beta * each(policy_chosen, policy_rejected, ref_chosen, ref_rejected)).sum()


@mistake("dpo_loss", "bt_not_reduced", "One loss a pair comes back: finish with the mean over pairs.")
def not_reduced(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return -F.logsigmoid(beta * each(policy_chosen, policy_rejected, ref_chosen, ref_rejected))


@mistake(
    "dpo_loss",
    "hardcoded_batch_size",
    "The divisor is a fixed number. Take the number of pairs from the tensor: .mean() does.",
)
def hardcoded_batch_size(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return -F.logsigmoid(beta * each(policy_chosen, policy_rejected, ref_chosen, ref_rejected)).sum() / 2


@mistake(
    "dpo_loss",
    "dpo_reference_free_half",
    "Only the policy's margin is scaled by beta; the reference's margin is scaled by it too.",
)
def beta_on_policy_only(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    policy, reference = (
        policy_chosen.float() - policy_rejected.float(),
        ref_chosen.float() - ref_rejected.float(),
    )
    return -F.logsigmoid(beta * policy - reference).mean()


@mistake(
    "dpo_loss",
    "dpo_ratios_added",
    "The two log-ratios are added. The loss looks at their difference: chosen minus rejected.",
)
def ratios_added(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    chosen, rejected = (
        policy_chosen.float() - ref_chosen.float(),
        policy_rejected.float() - ref_rejected.float(),
    )
    return -F.logsigmoid(beta * (chosen + rejected)).mean()


@mistake(
    "dpo_loss",
    "dpo_ratio_of_logs",
    "Log-probabilities are divided. The log of a ratio is a difference: policy minus reference.",
)
def ratio_of_logs(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    chosen, rejected = (
        policy_chosen.float() / ref_chosen.float(),
        policy_rejected.float() / ref_rejected.float(),
    )
    return -F.logsigmoid(beta * (chosen - rejected)).mean()
