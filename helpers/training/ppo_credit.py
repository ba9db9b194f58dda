"""From scores to credit: which tokens PPO learns from, their advantages and value targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from helpers.training.ppo_config import PPOConfig
from helpers.training.rollouts import MicroBatch, Rollout


@dataclass
class CreditedBatch(MicroBatch):
    """A micro-batch with `advantages` (N, R), whitened over the whole rollout."""

    learn: torch.Tensor  # (N, R) bool: the tokens that are learned from, in every numerator and denominator
    rewards: torch.Tensor  # (N, R) shaped
    values: torch.Tensor  # (N, R) at the time of the rollout
    returns: torch.Tensor  # (N, R) targets of the value, from advantages before whitening

    @property
    def tokens(self) -> int:
        """How many tokens are learned from."""
        return int(self.learn.sum())


def scores_of(
    rollout: Rollout, abstained: torch.Tensor, config: PPOConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores less the penalty for a missing end, and which responses are learned from; (N,) each.

    A response without a finite reward abstains: its tokens enter no mean, no whitening and no value target.
    """
    complete = torch.tensor([answer.complete for group in rollout.completions for answer in group])
    rewards = rollout.rewards if rollout.penalised is None else rollout.penalised
    scores = rewards - config.missing_eos_penalty * (~complete).float()
    learned = ~abstained & complete if config.mask_truncated else ~abstained
    return scores, learned


def credit(
    micro: MicroBatch,
    values: torch.Tensor,
    scores: torch.Tensor,
    learned: torch.Tensor,
    answers: Any,
    config: PPOConfig,
    kl_coef: float,
) -> CreditedBatch:
    """Shaped rewards, advantages (not yet whitened) and returns of one micro-batch."""
    device = micro.batch.mask.device
    learn = micro.batch.mask & learned[micro.places].to(device)[:, None]
    own = scores[micro.places].to(device)
    rewards = answers.kl_shaped_rewards(own, micro.old_logprobs, micro.ref_logprobs, learn, kl_coef)
    advantages, returns = answers.gae(rewards, values, learn, config.gamma, config.lam)
    given = {**vars(micro), "advantages": advantages}
    return CreditedBatch(**given, learn=learn, rewards=rewards, values=values, returns=returns)


def whiten_all(micros: Sequence[CreditedBatch], answers: Any) -> None:
    """Whiten the advantages over every token of the rollout that is learned from."""
    flat = torch.cat([micro.advantages[micro.learn] for micro in micros])[None]
    white = answers.whiten(flat, torch.ones_like(flat, dtype=torch.bool))[0]
    for micro, part in zip(micros, white.split([micro.tokens for micro in micros]), strict=True):
        micro.advantages = torch.zeros_like(micro.advantages).masked_scatter(micro.learn, part)


def measure_credit(
    micros: Sequence[CreditedBatch], scores: torch.Tensor, learned: torch.Tensor
) -> dict[str, float]:
    """Scores, what the drift was charged, and how much of the returns the values foretold.

    Explained variance is 1 - Var(return - value) / Var(return) over the tokens: 1 for a perfect value, 0 for
    a constant one, below 0 for one that is worse than that.
    """
    responses = max(int(learned.sum()), 1)
    score = float(scores[learned].sum()) / responses
    shaped = sum(float(micro.rewards.sum()) for micro in micros) / responses
    values = torch.cat([micro.values[micro.learn] for micro in micros])
    returns = torch.cat([micro.returns[micro.learn] for micro in micros])
    spread = float(returns.var()) if len(returns) > 1 else 0.0
    missed = float((returns - values).var()) if len(returns) > 1 else 0.0
    return {
        "score": score,
        "kl_penalty": shaped - score,
        "value": float(values.mean()) if len(values) else 0.0,
        "return": float(returns.mean()) if len(returns) else 0.0,
        "explained_variance": 1.0 - missed / spread if spread > 0 else 0.0,
    }


def adapted_coefficient(kl_coef: float, kl: float, target: float, responses: int, horizon: int) -> float:
    """Move the price of drift towards what holds `kl` at `target` (Ziegler et al., 2019, section 2.2).

    The error kl / target - 1 counts for at most 0.2 either way, so one strange batch moves little.
    """
    error = min(max(kl / target - 1.0, -0.2), 0.2)
    return kl_coef * (1.0 + error * responses / horizon)
