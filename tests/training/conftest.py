"""A pocket world for trainer tests: a random model of 40,000 parameters, a byte-level tokenizer, 24 rows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = [
    "red",
    "blue",
    "a cat",
    "the dog",
    "hello",
    "good day",
    "one two",
    "yes",
    "no thanks",
    "fine",
    "rain",
    "sun",
]


def save_tokenizer(path: Path) -> None:
    """A byte-level tokenizer without merges, with ChatML."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|pad|>",
        additional_special_tokens=["<|im_start|>"],
    )
    fast.chat_template = CHATML
    fast.save_pretrained(path)


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def rows_of(kind: str, count: int) -> list[dict[str, Any]]:
    """Rows of unequal lengths in the course's schema."""
    rows = []
    for i in range(count):
        prompt = f"say {WORDS[i % 12]} {i}"
        row: dict[str, Any] = {
            "row_id": f"{kind}{i}",
            "prompt_messages": [{"role": "user", "content": prompt}],
            "prompt_text": prompt,
        }
        if kind == "prefs":
            row |= {"chosen_text": WORDS[i % 6] * (1 + i % 3), "rejected_text": WORDS[6 + (i + 3) % 6]}
            row |= {"avg_preference_strength": float(1 + i % 4)}
        elif kind == "sft":
            row["response_text"] = WORDS[(i + 5) % 12] * (1 + i % 2)
        else:
            row["reference_response_text"] = WORDS[(i + 1) % 12]
        rows.append(row)
    return rows


@pytest.fixture(scope="session")
def pocket(tmp_path_factory: pytest.TempPathFactory, random_qwen2: Any) -> SimpleNamespace:
    """model: directory of the random model; data: directory of the splits."""
    model, data = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("data")
    save_tokenizer(model)
    random_qwen2(vocab=260, hidden=32, layers=2, initializer_range=0.2).save_pretrained(model)
    for name in ("train_prefs", "dev_prefs"):
        write_rows(data / f"{name}.jsonl", rows_of("prefs", 24 if name.startswith("train") else 8))
    for name in ("train_gen", "dev_gen"):
        write_rows(data / f"{name}.jsonl", rows_of("gen", 24 if name.startswith("train") else 8))
    for name in ("sft_train", "sft_val"):
        write_rows(data / f"{name}.jsonl", rows_of("sft", 24 if name.endswith("train") else 8))
    return SimpleNamespace(model=str(model), data=str(data))


@pytest.fixture
def settings(make_settings: Any, tmp_path: Path) -> Any:
    """`settings(SFTConfig, name, **changes)`: a config of a short run in the pocket world."""

    def make(kind: type, name: str = "run", **changes: Any) -> Any:
        return make_settings(tmp_path, kind, name, **changes)

    return make


@pytest.fixture(scope="session")
def make_settings(pocket: SimpleNamespace) -> Any:
    """`make_settings(directory, SFTConfig, name, **changes)`: the same for a run in that directory."""
    from helpers.training.configs import OnlineConfig

    def make(place: Path, kind: type, name: str = "run", **changes: Any) -> Any:
        base: dict[str, Any] = {
            "output_dir": str(place / name),
            "profile": "tiny",
            "model_name": pocket.model,
            "dataset_name": pocket.data,
            "lora_r": 4,
            "lora_alpha": 8,
            "lora_dropout": 0.0,
            "learning_rate": 1e-2,
            "max_steps": 6,
            "logging_steps": 1,
            "eval_steps": 3,
            "save_steps": 3,
            "eval_samples": 2,
            "eval_limit": 4,
            "max_new_tokens": 6,
            "gradient_accumulation_steps": 1,
            "lr_scheduler_type": "linear",
        }
        if issubclass(kind, OnlineConfig):
            base |= {"per_device_train_batch_size": 4, "group_size": 2, "minibatch_size": 4, "num_epochs": 2}
        else:
            base |= {"per_device_train_batch_size": 4}
        if kind.__name__ == "RewardConfig":
            base |= {"full_finetune": False}
        return replace(kind(), **{**base, **changes})

    return make
