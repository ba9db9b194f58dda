"""What a training run holds in memory: the sizes that decide it, and the peak of the tensors that live.

`TensorPeak` counts storages as they come and go, the same on every device and in every run. What an allocator
keeps, and workspaces inside of kernels, are not in it: `helpers.course.bench_memory` measures those too.
"""

from __future__ import annotations

from typing import Any

import torch
from peft import PeftModel
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from helpers.models.anatomy import base_model_of, decoder_of
from helpers.models.hardware import GIB


def sizes_of(model: nn.Module) -> dict[str, int]:
    """The sizes that `qlora_memory_gib` takes, counted in a model with or without adapters.

    Keys: linear_parameters (weights of the decoder's linear layers), other_parameters (all else that is
    frozen), adapter_parameters, hidden, intermediate, layers, vocab. A packed 4-bit weight counts as the
    weights it stands for; tied embeddings count once. Works on the meta device.
    """
    decoder = decoder_of(model)
    linear = {
        id(m.weight): count_of(m.weight)
        for name, m in decoder.named_modules()
        if isinstance(m, nn.Linear) and ".lora_" not in name
    }
    adapters = sum(p.numel() for name, p in model.named_parameters() if "lora_" in name)
    frozen = {id(p): count_of(p) for name, p in model.named_parameters() if "lora_" not in name}
    config: Any = base_model_of(model).config
    return {
        "linear_parameters": sum(linear.values()),
        "other_parameters": sum(frozen.values()) - sum(linear.values()),
        "adapter_parameters": adapters,
        "hidden": config.hidden_size,
        "intermediate": config.intermediate_size,
        "layers": config.num_hidden_layers,
        "vocab": config.vocab_size,
    }


def count_of(weight: torch.Tensor) -> int:
    """Number of weights in a parameter, packed or not."""
    state = getattr(weight, "quant_state", None)
    return weight.numel() if state is None else state.shape.numel()


def planned_sizes(config: Any, r: int = 32) -> dict[str, int]:
    """`sizes_of` a model that is described by its configuration only, with adapters of rank r on it.

    Nothing is allocated: the model is made on the meta device.
    """
    from transformers import AutoModelForCausalLM

    from helpers.models.adapters import LoraSettings, lora_config

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
        return sizes_of(PeftModel(model, lora_config(LoraSettings(r=r))))


class TensorPeak(TorchDispatchMode):
    """Within the block, bytes of all storages that live; `peak` is the most there were, in GiB.

    What has gone is looked for only when the sum could be a new peak by more than 1 %, so the peak is known
    that well, and steps stay fast.

    Args:
        models: whose weights (with the constants of 4-bit ones) were there before.
    """

    SLACK = 1.01

    def __init__(self, *models: nn.Module) -> None:
        super().__init__()
        self.held: dict[int, tuple[StorageWeakRef, int]] = {}
        self.bytes = self.most = 0
        for model in models:
            self.see([*model.parameters(), *model.buffers()])
            for weight in model.parameters():
                self.see(constants_of(getattr(weight, "quant_state", None)))

    @property
    def peak(self) -> float:
        """GiB."""
        return self.most / GIB

    def see(self, tensors: Any) -> None:
        """Take in what is new."""
        for tensor in tree_leaves(tensors):
            if isinstance(tensor, torch.Tensor) and tensor.device.type != "meta":
                storage = tensor.untyped_storage()
                key = storage._cdata
                if key in self.held and not self.held[key][0].expired():
                    continue
                self.bytes += storage.nbytes() - self.held.get(key, (None, 0))[1]
                self.held[key] = (StorageWeakRef(storage), storage.nbytes())
        if self.bytes > self.most * self.SLACK:
            self.held = {key: entry for key, entry in self.held.items() if not entry[0].expired()}
            self.bytes = sum(size for _, size in self.held.values())
            self.most = max(self.most, self.bytes)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.see(result)
        return result


def constants_of(state: Any) -> list[torch.Tensor]:
    """The scales of a 4-bit weight, doubly quantised or not."""
    if state is None:
        return []
    found = [getattr(state, name, None) for name in ("absmax", "code", "offset")]
    return [item for item in found if isinstance(item, torch.Tensor)] + constants_of(
        getattr(state, "state2", None)
    )
