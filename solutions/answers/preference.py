"""Lessons 03 to 05: preference losses on the four log-probs of a pair; DPO, IPO and AOT."""

import torch
import torch.nn.functional as F


def dpo_loss(
    policy_chosen: torch.Tensor,
    policy_rejected: torch.Tensor,
    ref_chosen: torch.Tensor,
    ref_rejected: torch.Tensor,
    beta: float,
) -> torch.Tensor:
    """Direct preference optimisation (Rafailov et al., 2023, arXiv 2305.18290, eq. 7).

    L = mean of -log sigmoid(beta * [(log pi_w - log ref_w) - (log pi_l - log ref_l)]).

    Args:
        policy_chosen, policy_rejected: (B,) log-probability of each whole response under the policy.
        ref_chosen, ref_rejected: (B,) the same under the frozen reference.
        beta: strength of the pull towards the reference, in units of 1 / nat.

    Returns:
        Scalar float32, also for inputs in half precision.
    """
    chosen_logratio = policy_chosen - ref_chosen
    rejected_logratio = policy_rejected - ref_rejected
    return -F.logsigmoid(beta * (chosen_logratio - rejected_logratio).float()).mean()


def ipo_loss(
    policy_chosen: torch.Tensor,
    policy_rejected: torch.Tensor,
    ref_chosen: torch.Tensor,
    ref_rejected: torch.Tensor,
    beta: float,
) -> torch.Tensor:
    """Identity preference optimisation (Azar et al., 2023, arXiv 2310.12036, eq. 17; beta is its tau).

    L = mean of (h - 1 / (2 beta))^2 with h = (log pi_w - log ref_w) - (log pi_l - log ref_l), so a pair that
    is ranked right by more than the target is pulled back. With summed log-probs h and its target count nats
    of a whole response, with length-averaged ones (TRL's form) nats a token: a beta of one does not carry
    over to the other, nor to DPO.

    Args:
        policy_chosen, policy_rejected: (B,) log-probability of each response under the policy.
        ref_chosen, ref_rejected: (B,) the same under the frozen reference.
        beta: strength of the pull towards the reference, in units of 1 / nat; the target is 1 / (2 beta).

    Returns:
        Scalar float32, also for inputs in half precision.
    """
    chosen_logratio = policy_chosen - ref_chosen
    rejected_logratio = policy_rejected - ref_rejected
    difference = (chosen_logratio - rejected_logratio).float()
    return (difference - 1.0 / (2.0 * beta)).square().mean()


def aot_loss(
    policy_chosen: torch.Tensor,
    policy_rejected: torch.Tensor,
    ref_chosen: torch.Tensor,
    ref_rejected: torch.Tensor,
    beta: float,
) -> torch.Tensor:
    """Alignment via optimal transport, unpaired (Melnyk et al., 2024, arXiv 2406.05882, logistic loss).

    The chosen log-ratios as a distribution are to dominate the rejected ones: smallest meets smallest, second
    smallest meets second smallest. L = mean of -log sigmoid(beta * (sorted chosen - sorted rejected)).

    Args:
        policy_chosen, policy_rejected: (B,) log-probability of each whole response under the policy.
        ref_chosen, ref_rejected: (B,) the same under the frozen reference.
        beta: slope of the logistic loss, in units of 1 / nat.

    Returns:
        Scalar float32, also for inputs in half precision. The loss of a
        batch is not the mean over its parts: give it the whole batch.
    """
    chosen_quantiles = (policy_chosen - ref_chosen).sort().values
    rejected_quantiles = (policy_rejected - ref_rejected).sort().values
    return -F.logsigmoid(beta * (chosen_quantiles - rejected_quantiles).float()).mean()
