"""Settings of PPO: those of online training, and what a learned value and a price on drift bring along."""

from __future__ import annotations

from dataclasses import dataclass

from helpers.training.configs import OnlineConfig, flag


@dataclass
class PPOConfig(OnlineConfig):
    """PPO with KL-shaped rewards, a value adapter and GAE; start it from the SFT model (--init_adapter)."""

    algo: str = flag("ppo", "ppo")
    kl_coef: float | None = flag(None, "price of a nat of drift from the reference, charged token by token")
    gamma: float | None = flag(None, "discount of GAE")
    lam: float | None = flag(None, "lambda of GAE: 0 trusts the values, 1 the rewards")
    value_clip_eps: float | None = flag(None, "a value moves this far from its old one, in rewards")
    value_learning_rate: float | None = flag(None, "of value adapter and head; default: --learning_rate")
    entropy_coef: float | None = flag(None, "weight of the entropy bonus")
    missing_eos_penalty: float | None = flag(None, "taken off the score of a response that was cut off")
    target_kl: float | None = flag(
        None, "end the passes over a rollout when the policy is this far from the one that sampled it"
    )
    adaptive_kl_target: float | None = flag(
        None, "move --kl_coef so that the mean KL a token settles here (arXiv 1909.08593, section 2.2)"
    )
    kl_horizon: int | None = flag(
        None, "responses over which the adaptive coefficient changes by at most a fifth"
    )
