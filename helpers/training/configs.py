"""Settings of every training run, one dataclass an algorithm family.

A field left at None is decided by the profile (`Profile.training[algo]`) and, failing that, by
`FALLBACKS` below, which hold the university project's settings. Names are the command line's flags.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any, TypeVar

from helpers.errors import CourseError


def flag(default: Any, text: str) -> Any:
    """A setting that is a flag of the command line, with its help."""
    return field(default=default, metadata={"help": text})


@dataclass
class RunSettings:
    """What every training run needs: where, with which model and data, how long, how often to save."""

    output_dir: str = flag("", "run directory; default runs/<profile>_<algo>_seed<seed>")
    profile: str | None = flag(None, "tiny, smol, colab or qlora_7b; picked by the hardware if not given")
    model_name: str | None = flag(None, "hub id or directory of the base model; default: the profile's")
    dataset_name: str | None = flag(None, "data set: directory, file or hub id; default: the profile's")
    train_split: str | None = flag(None, "split or file stem to train on")
    eval_split: str | None = flag(None, "split or file stem to evaluate on during training")
    train_limit: int | None = flag(None, "use at most this many training rows")
    eval_limit: int | None = flag(None, "use at most this many evaluation rows")
    eval_holdout: int | None = flag(None, "hold out this many training rows for evaluation, by seed")
    init_adapter: str | None = flag(None, "start from this adapter, for instance the SFT run's final/adapter")
    quantization: str | None = flag(None, "nf4 or none; default: the profile's")
    backend: str = flag("transformers", "transformers, or unsloth on a CUDA GPU")
    layout: str | None = flag(None, "packed or padded; default: the profile's")
    max_prompt_tokens: int = flag(700, "longer prompts lose their beginning")
    max_response_tokens: int = flag(512, "longer responses lose their end")
    lora_r: int | None = flag(None, "rank of the adapter")
    lora_alpha: int | None = flag(None, "scale of the adapter: alpha / r")
    lora_dropout: float | None = flag(
        None, "dropout inside the adapter; always 0 in preference and online training"
    )
    learning_rate: float | None = flag(None, "peak learning rate")
    lr_scheduler_type: str | None = flag(None, "linear, cosine, constant, constant_with_warmup, …")
    warmup_ratio: float | None = flag(None, "share of the steps spent warming up")
    weight_decay: float = flag(0.0, "AdamW's weight decay")
    max_grad_norm: float | None = flag(None, "gradients are clipped to this norm")
    gradient_accumulation_steps: int | None = flag(None, "micro-batches an optimiser step")
    gradient_checkpointing: bool | None = flag(None, "recompute activations to save memory")
    max_steps: int | None = flag(None, "stop after this many optimiser steps; -1: by epochs")
    seed: int = flag(0, "seed of data order, initialisation, dropout and sampling")
    logging_steps: int | None = flag(None, "log every this many steps")
    eval_steps: int | None = flag(None, "evaluate every this many steps; 0: only at the end")
    save_steps: int | None = flag(None, "save a checkpoint every this many steps; 0: only at the end")
    save_total_limit: int = flag(3, "keep this many checkpoints")
    eval_samples: int = flag(12, "prompts answered and written to samples.jsonl at every evaluation")
    max_new_tokens: int | None = flag(None, "longest generated response")
    resume: bool = flag(False, "continue the run in output_dir from its last checkpoint")
    overwrite: bool = flag(False, "replace the run in output_dir")
    report_to: str = flag("none", "none or wandb")
    check_memory: bool | None = flag(None, "try the longest batch first; default: on a GPU")


@dataclass
class EpochSettings(RunSettings):
    """Runs over a fixed data set."""

    num_train_epochs: float | None = flag(None, "passes over the data")
    per_device_train_batch_size: int | None = flag(
        None, "groups a micro-batch (memory only: N×1 trains like 1×N)"
    )
    micro_batch_tokens: int | None = flag(
        None, "tokens, padding included, of one forward and backward pass at most (memory only)"
    )


@dataclass
class SFTConfig(EpochSettings):
    """Supervised fine-tuning."""

    fused: bool = flag(True, "log-probs in chunks; off: full logits through the answer `sft_loss`")


@dataclass
class RewardConfig(EpochSettings):
    """Bradley-Terry reward model."""

    full_finetune: bool | None = flag(None, "train all weights instead of an adapter (small models only)")
    center_rewards_coefficient: float | None = flag(
        None,
        "weight of the mean squared reward sum of a pair, which keeps rewards near zero (arXiv 2312.09244)",
    )
    margin_field: str | None = flag(
        None, "row field used as Bradley-Terry margin, such as avg_preference_strength"
    )


@dataclass
class PreferenceConfig(EpochSettings):
    """DPO and its relatives."""

    algo: str = flag("dpo", "dpo, ipo or aot")
    beta: float | None = flag(
        None,
        "pull towards the reference; its scale is each method's own: dpo and aot multiply log-ratios by it,"
        " ipo aims at a gap of 1 / (2 beta) nats between whole responses (with --length_average: per token)",
    )
    length_average: bool = flag(
        False, "ipo: log-probs averaged over a response's tokens, as TRL has it; the paper sums them"
    )
    aot_paired: bool = flag(
        False, "aot: compare the policy's margins with the reference's, not chosen with rejected"
    )
    label_smoothing: float = flag(0.0, "dpo: share of labels taken to be the wrong way round (cDPO)")
    pair_weights: str | None = flag(
        None, "dpo, ipo: row field that weighs a pair in the loss, such as avg_confidence; scaled to mean 1"
    )
    reference_cache: str | None = flag(None, "directory of cached reference log-probs")


@dataclass
class OnlineConfig(RunSettings):
    """Online reinforcement learning against a reward model."""

    algo: str = flag("grpo", "grpo, dr_grpo or gspo")
    reward_model: str | None = flag(None, "directory of a trained reward model")
    per_device_train_batch_size: int | None = flag(None, "prompts a rollout")
    group_size: int | None = flag(None, "responses a prompt")
    num_epochs: int | None = flag(None, "passes over each rollout")
    minibatch_size: int | None = flag(None, "responses a micro-batch; a multiple of group_size")
    min_new_tokens: int | None = flag(None, "shortest generated response")
    temperature: float | None = flag(None, "of sampling and of every log-probability")
    top_p: float | None = flag(None, "nucleus sampling")
    clip_eps: float | None = flag(
        None, "the ratio is clipped to 1 ± this; gspo's paper has 3e-4, and 4e-4 above, for its mean ratio"
    )
    clip_eps_high: float | None = flag(None, "upper clip, if it differs")
    kl_coef: float | None = flag(None, "weight of the KL term")
    mask_truncated: bool = flag(False, "learn nothing from responses that were cut off")
    length_penalty: float | None = flag(None, "taken off the reward for every token of a response")
    diversity_penalty: float | None = flag(
        None, "taken off the reward, times the share of a response's 3-grams that repeat an earlier one"
    )
    stop_kl: float | None = flag(None, "end the run once the KL a token (mean of three steps) is above this")
    stop_on_hacking: bool | None = flag(
        None, "end the run once the held-out judge falls while the reward rises; keep the best weights seen"
    )
    held_out_judge: str | None = flag(
        None, "judges the answers of every evaluation: none, or a judge's name; default gold, where it can"
    )
    generation_batch_size: int = flag(64, "responses generated at once")


FALLBACKS: dict[str, Any] = {
    "max_steps": -1,
    "lora_r": 32,
    "lora_alpha": 64,
    "lora_dropout": 0.05,
    "learning_rate": 5e-5,
    "lr_scheduler_type": "linear",
    "warmup_ratio": 0.05,
    "max_grad_norm": 1.0,
    "gradient_accumulation_steps": 4,
    "gradient_checkpointing": False,
    "num_train_epochs": 3.0,
    "per_device_train_batch_size": 4,
    "micro_batch_tokens": 4096,
    "logging_steps": 5,
    "eval_steps": 50,
    "save_steps": 100,
    "max_new_tokens": 256,
    "full_finetune": False,
    "center_rewards_coefficient": 0.0,
    "beta": 0.1,
    "quantization": "none",
    "layout": "packed",
}
# The university project's online command; it differs from the offline one in these.
ONLINE_FALLBACKS: dict[str, Any] = {
    **FALLBACKS,
    "max_steps": 25,
    "learning_rate": 1e-5,
    "lr_scheduler_type": "constant",
    "warmup_ratio": 0.0,
    "max_grad_norm": 0.5,
    "gradient_accumulation_steps": 2,
    "per_device_train_batch_size": 16,
    "group_size": 4,
    "num_epochs": 2,
    "minibatch_size": 8,
    "min_new_tokens": 32,
    "temperature": 0.8,
    "top_p": 0.95,
    "clip_eps": 0.2,
    "kl_coef": 0.01,
    "gamma": 1.0,
    "lam": 0.95,
    "value_clip_eps": 0.2,
    "entropy_coef": 0.0,
    "missing_eos_penalty": 1.0,
    "kl_horizon": 10_000,
    "logging_steps": 1,
    "eval_steps": 25,
    "save_steps": 25,
}

Config = TypeVar("Config", bound=RunSettings)
MAY_STAY_NONE = {
    "adaptive_kl_target",
    "check_memory",
    "clip_eps_high",
    "dataset_name",
    "diversity_penalty",
    "eval_holdout",
    "eval_limit",
    "eval_split",
    "held_out_judge",
    "init_adapter",
    "length_penalty",
    "margin_field",
    "model_name",
    "pair_weights",
    "profile",
    "reference_cache",
    "reward_model",
    "stop_kl",
    "stop_on_hacking",
    "target_kl",
    "train_limit",
    "train_split",
    "value_learning_rate",
}


def resolve(config: Config, profile_defaults: dict[str, Any]) -> Config:
    """Fill the fields left at None from the profile's defaults, then from the project's.

    Raises CourseError for a value that cannot work, naming its flag.
    """
    fallbacks = ONLINE_FALLBACKS if isinstance(config, OnlineConfig) else FALLBACKS
    changes = {}
    for item in dataclasses.fields(config):
        value = getattr(config, item.name)
        if value is not None:
            continue
        if item.name in profile_defaults:
            changes[item.name] = profile_defaults[item.name]
        elif item.name in fallbacks:
            changes[item.name] = fallbacks[item.name]
        elif item.name not in MAY_STAY_NONE:
            raise CourseError(f"--{item.name} has no default here: please give it")
    resolved = dataclasses.replace(config, **changes)
    check_values(resolved)
    return resolved


AT_LEAST_ONE = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "max_prompt_tokens",
    "max_response_tokens",
    "max_new_tokens",
    "lora_r",
    "logging_steps",
    "save_total_limit",
    "train_limit",
    "eval_limit",
    "group_size",
    "num_epochs",
    "minibatch_size",
    "generation_batch_size",
    "kl_horizon",
    "batch_size",
    "limit",
    "pairs",
)
POSITIVE = (
    "learning_rate",
    "temperature",
    "beta",
    "max_grad_norm",
    "clip_eps",
    "clip_eps_high",
    "value_clip_eps",
    "value_learning_rate",
    "target_kl",
    "adaptive_kl_target",
    "stop_kl",
    "lora_alpha",
    "num_train_epochs",
)
NOT_NEGATIVE = (
    "kl_coef",
    "eval_steps",
    "save_steps",
    "eval_samples",
    "eval_holdout",
    "weight_decay",
    "lora_dropout",
    "warmup_ratio",
    "min_new_tokens",
    "entropy_coef",
    "missing_eos_penalty",
    "center_rewards_coefficient",
    "length_penalty",
    "diversity_penalty",
)
BELOW_ONE = ("lora_dropout", "warmup_ratio")
FROM_0_TO_1 = ("gamma", "lam")
MAY_BE_INFINITE = ("max_grad_norm",)  # no clipping
# Those that need nothing but the number of steps.
SCHEDULES = (
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
)
CHOICES = {
    "lr_scheduler_type": SCHEDULES,
    "layout": ("packed", "padded"),
    "quantization": ("none", "nf4"),
    "backend": ("transformers", "unsloth"),
    "report_to": ("none", "wandb"),
}


def check_values(config: RunSettings) -> None:
    """Raise CourseError for the first value outside its range."""
    values = {item.name: getattr(config, item.name) for item in dataclasses.fields(config)}
    check_ranges(values)
    for name, value in values.items():
        if isinstance(value, str) and not value.strip() and name != "output_dir":
            raise CourseError(f"--{name} is empty: give it a value, or leave it out")
    for name, choices in CHOICES.items():
        value = getattr(config, name)
        if value not in choices:
            raise CourseError(f"--{name} is one of {', '.join(choices)}, not {value!r}")
    check_steps(config)
    if isinstance(config, OnlineConfig):
        check_online(config)


def check_ranges(values: dict[str, Any]) -> None:
    """Raise CourseError for the first number outside its range; names that have none are left alone."""
    rules = [(AT_LEAST_ONE, lambda v: v >= 1, "at least 1"), (POSITIVE, lambda v: v > 0, "greater than 0")]
    rules.append((NOT_NEGATIVE, lambda v: v >= 0, "0 or more"))
    rules.append((BELOW_ONE, lambda v: v < 1, "below 1"))
    rules.append((FROM_0_TO_1, lambda v: 0 <= v <= 1, "from 0 to 1"))
    for name, value in values.items():
        if isinstance(value, float) and math.isinf(value) and name not in MAY_BE_INFINITE:
            raise CourseError(f"--{name} must be a finite number, not {value}")
    for names, holds, words in rules:
        for name in names:
            value = values.get(name)
            if value is not None and not holds(value):
                raise CourseError(f"--{name} must be {words}, not {value}")
    check_seed(values.get("seed", 0))


def check_seed(seed: int) -> None:
    """Raise CourseError for a seed that some generator would not take."""
    if not 0 <= seed < 2**32:
        raise CourseError(f"--seed must be from 0 to {2**32 - 1}, not {seed}")


def check_steps(config: RunSettings) -> None:
    """Raise CourseError for a number of steps that is no number of steps."""
    by_epochs = isinstance(config, EpochSettings)
    if config.max_steps < 1 and not (by_epochs and config.max_steps == -1):
        instead = " or -1, to go by --num_train_epochs" if by_epochs else ""
        raise CourseError(f"--max_steps must be at least 1{instead}, not {config.max_steps}")


def check_online(config: OnlineConfig) -> None:
    """Raise CourseError where the numbers of an online run do not fit together."""
    if config.minibatch_size % config.group_size:
        raise CourseError(
            f"--minibatch_size {config.minibatch_size} must be a multiple of --group_size"
            f" {config.group_size}: a group shares its prompt and stays together"
        )
    if config.group_size < 2 and config.algo != "ppo":
        raise CourseError(f"--group_size must be at least 2 for {config.algo}: siblings are the baseline")
    if config.min_new_tokens > config.max_new_tokens:
        raise CourseError(
            f"--min_new_tokens {config.min_new_tokens} exceeds --max_new_tokens {config.max_new_tokens}"
        )
    if not 0 < config.top_p <= 1:
        raise CourseError(f"--top_p must be in (0, 1], not {config.top_p}")
