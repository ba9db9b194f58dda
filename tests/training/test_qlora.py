"""The profile for 7B on small random models of several kinds: 4 bits, checkpointing, merged, read again."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from helpers.models.merging import export_adapter
from helpers.training.configs import SFTConfig
from helpers.training.sft import train_sft
from solutions import answers
from tests.training.conftest import save_tokenizer

SHAPE = {
    "vocab_size": 260,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "initializer_range": 0.2,
}
KINDS = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


@pytest.fixture(params=KINDS)
def model(request: Any, tmp_path: Path) -> Path:
    """A random model with grouped heads and a head apart from its embedding, as a directory."""
    config, kind = KINDS[request.param]
    torch.manual_seed(0)
    extra = {"head_dim": 16, "sliding_window": None} if request.param != "llama" else {}
    kind(config(**SHAPE, **extra, tie_word_embeddings=False)).save_pretrained(tmp_path / "model")
    save_tokenizer(tmp_path / "model")
    return tmp_path / "model"


def test_any_model_trains_by_qlora_7b_and_is_exported(model, settings, tmp_path):
    config = settings(
        SFTConfig, profile="qlora_7b", model_name=str(model), max_steps=2, eval_samples=0, check_memory=True
    )
    run = train_sft(config, answers)
    written = json.loads((run.run_dir / "config.json").read_text())
    assert written["quantization"] == "nf4" and written["gradient_checkpointing"] is True
    assert math.isfinite(run.metrics["loss"])
    exported = export_adapter(run.run_dir, tmp_path / "merged", check=True)
    assert exported.merged.largest < 1e-3
    assert exported.reloaded is not None and exported.reloaded.largest < 1e-5
    assert exported.trained is not None and exported.trained.mean > exported.merged.mean
