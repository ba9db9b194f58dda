"""An online run of ours is recorded, and TRL's GRPOTrainer trains on the same responses and rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from peft import get_peft_model_state_dict

import helpers.training.online as online
import solutions.answers as answers
from helpers.text.groups import Group
from helpers.training.configs import OnlineConfig
from helpers.training.setup import add_policy, load_base, open_workspace
from tests.parity.trainers import copy_adapter, lora, trl_arguments
from tests.support import adapter_weights, metric_rows

Weights = dict[str, torch.Tensor]

ONLINE_FORMS: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo"},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence"},
}


@dataclass
class Curves:
    """Loss and gradient norm (before clipping) of every update; last and first weights."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    weights: Weights = field(default_factory=dict)
    start: Weights = field(default_factory=dict)
    rows: list[dict[str, str]] = field(default_factory=list)


@dataclass
class Recorder:
    """Cuts responses to unequal lengths (a random model hardly ever ends one) and rewards even token ids."""

    groups: list[list[Group]] = field(default_factory=list)
    rewards: list[list[float]] = field(default_factory=list)

    def sample(self, *arguments: Any) -> tuple[list[Group], list[list[Any]]]:
        """In place of `sample_groups`: what that draws, cut."""
        groups, drawn = self.drawn(*arguments)
        for i, (group, completions) in enumerate(zip(groups, drawn, strict=True)):
            for j, completion in enumerate(completions):
                ids = completion.ids[: 1 + (len(self.groups) + 3 * i + 2 * j) % 6]
                group.responses[j] = ids
                whole = completion.complete and len(ids) == len(completion.ids)
                completions[j] = replace(completion, ids=ids, complete=whole)
        self.groups.append(groups)
        return groups, drawn

    drawn = staticmethod(online.sample_groups)

    def score_groups(self, groups: Sequence[Group], *, batch_size: int = 16) -> list[list[float]]:
        """The share of even token ids."""
        scores = [[sum(t % 2 == 0 for t in r) / len(r) for r in g.responses] for g in groups]
        self.rewards.append([score for group in scores for score in group])
        return scores


def our_run(config: OnlineConfig, monkeypatch: pytest.MonkeyPatch) -> tuple[Curves, Recorder]:
    """Train with our trainer and record."""
    recorder, curves = Recorder(), Curves()
    step = online.OnlineTrainer.optimizer_step

    def watched(self: Any, loss: float) -> float:
        norm = step(self, loss)
        curves.losses.append(loss)
        curves.norms.append(norm)
        return norm

    monkeypatch.setattr(online, "sample_groups", recorder.sample)
    monkeypatch.setattr(online.OnlineTrainer, "optimizer_step", watched)
    run = online.train_online(config, answers, scorer=recorder)
    curves.weights = adapter_weights(run.final)
    curves.rows = [row for row in metric_rows(run.run_dir) if row.get("loss")]
    return curves, recorder


def trl_run(config: OnlineConfig, recorder: Recorder, **changes: Any) -> Curves:
    """Train with TRL's from the same first weights; only where responses come from is replaced."""
    trainer = replay_trainer(config, recorder, **changes)
    start = weights_of(trainer.model)
    trainer.train()
    logs = [row for row in trainer.state.log_history if "grad_norm" in row]
    return Curves(
        [row["loss"] for row in logs], [row["grad_norm"] for row in logs], weights_of(trainer.model), start
    )


def weights_of(model: torch.nn.Module) -> Weights:
    """A copy of the adapter, under the names it is saved by."""
    return {name: value.detach().clone() for name, value in get_peft_model_state_dict(model).items()}


def furthest(a: Weights, b: Weights) -> float:
    """The largest difference of any weight."""
    assert a.keys() == b.keys()
    return max((a[name] - b[name]).abs().max().item() for name in a)


def replay_trainer(config: OnlineConfig, recorder: Recorder, **changes: Any) -> Any:
    """A GRPOTrainer that is handed the recorded responses and rewards, step by step."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    steps = iter(zip(recorder.groups, recorder.rewards, strict=True))

    def rollout(prompts: list[Any], _: Any) -> dict[str, Any]:
        groups, rewards = next(steps)
        assert len(prompts) == len(rewards)
        return {
            "prompt_ids": [group.prompt_ids for group in groups for _ in group.responses],
            "completion_ids": [response for group in groups for response in group.responses],
            "logprobs": None,
            "recorded": rewards,
        }

    space = open_workspace(replace(config, output_dir=f"{config.output_dir}_start"), config.algo)
    config = space.config  # with its defaults filled in
    settings = {
        **ONLINE_FORMS[config.algo],
        "max_steps": config.max_steps * config.num_epochs,
        "per_device_train_batch_size": config.minibatch_size,
        "steps_per_generation": config.gradient_accumulation_steps,
        "num_iterations": config.num_epochs,
        "num_generations": config.group_size,
        "max_completion_length": config.max_new_tokens,
        "temperature": config.temperature,
        "epsilon": config.clip_eps,
        "epsilon_high": config.clip_eps_high,
        "beta": config.kl_coef,
        "use_bias_correction_kl": False,
        "shuffle_dataset": False,
    }
    trainer = GRPOTrainer(
        model=load_base(space),
        reward_funcs=lambda completions, recorded, **_: recorded,
        args=trl_arguments(GRPOConfig, config, **{**settings, **changes}),
        train_dataset=Dataset.from_list([{"prompt": f"{i}"} for i in range(len(recorder.rewards) * 8)]),
        processing_class=space.encoder.tokenizer,
        peft_config=lora(config, task_type="CAUSAL_LM"),
        rollout_func=rollout,
    )
    copy_adapter(add_policy(space, dropout=0.0).model, "policy", trainer.model)
    return trainer
