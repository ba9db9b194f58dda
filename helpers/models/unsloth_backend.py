"""Loading through unsloth's FastLanguageModel: a faster backend on a CUDA GPU, used only when asked for.

unsloth patches transformers when it is imported, so the import happens here, at the last moment. Its
attention takes no 4-D mask; the layout is "padded". What is passed to it is checked by a test against the
signatures in its source.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedTokenizerBase

from helpers.errors import CourseError
from helpers.models.adapters import LoraSettings, activate
from helpers.models.hardware import Hardware, compute_dtype, probe
from helpers.models.profiles import Profile

LAYOUT = "padded"
# unsloth's fused kernels are for these; it wants names where PEFT takes "all-linear".
LINEAR_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def check_available(hardware: Hardware, layout: str = LAYOUT) -> None:
    """Raise CourseError unless `--backend unsloth` can work here, saying what to change."""
    if hardware.device != "cuda":
        raise CourseError(
            f"--backend unsloth needs a CUDA GPU, and this is a {hardware.name}: leave the flag out"
        )
    if importlib.util.find_spec("unsloth") is None:
        raise CourseError(
            "--backend unsloth: unsloth is not installed; pip install unsloth, or leave the flag out"
        )
    if layout != LAYOUT:
        raise CourseError(
            f"--backend unsloth takes no 4-D attention mask: use --layout {LAYOUT}, not {layout}"
        )


def load_arguments(profile: Profile, hardware: Hardware, seed: int) -> dict[str, Any]:
    """What `FastLanguageModel.from_pretrained` is called with."""
    return {
        "model_name": profile.model_name,
        "max_seq_length": profile.max_prompt_tokens
        + max(profile.max_response_tokens, profile.max_new_tokens),
        "dtype": compute_dtype(hardware)[0],
        "load_in_4bit": profile.quantization == "nf4",
        "use_gradient_checkpointing": "unsloth" if profile.gradient_checkpointing else False,
        "random_state": seed,
    }


def adapter_arguments(settings: LoraSettings, profile: Profile, seed: int) -> dict[str, Any]:
    """What `FastLanguageModel.get_peft_model` is called with, after the model."""
    targets = settings.target_modules
    return {
        "r": settings.r,
        "lora_alpha": settings.alpha,
        "lora_dropout": settings.dropout,
        "target_modules": list(LINEAR_LAYERS if targets == "all-linear" else targets),
        "bias": "none",
        "use_gradient_checkpointing": "unsloth" if profile.gradient_checkpointing else False,
        "random_state": seed,
    }


def load(
    profile: Profile,
    settings: LoraSettings | None = None,
    *,
    layout: str = LAYOUT,
    seed: int = 0,
    hardware: Hardware | None = None,
) -> tuple[PeftModel, PreTrainedTokenizerBase]:
    """Load the profile's model with one trainable fp32 adapter, which unsloth names "default".

    Raises CourseError without a CUDA GPU, without unsloth, or for the packed layout.
    """
    hardware = hardware or probe()
    check_available(hardware, layout)
    from unsloth import FastLanguageModel

    model, tokenizer = FastLanguageModel.from_pretrained(**load_arguments(profile, hardware, seed))
    model = FastLanguageModel.get_peft_model(
        model, **adapter_arguments(settings or profile.lora, profile, seed)
    )
    for name, weight in model.named_parameters():
        if "lora_" in name:  # bf16 adapters crash the loss scaler of a T4
            weight.data = weight.data.to(torch.float32)
    activate(model, "default", trainable=True)
    return model, tokenizer
