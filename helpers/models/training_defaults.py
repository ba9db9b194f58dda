"""Training settings that profiles bring along, by algorithm; keys are fields of `helpers.training.configs`.

PROJECT holds the university project's own commands. TINY suits a model of a million parameters, whose
learning rates are a hundred times larger.
"""

from __future__ import annotations

from typing import Any

Settings = dict[str, dict[str, Any]]

_PROJECT_OFFLINE = {
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 4,
    "learning_rate": 5e-5,
    "lr_scheduler_type": "linear",
    "warmup_ratio": 0.05,
    "num_train_epochs": 3.0,
    "max_grad_norm": 1.0,
}
_PROJECT_ONLINE = {
    "max_steps": 25,
    "per_device_train_batch_size": 16,
    "group_size": 4,
    "min_new_tokens": 32,
    "max_new_tokens": 256,
    "temperature": 0.8,
    "top_p": 0.95,
    "learning_rate": 1e-5,
    "lr_scheduler_type": "constant",
    "warmup_ratio": 0.0,
    "num_epochs": 2,
    "minibatch_size": 8,
    "gradient_accumulation_steps": 2,
    "clip_eps": 0.2,
    "kl_coef": 0.01,
    "max_grad_norm": 0.5,
}
PROJECT: Settings = {
    "sft": dict(_PROJECT_OFFLINE),
    "reward_model": dict(_PROJECT_OFFLINE),
    "dpo": {**_PROJECT_OFFLINE, "beta": 0.1},
    "ipo": {**_PROJECT_OFFLINE, "beta": 0.1},
    "aot": {**_PROJECT_OFFLINE, "beta": 0.2},
    "ppo": dict(_PROJECT_ONLINE),
    "grpo": dict(_PROJECT_ONLINE),
    "dr_grpo": dict(_PROJECT_ONLINE),
    "gspo": dict(_PROJECT_ONLINE),
}

# A CPU gains nothing from wide batches, so short ones keep memory down.
SMOL: Settings = {
    algo: {**settings, **({} if "group_size" in settings else {"micro_batch_tokens": 1024})}
    for algo, settings in PROJECT.items()
}

_TINY_OFFLINE = {
    "per_device_train_batch_size": 32,
    "gradient_accumulation_steps": 1,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "linear",
    "warmup_ratio": 0.05,
    "num_train_epochs": 1.0,
    "max_grad_norm": 1.0,
    "max_new_tokens": 48,
}
_TINY_ONLINE = {
    "max_steps": 60,
    "per_device_train_batch_size": 8,
    "group_size": 8,
    "min_new_tokens": 0,
    "max_new_tokens": 48,
    "temperature": 1.0,
    "top_p": 1.0,
    "learning_rate": 1e-3,
    "lr_scheduler_type": "constant",
    "warmup_ratio": 0.0,
    "num_epochs": 1,
    "minibatch_size": 32,
    "gradient_accumulation_steps": 1,
    "clip_eps": 0.2,
    "kl_coef": 0.02,
    "max_grad_norm": 1.0,
}
TINY: Settings = {
    "sft": {**_TINY_OFFLINE, "learning_rate": 2e-3, "num_train_epochs": 3.0, "train_limit": 800},
    # An adapter does as well as full fine-tuning here (docs/measurements.md), and shares the policy's base.
    "reward_model": {
        **_TINY_OFFLINE,
        "lora_r": 32,
        "lora_alpha": 64,
        "learning_rate": 2e-3,
        "num_train_epochs": 2.0,
        "center_rewards_coefficient": 0.005,
    },
    # With a weaker pull to the reference this small model refuses everything, look-alikes of harm included.
    "dpo": {**_TINY_OFFLINE, "beta": 0.5, "learning_rate": 2e-3, "num_train_epochs": 2.0},
    "ipo": {**_TINY_OFFLINE, "beta": 0.1, "learning_rate": 2e-3, "num_train_epochs": 2.0},
    # Unpaired, it does not see which answers share a prompt: it takes a stronger pull than DPO, or all texts
    # come apart together.
    "aot": {**_TINY_OFFLINE, "beta": 2.0, "learning_rate": 1e-3, "num_train_epochs": 2.0},
    # The baseline is learned, not the siblings' mean: it is served by more prompts, not by more siblings.
    "ppo": {
        **_TINY_ONLINE,
        "max_steps": 30,
        "per_device_train_batch_size": 16,
        "group_size": 4,
        "kl_coef": 0.05,
        "value_learning_rate": 2e-3,
    },
    "grpo": dict(_TINY_ONLINE),
    "dr_grpo": dict(_TINY_ONLINE),
    "gspo": dict(_TINY_ONLINE),
}
