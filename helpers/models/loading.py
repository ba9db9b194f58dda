"""Tokenizers and bases, in full precision or 4 bits, and how to get their memory back.

QLoRA (Dettmers et al. 2023, arXiv 2305.14314): a frozen NF4 base, doubly quantised, under fp32 adapters.
Adapters live in `adapters.py` and are re-exported here.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.util
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from helpers.errors import CourseError
from helpers.files import data_dir
from helpers.models import smol
from helpers.models.adapters import (
    LoraSettings,
    Merged,
    activate,
    active_adapter,
    add_adapter,
    load_adapter,
    merge_adapter,
    reference,
    restore_adapter,
    save_adapter,
)
from helpers.models.hardware import Hardware, precision, probe
from helpers.models.processes import local_rank
from helpers.models.profiles import Profile

__all__ = [
    "LoraSettings",
    "Merged",
    "activate",
    "active_adapter",
    "add_adapter",
    "count_bases",
    "data_dir",
    "free",
    "load_adapter",
    "load_base",
    "load_tokenizer",
    "merge_adapter",
    "reference",
    "resolve_model",
    "restore_adapter",
    "save_adapter",
]

BUNDLED_MODEL = "data/tiny/model"
QUANTIZATIONS = ("none", "nf4")


def resolve_model(model_name: str | Path) -> str:
    """Turn a model name into something transformers can load: a directory or a hub id.

    Known names: "data/tiny/model" (bundled, found from any working directory) and SmolLM2-135M-Instruct's
    hub id (see `smol`). Raises CourseError for a path that does not exist.
    """
    name = str(model_name)
    if Path(name).is_dir():
        return name
    if name == BUNDLED_MODEL:
        bundled = data_dir() / "tiny" / "model"
        if not bundled.is_dir():
            raise CourseError(
                f"the bundled model {bundled} is missing: run `python -m helpers data build-tiny`,"
                " or set COURSE_DATA to the project's data directory"
            )
        return str(bundled)
    if name == smol.HUB_ID:
        return str(smol.local_copy(hub_is_reachable) or name)
    if name.startswith((".", "/", "~")) or name.count("/") != 1 or name.split("/")[0] in ("data", "runs"):
        raise CourseError(f"model {name!r}: no such directory, and no hub id of the form owner/name either")
    return name


def hub_is_reachable(timeout: float = 3.0) -> bool:
    """Whether the model hub answers. Asked first, because the hub client itself retries for half a minute."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        return False
    if os.environ.get("HTTPS_PROXY") or os.environ.get("https_proxy"):
        return True  # a proxy resolves names itself; let the hub client find out
    address = urlparse(os.environ.get("HF_ENDPOINT", "https://huggingface.co"))
    try:
        port = address.port or (80 if address.scheme == "http" else 443)
        socket.create_connection((address.hostname, port), timeout=timeout).close()
    except OSError:
        return False
    return True


