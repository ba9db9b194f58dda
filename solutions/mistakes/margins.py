"""What goes wrong in the IPO and AOT losses."""

import torch
import torch.nn.functional as F

from solutions.mistakes.base import mistake
from solutions.mistakes.preference import each


def ipo(name, hint):
    """A mistake of ipo_loss."""
    return mistake("ipo_loss", name, hint)


def aot(name, hint):
    """A mistake of aot_loss."""
    return mistake("aot_loss", name, hint)


def ratios(policy_chosen, policy_rejected, ref_chosen, ref_rejected):
    """The two log-ratios."""
    return policy_chosen.float() - ref_chosen.float(), policy_rejected.float() - ref_rejected.float()


def gap(chosen, rejected):
    """Smallest less smallest, and so on."""
    return chosen.sort().values - rejected.sort().values


# ---------------------------------------------------------------- ipo_loss
@ipo(
    "ipo_beta_inside",
    "beta scales the difference of log-ratios. IPO pulls the raw difference to 1/(2 beta): beta appears"
    " in the target only.",
)
def beta_inside(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    h = each(policy_chosen, policy_rejected, ref_chosen, ref_rejected)
    return (beta * h - 1 / (2 * beta)).square().mean()


@ipo("ipo_wrong_target", "The target is 1/beta. The parabola must touch zero at 1/(2 beta).")
def target_one_over_beta(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return (each(policy_chosen, policy_rejected, ref_chosen, ref_rejected) - 1 / beta).square().mean()


@ipo("ipo_wrong_target", "The target is beta/2: 1/2*beta is no 1/(2*beta) to Python. Use brackets.")
def target_half_beta(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return (each(policy_chosen, policy_rejected, ref_chosen, ref_rejected) - 1 / 2 * beta).square().mean()


@ipo("ipo_wrong_target", "The target is 1/2. It is 1/(2 beta), and beta enters there only.")
def target_half(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return (each(policy_chosen, policy_rejected, ref_chosen, ref_rejected) - 0.5).square().mean()


@ipo("ipo_target_added", "The target is added. The difference is to reach it: subtract.")
def target_added(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return (each(policy_chosen, policy_rejected, ref_chosen, ref_rejected) + 1 / (2 * beta)).square().mean()


@ipo(
    "ipo_no_target",
    "There is no target: this pulls the difference to 0, where policy and reference agree.",
)
def no_target(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return each(policy_chosen, policy_rejected, ref_chosen, ref_rejected).square().mean()


@ipo("ipo_is_dpo", "This is DPO's logistic loss. IPO's is a square: it pulls pairs back that went too far.")
def is_dpo(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return -F.logsigmoid(beta * each(policy_chosen, policy_rejected, ref_chosen, ref_rejected)).mean()


@ipo("ipo_not_squared", "The distance to the target is not squared.")
def not_squared(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return (each(policy_chosen, policy_rejected, ref_chosen, ref_rejected) - 1 / (2 * beta)).abs().mean()


@ipo(
    "ipo_beta_inside",
    "(beta h - 1/2) squared is beta**2 times the loss: its gradient vanishes with beta. beta appears in the"
    " target only.",
)
def beta_inside_with_half(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return (beta * each(policy_chosen, policy_rejected, ref_chosen, ref_rejected) - 0.5).square().mean()


@ipo(
    "ipo_not_squared",
    "The distance to the target keeps its sign and is not squared, so the loss has no lowest point.",
)
def signed_distance(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return (each(policy_chosen, policy_rejected, ref_chosen, ref_rejected) - 1 / (2 * beta)).mean()


@ipo("ipo_hinge", "Only differences below the target cost anything. IPO pulls back what is above it too.")
def hinge(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    h = each(policy_chosen, policy_rejected, ref_chosen, ref_rejected)
    return (1 / (2 * beta) - h).clamp(min=0).square().mean()


@ipo("dpo_missing_reference", "The reference is left out: the difference is one of log-ratios to it.")
def missing_reference(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return (policy_chosen.float() - policy_rejected.float() - 1 / (2 * beta)).square().mean()


@ipo(
    "dpo_reference_sign_swapped",
    "The reference is what you subtract, each answer's own: here its margin is added.",
)
def reference_added(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    both = (policy_chosen.float() - policy_rejected.float()) + (ref_chosen.float() - ref_rejected.float())
    return (both - 1 / (2 * beta)).square().mean()


@ipo(
    "ipo_mean_inside",
    "The mean is taken before the square. Each pair has its own target; average the squares.",
)
def mean_inside(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    h = each(policy_chosen, policy_rejected, ref_chosen, ref_rejected)
    return (h.mean() - 1 / (2 * beta)).square()


@ipo("dpo_sum_for_mean", "This adds the pairs up. Average them.")
def sum_for_mean(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return (each(policy_chosen, policy_rejected, ref_chosen, ref_rejected) - 1 / (2 * beta)).square().sum()


@ipo("bt_not_reduced", "One loss a pair comes back: finish with the mean over pairs.")
def not_reduced(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return (each(policy_chosen, policy_rejected, ref_chosen, ref_rejected) - 1 / (2 * beta)).square()


@ipo("ipo_halved", "There is no factor of one half before the square.")
def halved(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    h = each(policy_chosen, policy_rejected, ref_chosen, ref_rejected)
    return 0.5 * (h - 1 / (2 * beta)).square().mean()


# ---------------------------------------------------------------- aot_loss
@aot(
    "aot_sort_one_side",
    "Only the chosen side is sorted. Smallest meets smallest: sort both, the same way.",
)
def sort_chosen_only(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    chosen, rejected = ratios(policy_chosen, policy_rejected, ref_chosen, ref_rejected)
    return -F.logsigmoid(beta * (chosen.sort().values - rejected)).mean()


@aot(
    "aot_sort_one_side",
    "Only the rejected side is sorted. Smallest meets smallest: sort both, the same way.",
)
def sort_rejected_only(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    chosen, rejected = ratios(policy_chosen, policy_rejected, ref_chosen, ref_rejected)
    return -F.logsigmoid(beta * (chosen - rejected.sort().values)).mean()


@aot("aot_sort_one_side", "The two sides are sorted in opposite directions. Smallest meets smallest.")
def sort_opposite(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    chosen, rejected = ratios(policy_chosen, policy_rejected, ref_chosen, ref_rejected)
    return -F.logsigmoid(beta * (chosen.sort().values - rejected.sort(descending=True).values)).mean()


@aot(
    "aot_not_sorted",
    "Nothing is sorted, so this is DPO. AOT compares the two distributions, not the pairs.",
)
def not_sorted(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return -F.logsigmoid(beta * each(policy_chosen, policy_rejected, ref_chosen, ref_rejected)).mean()


@aot(
    "aot_paired_for_unpaired",
    "The margins of policy and reference are sorted: that is the paired form. Sort the log-ratios of"
    " chosen and of rejected answers.",
)
def paired(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    policy = policy_chosen.float() - policy_rejected.float()
    reference = ref_chosen.float() - ref_rejected.float()
    return -F.logsigmoid(beta * gap(policy, reference)).mean()


@aot(
    "aot_sorted_after",
    "The differences are sorted, which changes nothing. Sort both sides before subtracting.",
)
def sorted_after_with_positions(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    h = each(policy_chosen, policy_rejected, ref_chosen, ref_rejected).sort().values
    return -F.logsigmoid(beta * (h - h.flip(0)) / 2).mean()


@aot(
    "aot_sorted_before_reference",
    "Each of the four inputs is sorted by itself, so answers lose their own reference. Subtract first,"
    " then sort.",
)
def sorted_before_reference(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    pc, pr, rc, rr = (
        x.float().sort().values for x in (policy_chosen, policy_rejected, ref_chosen, ref_rejected)
    )
    return -F.logsigmoid(beta * ((pc - rc) - (pr - rr))).mean()


@aot("dpo_missing_reference", "The reference is left out: what is sorted are log-ratios to it.")
def aot_missing_reference(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return -F.logsigmoid(beta * gap(policy_chosen.float(), policy_rejected.float())).mean()


@aot("aot_reversed", "The gap is the wrong way round: chosen quantile minus rejected quantile.")
def aot_reversed(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    chosen, rejected = ratios(policy_chosen, policy_rejected, ref_chosen, ref_rejected)
    return -F.logsigmoid(beta * gap(rejected, chosen)).mean()


@aot(
    "aot_detached",
    "The sorted values carry no gradient: sort() does, a detour over lists or NumPy does not.",
)
def aot_detached(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    chosen, rejected = ratios(policy_chosen, policy_rejected, ref_chosen, ref_rejected)
    return -F.logsigmoid(beta * gap(chosen.detach(), rejected.detach())).mean()


@aot("dpo_beta_missing", "beta does not enter. It scales the gap, inside the sigmoid.")
def aot_beta_missing(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return -F.logsigmoid(gap(*ratios(policy_chosen, policy_rejected, ref_chosen, ref_rejected))).mean()


@aot("dpo_beta_outside", "beta multiplies the loss. It scales the gap, inside the sigmoid.")
def aot_beta_outside(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return -beta * F.logsigmoid(gap(*ratios(policy_chosen, policy_rejected, ref_chosen, ref_rejected))).mean()


@aot("dpo_not_negated", "The optimiser minimises: put the minus sign in front of the logarithm.")
def aot_not_negated(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return F.logsigmoid(beta * gap(*ratios(policy_chosen, policy_rejected, ref_chosen, ref_rejected))).mean()


@aot(
    "dpo_log_of_sigmoid",
    "log(sigmoid(x)) leaves the finite numbers far below zero: F.logsigmoid never does.",
)
def aot_log_of_sigmoid(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    h = gap(*ratios(policy_chosen, policy_rejected, ref_chosen, ref_rejected))
    return -torch.sigmoid(beta * h).log().mean()


@aot("bt_not_reduced", "One loss a quantile comes back: finish with the mean.")
def aot_not_reduced(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return -F.logsigmoid(beta * gap(*ratios(policy_chosen, policy_rejected, ref_chosen, ref_rejected)))


@aot("dpo_sum_for_mean", "This adds the quantiles up. Average them.")
def aot_sum_for_mean(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):
    return -F.logsigmoid(beta * gap(*ratios(policy_chosen, policy_rejected, ref_chosen, ref_rejected))).sum()
