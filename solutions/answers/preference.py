"""Lesson 03: direct preference optimisation."""

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
        Scalar float32; ln 2 when policy and reference agree.
    """
    chosen_logratio = policy_chosen - ref_chosen
    rejected_logratio = policy_rejected - ref_rejected
    return -F.logsigmoid(beta * (chosen_logratio - rejected_logratio).float()).mean()
