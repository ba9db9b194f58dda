"""LoRA adapters on one shared base: add, load, save, switch, merge (Hu et al. 2021, arXiv 2106.09685).

Policy, reference and reward model are adapters of one base, so switching is part of the mathematics.
PEFT's own switching also changes which weights require gradients; here a switch never does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from transformers import PreTrainedModel

from helpers.errors import CourseError
from helpers.files import atomic_path, read_json

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
SAVED_PREFIX = "base_model.model."


@dataclass(frozen=True)
class LoraSettings:
    """Rank, scale numerator, dropout and layers; the defaults are the university project's.

    `target_modules` is "all-linear" (every linear layer but the LM head) or a tuple of module names.
    """

    r: int = 32
    alpha: int = 64
    dropout: float = 0.05
    target_modules: str | tuple[str, ...] = "all-linear"


def lora_config(settings: LoraSettings) -> LoraConfig:
    """Turn the settings into PEFT's configuration. Raises CourseError for values that cannot work."""
    if settings.r < 1 or settings.alpha <= 0 or not 0 <= settings.dropout < 1:
        raise CourseError(
            f"--lora_r ≥ 1, --lora_alpha > 0 and 0 ≤ --lora_dropout < 1 are needed, not {settings}"
        )
    targets = settings.target_modules
    return LoraConfig(
        r=settings.r,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        task_type="CAUSAL_LM",
    )


def add_adapter(
    model: PreTrainedModel | PeftModel,
    name: str,
    settings: LoraSettings | None = None,
    *,
    trainable: bool = True,
    seed: int = 0,
) -> PeftModel:
    """Add a fresh adapter (lora_B = 0, so the model computes what it did) and make it the active one.

    The same seed gives the same adapter whatever the global RNG. Weights are fp32 even on a half-precision
    or 4-bit base: fp16 adapters break loss scaling, bf16 ones lose small updates. A trainable adapter
    leaves every other one frozen.
    """
    check_new_name(model, name)
    config = lora_config(settings or LoraSettings())
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        try:
            if isinstance(model, PeftModel):
                model.add_adapter(name, config)
            else:
                model = get_peft_model(model, config, adapter_name=name)
        except ValueError as problem:  # PEFT: target modules not found in the base
            raise CourseError(f"cannot add adapter {name!r} with {settings}: {problem}") from None
    activate(model, name, trainable=trainable)
    return model


def check_new_name(model: nn.Module, name: str) -> None:
    """Raise CourseError unless `name` can be a new adapter of `model`."""
    if not name.isidentifier():
        raise CourseError(f"adapter name {name!r}: use letters, digits and underscores, such as 'policy'")
    if isinstance(model, PeftModel):
        if name in model.peft_config:
            raise CourseError(
                f"the model already has an adapter {name!r}: pick another name or reload the base"
            )
    elif any(isinstance(module, BaseTunerLayer) for module in model.modules()):
        raise CourseError(
            f"adapter {name!r}: this base carries adapters already; pass the PeftModel that add_adapter"
            " returned, so that they share the base, or reload the base"
        )


def activate(model: PeftModel, name: str, *, trainable: bool) -> None:
    """Make `name` the active adapter; it alone requires gradients, or with trainable=False none does."""
    check_adapter(model, name)
    model.set_adapter(name, inference_mode=not trainable)


def check_adapter(model: nn.Module, name: str) -> None:
    """Raise CourseError unless `model` has an adapter `name`."""
    known = sorted(model.peft_config) if isinstance(model, PeftModel) else []
    if name not in known:
        have = ", ".join(known) if known else "none"
        raise CourseError(f"the model has no adapter {name!r} (it has: {have}): add or load it first")


def active_adapter(model: nn.Module) -> str | None:
    """Name of the adapter that takes part in the forward pass; None if there is none or it is off."""
    if not isinstance(model, PeftModel):
        return None
    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    if not layers or layers[0].disable_adapters:
        return None
    return model.active_adapter


