"""Profiles: everything that depends on the machine, decided in one place, with the reason.

`--profile` wins over the environment variable COURSE_PROFILE, which wins over the automatic choice.
"""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass, field
from typing import Any

from helpers.errors import CourseError
from helpers.models.adapters import LoraSettings
from helpers.models.hardware import Hardware, compute_dtype, precision, probe
from helpers.models.training_defaults import PROJECT, SMOL, TINY

VARIABLE = "COURSE_PROFILE"
GPU_DEFAULT, CPU_DEFAULT = "colab", "tiny"


@dataclass(frozen=True)
class Profile:
    """A model and how this machine runs it. `training[algo]` holds defaults of that run's settings."""

    name: str
    model_name: str
    quantization: str  # "none" or "nf4"
    layout: str = "packed"  # "packed" or "padded"
    gradient_checkpointing: bool = False
    optim: str = "adamw_torch"  # a `transformers.TrainingArguments.optim` name
    max_prompt_tokens: int = 700
    max_response_tokens: int = 512
    max_new_tokens: int = 256
    judge: str = (
        "llm"  # "gold": exact and offline; "llm": OpenAI-compatible, else the reward model as a proxy
    )
    dataset_name: str = "HuggingFaceH4/ultrafeedback_binarized"
    lora: LoraSettings = field(default_factory=LoraSettings)
    training: dict[str, dict[str, Any]] = field(default_factory=dict)
    dtype: str = "float32"  # set for the machine by pick_profile
    reason: str = ""  # likewise

    def defaults(self, algo: str) -> dict[str, Any]:
        """Defaults of every setting of a training run of `algo`, machine and method together."""
        if algo not in self.training:
            raise CourseError(f"--algo {algo}: profile {self.name} knows {', '.join(self.training)}")
        machine = ("quantization", "layout", "gradient_checkpointing", "judge", "dataset_name", "model_name")
        budgets = ("max_prompt_tokens", "max_response_tokens", "max_new_tokens")
        shared = {name: getattr(self, name) for name in (*machine, *budgets)}
        lora = {"lora_r": self.lora.r, "lora_alpha": self.lora.alpha, "lora_dropout": self.lora.dropout}
        return {**shared, **lora, **self.training[algo]}


@dataclass(frozen=True)
class Needs:
    """Estimated memory in GiB of a training run (weights, adapters, optimiser, activations), and a note."""

    gpu_gib: float
    comfortable_gpu_gib: float
    cpu_gib: float
    cpu_note: str


PROFILES: dict[str, Profile] = {
    "tiny": Profile(
        name="tiny",
        model_name="data/tiny/model",
        quantization="none",
        max_new_tokens=48,
        judge="gold",
        dataset_name="data/tiny",
        lora=LoraSettings(r=16, alpha=32, dropout=0.0),
        training=TINY,
    ),
    "smol": Profile(
        name="smol",
        model_name="HuggingFaceTB/SmolLM2-135M-Instruct",
        quantization="none",
        training=SMOL,
    ),
    "colab": Profile(
        name="colab",
        model_name="Qwen/Qwen2.5-1.5B-Instruct",
        quantization="nf4",
        gradient_checkpointing=True,
        training=PROJECT,
    ),
    "qlora_7b": Profile(
        name="qlora_7b",
        model_name="Qwen/Qwen2.5-7B-Instruct",
        quantization="nf4",
        gradient_checkpointing=True,
        optim="paged_adamw_8bit",
        training=PROJECT,
    ),
}
NEEDS = {
    "tiny": Needs(1, 1, 1.5, "minutes for the whole course"),
    "smol": Needs(3, 4, 4, "one lesson at a time"),
    "colab": Needs(8, 12, 16, "hours a lesson: for a test only"),
    "qlora_7b": Needs(13, 22, 32, "days a lesson: for a test only"),
}


