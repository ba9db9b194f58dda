"""The group-relative algorithms: each is advantages + loss, made of the learner's functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from helpers.training.configs import OnlineConfig
from helpers.training.rollouts import MicroBatch


@dataclass(frozen=True)
class Algorithm:
    """Advantages from rewards, and a loss that is a mean over responses.

    advantages(answers, rewards (N,), group_size) -> (N,)
    loss(answers, logprobs (N, R), micro, config) -> scalar
    by_response: the ratio that is clipped is one of a whole response, not of a token.
    """

    name: str
    advantages: Callable[[Any, torch.Tensor, int], torch.Tensor]
    loss: Callable[[Any, torch.Tensor, MicroBatch, OnlineConfig], torch.Tensor]
    uses: tuple[str, ...]  # the answers that shape the weights
    by_response: bool = False


def arguments(logprobs: torch.Tensor, micro: MicroBatch, config: OnlineConfig) -> tuple[Any, ...]:
    """What all three losses take, of the responses that are learned from.

    Rows that are left out are cut off here, so that they are missing from numerator and denominator alike.
    """
    rows = slice(None) if micro.taught is None else micro.taught
    return (
        logprobs[rows],
        micro.old_logprobs[rows],
        micro.ref_logprobs[rows],
        micro.advantages[rows],
        micro.batch.mask[rows],
        config.clip_eps,
        config.kl_coef,
        config.clip_eps_high,
    )


def grpo_step_loss(
    answers: Any, logprobs: torch.Tensor, micro: MicroBatch, config: OnlineConfig
) -> torch.Tensor:
    """GRPO's loss of one micro-batch, by the answer `grpo_loss`."""
    return answers.grpo_loss(*arguments(logprobs, micro, config))


def dr_grpo_step_loss(
    answers: Any, logprobs: torch.Tensor, micro: MicroBatch, config: OnlineConfig
) -> torch.Tensor:
    """Dr.GRPO's: the divisor is the generation budget, whatever the batch holds."""
    return answers.dr_grpo_loss(*arguments(logprobs, micro, config), max_new_tokens=config.max_new_tokens)


def gspo_step_loss(
    answers: Any, logprobs: torch.Tensor, micro: MicroBatch, config: OnlineConfig
) -> torch.Tensor:
    """GSPO's: one ratio a response."""
    return answers.gspo_loss(*arguments(logprobs, micro, config))


def group_relative(answers: Any, rewards: torch.Tensor, group_size: int) -> torch.Tensor:
    """Advantages relative to the siblings, in standard deviations of the group."""
    return answers.group_advantages(rewards, group_size)


def group_centred(answers: Any, rewards: torch.Tensor, group_size: int) -> torch.Tensor:
    """Advantages relative to the siblings, in rewards: a group that hardly differs teaches little."""
    return answers.group_advantages(rewards, group_size, scale_by_std=False)


ALGORITHMS = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm("grpo", group_relative, grpo_step_loss, ("group_advantages", "grpo_loss")),
        Algorithm("dr_grpo", group_centred, dr_grpo_step_loss, ("group_advantages", "dr_grpo_loss")),
        Algorithm(
            "gspo", group_relative, gspo_step_loss, ("group_advantages", "gspo_loss"), by_response=True
        ),
    )
}