@contextmanager
def reference(model: nn.Module, adapter: str | None = None) -> Iterator[nn.Module]:
    """Within the block the model is the reference: its base (None), or the named adapter.

    Adapter off is the right reference only for an adapter that started fresh. After SFT the reference is
    the SFT model: load it as a second, frozen adapter and name it here, or merge it into the base.
    Active adapter, on/off state and requires_grad are restored exactly, after errors too; blocks nest.
    Gradients are the caller's business (`torch.no_grad()`). A model without adapters is its own base.
    """
    if not isinstance(model, PeftModel):
        if adapter is not None:
            check_adapter(model, adapter)
        yield model
        return
    if adapter is not None:
        check_adapter(model, adapter)
    state = _AdapterState.of(model)
    try:
        for layer in state.layers:
            layer.enable_adapters(adapter is not None)
        if adapter is not None:
            model.set_adapter(adapter)
        state.restore_gradients()
        yield model
    finally:
        state.restore()


@dataclass
class _AdapterState:
    """Everything PEFT touches when adapters are switched."""

    model: PeftModel
    active: str
    layers: list[Any]
    disabled: list[bool]
    trainable: list[tuple[nn.Parameter, bool]]

    @classmethod
    def of(cls, model: PeftModel) -> _AdapterState:
        layers: list[Any] = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
        trainable = [(weight, weight.requires_grad) for weight in model.parameters()]
        return cls(
            model, model.active_adapter, layers, [layer.disable_adapters for layer in layers], trainable
        )

    def restore_gradients(self) -> None:
        for weight, flag in self.trainable:
            if weight.requires_grad != flag:
                weight.requires_grad_(flag)

    def restore(self) -> None:
        self.model.set_adapter(self.active)
        for layer, was_disabled in zip(self.layers, self.disabled, strict=True):
            layer.enable_adapters(not was_disabled)
        self.restore_gradients()


def save_adapter(model: PeftModel, name: str, path: str | Path) -> Path:
    """Write adapter `name` to the directory `path`, atomically: its configuration and its fp32 weights.

    The files name no path of this machine: a bundled base is recorded relative to the project.
    """
    check_adapter(model, name)
    target = Path(path)
    with atomic_path(target) as draft:
        raw = draft.parent / "raw"
        # "auto" would ask the hub whether the vocabulary was resized; the course never resizes it.
        model.save_pretrained(str(raw), selected_adapters=[name], save_embedding_layers=False)
        source = raw if name == "default" else raw / name
        draft.mkdir()
        (source / WEIGHTS_FILE).replace(draft / WEIGHTS_FILE)
        config = json.loads((source / CONFIG_FILE).read_text(encoding="utf-8"))
        if isinstance(config.get("target_modules"), list):
            config["target_modules"].sort()  # a set inside PEFT: sorted, equal adapters make equal files
        text = json.dumps(config, indent=2, sort_keys=True)
        (draft / CONFIG_FILE).write_text(text + "\n", encoding="utf-8")
    return target


def load_adapter(
    model: PreTrainedModel | PeftModel, path: str | Path, name: str, *, trainable: bool = False
) -> PeftModel:
    """Load the adapter saved at `path` as `name`, keeping the active adapter of a model that has one.

    Raises CourseError, before the model is touched, for a missing directory or an adapter of another base.
    A trainable adapter becomes the active one.
    """
    source = Path(path)
    check_new_name(model, name)
    for file in (CONFIG_FILE, WEIGHTS_FILE):
        if not (source / file).is_file():
            raise CourseError(
                f"{source} is no saved adapter: {file} is missing; give the 'adapter' directory of a run,"
                " such as runs/my_run/final/adapter"
            )
    card = read_json(source / CONFIG_FILE)
    if not isinstance(card, dict) or "peft_type" not in card:
        raise CourseError(f"{source / CONFIG_FILE} is no adapter's: its peft_type is missing")
    _check_fits(model, source)
    if isinstance(model, PeftModel):
        state = _AdapterState.of(model)
        model.load_adapter(str(source), name, is_trainable=trainable)
        state.restore()
    else:
        model = PeftModel.from_pretrained(model, str(source), adapter_name=name, is_trainable=trainable)
    if trainable:
        activate(model, name, trainable=True)
    return model


