"""Rollouts: sample groups of responses, score them, and lay them out for the updates.

Prompts, samples and the order of updates are functions of (seed, step), never of a generator that has to be
saved: a resumed run draws what the uninterrupted one would have drawn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from helpers.models.adapters import reference
from helpers.models.policy import response_logprobs
from helpers.models.sampling import Completion, Sampling, generate
from helpers.text.groups import Group, TokenBatch, make_batch
from helpers.training.configs import OnlineConfig


class Scorer(Protocol):
    """Rewards of responses; `RewardModel` is one."""

    def score_groups(self, groups: Sequence[Group], *, batch_size: int = 16) -> list[list[float]]:
        """One reward for every response of every group; NaN or infinity where there is none."""


@dataclass
class MicroBatch:
    """What one forward and backward pass needs. N responses, the longest of R tokens.

    Its length is the number of responses that are learned from.
    """

    batch: TokenBatch
    old_logprobs: torch.Tensor  # (N, R) under the policy that sampled
    ref_logprobs: torch.Tensor  # (N, R) under the frozen reference
    entropy: torch.Tensor  # (N, R) of the sampling policy
    advantages: torch.Tensor  # (N,), or (N, R) where an algorithm gives each token its own
    places: torch.Tensor  # (N,) long: which responses of the rollout these are
    taught: torch.Tensor | None = field(default=None, kw_only=True)  # (N,) bool: learned from; None: all

    def __len__(self) -> int:
        return self.batch.mask.shape[0] if self.taught is None else int(self.taught.sum())

    @property
    def taught_mask(self) -> torch.Tensor:
        """(N, R) bool: tokens of the responses that are learned from."""
        return self.batch.mask if self.taught is None else self.batch.mask & self.taught[:, None]


@dataclass
class Rollout:
    """All groups of one step and what was measured on them."""

    groups: list[Group]
    completions: list[list[Completion]]
    rewards: torch.Tensor  # (prompts * group_size,) as the reward model gives them
    advantages: torch.Tensor  # (prompts * group_size,)
    windows: list[list[MicroBatch]] = field(default_factory=list)  # one list an optimiser step
    metrics: dict[str, float] = field(default_factory=dict)
    penalised: torch.Tensor | None = None  # rewards less the penalties, where there are any


def derive_seed(*parts: Any) -> int:
    """A seed that depends on all parts, the same on every machine."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:7], "big")


def prompt_indices(step: int, per_step: int, total: int, seed: int) -> list[int]:
    """The prompts of one step: a stream of permutations, each of all `total` prompts, cut into steps."""
    picked = []
    for position in range(step * per_step, (step + 1) * per_step):
        turn, place = divmod(position, total)
        generator = torch.Generator().manual_seed(derive_seed(seed, "prompts", turn))
        picked.append(int(torch.randperm(total, generator=generator)[place]))
    return picked


def sampling_of(config: OnlineConfig) -> Sampling:
    """How responses are drawn in training."""
    return Sampling(
        max_new_tokens=config.max_new_tokens,
        min_new_tokens=config.min_new_tokens,
        temperature=config.temperature,
        top_p=config.top_p,
    )


def sample_groups(
    model: torch.nn.Module, encoder: Any, prompts: Sequence[list[int]], config: OnlineConfig, step: int
) -> tuple[list[Group], list[list[Completion]]]:
    """Draw `group_size` responses to each prompt."""
    completions = generate(
        model,
        encoder,
        list(prompts),
        sampling_of(config),
        k=config.group_size,
        batch_size=config.generation_batch_size,
        seed=derive_seed(config.seed, "rollout", step),
    )
    groups = [
        Group(list(prompt), [answer.ids for answer in answers], row_id=f"step {step} prompt {i}")
        for i, (prompt, answers) in enumerate(zip(prompts, completions, strict=True))
    ]
    return groups, completions


