"""The reward model: base + adapter + score head, trained on preference pairs by the Bradley-Terry loss."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from helpers.errors import CourseError
from helpers.files import write_json
from helpers.guard import guarded
from helpers.models import loading
from helpers.models.reward_model import RewardModel
from helpers.text.datasets import Example
from helpers.text.groups import Group, make_batch
from helpers.training.configs import RewardConfig
from helpers.training.fit import fit
from helpers.training.setup import (
    RunResult,
    Workspace,
    finished_result,
    fit_layout,
    load_base,
    load_groups,
    lora_settings,
    open_workspace,
)
from helpers.training.trainer import TrainingItem


@dataclasses.dataclass
class RewardObjective:
    """Bradley-Terry loss over pairs, with an optional pull of rewards towards zero."""

    space: Workspace
    answers: Any
    reward_model: RewardModel
    eval_groups: Sequence[Group]

    def weight(self, items: Sequence[TrainingItem]) -> float:
        """Number of pairs."""
        return float(len(items))

    def loss(
        self, model: torch.nn.Module, items: Sequence[TrainingItem]
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Mean loss over the pairs of `items`."""
        chosen, rejected = self.rewards([item.group for item in items])
        margins = [item.margin for item in items]
        margin = None if None in margins else torch.tensor(margins, device=chosen.device)
        loss = self.answers.bradley_terry_loss(chosen, rejected, margin)
        weight = self.space.config.center_rewards_coefficient
        if weight:
            loss = loss + weight * (chosen + rejected).square().mean()
        metrics = {
            "accuracy": self.answers.pair_accuracy(chosen.detach(), rejected.detach()),
            "reward_chosen": chosen.mean().item(),
            "reward_rejected": rejected.mean().item(),
            "margin": (chosen - rejected).mean().item(),
        }
        return loss, metrics

    def rewards(self, groups: Sequence[Group]) -> tuple[torch.Tensor, torch.Tensor]:
        """(pairs,) rewards of the chosen and of the rejected responses."""
        device = next(self.reward_model.parameters()).device
        batch = make_batch(groups, self.space.pad_id, self.space.config.layout).to(device)
        scores = self.reward_model.score(batch)
        return scores[0::2], scores[1::2]

    @torch.no_grad()
    def evaluate(self, model: torch.nn.Module, step: int) -> dict[str, float]:
        """Pair accuracy and loss on held-out pairs; the rewards themselves go to eval_rewards.json."""
        if not self.eval_groups:
            return {}
        size = 16
        parts = [self.rewards(self.eval_groups[i : i + size]) for i in range(0, len(self.eval_groups), size)]
        chosen, rejected = (torch.cat(side).cpu() for side in zip(*parts, strict=True))
        rounded = {"step": step, "chosen": as_list(chosen), "rejected": as_list(rejected)}
        write_json(self.space.run.path / "eval_rewards.json", rounded)
        return {
            "pair_accuracy": self.answers.pair_accuracy(chosen, rejected),
            "loss": self.answers.bradley_terry_loss(chosen, rejected).item(),
            "reward_chosen": chosen.mean().item(),
            "reward_rejected": rejected.mean().item(),
        }


def as_list(values: torch.Tensor) -> list[float]:
    """Numbers rounded for a JSON file."""
    return [round(value, 5) for value in values.tolist()]


def margins_of(examples: Sequence[Example], field: str | None) -> list[float | None]:
    """The Bradley-Terry margin of every pair, from a row field; None without a field."""
    if field is None:
        return [None] * len(examples)
    margins: list[float | None] = []
    for example in examples:
        value = example.metadata.get(field)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            numbers = sorted(k for k, v in example.metadata.items() if isinstance(v, (int, float)))
            raise CourseError(
                f"--margin_field {field}: row {example.row_id} holds {value!r:.40} there, not a number"
                f" (its numbers: {', '.join(numbers) or 'none'})"
            )
        margins.append(float(value))
    return margins


def build_reward_model(space: Workspace, answers: Any) -> RewardModel:
    """A fresh reward model on the base: an adapter "reward", or all weights with `full_finetune`."""
    config = space.config
    if config.backend != "transformers":
        raise CourseError("--backend unsloth trains policies; a reward model is trained with transformers")
    base = load_base(space)
    options = {"seed": config.seed, "pad_id": space.pad_id, "layout": config.layout}
    if config.full_finetune:
        base.requires_grad_(True)
        return RewardModel.create(base, None, answers.last_token_index, **options)
    model = loading.add_adapter(base, "reward", lora_settings(config), seed=config.seed)
    return RewardModel.create(model, "reward", answers.last_token_index, **options)


def train_reward_model(config: RewardConfig, answers: Any, *, stop_at_step: int | None = None) -> RunResult:
    """Train a reward model on preference pairs; the result is `final/`, readable by `RewardModel.load`.

    Args:
        answers: namespace with `bradley_terry_loss`, `pair_accuracy` and `last_token_index`.
    """
    answers = guarded(answers)
    space = open_workspace(
        config, "reward_model", answers.fingerprints("bradley_terry_loss", "last_token_index")
    )
    if done := finished_result(space.run):
        return done
    examples, groups = load_groups(space, "preference")
    _, eval_groups = load_groups(space, "preference", evaluation=True)
    reward_model = build_reward_model(space, answers)
    fit_layout(space, reward_model.model, [*groups, *eval_groups])
    objective = RewardObjective(space, answers, reward_model, eval_groups)
    margins = margins_of(examples, space.config.margin_field)
    items = [TrainingItem(group, margin=margin) for group, margin in zip(groups, margins, strict=True)]

    def save(path: Path) -> None:
        reward_model.save(path)

    def load(path: Path) -> None:
        reward_model.restore(path)

    return fit(space, reward_model, items, objective, save=save, load=load, stop_at_step=stop_at_step)