@torch.no_grad()
def restore_adapter(model: PeftModel, name: str, path: str | Path) -> None:
    """Copy the weights saved at `path` into adapter `name`, in place: an optimiser that knows its parameters
    goes on working.

    Raises CourseError for a missing file or an adapter of other names or shapes; nothing is copied then.
    """
    check_adapter(model, name)
    file = Path(path) / WEIGHTS_FILE
    if not file.is_file():
        raise CourseError(f"{path} is no saved adapter: {WEIGHTS_FILE} is missing")
    own = {k.replace(f".{name}.", "."): w for k, w in model.named_parameters() if f".{name}." in k}
    saved = read_tensors(file)
    if {k: w.shape for k, w in own.items()} != {k: w.shape for k, w in saved.items()}:
        raise CourseError(f"{path} holds an adapter of another base or rank than {name!r}")
    for key, weight in own.items():
        weight.copy_(saved[key])


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read a safetensors file; CourseError for one that is missing, cut short or something else."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as problem:
        reason = "it does not exist" if isinstance(problem, FileNotFoundError) else problem
        raise CourseError(f"{path} cannot be read ({reason}): copy it again, or train it again") from None


def _check_fits(model: nn.Module, source: Path) -> None:
    """Raise CourseError unless every saved LoRA matrix fits a linear layer of the base."""
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    modules = dict(base.named_modules())
    shapes = {key: weight.shape for key, weight in read_tensors(source / WEIGHTS_FILE).items()}
    for key, shape in shapes.items():
        path, _, factor = key.removeprefix(SAVED_PREFIX).removesuffix(".weight").rpartition(".")
        if factor not in ("lora_A", "lora_B"):
            continue
        layer = modules.get(path)
        want = _features(layer)[0 if factor == "lora_A" else 1] if layer is not None else None
        have = shape[1] if factor == "lora_A" else shape[0]
        if want != have:
            found = "has no such layer" if layer is None else f"needs {want}"
            raise CourseError(
                f"{source} was trained on another base: {path}.{factor} has size {have}, this base {found};"
                f" load the base it names in {CONFIG_FILE} (base_model_name_or_path)"
            )


def _features(layer: nn.Module) -> tuple[Any, Any]:
    return getattr(layer, "in_features", None), getattr(layer, "out_features", None)


@dataclass(frozen=True)
class Merged:
    """A base with an adapter folded in, and the largest change of any logit on the probe."""

    model: PreTrainedModel
    drift: float


@torch.no_grad()
def merge_adapter(model: Any, name: str, probe_ids: torch.Tensor | None = None) -> Merged:
    """Fold adapter `name` into its full-precision base, W + (alpha/r)·BA, and measure the drift.

    The model is consumed: use the returned one. `probe_ids` (B, T) is what the drift is measured on.
    Raises CourseError for a quantised base, where rounding W + BA back to 4 bits is another model, and
    for a model with further adapters, which were trained for the base as it was.
    """
    check_adapter(model, name)
    others = sorted(set(model.peft_config) - {name})
    if others:
        raise CourseError(f"merging {name!r} would change the base of {', '.join(others)}: load it alone")
    layers: list[tuple[str, Any]] = [(n, m) for n, m in model.named_modules() if isinstance(m, LoraLayer)]
    for layer_name, layer in layers:
        if not layer.get_base_layer().weight.is_floating_point():
            raise CourseError(
                f"adapter {name!r} cannot be merged into 4-bit weights ({layer_name}): rounding them again"
                " gives another model; load the base with quantization='none', load_adapter there, merge that"
            )
    model.eval()
    if probe_ids is None:
        probe_ids = torch.arange(min(64, model.config.vocab_size), device=model.device).unsqueeze(0)
    with reference(model, name):
        before = model(input_ids=probe_ids, use_cache=False).logits.float()
    merged = model.merge_and_unload(adapter_names=[name])
    drift = (merged(input_ids=probe_ids, use_cache=False).logits.float() - before).abs().max().item()
    return Merged(merged, drift)
