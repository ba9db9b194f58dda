"""TRL's trainers with our settings, our token ids and our first weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import solutions.answers as answers
from helpers.text.groups import Group
from helpers.training.configs import PreferenceConfig, RewardConfig
from helpers.training.reward import build_reward_model
from helpers.training.setup import Workspace, load_base, load_groups, open_workspace
from tests.answers.numerics import random
from tests.support import metric_rows


def trl_arguments(kind: Any, config: Any, **changes: Any) -> Any:
    """Our settings under TRL's names; ours hold where its defaults differ (bf16, checkpointing)."""
    settings: dict[str, Any] = {
        "output_dir": f"{config.output_dir}_trl",
        "per_device_train_batch_size": config.per_device_train_batch_size,
        "gradient_accumulation_steps": config.gradient_accumulation_steps,
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": config.lr_scheduler_type,
        "warmup_steps": config.warmup_ratio,
        "max_grad_norm": config.max_grad_norm,
        "weight_decay": config.weight_decay,
        "max_steps": config.max_steps,
        "optim": "adamw_torch",
        "logging_steps": 1,
        "gradient_checkpointing": False,
        "bf16": False,
        "use_cpu": True,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }
    return kind(**{**settings, **changes})


def lora(config: Any, **changes: Any) -> Any:
    """The same adapter in PEFT's words."""
    from peft import LoraConfig

    common = {"r": config.lora_r, "lora_alpha": config.lora_alpha, "lora_dropout": config.lora_dropout}
    return LoraConfig(target_modules="all-linear", **{**common, **changes})


@torch.no_grad()
def copy_adapter(source: torch.nn.Module, name: str, target: torch.nn.Module) -> None:
    """Copy every adapter weight of `source` to the adapter "default" of `target`."""
    weights = {key: value for key, value in source.state_dict().items() if f".{name}." in key}
    places = {
        key: value for key, value in target.state_dict().items() if ".lora_" in key and ".default." in key
    }
    assert {key.replace(f".{name}.", ".default.") for key in weights} == set(places)
    for key, value in weights.items():
        places[key.replace(f".{name}.", ".default.")].copy_(value)


def our_losses(run_dir: Path) -> list[float]:
    """The loss of every step."""
    return [float(row["loss"]) for row in metric_rows(run_dir) if row.get("loss")]


def trl_losses(trainer: Any) -> list[float]:
    """The loss of every step."""
    trainer.train()
    return [row["loss"] for row in trainer.state.log_history if "loss" in row]


@dataclass(frozen=True)
class Form:
    """One preference loss in our settings and in TRL's."""

    ours: dict[str, Any]
    theirs: dict[str, Any]


PREFERENCE_FORMS = {
    "dpo": Form({"algo": "dpo"}, {"loss_type": "sigmoid"}),
    "ipo": Form({"algo": "ipo", "length_average": True}, {"loss_type": "ipo"}),
    "aot": Form({"algo": "aot"}, {"loss_type": "aot_unpaired"}),
    "aot_paired": Form({"algo": "aot", "aot_paired": True}, {"loss_type": "aot"}),
}


# ---------------------------------------------------------------- TRL's trainers on our token ids
def dpo_trainer(space: Workspace, groups: list[Group], **changes: Any) -> Any:
    """A DPOTrainer on pairs that are token ids already."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    class TokenDPOTrainer(DPOTrainer):
        def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
            return dataset

    rows = [
        {"prompt_ids": g.prompt_ids, "chosen_ids": g.responses[0], "rejected_ids": g.responses[1]}
        for g in groups
    ]
    return TokenDPOTrainer(
        model=load_base(space),
        args=trl_arguments(
            DPOConfig, space.config, **{"beta": space.config.beta, "max_length": None, **changes}
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=space.encoder.tokenizer,
        peft_config=lora(space.config, task_type="CAUSAL_LM"),
    )


def reward_trainer(space: Workspace, groups: list[Group]) -> Any:
    """A RewardTrainer on pairs that are token ids already."""
    from datasets import Dataset
    from transformers import AutoModelForSequenceClassification
    from trl import RewardConfig as TRLRewardConfig
    from trl import RewardTrainer

    rows = [
        {side: g.prompt_ids + g.responses[i] for i, side in enumerate(("chosen_ids", "rejected_ids"))}
        for g in groups
    ]
    model = AutoModelForSequenceClassification.from_pretrained(space.config.model_name, num_labels=1)
    return RewardTrainer(
        model=model,
        args=trl_arguments(TRLRewardConfig, space.config, max_length=None),
        train_dataset=Dataset.from_list(rows),
        processing_class=space.encoder.tokenizer,
        peft_config=lora(space.config, task_type="SEQ_CLS", modules_to_save=["score"]),
    )


def ready(configure: Any, kind: Any, algo: str, name: str, **changes: Any) -> tuple[Workspace, list[Group]]:
    """An open workspace and its encoded pairs."""
    space = open_workspace(configure(kind, name, **changes), algo)
    return space, load_groups(space, "preference")[1]


def reward_start(configure: Any, name: str, **changes: Any) -> tuple[Workspace, list[Group], Any]:
    """TRL's trainer with our adapter's and our head's first weights."""
    space, groups = ready(configure, RewardConfig, "reward_model", name, **changes)
    trainer = reward_trainer(space, groups)
    start = build_reward_model(space, answers)
    copy_adapter(start.model, "reward", trainer.model)
    score = trainer.model.base_model.model.score.modules_to_save["default"]
    score.weight.data.copy_(start.head.weight)
    return space, groups, trainer


