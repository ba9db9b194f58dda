"""The stages of the main job, each one training run in its own directory, skipped when already finished."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.course.held_out import watched
from helpers.errors import CourseError
from helpers.training.configs import OnlineConfig, PreferenceConfig, RewardConfig, SFTConfig
from helpers.training.online import ALGORITHMS, train_online
from helpers.training.ppo import train_ppo
from helpers.training.ppo_config import PPOConfig
from helpers.training.preference import LOSSES, train_preference
from helpers.training.reward import train_reward_model
from helpers.training.run_dir import OtherRun
from helpers.training.setup import RunResult
from helpers.training.sft import train_sft

METHODS = (*LOSSES, "ppo", *ALGORITHMS)
ALGOS = ("sft", "reward_model", *METHODS)


@dataclass(frozen=True)
class Trainer:
    """The settings class and the entry point of an algorithm."""

    settings: type
    train: Callable[..., RunResult]


def trainer_of(algo: str) -> Trainer:
    """Look up an algorithm; CourseError names the known ones."""
    if algo == "sft":
        return Trainer(SFTConfig, train_sft)
    if algo == "reward_model":
        return Trainer(RewardConfig, train_reward_model)
    if algo in LOSSES:
        return Trainer(PreferenceConfig, train_preference)
    if algo == "ppo":
        return Trainer(PPOConfig, watched(train_ppo))
    if algo in ALGORITHMS:
        return Trainer(OnlineConfig, watched(train_online))
    raise CourseError(f"--algo {algo} is not one of {', '.join(ALGOS)}")


def run_stage(
    algo: str, directory: Path, answers: Any, *, replace_others: bool = False, **settings: Any
) -> RunResult:
    """Train one algorithm in `directory`, or return the result of the run that finished there.

    An interrupted run goes on from its last checkpoint. A run with other settings or functions is refused,
    or replaced if `replace_others`.
    """
    trainer = trainer_of(algo)
    known = {field.name for field in dataclasses.fields(trainer.settings)}
    chosen = {name: value for name, value in settings.items() if name in known and value is not None}
    if "algo" in known:
        chosen["algo"] = algo
    config = trainer.settings(output_dir=str(directory), **chosen)
    try:
        return trainer.train(config, answers)
    except OtherRun:
        if not replace_others:
            raise
        return trainer.train(dataclasses.replace(config, overwrite=True), answers)