def abstain(rewards: torch.Tensor, group_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Replace rewards that are not finite by the mean of their finite siblings.

    Args:
        rewards: (N,).

    Returns:
        (N,) finite rewards and (N,) bool, true where a response abstains: its advantage is set to zero, and
        its siblings' baseline is what it would be without it.
    """
    finite = torch.isfinite(rewards)
    groups = torch.where(finite, rewards, 0.0).view(-1, group_size)
    counts = finite.view(-1, group_size).sum(dim=1, keepdim=True)
    means = groups.sum(dim=1, keepdim=True) / counts.clamp(min=1)
    filled = torch.where(finite.view(-1, group_size), groups, means.expand_as(groups))
    return filled.reshape(-1), ~finite


@torch.no_grad()
def lay_out(
    model: torch.nn.Module,
    rollout: Rollout,
    config: OnlineConfig,
    pad_id: int,
    reference_adapter: str | None,
    step: int,
) -> None:
    """Cut the rollout into optimiser windows of micro-batches and add old and reference log-probs.

    Groups stay together, since siblings share their prompt. The cut is made once a step, so that old and
    new log-probs come from the same computation and the first ratio is exactly 1.
    """
    device = next(model.parameters()).device
    order = shuffled(len(rollout.groups), config.seed, "groups", step)
    per_micro = config.minibatch_size // config.group_size
    micros = [order[i : i + per_micro] for i in range(0, len(order), per_micro)]
    advantages = rollout.advantages.view(-1, config.group_size)
    complete = torch.tensor([[a.complete for a in answers] for answers in rollout.completions])
    ready = []
    for picked in micros:
        batch = make_batch([rollout.groups[i] for i in picked], pad_id, config.layout).to(device)
        old = response_logprobs(
            model, batch, temperature=config.temperature, with_entropy=True, entropy_grad=False
        )
        with reference(model, reference_adapter):
            ref = response_logprobs(model, batch, temperature=config.temperature)
        part = advantages[picked].reshape(-1).to(device)
        taught = complete[picked].reshape(-1).to(device) if config.mask_truncated else None
        places = torch.arange(rollout.advantages.numel()).view(advantages.shape)[picked].reshape(-1)
        ready.append(MicroBatch(batch, old.logprobs, ref.logprobs, old.entropy, part, places, taught=taught))
    size = config.gradient_accumulation_steps
    rollout.windows = [ready[i : i + size] for i in range(0, len(ready), size)]


def shuffled(total: int, *parts: Any) -> list[int]:
    """A permutation that depends on nothing but `parts`."""
    generator = torch.Generator().manual_seed(derive_seed(*parts))
    return torch.randperm(total, generator=generator).tolist()


def passes(rollout: Rollout, config: OnlineConfig, step: int) -> Iterator[list[MicroBatch]]:
    """The optimiser windows of every epoch over a rollout, in a fresh order each epoch."""
    for epoch in range(config.num_epochs):
        for index in shuffled(len(rollout.windows), config.seed, "windows", step, epoch):
            yield rollout.windows[index]


def measure(rollout: Rollout, abstained: torch.Tensor, group_size: int, answers: Any) -> dict[str, float]:
    """What the samples of a step look like, before the update.

    KL is estimated from the samples themselves: k1 and k3 of KL(policy || reference), mean per token.
    """
    rewards = rollout.rewards.view(-1, group_size)
    micros = [micro for window in rollout.windows for micro in window]
    old = torch.cat([m.old_logprobs[m.batch.mask] for m in micros])[None]
    ref = torch.cat([m.ref_logprobs[m.batch.mask] for m in micros])[None]
    everything = torch.ones_like(old, dtype=torch.bool)
    answers_flat = [answer for group in rollout.completions for answer in group]
    lengths = torch.tensor([float(len(answer.ids)) for answer in answers_flat])
    spread = rewards.std(dim=1) if group_size > 1 else torch.zeros(len(rewards))
    by_group = rewards.mean(dim=1)
    return {
        "reward": rewards.mean().item(),
        "reward_std": rollout.rewards.std().item() if rollout.rewards.numel() > 1 else 0.0,
        "reward_std_group": spread.mean().item(),
        "reward_group_min": by_group.min().item(),
        "reward_group_max": by_group.max().item(),
        "groups_without_variance": (spread == 0).float().mean().item(),
        "kl": answers.approx_kl(old, ref, everything, estimator="k3").item(),
        "kl_k1": answers.approx_kl(old, ref, everything, estimator="k1").item(),
        "entropy": torch.cat([m.entropy[m.batch.mask] for m in micros]).mean().item(),
        "tokens": lengths.mean().item(),
        "tokens_min": lengths.min().item(),
        "tokens_max": lengths.max().item(),
        "truncated": sum(not answer.complete for answer in answers_flat) / len(answers_flat),
        "abstained": abstained.float().sum().item(),
        "left_out": len(answers_flat) - sum(map(len, micros)),
    }
