"""Reward model: a base, its own adapter, and a linear score head (Ouyang et al. 2022, arXiv 2203.02155).

The score is read from the state at the last real token of a response, found by position: pooling at the
first pad id lands inside the prompt wherever pad is a token that prompts contain.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import save_file
from torch import nn

from helpers.errors import CourseError
from helpers.files import atomic_path, read_json, write_json
from helpers.models.adapters import (
    active_adapter,
    check_adapter,
    load_adapter,
    read_tensors,
    reference,
    save_adapter,
)
from helpers.models.loading import load_base
from helpers.models.policy import layout_for, response_hidden
from helpers.text.groups import Group, TokenBatch, make_batch

ADAPTER, MODEL, HEAD, CARD = "adapter", "model", "head.safetensors", "reward.json"
LastTokenIndex = Callable[[torch.Tensor], torch.Tensor]


class RewardModel(nn.Module):
    """Scores of responses by adapter `adapter` of a model that other roles may share.

    With `adapter=None` the model is fully fine-tuned and the reward model's own. The head is fp32.
    `last_token_index` is the learner's answer: (B, T) attention mask → (B,) index of the last real token.
    """

    def __init__(
        self,
        model: Any,
        adapter: str | None,
        head: nn.Linear,
        last_token_index: LastTokenIndex,
        *,
        pad_id: int = 0,
        layout: str = "packed",
    ) -> None:
        super().__init__()
        if adapter is not None:
            check_adapter(model, adapter)
        elif isinstance(model, PeftModel):
            raise CourseError("a reward model with adapter=None needs a model of its own, without adapters")
        self.model: Any = model
        self.adapter, self.head = adapter, head
        self.last_token_index = last_token_index
        self.pad_id, self.layout = pad_id, layout

    @classmethod
    def create(
        cls,
        model: Any,
        adapter: str | None,
        last_token_index: LastTokenIndex,
        *,
        seed: int = 0,
        pad_id: int = 0,
        layout: str = "packed",
    ) -> RewardModel:
        """A reward model with a fresh head, the same for the same seed.

        Its weights are small, so that the first scores lie near 0, but not 0: with a zero head no gradient
        would reach the adapter in the first step.
        """
        generator = torch.Generator().manual_seed(seed)
        weight = torch.randn(1, model.config.hidden_size, generator=generator) * 0.01
        head = _head({"weight": weight, "bias": torch.zeros(1)}, model)
        return cls(model, adapter, head, last_token_index, pad_id=pad_id, layout=layout)

    @property
    def config(self) -> Any:
        """The base's configuration."""
        return self.model.config

    def forward(self, batch: TokenBatch) -> torch.Tensor:
        """The same as `score`."""
        return self.score(batch)

    def score(self, batch: TokenBatch) -> torch.Tensor:
        """(N,) fp32 rewards of the batch's N responses, with gradients if grad mode is on.

        The reward adapter is switched on for the pass; active adapter and requires_grad are restored.
        """
        with self._own_adapter():
            states = response_hidden(self.model, batch)  # (N, R, H)
        mask = batch.mask.to(states.device)
        last = self.last_token_index(mask.long())
        pooled = states[torch.arange(len(last), device=states.device), last]
        with torch.autocast(states.device.type, enabled=False):
            return self.head(pooled.float()).squeeze(-1)

    @contextmanager
    def _own_adapter(self) -> Iterator[None]:
        if self.adapter is None or active_adapter(self.model) == self.adapter:
            yield
            return
        if torch.is_grad_enabled() and any(
            module.training and getattr(module, "gradient_checkpointing", False)
            for module in self.model.modules()
        ):
            # The recomputation would happen in backward, when the other adapter is active again.
            raise CourseError(
                f"gradient checkpointing: make adapter {self.adapter!r} active (loading.activate) for the"
                " whole training step, or score under torch.no_grad()"
            )
        with reference(self.model, self.adapter):
            yield

    @torch.no_grad()
    def score_groups(self, groups: Sequence[Group], batch_size: int = 16) -> list[list[float]]:
        """One reward for every response of every group, in eval mode, which is restored.

        `batch_size` counts responses; groups stay whole. Rewards that are not finite are passed on.
        """
        training = [module for module in self.modules() if module.training]
        self.eval()
        scores: list[list[float]] = [[] for _ in groups]
        try:
            layout = layout_for(self.model, groups, self.layout) if groups else self.layout
            for chunk in _chunks(groups, batch_size):
                batch = make_batch([groups[i] for i in chunk], self.pad_id, layout)
                values = iter(self.score(batch.to(self.head.weight.device)).tolist())
                for index in chunk:
                    scores[index] = [next(values) for _ in groups[index].responses]
        finally:
            for module in training:
                module.training = True
        return scores

    def save(self, path: str | Path) -> None:
        """Write adapter (or whole model), head and card into the directory `path`, each atomically."""
        target = Path(path)
        target.mkdir(parents=True, exist_ok=True)
        if self.adapter is not None:
            save_adapter(self.model, self.adapter, target / ADAPTER)
        else:
            with atomic_path(target / MODEL) as draft:
                self.model.save_pretrained(draft)
        with atomic_path(target / HEAD) as draft:
            tensors = {name: tensor.detach().cpu().clone() for name, tensor in self.head.state_dict().items()}
            save_file(tensors, draft)
        kind = "adapter" if self.adapter is not None else "full"
        write_json(target / CARD, {"kind": kind, "hidden_size": self.head.in_features})

    @torch.no_grad()
    def restore(self, path: str | Path) -> None:
        """Copy the weights saved at `path` into this reward model, in place: its parameters stay the same
        objects, so an optimiser that knows them goes on working."""
        source = Path(path)
        kind = read_card(source)["kind"]
        if (kind == "adapter") != (self.adapter is not None):
            raise CourseError(
                f"{source} holds a reward model of kind {kind!r}; this one is of the other kind"
            )
        folder, name = (
            (ADAPTER, "adapter_model.safetensors") if kind == "adapter" else (MODEL, "model.safetensors")
        )
        saved = read_tensors(source / folder / name)
        for key, weight in self.model.named_parameters():
            if self.adapter is not None:
                if f".{self.adapter}." not in key:
                    continue
                key = key.replace(f".{self.adapter}.", ".")
            if key not in saved or saved[key].shape != weight.shape:
                raise CourseError(
                    f"{source / folder}: {key} is missing or of another shape; wrong checkpoint?"
                )
            weight.copy_(saved[key])
        self.head.load_state_dict(read_tensors(source / HEAD))

    @classmethod
    def load(
        cls,
        path: str | Path,
        base: Any,
        last_token_index: LastTokenIndex,
        *,
        name: str = "reward",
        pad_id: int = 0,
        layout: str = "packed",
        trainable: bool = False,
    ) -> RewardModel:
        """Read a saved reward model; its scores equal those before saving.

        An adapter joins `base` (a model or PeftModel, whose active adapter stays active) under `name`, so
        policy, reference and reward share one base. Without `base` the one it was trained on is loaded. A
        fully fine-tuned one brings its own model, and `base` is left alone.
        """
        source = Path(path)
        if read_card(source)["kind"] == "full":
            model: Any = load_base(source / MODEL)
            adapter = None
            model.requires_grad_(trainable)
        else:
            if base is None:
                base = load_base(
                    read_json(source / ADAPTER / "adapter_config.json")["base_model_name_or_path"]
                )
            model, adapter = load_adapter(base, source / ADAPTER, name, trainable=trainable), name
        head = _head(read_tensors(source / HEAD), model)
        head.requires_grad_(trainable)
        return cls(model, adapter, head, last_token_index, pad_id=pad_id, layout=layout)


