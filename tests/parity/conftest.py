"""A pocket world that both this course's trainers and TRL's can be run on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch.utils.data import SequentialSampler

from helpers.training.configs import EpochSettings, RewardConfig
from tests.training.conftest import rows_of, save_tokenizer, write_rows

PAIRS = 24


@pytest.fixture(scope="module")
def pocket(tmp_path_factory: pytest.TempPathFactory, random_qwen2: Any) -> SimpleNamespace:
    """Directories of a random model with its tokenizer, and of preference pairs."""
    model, data = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("data")
    save_tokenizer(model)
    random_qwen2(vocab=260).save_pretrained(model)
    write_rows(data / "train_prefs.jsonl", rows_of("prefs", PAIRS))
    return SimpleNamespace(model=str(model), data=str(data))


@pytest.fixture
def configure(pocket: SimpleNamespace, tmp_path: Path) -> Callable[..., Any]:
    """`configure(PreferenceConfig, name, **changes)`: our settings of a run of 20 steps."""

    def make(kind: type[EpochSettings], name: str = "run", **changes: Any) -> Any:
        settings: dict[str, Any] = {
            "output_dir": str(tmp_path / name),
            "profile": "tiny",
            "model_name": pocket.model,
            "dataset_name": pocket.data,
            "lora_r": 4,
            "lora_alpha": 8,
            "lora_dropout": 0.0,
            "learning_rate": 2e-3,
            "lr_scheduler_type": "linear",
            "warmup_ratio": 0.1,
            "max_grad_norm": 1.0,
            "max_steps": 20,
            "logging_steps": 1,
            "eval_steps": 0,
            "save_steps": 0,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 1,
            "max_new_tokens": 6,
            "gradient_checkpointing": False,
            "quantization": "none",
        }
        if kind is RewardConfig:
            settings |= {"full_finetune": False, "center_rewards_coefficient": 0.0}
        return replace(kind(), **{**settings, **changes})

    return make


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both trainers take the pairs in the order of the file, epoch after epoch."""
    from transformers import Trainer

    monkeypatch.setattr(Trainer, "_get_train_sampler", lambda self, *_: SequentialSampler(self.train_dataset))
