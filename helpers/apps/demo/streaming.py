"""Answers of several policies at once, token by token, from one base in memory.

All policies get the same prompt, so their answers are the rows of one batch without any padding, and each row
goes through its own adapter (PEFT's mixed batches). No adapter is switched between tokens, and the lock is
held for one token at a time: a reader who closes the page in the middle of an answer blocks nobody.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from transformers import DynamicCache, TemperatureLogitsWarper, TopPLogitsWarper

from helpers.errors import CourseError
from helpers.models.sampling import Sampling, check_sampling
from helpers.text.chat import ChatEncoder

BASE = "__base__"  # PEFT's name for a row without adapter


@dataclass(frozen=True)
class Draft:
    """One answer as far as it has come. `ids` ends with the end id exactly if `complete`."""

    ids: list[int]
    text: str
    complete: bool = False
    done: bool = False  # complete, or out of tokens


def stream_answers(
    model: Any,
    encoder: ChatEncoder,
    prompt_ids: list[int],
    adapters: Sequence[str | None],
    sampling: Sampling,
    *,
    seed: int = 0,
    lock: threading.Lock | None = None,
) -> Iterator[list[Draft]]:
    """Yield all answers after every token, one `Draft` an entry of `adapters` (None: the base).

    Every row draws from a generator of its own with the same seed, so an answer does not depend on what runs
    beside it. `lock` keeps other users of the model out during a forward pass, and only then.

    Raises CourseError for a prompt that is too long for the model, and for logits that are not finite.
    """
    check_sampling(model, [prompt_ids], sampling)
    rows = [_Row([], torch.Generator().manual_seed(seed)) for _ in adapters]
    step = _Stepper(model, adapters, lock)
    tokens = torch.tensor([prompt_ids] * len(rows), device=model.device)
    for count in range(1, sampling.max_new_tokens + 1):
        chosen = [
            row.draw(logits, sampling) if not row.complete else encoder.pad_id
            for row, logits in zip(rows, step(tokens), strict=True)
        ]
        for row, token in zip(rows, chosen, strict=True):
            row.add(token, encoder)
        last = count == sampling.max_new_tokens or all(row.complete for row in rows)
        yield [row.draft(encoder, last) for row in rows]
        if last:
            return
        tokens = torch.tensor(chosen, device=model.device)[:, None]


@dataclass
class _Row:
    """An answer being written."""

    ids: list[int]
    generator: torch.Generator
    complete: bool = False

    def draw(self, logits: torch.Tensor, sampling: Sampling) -> int:
        """One token from (V,) logits: the likeliest, or a draw from the cut and tempered distribution."""
        if not bool(torch.isfinite(logits).all()):
            raise CourseError("the model's logits are not finite: this adapter's training has diverged")
        if sampling.greedy:
            return int(logits.argmax())
        scores = TemperatureLogitsWarper(float(sampling.temperature))(None, logits[None])
        if sampling.top_p < 1:
            scores = TopPLogitsWarper(sampling.top_p)(None, scores)
        return int(torch.multinomial(scores[0].softmax(dim=-1), 1, generator=self.generator))

    def add(self, token: int, encoder: ChatEncoder) -> None:
        """Take a token; nothing is added behind the end."""
        if not self.complete:
            self.ids.append(token)
            self.complete = token in encoder.eos_ids

    def draft(self, encoder: ChatEncoder, last: bool) -> Draft:
        """The answer so far. Bytes of a character that is not whole yet are left out until it is."""
        text = encoder.decode(self.ids)
        if not (self.complete or last):
            text = text.rstrip("\ufffd")
        return Draft(list(self.ids), text, self.complete, self.complete or last)


class _Stepper:
    """Forward passes of one batch with a cache: tokens (K, T) → (K, V) float32 logits on the CPU."""

    def __init__(self, model: Any, adapters: Sequence[str | None], lock: threading.Lock | None) -> None:
        self.model, self.lock = model, lock or nullcontext()
        names = [name or BASE for name in adapters]
        if isinstance(model, PeftModel):
            self.extra: dict[str, Any] = {"adapter_names": names}
        elif set(names) != {BASE}:
            raise CourseError(f"the model has no adapters; {', '.join(filter(None, adapters))} cannot answer")
        else:
            self.extra = {}
        base = model.get_base_model() if isinstance(model, PeftModel) else model
        known = inspect.signature(base.forward).parameters
        self.extra["cache" if "cache" in known else "past_key_values"] = DynamicCache()

    @torch.no_grad()
    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        with self.lock:
            try:
                output = self.model(input_ids=tokens, use_cache=True, logits_to_keep=1, **self.extra)
            except BaseException:
                _forget_hooks(self.model)
                raise
        return output.logits[:, -1].float().cpu()


def _forget_hooks(model: Any) -> None:
    """PEFT leaves the adapter names of a failed mixed batch behind, which would spoil every later pass."""
    layers: list[Any] = [module for module in model.modules() if isinstance(module, LoraLayer)]
    for layer in layers:
        layer._forward_pre_hooks.clear()
        layer._forward_pre_hooks_with_kwargs.clear()
