"""Sampling responses with transformers' `generate`.

Left padding, every end id stops, and the model is left as it was found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import GenerationConfig

from helpers.errors import CourseError
from helpers.text.chat import ChatEncoder


@dataclass(frozen=True)
class Sampling:
    """How responses are drawn. The distribution is softmax(logits / temperature), cut to the nucleus `top_p`.

    Nothing else shapes it: the model's own generation settings (top-k, repetition penalty, …) are ignored,
    because the log-probabilities that training needs know nothing of them. `min_new_tokens` suppresses the
    end ids for so many tokens. Greedy ignores temperature and top_p.
    """

    max_new_tokens: int = 256
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    greedy: bool = False

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise CourseError(f"--max_new_tokens must be at least 1, not {self.max_new_tokens}")
        if not 0 <= self.min_new_tokens <= self.max_new_tokens:
            raise CourseError(
                f"--min_new_tokens {self.min_new_tokens} must lie between 0 and"
                f" --max_new_tokens {self.max_new_tokens}"
            )
        if self.greedy:
            return
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise CourseError(
                f"--temperature must be greater than 0, not {self.temperature}:"
                " for the most likely answer use greedy"
            )
        if not 0 < self.top_p <= 1:
            raise CourseError(f"--top_p must be in (0, 1], not {self.top_p}")


@dataclass(frozen=True)
class Completion:
    """One sampled response. `ids` ends with the end id that was drawn exactly if `complete`; no padding."""

    ids: list[int]
    text: str
    complete: bool


def generate(
    model: Any,
    encoder: ChatEncoder,
    prompts: Sequence[list[int]],
    sampling: Sampling,
    *,
    k: int = 1,
    batch_size: int = 64,
    seed: int = 0,
    progress: str | None = None,
) -> list[list[Completion]]:
    """Draw `k` responses for each prompt (token ids, generation prompt included), in the prompts' order.

    `batch_size` counts responses. The draw depends on `seed` (and on k and batch_size), never on the global
    RNG, which is left untouched; so are training mode, gradient checkpointing and every setting of the
    model. `progress` is the title of a progress bar. Raises CourseError for an empty prompt, or a prompt
    that with `max_new_tokens` exceeds the model's context.
    """
    check_sampling(model, prompts, sampling, k, batch_size)
    # Prompts of like length share a batch: less padding. Longest first: a memory error comes at once.
    rows = sorted((i for i in range(len(prompts)) for _ in range(k)), key=lambda i: (-len(prompts[i]), i))
    results: list[list[Completion]] = [[] for _ in prompts]
    settings = _generation_config(encoder, sampling)
    devices = [model.device] if model.device.type == "cuda" else []
    bar = tqdm(total=len(rows), desc=progress, unit="response", disable=progress is None)
    with bar, torch.random.fork_rng(devices=devices), sampling_mode(model):
        torch.manual_seed(seed)
        for start in range(0, len(rows), batch_size):
            chunk = rows[start : start + batch_size]
            for index, ids in zip(
                chunk, _generate_batch(model, [prompts[i] for i in chunk], settings), strict=True
            ):
                results[index].append(_completion(ids, encoder, sampling.max_new_tokens))
            bar.update(len(chunk))
    return results


def check_sampling(
    model: Any, prompts: Sequence[list[int]], sampling: Sampling, k: int = 1, batch_size: int = 1
) -> None:
    """Raise CourseError for what `generate` would refuse; a trainer asks before its first step."""
    if k < 1 or batch_size < 1:
        raise CourseError(f"k and batch_size must be at least 1, not {k} and {batch_size}")
    if sampling.greedy and k > 1:
        raise CourseError(f"greedy gives one response a prompt, not {k}: sample instead, or ask for k=1")
    context = getattr(model.config, "max_position_embeddings", None)
    for number, prompt in enumerate(prompts):
        if not prompt:
            raise CourseError(f"prompt {number} is empty: encode it with ChatEncoder.encode_prompt")
        if context and len(prompt) + sampling.max_new_tokens > context:
            raise CourseError(
                f"prompt {number} has {len(prompt)} tokens; with --max_new_tokens {sampling.max_new_tokens}"
                f" it exceeds the model's context of {context}: lower --max_prompt_tokens or --max_new_tokens"
            )


def _generation_config(encoder: ChatEncoder, sampling: Sampling) -> GenerationConfig:
    """A configuration that names every setting: whatever is left out, transformers fills in (top_k = 50)."""
    config = GenerationConfig(
        max_new_tokens=sampling.max_new_tokens,
        min_new_tokens=sampling.min_new_tokens or None,
        do_sample=not sampling.greedy,
        num_beams=1,
        repetition_penalty=1.0,
        eos_token_id=sorted(encoder.eos_ids),
        pad_token_id=encoder.pad_id,
        bos_token_id=encoder.bos_id,
        use_cache=True,
    )
    if not sampling.greedy:
        config.update(temperature=sampling.temperature, top_p=sampling.top_p, top_k=0)
    return config


@contextmanager
def sampling_mode(model: Any) -> Iterator[None]:
    """Eval mode, no gradient checkpointing (it would switch the key-value cache off), no generation settings.

    All of it is restored as it was, module by module.
    """
    training = [module for module in model.modules() if module.training]
    checkpointed = [module for module in model.modules() if getattr(module, "gradient_checkpointing", False)]
    owner = model.get_base_model() if hasattr(model, "get_base_model") else model
    settings = owner.generation_config
    try:
        model.eval()
        for module in checkpointed:
            module.gradient_checkpointing = False
        owner.generation_config = GenerationConfig()
        yield
    finally:
        owner.generation_config = settings
        for module in checkpointed:
            module.gradient_checkpointing = True
        for module in training:
            module.training = True


@torch.no_grad()
def _generate_batch(model: Any, prompts: list[list[int]], settings: GenerationConfig) -> list[list[int]]:
    """Left-padded generation; returns what follows each prompt, padding included."""
    width = max(map(len, prompts))
    ids = torch.full((len(prompts), width), settings.pad_token_id, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    try:
        output = model.generate(
            input_ids=ids.to(model.device), attention_mask=mask.to(model.device), generation_config=settings
        )
    except RuntimeError as problem:
        if "probability tensor contains" in str(problem):
            raise CourseError(
                "the model's logits are not finite, so nothing can be sampled: training has diverged;"
                " go back to an earlier checkpoint or lower --learning_rate"
            ) from problem
        raise
    return output[:, width:].tolist()


def _completion(ids: list[int], encoder: ChatEncoder, max_new_tokens: int) -> Completion:
    """Cut the padding after the first end id. By position, never by pad id, which may be an end id itself."""
    for position, token in enumerate(ids):
        if token in encoder.eos_ids:
            kept = ids[: position + 1]
            return Completion(kept, encoder.decode(kept), True)
    if len(ids) > max_new_tokens:
        raise AssertionError(f"{len(ids)} tokens generated, {max_new_tokens} allowed")
    return Completion(ids, encoder.decode(ids), False)