def read_card(source: Path) -> dict[str, Any]:
    """The card of a saved reward model. Raises CourseError where `source` is none, or has lost a part."""
    for file in (CARD, HEAD):
        if not (source / file).is_file():
            raise CourseError(
                f"{source} is no reward model: {file} is missing; give the final/ directory of a"
                " `train --algo reward_model` run"
            )
    card = read_json(source / CARD)
    if not isinstance(card, dict) or card.get("kind") not in ("adapter", "full"):
        raise CourseError(f"{source / CARD} is damaged: its kind is neither adapter nor full")
    return card


def _head(tensors: dict[str, torch.Tensor], model: Any) -> nn.Linear:
    """A linear layer with the given weights, on the model's device. Raises CourseError for a wrong width."""
    if {name: tensor.dim() for name, tensor in tensors.items()} != {"weight": 2, "bias": 1}:
        raise CourseError(f"the score head holds {', '.join(tensors) or 'nothing'}, not a weight and a bias")
    size, width = tensors["weight"].shape[1], model.config.hidden_size
    if size != width:
        raise CourseError(
            f"the score head is for hidden size {size}, the model has {width}: wrong base model"
        )
    head = nn.Linear(size, 1)
    head.load_state_dict(tensors)
    return head.to(device=next(model.parameters()).device, dtype=torch.float32)


def _chunks(groups: Sequence[Group], batch_size: int) -> Iterator[list[int]]:
    """Indices of whole groups, alike in length, with at most `batch_size` responses together."""
    if batch_size < 1:
        raise CourseError(f"batch_size must be at least 1, not {batch_size}")

    def length(index: int) -> int:
        return len(groups[index].prompt_ids) + sum(map(len, groups[index].responses))

    chunk: list[int] = []
    held = 0
    for index in sorted(range(len(groups)), key=length):
        if chunk and held + len(groups[index].responses) > batch_size:
            yield chunk
            chunk, held = [], 0
        chunk.append(index)
        held += len(groups[index].responses)
    if chunk:
        yield chunk