def load_tokenizer(model_name: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model; a missing pad token becomes the eos token (masks go by length)."""
    source = resolve_model(model_name)
    tokenizer = _from_pretrained(AutoTokenizer, source, model_name)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_base(
    model_name: str | Path | None = None,
    profile: Profile | None = None,
    *,
    quantization: str | None = None,
    dtype: torch.dtype | str | None = None,
    gradient_checkpointing: bool | None = None,
    hardware: Hardware | None = None,
) -> PreTrainedModel:
    """Load a base in eval mode on this machine's device.

    What is not given comes from `profile`, else: full precision, no checkpointing, dtype by hardware.
    Memory of models that nothing refers to any more is released first, so that re-running a notebook
    cell does not grow memory. Raises CourseError for a model or library that is not there.
    """
    if model_name is None:
        if profile is None:
            raise CourseError("load_base needs a model name or a profile")
        model_name = profile.model_name
    if quantization is None:
        quantization = profile.quantization if profile else "none"
    if gradient_checkpointing is None:
        gradient_checkpointing = profile.gradient_checkpointing if profile else False
    hardware = hardware or probe()
    dtype = _dtype(dtype, quantization, hardware)
    release_memory()
    source = resolve_model(model_name)
    options = {"dtype": dtype, "attn_implementation": "sdpa", **_placement(quantization, dtype, hardware)}
    model, found = _from_pretrained(
        AutoModelForCausalLM, source, model_name, output_loading_info=True, **options
    )
    if missing := sorted(found["missing_keys"]):
        raise CourseError(
            f"the weights of {str(model_name)!r} lack {missing[0]} (and {len(missing) - 1} more): they are"
            " half-written or another model's, and what is missing would be random; copy them again"
        )
    model.name_or_path = str(model_name)  # what adapters record as their base: no path of this machine
    if quantization == "nf4":
        prepare_4bit(model, dtype)
    if gradient_checkpointing:
        enable_checkpointing(model)
    return model.eval()


def _dtype(dtype: torch.dtype | str | None, quantization: str, hardware: Hardware) -> torch.dtype:
    """The given dtype, by object or name, or the one that fits quantisation and hardware."""
    if quantization not in QUANTIZATIONS:
        raise CourseError(f"--quantization is one of {', '.join(QUANTIZATIONS)}, not {quantization!r}")
    if dtype is None:
        return precision(quantization, hardware)[0]
    found = dtype if isinstance(dtype, torch.dtype) else getattr(torch, dtype, None)
    if found not in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
        raise CourseError(f"dtype {dtype!r}: use float32, float16 or bfloat16")
    return found


def _placement(quantization: str, dtype: torch.dtype, hardware: Hardware) -> dict[str, Any]:
    """Arguments of from_pretrained that put the model on the device, quantised if asked for."""
    placement: dict[str, Any] = {}
    if quantization == "nf4":
        if importlib.util.find_spec("bitsandbytes") is None:
            raise CourseError("NF4 needs bitsandbytes: pip install bitsandbytes, or use --quantization none")
        if hardware.device == "mps":
            raise CourseError("bitsandbytes has no NF4 on Apple GPUs: use --quantization none")
        placement["quantization_config"] = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=dtype,
        )
    if quantization == "nf4" or hardware.device != "cpu":
        placement["device_map"] = {
            "": f"cuda:{local_rank()}" if hardware.device == "cuda" else hardware.device
        }
    return placement


def _from_pretrained(factory: Any, source: str, model_name: str | Path, **options: Any) -> Any:
    """Load from a directory or the hub; what can go wrong becomes a CourseError that says what to do."""
    local = Path(source).is_dir()
    if not local and not hub_is_reachable():
        options["local_files_only"] = True  # the hub's own cache may still hold it
    try:
        with _quiet() if local else contextlib.nullcontext():
            return factory.from_pretrained(source, **options)
    except (torch.OutOfMemoryError, MemoryError, ImportError):
        raise
    except Exception as problem:  # a damaged file raises whatever the library stumbles over
        reason = str(problem).strip().splitlines()[0] if str(problem).strip() else type(problem).__name__
        if "ignore_mismatched_sizes" in reason:
            reason = "the weights have other sizes than config.json says"
        where = "from this directory" if local else "from the hub or its local cache"
        raise CourseError(
            f"cannot load {str(model_name)!r} {where}: {reason}\nGive --model_name a directory with a saved"
            " model, connect to the hub, or use --profile tiny, whose model is bundled"
        ) from problem


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No progress bars: worth having for a download, not for reading a local file."""
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def prepare_4bit(model: PreTrainedModel, compute_dtype: torch.dtype) -> None:
    """Freeze a 4-bit base; under fp16, keep everything that is not 4-bit in fp32.

    fp32 norms and embeddings hold the residual stream in fp32, where Qwen2.5's large activations overflow
    fp16. bf16 has fp32's range, so there the weights stay as they are (PEFT's own preparation would cast
    them too, 2 GiB more for a 7B model).

    On CPUs with AVX-512 bf16, bitsandbytes repacks weights at the first forward pass in eval mode for a
    kernel that rounds to bf16 and has no backward: after one rollout the adapters would train on wrong
    gradients. The switch it looks at is turned off.
    """
    modules: list[Any] = list(model.modules())
    for module in modules:
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    for weight in model.parameters():
        weight.requires_grad_(False)
        if compute_dtype == torch.float16 and weight.dtype == torch.float16:
            weight.data = weight.data.float()


def enable_checkpointing(model: PreTrainedModel) -> None:
    """Recompute activations in backward. It acts in train mode only, so `model.eval()` switches it off.

    Non-reentrant: the reentrant kind silently trains nothing when its inputs need no gradient, as under
    a frozen embedding.
    """
    if hasattr(model, "activation_checkpointing_enable"):  # the name from transformers 5.24 on
        model.activation_checkpointing_enable(activation_checkpointing_kwargs={"use_reentrant": False})
    else:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})


def count_bases(models: list[nn.Module]) -> int:
    """How many distinct bases the models hold in memory, by the storages of their non-adapter weights."""
    bases: list[set[int]] = []
    for model in models:
        weights = _base_of(model).named_parameters()
        storages = {weight.untyped_storage().data_ptr() for name, weight in weights if "lora_" not in name}
        shared = [base for base in bases if base & storages]
        bases = [base for base in bases if not base & storages] + [storages.union(*shared)]
    return len(bases)


def _base_of(model: Any) -> nn.Module:
    """The model inside a RewardModel, whose head belongs to no base; any other model as it is."""
    return model.model if hasattr(model, "last_token_index") else model


def free(*objects: Any) -> None:
    """Give back the memory of models, optimisers, trainers and tensors, also if variables still name them.

    A notebook keeps references that `del` does not reach (`_`, `Out`, tracebacks), so the objects
    themselves are emptied: they are unusable afterwards. Everything that shares a freed base goes with
    it, so free a policy together with its reward model. `None` is ignored; lists and dicts are followed.
    """
    for item in objects:
        _empty(item)
    for name in ("last_exc", "last_value", "last_traceback", "last_type"):  # frames of the last error
        if hasattr(sys, name):
            delattr(sys, name)
    release_memory()


def _empty(item: Any) -> None:
    if isinstance(item, torch.Tensor):
        if item.grad_fn is not None:
            with contextlib.suppress(RuntimeError):  # a view keeps its graph
                item.detach_()  # a loss in a notebook holds every activation of its forward pass
        item.grad = None
        item.data = torch.empty(0, dtype=item.dtype, device=item.device)
        if hasattr(item, "quant_state"):  # scales of a 4-bit weight
            item.quant_state = None
    elif isinstance(item, nn.Module):
        for tensor in [*item.parameters(), *item.buffers()]:
            _empty(tensor)
    elif isinstance(item, torch.optim.Optimizer):
        item.state.clear()
        item.param_groups.clear()
    elif isinstance(item, dict):
        for value in list(item.values()):
            _empty(value)
        item.clear()
    elif isinstance(item, list):
        for value in item:
            _empty(value)
        item.clear()
    elif hasattr(item, "model") and hasattr(item, "optimizer"):  # a Trainer
        _empty(item.model)
        _empty(getattr(item.optimizer, "optimizer", item.optimizer))
        item.model = item.optimizer = item.lr_scheduler = None


def release_memory() -> None:
    """Collect garbage and hand free memory back to the operating system and the GPU."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # C libraries other than glibc lack the call
            ctypes.CDLL("libc.so.6").malloc_trim(0)
