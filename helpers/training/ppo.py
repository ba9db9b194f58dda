"""PPO as in the InstructGPT line (Ouyang et al. 2022, arXiv 2203.02155; Schulman et al. 2017, 1707.06347).

Policy, reference, reward model and value are adapters and heads on one base. Every token is charged its
drift from the reference, the last one earns the score; a learned value turns that into advantages.
Deviations, each on purpose: policy and value have adapters of their own, so they are clipped and rated
apart and no weight between their losses is needed; responses without a finite score take part in nothing;
a cut-off response ends like a complete one (its value afterwards is 0) and pays `missing_eos_penalty`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from helpers.files import read_json, write_json
from helpers.models.policy import response_logprobs
from helpers.training.online import OnlineTrainer, start_online
from helpers.training.ppo_config import PPOConfig
from helpers.training.ppo_credit import (
    CreditedBatch,
    adapted_coefficient,
    credit,
    measure_credit,
    scores_of,
    whiten_all,
)
from helpers.training.ppo_value import ValueModel, add_value
from helpers.training.rollouts import MicroBatch, Rollout, Scorer, abstain, lay_out, measure, passes
from helpers.training.setup import RunResult
from helpers.training.updates import RatioWatch
from helpers.training.watch import HeldOut

USES = ("kl_shaped_rewards", "gae", "whiten", "ppo_policy_loss", "ppo_value_loss")


class PPOTrainer(OnlineTrainer):
    """The online loop with a value: rollouts carry advantages by token, updates train two adapters."""

    config: PPOConfig

    def __init__(self, *roles: Any, value: ValueModel) -> None:
        """roles: what `OnlineTrainer` takes."""
        self.value = value
        super().__init__(*roles)
        self.kl_coef = float(self.config.kl_coef)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """One optimiser with two groups: the policy's adapter, and the value's adapter and head."""
        optimizer = super().make_optimizer()  # of the policy alone: the value is still frozen
        self.value_parameters = self.value.unfreeze()
        rate = self.config.value_learning_rate or self.config.learning_rate
        group = {"params": self.value_parameters, "lr": rate, "weight_decay": self.config.weight_decay}
        optimizer.add_param_group(group)
        return optimizer

    # ------------------------------------------------------------------ rollout
    def rollout(self) -> Rollout:
        """Responses with scores, log-probs, values, whitened advantages and returns."""
        c = self.config
        groups, completions, raw = self.sample()
        rewards, abstained = abstain(raw, c.group_size)
        rollout = Rollout(groups, completions, rewards, torch.zeros_like(rewards))
        rollout.penalised, penalties = self.penalise(raw, completions)
        with self.autocast:
            lay_out(self.model, rollout, c, self.space.pad_id, self.policy.reference, self.step)
        rollout.metrics = measure(rollout, abstained, c.group_size, self.answers)
        rollout.metrics |= penalties
        rollout.metrics["kl_sequence"] = rollout.metrics["kl"] * rollout.metrics["tokens"]
        rollout.metrics["kl_coef"] = self.kl_coef
        scores, learned = scores_of(rollout, abstained, c)
        windows = [self.credit_window(window, scores, learned) for window in rollout.windows]
        micros = [micro for window in windows for micro in window]
        rollout.windows = [[*window] for window in windows]
        whiten_all(micros, self.answers)
        rollout.metrics |= measure_credit(micros, scores, learned)
        return rollout

    @torch.no_grad()
    def credit_window(
        self, window: Sequence[MicroBatch], scores: torch.Tensor, learned: torch.Tensor
    ) -> list[CreditedBatch]:
        """The micro-batches of a window with values and credit."""
        credited = []
        for micro in window:
            with self.autocast:
                values = self.value.token_values(micro.batch)
            credited.append(credit(micro, values, scores, learned, self.answers, self.config, self.kl_coef))
        return credited

    # ------------------------------------------------------------------ update
    def update(self, rollout: Rollout) -> dict[str, float]:
        """Step after step over the rollout, until its passes are done or the policy is too far from it."""
        watch = RatioWatch(self.config)
        rows: list[dict[str, float]] = []
        windows: list[list[Any]] = list(passes(rollout, self.config, self.step))  # credited
        limit = math.inf if self.config.target_kl is None else self.config.target_kl
        for window in windows:
            row = self.backward_both(window, watch)
            if row["update_kl"] > limit:
                self.optimizer.zero_grad(set_to_none=True)
                break
            row["grad_norm"], row["value_grad_norm"] = self.step_both(window, row["loss"])
            rows.append(row)
        for _ in windows[len(rows) :]:  # the schedule goes by the steps that were planned
            self.scheduler.step()
        self.adapt(rollout)
        return {
            **{name: sum(row[name] for row in rows) / len(rows) for name in (rows[0] if rows else ())},
            "epochs": len(rows) / len(rollout.windows),
            "learning_rate": self.scheduler.get_last_lr()[0],
            **watch.metrics(),
        }

    def backward_both(self, window: Sequence[CreditedBatch], watch: RatioWatch) -> dict[str, float]:
        """Back-propagate both losses, each the mean over the window's tokens; return what they are."""
        total = max(sum(micro.tokens for micro in window), 1)
        row = dict.fromkeys(("loss", "policy_loss", "value_loss", "update_kl", "value_clip_fraction"), 0.0)
        for micro in window:
            share = micro.tokens / total
            parts = {**self.policy_backward(micro, share, watch), **self.value_backward(micro, share)}
            for name, part in parts.items():
                row[name] += share * part
        row["loss"] += row["value_loss"]
        return row

    def policy_backward(self, micro: CreditedBatch, share: float, watch: RatioWatch) -> dict[str, float]:
        """The clipped surrogate, less the entropy bonus."""
        c, bonus = self.config, self.config.entropy_coef > 0
        with self.autocast:
            now = response_logprobs(self.model, micro.batch, temperature=c.temperature, with_entropy=bonus)
            policy_loss = self.answers.ppo_policy_loss(
                now.logprobs,
                micro.old_logprobs,
                micro.advantages,
                micro.learn,
                c.clip_eps,
                c.clip_eps_high,
            )
            loss = policy_loss
            if now.entropy is not None:
                loss = loss - c.entropy_coef * now.entropy[micro.learn].sum() / max(micro.tokens, 1)
        self.scaler.scale(loss * share).backward()
        logprobs = now.logprobs.detach()
        watch.see(logprobs, micro)
        drift = self.answers.approx_kl(micro.old_logprobs, logprobs, micro.learn, estimator="k3")
        return {"loss": loss.item(), "policy_loss": policy_loss.item(), "update_kl": drift.item()}

    def value_backward(self, micro: CreditedBatch, share: float) -> dict[str, float]:
        """The clipped squared error; the policy's adapter is off, so nothing of it reaches the policy."""
        c = self.config
        with self.value.active():
            with self.autocast:
                values = self.value.token_values(micro.batch)
            loss = self.answers.ppo_value_loss(
                values, micro.values, micro.returns, micro.learn, c.value_clip_eps
            )
            self.scaler.scale(loss * share).backward()
        moved = (values.detach() - micro.values).abs() > c.value_clip_eps
        clipped = float((moved & micro.learn).sum()) / max(micro.tokens, 1)
        return {"value_loss": loss.item(), "value_clip_fraction": clipped}

    def step_both(self, window: Sequence[CreditedBatch], loss: float) -> tuple[float, float]:
        """One optimiser step, skipped and counted if anything is not finite or nothing is learned from."""
        if not any(micro.tokens for micro in window):
            self.skipped += 1
            self.optimizer.zero_grad(set_to_none=True)
            self.optimizer.step()  # moves nothing without gradients; the schedule wants to see it first
            self.scheduler.step()
            return 0.0, 0.0
        self.optimizer_step(loss)
        return self.norms

    def clip_gradients(self) -> float:
        """Clip both groups, each by itself: a value far off must not slow the policy."""
        limit = self.config.max_grad_norm
        value = float(torch.nn.utils.clip_grad_norm_(self.value_parameters, limit))
        self.norms = super().clip_gradients(), value
        return sum(self.norms)

    def adapt(self, rollout: Rollout) -> None:
        """Move the price of drift, if that is asked for."""
        target, kl = self.config.adaptive_kl_target, rollout.metrics["kl_k1"]
        if target is not None and math.isfinite(kl):
            responses, horizon = len(rollout.rewards), self.config.kl_horizon
            self.kl_coef = adapted_coefficient(self.kl_coef, kl, target, responses, horizon)

    # ------------------------------------------------------------------ checkpoints
    def write(self, draft: Path) -> None:
        """Also the value and the price of drift."""
        super().write(draft)
        self.value.save(draft / "value")
        write_json(draft / "ppo.json", {"kl_coef": self.kl_coef})

    def restore(self, checkpoint: Path) -> None:
        """Continue from a checkpoint."""
        super().restore(checkpoint)
        self.value.restore(checkpoint / "value")
        self.kl_coef = read_json(checkpoint / "ppo.json")["kl_coef"]


def train_ppo(
    config: PPOConfig,
    answers: Any,
    *,
    scorer: Scorer | None = None,
    stop_at_step: int | None = None,
    held_out: HeldOut | None = None,
) -> RunResult:
    """Train a policy adapter by PPO; the result is `final/adapter`.

    Args:
        answers: namespace with `USES`, `approx_kl` and `last_token_index`.
        scorer: scores in place of the reward model of `config.reward_model`; without one the value is fresh.
        held_out: gives the judge of every evaluation's answers, beside the reward (column `gold`).
    """

    def make(space: Any, fenced: Any, policy: Any, *others: Any) -> PPOTrainer:
        return PPOTrainer(space, fenced, policy, *others, value=add_value(space, policy, fenced))

    return start_online(
        config, answers, USES, make, scorer=scorer, stop_at_step=stop_at_step, held_out=held_out
    )