def pick_profile(name: str | None = None, hardware: Hardware | None = None) -> Profile:
    """Return the profile to use, set up for `hardware` (default: this machine), with its reason.

    Raises CourseError for an unknown name, saying whether the flag or the variable gave it.
    """
    hardware = hardware or probe()
    if name:
        chosen, why, origin = name, "asked for by --profile", "--profile"
    elif os.environ.get(VARIABLE):
        chosen, origin = os.environ[VARIABLE], f"environment variable {VARIABLE}"
        why = f"asked for by {origin}"
    else:
        (chosen, why), origin = _automatic(hardware), "automatic"
    if chosen not in PROFILES:
        raise CourseError(f"{origin}: no profile {chosen!r}; there are {', '.join(PROFILES)}")
    profile = PROFILES[chosen]
    dtype, dtype_reason = precision(profile.quantization, hardware)
    parts = [f"{chosen}: {why}", str(hardware), dtype_reason]
    status, note = fits(chosen, hardware)
    if status != "yes":
        parts.append(f"note: {note}")
    optim = profile.optim if hardware.device == "cuda" else "adamw_torch"  # paging needs a GPU
    return dataclasses.replace(
        profile, dtype=str(dtype).removeprefix("torch."), optim=optim, reason="; ".join(parts)
    )


def _automatic(hardware: Hardware) -> tuple[str, str]:
    """The default profile of a machine and why."""
    if hardware.device == "cuda":
        needed = NEEDS[GPU_DEFAULT].gpu_gib
        if hardware.memory_gib >= needed:
            return GPU_DEFAULT, f"the default on a GPU with {needed:g} GiB or more"
        return CPU_DEFAULT, f"the GPU has {hardware.memory_gib:.1f} GiB; {GPU_DEFAULT} needs {needed:g}"
    if hardware.device == "mps":
        return CPU_DEFAULT, f"the default on Apple GPUs, where 4-bit training for {GPU_DEFAULT} is missing"
    return CPU_DEFAULT, "the default without a GPU"


def fits(name: str, hardware: Hardware) -> tuple[str, str]:
    """Whether a profile runs here: ("yes" | "tight" | "slow" | "no", note). Memory figures are estimates."""
    profile, needs = PROFILES[name], NEEDS[name]
    if hardware.device == "mps" and profile.quantization == "nf4":
        return "no", "bitsandbytes has no NF4 on Apple GPUs"
    if hardware.device == "cuda":
        needed, comfortable = needs.gpu_gib, needs.comfortable_gpu_gib
    else:
        needed = comfortable = needs.cpu_gib
    have = hardware.memory_gib
    if have and have < needed:
        return "no", f"needs about {needed:g} GiB of memory, has {have:.1f}"
    if have and have < comfortable:
        return "tight", "runs with care: keep batches and budgets small"
    if hardware.device != "cuda" and name not in ("tiny", "smol"):
        return "slow", f"runs on a CPU, but takes {needs.cpu_note}"
    return "yes", needs.cpu_note if hardware.device == "cpu" else "fits"


def describe_profiles(hardware: Hardware | None = None) -> str:
    """A table: for each profile, whether it runs on this machine, in which precision, with what memory."""
    hardware = hardware or probe()
    rows = [("profile", "model", "precision here", "needs", "runs here", "")]
    for name, profile in PROFILES.items():
        memory = NEEDS[name].gpu_gib if hardware.device == "cuda" else NEEDS[name].cpu_gib
        words = _precision_words(profile, hardware)
        rows.append((name, profile.model_name, words, f"{memory:g} GiB", *fits(name, hardware)))
    widths = [max(len(row[column]) for row in rows) for column in range(5)] + [0]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join([f"Machine: {hardware}", "", *lines, "", "(needs: estimates)"])


def _precision_words(profile: Profile, hardware: Hardware) -> str:
    short = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}
    if profile.quantization == "nf4":
        return f"NF4, {short[str(compute_dtype(hardware)[0]).removeprefix('torch.')]} compute"
    return "fp32"
