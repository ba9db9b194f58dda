"""Preference optimisation on a fixed data set: the policy against cached reference log-probs.

Deviations from TRL's trainer, each on purpose: dropout is off, so that policy and reference are the same
function while their weights agree; IPO takes whole responses unless asked for averages; AOT sorts the whole
optimiser batch, however it is cut, where a micro-batch of one would be DPO.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from helpers.errors import CourseError
from helpers.guard import guarded
from helpers.models import processes
from helpers.models.policy import reference_logprobs, response_logprobs
from helpers.text.groups import Group, make_batch
from helpers.training.configs import PreferenceConfig
from helpers.training.fit import fit
from helpers.training.pairs import (
    COUPLED,
    WholeBatch,
    check_preference,
    lengths_of,
    pair_weights,
    preference_loss,
    whole_batch,
)
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
LOSSES = {"dpo": "dpo_loss", "ipo": "ipo_loss", "aot": "aot_loss"}


@dataclasses.dataclass
class PreferenceObjective:
    """A loss of the four log-probs of every pair."""

    space: Workspace
    answers: Any
    loss_function: Callable[..., torch.Tensor]
    eval_items: Sequence[TrainingItem]
    samples: SampleLogger
    whole: WholeBatch | None = None

    def weight(self, items: Sequence[TrainingItem]) -> float:
        """Number of pairs."""
        return float(len(items))

    @torch.no_grad()
    def prepare(self, model: torch.nn.Module, micro_batches: Sequence[Sequence[TrainingItem]]) -> None:
        """Where a loss couples its pairs, work out what the whole batch asks of each of them."""
        self.whole = None
        if self.space.config.algo in COUPLED and len(micro_batches) > 1:
            items = [item for micro in micro_batches for item in micro]
            policy, reference = self.batched_logprobs(model, micro_batches)
            self.whole = whole_batch(policy, lambda leaf: self.value(leaf, reference, items), items)

    def loss(
        self, model: torch.nn.Module, items: Sequence[TrainingItem]
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Mean loss over the pairs, and metrics.

        Of a batch that was prepared it is the whole batch's loss, with the gradient of these pairs' part.
        """
        policy, reference = self.pair_logprobs(model, items)
        if self.whole is None:
            loss = self.value(policy, reference, items)
        else:
            loss = self.whole.part(policy, items)
        return loss, self.metrics(policy.detach(), reference, items)

    def value(
        self, policy: torch.Tensor, reference: torch.Tensor, items: Sequence[TrainingItem]
    ) -> torch.Tensor:
        """The learner's loss of (pairs, 2) log-probs."""
        sizes = lengths_of(items, policy) if self.space.config.length_average else 1.0
        config = self.space.config
        return preference_loss(self.loss_function, policy / sizes, reference / sizes, config, items)

    def metrics(
        self, policy: torch.Tensor, reference: torch.Tensor, items: Sequence[TrainingItem]
    ) -> dict[str, float]:
        """Implicit rewards beta * (log pi - log ref), averaged over a response's tokens if the loss is."""
        config = self.space.config
        reward = config.beta * (policy - reference)
        if config.length_average:
            reward = reward / lengths_of(items, policy)
        return {
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

    def batched_logprobs(
        self, model: torch.nn.Module, batches: Sequence[Sequence[TrainingItem]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`pair_logprobs` of all batches, one after the other."""
        parts = [self.pair_logprobs(model, items) for items in batches]
        policy, reference = (torch.cat(side) for side in zip(*parts, strict=True))
        return policy, reference

    @torch.no_grad()
    def evaluate(self, model: torch.nn.Module, step: int) -> dict[str, float]:
        """Loss (pairs unweighted, AOT's over them all) and metrics on held-out pairs, and sample answers."""
        self.samples.write(model, step)
        items = self.eval_items
        if not items:
            return {}
        batches = [items[i : i + 16] for i in range(0, len(items), 16)]
        policy, reference = self.batched_logprobs(model, batches)
        loss = self.value(policy, reference, items)
        return {"loss": loss.item(), **self.metrics(policy, reference, items)}


def with_reference(
    space: Workspace, policy: Policy, groups: Sequence[Group], weights: Sequence[float | None] | None = None
) -> list[TrainingItem]:
    """Pairs with their summed reference log-probs, from the cache where it has them, and their weights."""
    sums = processes.once(lambda: reference_sums(space, policy, groups))
    return [
        TrainingItem(group, reference=reference, weight=weight)
        for group, reference, weight in zip(groups, sums, weights or [None] * len(groups), strict=True)
    ]


def reference_sums(space: Workspace, policy: Policy, groups: Sequence[Group]) -> list[tuple[float, ...]]:
    """Summed reference log-probs of every response, from the cache where it has them."""
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
    return [tuple(float(tokens.sum()) for tokens in responses) for responses in per_token]


def train_preference(config: PreferenceConfig, answers: Any, *, stop_at_step: int | None = None) -> RunResult:
    """Train a policy adapter on preference pairs; the result is `final/adapter`.

    Args:
        answers: namespace with the algorithm's loss (see `LOSSES`) and `pair_accuracy`.
    """
    if config.algo not in LOSSES:
        raise CourseError(f"--algo {config.algo} is not one of {', '.join(LOSSES)}")
    check_preference(config)
    answers = guarded(answers)
    space = open_workspace(config, config.algo, answers.fingerprints(LOSSES[config.algo]))
    if done := finished_result(space.run):
        return done
    examples, groups = load_groups(space, "preference")
    eval_examples, eval_groups = load_groups(space, "preference", evaluation=True)
    policy = add_policy(space, dropout=0.0)
    disable_dropout(policy.model)
    fit_layout(space, policy.model, [*groups, *eval_groups])
    items = with_reference(space, policy, groups, pair_weights(examples, space.config.pair_weights))
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
