"""Penalties that make a reward harder to game: on length, and on repeating oneself.

They shape what the policy is trained on. What is logged as `reward` stays the reward model's own number, so
that runs with and without a penalty can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from helpers.models.sampling import Completion
from helpers.training.configs import OnlineConfig

NGRAM = 3  # tokens


def penalties_used(config: OnlineConfig) -> tuple[str, ...]:
    """The answers that a run with these settings needs besides its algorithm's."""
    wanted = (("length_penalty", config.length_penalty), ("repetition_fraction", config.diversity_penalty))
    return tuple(name for name, weight in wanted if weight)


def penalised(
    raw: torch.Tensor, completions: Sequence[Sequence[Completion]], answers: Any, config: OnlineConfig
) -> tuple[torch.Tensor, dict[str, float]]:
    """Rewards less the penalties asked for, and the columns that show them.

    Args:
        raw: (N,) rewards of the responses, finite or not, group after group.

    Returns:
        (N,) rewards to train on, `raw` itself without penalties; not finite where `raw` is not.
    """
    rewards, columns = raw, {}
    ids = [answer.ids for group in completions for answer in group]
    if config.length_penalty:
        lengths = torch.tensor([float(len(tokens)) for tokens in ids])
        rewards = answers.length_penalty(rewards, lengths, config.length_penalty)
    if config.diversity_penalty:
        repeated = torch.tensor([float(answers.repetition_fraction(tokens, n=NGRAM)) for tokens in ids])
        rewards = rewards - config.diversity_penalty * repeated
        columns["repetition"] = repeated.mean().item()
    if penalties_used(config):
        columns["penalty"] = torch.nan_to_num(raw - rewards).mean().item()
    return rewards, columns
