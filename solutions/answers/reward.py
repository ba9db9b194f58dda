"""Lesson 02: the reward model."""

import torch
import torch.nn.functional as F


def last_token_index(attention_mask: torch.Tensor) -> torch.Tensor:
    """Position of the last real token in each row, whichever side the padding is on.

    Args:
        attention_mask: (B, T), 1 on real tokens.

    Returns:
        (B,) long. A row without real tokens gives 0.
    """
    positions = torch.arange(attention_mask.shape[1], device=attention_mask.device)
    return (positions * attention_mask.bool()).argmax(dim=1)


def bradley_terry_loss(
    chosen_rewards: torch.Tensor, rejected_rewards: torch.Tensor, margin: torch.Tensor | float | None = None
) -> torch.Tensor:
    """Negative log-likelihood of the observed preferences (Bradley and Terry, 1952).

    L = mean of -log sigmoid(r_chosen - r_rejected - margin); the margin is Llama 2's
    (arXiv 2307.09288, eq. 2).

    Args:
        chosen_rewards, rejected_rewards: (B,).
        margin: (B,) or a number; how much better the chosen answer should score.

    Returns:
        Scalar float32, finite for rewards of any size.
    """
    gap = chosen_rewards.float() - rejected_rewards.float()
    if margin is not None:
        gap = gap - margin
    return -F.logsigmoid(gap.float()).mean()


def pair_accuracy(chosen_rewards: torch.Tensor, rejected_rewards: torch.Tensor) -> float:
    """Share of pairs whose chosen answer scores strictly higher; a tie counts as wrong.

    Args:
        chosen_rewards, rejected_rewards: (B,).

    Returns:
        float in [0, 1]; 0 for no pairs.
    """
    if chosen_rewards.numel() == 0:
        return 0.0
    return (chosen_rewards > rejected_rewards).double().mean().item()
