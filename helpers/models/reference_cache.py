"""Reference log-probabilities on disk, and the fingerprint that says when they may be used again."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from helpers.errors import CourseError
from helpers.files import atomic_path, fingerprint
from helpers.models.anatomy import base_model_of
from helpers.text.groups import Group

FORMAT = "reference log-probabilities 1"
# Fields that change no number.
CONFIG_NOISE = ("_name_or_path", "transformers_version", "use_cache", "architectures")
ADAPTER_FIELDS = ("peft_type", "r", "lora_alpha", "use_rslora", "use_dora", "rank_pattern", "alpha_pattern")
WORTH_REMEMBERING = 2**20  # bytes; smaller tensors are hashed each time

_digests: dict[tuple[Any, ...], str] = {}


def reference_fingerprint(
    model: nn.Module,
    groups: Iterable[Group],
    adapter: str | None,
    temperature: float,
    layout: str,
    key: Any,
) -> str:
    """Return 16 hex digits that change with anything the log-probabilities depend on."""
    tokens = [[group.prompt_ids, group.responses] for group in groups]
    return fingerprint(FORMAT, tokens, weights_fingerprint(model, adapter), float(temperature), layout, key)


def weights_fingerprint(model: nn.Module, adapter: str | None = None) -> str:
    """Return 16 hex digits of config and weights: of the base, and of the named adapter if there is one.

    All bytes are hashed, quantisation constants included. Digests of large tensors are remembered in this
    process as long as neither address, version nor a sample of the contents changes. The base gives the
    same fingerprint inside PEFT as outside.

    Raises CourseError for an adapter that does not exist or is merged into the base.
    """
    base = base_model_of(model)
    if any(getattr(module, "merged", False) is True for module in model.modules()):
        raise CourseError("an adapter is merged into the base; unmerge it before reference log-probabilities")
    config = {k: v for k, v in base.config.to_dict().items() if k not in CONFIG_NOISE}
    weights = {name: _digest(name, tensor) for name, tensor in _base_tensors(model, base)}
    return fingerprint(config, weights, _adapter_parts(model, adapter))


def _base_tensors(model: nn.Module, base: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the base's tensors under the names they have without PEFT."""
    prefix = getattr(getattr(model, "base_model", None), "prefix", "lora_")
    for name, value in base.state_dict().items():
        adapted = any(part.startswith(prefix) for part in name.split(".")) or ".modules_to_save." in name
        if not adapted and torch.is_tensor(value):
            yield name.replace(".base_layer", "").replace(".original_module", ""), value


def _adapter_parts(model: Any, adapter: str | None) -> list[Any]:
    if adapter is None:
        return []
    if adapter not in getattr(model, "peft_config", {}):
        known = ", ".join(getattr(model, "peft_config", {})) or "none"
        raise CourseError(f"the model has no adapter {adapter!r} (it has: {known})")
    from peft import get_peft_model_state_dict

    settings = model.peft_config[adapter].to_dict()
    # "auto" would ask the hub whether the embeddings were resized.
    state = get_peft_model_state_dict(model, adapter_name=adapter, save_embedding_layers=False)
    weights = {name: _digest(name, tensor) for name, tensor in state.items()}
    return [{field: settings.get(field) for field in ADAPTER_FIELDS}, weights]


def _digest(name: str, tensor: torch.Tensor) -> str:
    flat = tensor.detach().reshape(-1)
    if tensor.nbytes < WORTH_REMEMBERING or tensor.is_inference():
        return _hash(flat, tensor.shape)
    # In-place writes through .data (as in merging) leave the version alone, hence the sample.
    sample = _hash(flat[:: max(1, flat.numel() // 4096)], tensor.shape)
    known = (name, tensor.data_ptr(), tensor._version, sample)
    if known not in _digests:
        _digests[known] = _hash(flat, tensor.shape)
    return _digests[known]


def _hash(flat: torch.Tensor, shape: Sequence[int]) -> str:
    digest = hashlib.sha256(f"{flat.dtype} {tuple(shape)}".encode())
    if flat.numel():
        digest.update(flat.cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


class ReferenceFile:
    """One cached result: written atomically, read only if whole, of this fingerprint and of these rows."""

    def __init__(self, path: Path, name: str):
        self.path, self.name = path, name

    def read(self, groups: Sequence[Group]) -> list[list[torch.Tensor]] | None:
        """Return [group][response] → (length,), or None where there is no file or a damaged one (warns)."""
        if not self.path.exists():
            return None
        try:
            flat, lengths = self._load()
            if lengths != [len(response) for group in groups for response in group.responses]:
                raise ValueError("lengths differ from those of the data")
        except Exception as problem:  # whatever safetensors makes of damaged bytes
            warnings.warn(f"{self.path} is damaged ({problem}); computing it again", stacklevel=3)
            return None
        pieces = iter(flat.split(lengths))
        return [[next(pieces).clone() for _ in group.responses] for group in groups]

    def _load(self) -> tuple[torch.Tensor, list[int]]:
        with safe_open(self.path, framework="pt") as file:
            meta = file.metadata() or {}
            flat, lengths = file.get_tensor("logprobs"), file.get_tensor("lengths").tolist()
        if meta.get("fingerprint") != self.name or meta.get("sha256") != _hash(flat, flat.shape):
            raise ValueError("its contents do not match their fingerprint")
        return flat, lengths

    def write(self, result: list[list[torch.Tensor]]) -> None:
        """Keep `result`; a directory that cannot be written costs the cache and not the run (warns)."""
        responses = [logprobs for group in result for logprobs in group]
        flat = torch.cat(responses) if responses else torch.zeros(0)
        lengths = torch.tensor([len(logprobs) for logprobs in responses], dtype=torch.long)
        meta = {"format": FORMAT, "fingerprint": self.name, "sha256": _hash(flat, flat.shape)}
        try:
            with atomic_path(self.path) as draft:
                save_file({"logprobs": flat, "lengths": lengths}, draft, metadata=meta)
        except CourseError as problem:
            warnings.warn(f"{problem}; nothing is cached", stacklevel=3)
