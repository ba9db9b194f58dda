"""Trained SFT and reward adapters beside the base, so that any lesson can start from the middle."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from helpers.files import atomic_path
from helpers.tiny.build import Build, Stage
from helpers.training.configs import RewardConfig, SFTConfig
from helpers.training.reward import train_reward_model
from helpers.training.sft import train_sft

FOLDER = "adapters"


def train_adapters(build: Build) -> None:
    """Train both with the settings of the `tiny` profile and keep their results in `adapters/`."""
    place = build.output_dir
    shared: dict[str, Any] = {
        "profile": "tiny",
        "model_name": str(place / "model"),
        "dataset_name": str(place),
        "seed": build.seed,
        "save_steps": 0,
    }
    with tempfile.TemporaryDirectory() as scratch:
        sft = train_sft(SFTConfig(output_dir=f"{scratch}/sft", **shared), build.answers)
        keep(sft.final / "adapter", place / FOLDER / "sft")
        reward = train_reward_model(RewardConfig(output_dir=f"{scratch}/reward", **shared), build.answers)
        keep(reward.final, place / FOLDER / "reward")


def keep(source: Path, target: Path) -> None:
    """Copy a result into the world, whole or not at all."""
    with atomic_path(target) as draft:
        shutil.copytree(source, draft)


ADAPTERS = Stage("adapters", train_adapters)
