"""Trained SFT and reward adapters beside the base, so that any lesson can start from the middle."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from helpers.files import atomic_path, read_jsonl, write_jsonl
from helpers.models.loading import load_adapter, load_base
from helpers.tiny.build import Build, Stage, response_rows
from helpers.tiny.families import Prompt
from helpers.tiny.preferences import sample_responses
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


def write_sft_responses(build: Build) -> None:
    """The SFT model's greedy responses to the public prompts: what PPO is graded against."""
    place, folder = build.output_dir, build.output_dir / "public_eval"
    base = load_base(str(place / "model"), dtype="float32")  # the build's own must stay without adapters
    model = load_adapter(base, place / FOLDER / "sft", "sft").eval()
    rows = read_jsonl(folder / "public_test_gen_prompts_128.jsonl")
    prompts = [Prompt(row["prompt_text"], (), row["metadata"]) for row in rows]
    replies = sample_responses(model, build.encoder, prompts, k=1, seed=0, greedy=True)
    write_jsonl(folder / "public_test_gen_sft_responses_128.jsonl", response_rows(rows, replies))


ADAPTERS = Stage("adapters", train_adapters)
SFT_RESPONSES = Stage("sft_responses", write_sft_responses)