def grpo_trainer(configure: Any, reward: Callable[..., list[float]] | None = None, **changes: Any) -> Any:
    """A GRPOTrainer with groups of 4; `reward` gives the completions' rewards."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    space, _ = ready(configure, PreferenceConfig, "dpo", f"grpo{len(changes)}")
    settings = {
        "loss_type": "grpo",
        "beta": 0.04,
        "epsilon": 0.2,
        "num_generations": 4,
        "max_completion_length": 5,
    }
    settings |= {"temperature": 0.8, "per_device_train_batch_size": 8, "use_bias_correction_kl": False}
    return GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(space.config.model_name),
        reward_funcs=reward or (lambda completions, **_: [0.0] * len(completions)),
        args=trl_arguments(GRPOConfig, space.config, **{**settings, **changes}),
        train_dataset=Dataset.from_list([{"prompt": f"say {i}"} for i in range(8)]),
        processing_class=space.encoder.tokenizer,
    )


def grpo_tensors() -> dict[str, torch.Tensor]:
    """Five responses of unequal length, one without tokens, with ratios on both sides of the clip."""
    logp = (-2.0 + random(5, 6)).float()
    lengths = torch.tensor([6, 2, 1, 0, 4])
    return {
        "logprobs": logp.requires_grad_(),
        "old_logprobs": (logp + random(5, 6, seed=1, scale=0.3)).float().detach(),
        "ref_logprobs": (logp + random(5, 6, seed=2, scale=0.5)).float().detach(),
        "advantages": torch.tensor([1.0, -0.5, 2.0, -1.0, -1.5]),
        "mask": torch.arange(6) < lengths[:, None],
    }


def trl_grpo_loss(trainer: Any, given: dict[str, torch.Tensor]) -> torch.Tensor:
    """TRL's loss on our tensors: its forward pass is replaced, all that follows is its own."""
    logp, mask = given["logprobs"], given["mask"].long()
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (logp, torch.zeros_like(logp), None)
    trainer.current_gradient_accumulation_steps = 1
    inputs = {
        "prompt_ids": torch.zeros(len(mask), 1, dtype=torch.long),
        "prompt_mask": torch.ones(len(mask), 1, dtype=torch.long),
        "completion_ids": torch.zeros_like(mask),
        "completion_mask": mask,
        "advantages": given["advantages"],
        "old_per_token_logps": given["old_logprobs"],
        "ref_per_token_logps": given["ref_logprobs"],
    }
    return trainer.compute_loss(trainer.model, inputs)


def pair_tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Token log-probs of five pairs under policy (with gradient) and reference, and their mask; (5, 2, 6)."""
    mask = torch.arange(6) < torch.tensor([[6, 3], [2, 6], [1, 4], [5, 5], [3, 1]])[..., None]
    policy, reference = (((-2.0 + random(5, 2, 6, seed=seed)) * mask).float() for seed in (0, 1))
    return policy.requires_grad_(), reference, mask


def trl_pair_loss(
    trainer: Any, policy: torch.Tensor, reference: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """TRL's preference loss on our tensors: its forward pass is replaced, all that follows is its own."""
    stacked = torch.cat([mask[:, 0], mask[:, 1]])  # TRL's batch: all chosen, then all rejected
    trainer.precompute_ref_logps = True

    def model(**_: Any) -> SimpleNamespace:
        zeros = torch.zeros_like(stacked, dtype=torch.float32)
        logp = torch.cat([policy[:, 0], policy[:, 1]])
        return SimpleNamespace(log_probs=logp, entropy=zeros, mean_logits=zeros, is_top1=zeros.bool())

    with_prompt = torch.nn.functional.pad(stacked, (1, 0)).long()
    inputs = {
        "input_ids": torch.zeros_like(with_prompt),
        "attention_mask": torch.nn.functional.pad(stacked, (1, 0), value=True).long(),
        "completion_mask": with_prompt,
        "ref_chosen_logps": reference[:, 0].sum(dim=1),
        "ref_rejected_logps": reference[:, 1].sum(dim=1),
    }
    return trainer._compute_loss(model, inputs, False)
