"""Preference optimisation on a fixed data set: the policy against cached reference log-probs.

Deviation from TRL's trainer: dropout is off, so that policy and reference are the same function while their
weights agree and the loss of step 0 is ln 2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from helpers.errors import CourseError
from helpers.guard import guarded
from helpers.models.policy import reference_logprobs, response_logprobs
from helpers.text.groups import Group, make_batch
from helpers.training.configs import PreferenceConfig
from helpers.training.fit import fit
from helpers.training.samples import SampleLogger
from helpers.training.setup import (
    Policy,
    RunResult,
    Workspace,
    add_policy,
    disable_dropout,
    finished_result,
    fit_layout,
    load_groups,
    open_workspace,
)
from helpers.training.trainer import TrainingItem

# algo → name of the answer; each takes (policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta)
LOSSES = {"dpo": "dpo_loss"}


@dataclasses.dataclass
class PreferenceObjective:
    """A loss of the four summed log-probs of every pair."""

    space: Workspace
    answers: Any
    loss_function: Callable[..., torch.Tensor]
    eval_items: Sequence[TrainingItem]
    samples: SampleLogger

    def weight(self, items: Sequence[TrainingItem]) -> float:
        """Number of pairs."""
        return float(len(items))

    def loss(
        self, model: torch.nn.Module, items: Sequence[TrainingItem]
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Mean loss over the pairs, with implicit rewards beta * (log pi - log ref) in the metrics."""
        policy, reference = self.pair_logprobs(model, items)
        beta = self.space.config.beta
        loss = self.loss_function(policy[:, 0], policy[:, 1], reference[:, 0], reference[:, 1], beta)
        reward = beta * (policy.detach() - reference)
        return loss, {
            "reward_chosen": reward[:, 0].mean().item(),
            "reward_rejected": reward[:, 1].mean().item(),
            "margin": (reward[:, 0] - reward[:, 1]).mean().item(),
            "accuracy": self.answers.pair_accuracy(reward[:, 0], reward[:, 1]),
            "logp_chosen": policy[:, 0].mean().item(),
            "logp_rejected": policy[:, 1].mean().item(),
        }

    def pair_logprobs(
        self, model: torch.nn.Module, items: Sequence[TrainingItem]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(pairs, 2) summed log-probs under the policy, with gradient, and under the reference."""
        device = next(model.parameters()).device
        groups = [item.group for item in items]
        batch = make_batch(groups, self.space.pad_id, self.space.config.layout).to(device)
        policy = response_logprobs(model, batch).logprobs.sum(dim=1).view(-1, 2)
        reference = torch.tensor([item.reference for item in items], dtype=policy.dtype, device=device)
        return policy, reference

    @torch.no_grad()
    def evaluate(self, model: torch.nn.Module, step: int) -> dict[str, float]:
        """Loss and implicit-reward accuracy on held-out pairs, and sample answers."""
        self.samples.write(model, step)
        sums: dict[str, float] = {}
        for start in range(0, len(self.eval_items), 16):
            items = self.eval_items[start : start + 16]
            loss, metrics = self.loss(model, items)
            for name, value in {"loss": loss.item(), **metrics}.items():
                sums[name] = sums.get(name, 0.0) + value * len(items)
        return {name: value / len(self.eval_items) for name, value in sums.items()}


def with_reference(space: Workspace, policy: Policy, groups: Sequence[Group]) -> list[TrainingItem]:
    """Pairs with their summed reference log-probs, from the cache where it has them."""
    config = space.config
    per_token = reference_logprobs(
        policy.model,
        groups,
        pad_id=space.pad_id,
        layout=config.layout,
        adapter=policy.reference,
        cache_dir=config.reference_cache or space.run.path / "reference",
        key=space.encoder.fingerprint,
    )
    return [
        TrainingItem(group, reference=tuple(float(tokens.sum()) for tokens in responses))
        for group, responses in zip(groups, per_token, strict=True)
    ]


def train_preference(config: PreferenceConfig, answers: Any, *, stop_at_step: int | None = None) -> RunResult:
    """Train a policy adapter on preference pairs; the result is `final/adapter`.

    Args:
        answers: namespace with the algorithm's loss (`dpo_loss`) and `pair_accuracy`.
    """
    if config.algo not in LOSSES:
        raise CourseError(f"--algo {config.algo} is not one of {', '.join(LOSSES)}")
    answers = guarded(answers)
    space = open_workspace(config, config.algo, answers.fingerprints(LOSSES[config.algo]))
    if done := finished_result(space.run):
        return done
    _, groups = load_groups(space, "preference")
    eval_examples, eval_groups = load_groups(space, "preference", evaluation=True)
    policy = add_policy(space, dropout=0.0)
    disable_dropout(policy.model)
    fit_layout(space, policy.model, [*groups, *eval_groups])
    items = with_reference(space, policy, groups)
    eval_items = with_reference(space, policy, eval_groups)
    loss = getattr(answers, LOSSES[config.algo])
    samples = SampleLogger(space, eval_examples, model=policy.model)
    objective = PreferenceObjective(space, answers, loss, eval_items, samples)
    return fit(
        space,
        policy.model,
        items,
        objective,
        save=policy.save,
        load=policy.restore,
        stop_at_step=stop_at_step,
    )
