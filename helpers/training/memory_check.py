"""Out of memory in the first minute, not in the third hour: the longest batch goes first, as a rehearsal.

Batches differ in length, and the longest may come late. So before the first step one forward and backward
pass is made with the largest micro-batch that the data and the limits allow, beside what the optimiser will
hold. Nothing is learned from it, and no random number is used up.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from helpers.errors import CourseError
from helpers.models.policy import response_logprobs
from helpers.text.groups import Group, make_batch
from helpers.training.configs import EpochSettings, RunSettings
from helpers.training.trainer import CoupledObjective, GroupTrainer, TrainingItem
from helpers.training.updates import recomputing


def wanted(config: RunSettings) -> bool:
    """Whether to rehearse: as --check_memory says, else where memory is a GPU's, which does not swap."""
    return torch.cuda.is_available() if config.check_memory is None else config.check_memory


def is_out_of_memory(problem: BaseException) -> bool:
    """Of a GPU, of Python, or of torch on a CPU."""
    if isinstance(problem, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(problem, RuntimeError) and "can't allocate memory" in str(problem)


@contextmanager
def explained_memory(config: RunSettings, what: str, rows: int = 0) -> Iterator[None]:
    """Turn an out-of-memory error inside the block into a CourseError that names the flags to lower.

    rows: of the batch at hand, if that is known.
    """
    try:
        yield
    except Exception as problem:
        if not is_out_of_memory(problem):
            raise
        raise CourseError(f"out of memory: {what}. {advice(config, rows)}") from None


def advice(config: RunSettings, rows: int = 0) -> str:
    """What to lower or switch on, with what it is now; a batch of one row cannot be cut further."""
    names = ["micro_batch_tokens", "per_device_train_batch_size"] if rows != 1 else []
    if not isinstance(config, EpochSettings):
        names = ["minibatch_size", "group_size", "max_new_tokens", "generation_batch_size"]
    else:
        names.append("max_response_tokens")
    names += ["max_prompt_tokens", "lora_r"]
    lower = [f"--{name} (now {value})" for name in names if (value := getattr(config, name, None))]
    text = f"Lower {', '.join(lower)}"
    if not config.gradient_checkpointing:
        text += "; or --gradient_checkpointing true, which costs about a third more time"
    if config.quantization != "nf4":
        text += "; or --quantization nf4"
    return f"{text}. Other programs on the same GPU count too"


def largest_batch(items: Sequence[TrainingItem], config: EpochSettings) -> list[TrainingItem]:
    """The micro-batch of most tokens, padding included, that `GroupTrainer.micro_batches` could ever cut.

    For every length: as many rows as the limits allow, filled with the longest that are no longer.
    """
    ordered = sorted(items, key=len)
    most = config.per_device_train_batch_size or len(ordered)
    tokens = config.micro_batch_tokens or math.inf
    best, chosen = (0, 0), slice(0)
    for place, item in enumerate(ordered):
        width = max(len(item), 1)
        rows = min(most, place + 1, max(1, int(min(tokens / width, most))))
        if (rows * width, width) > best:
            best, chosen = (rows * width, width), slice(place + 1 - rows, place + 1)
    return ordered[chosen]


def rehearse(trainer: GroupTrainer, items: Sequence[TrainingItem]) -> None:
    """One forward and backward pass with the largest micro-batch. CourseError if it does not fit."""
    batch = largest_batch(items, trainer.config)
    tokens = len(batch) * max(map(len, batch), default=0)
    what = f"the largest batch of this run, {len(batch)} row(s) and {tokens} tokens, does not fit"
    model = trainer.model
    model.train()
    with explained_memory(trainer.config, what, len(batch)), untouched(model):
        with trainer.compute_loss_context_manager():
            if isinstance(trainer.objective, CoupledObjective):
                trainer.objective.prepare(model, [batch])
            loss, _ = trainer.objective.loss(model, batch)
        loss.backward()


def rehearse_online(trainer: Any) -> None:
    """The same for an online run: a micro-batch of its longest prompts, each answered to the last token.

    Generation is not rehearsed: it starts with the longest prompts, and at the first step anyway.
    """
    c, pad = trainer.config, trainer.space.pad_id
    prompts = sorted(trainer.prompts, key=len)[-max(c.minibatch_size // c.group_size, 1) :]
    groups = [Group(prompt, [[pad] * c.max_new_tokens] * c.group_size) for prompt in prompts]
    tokens = sum(len(group.prompt_ids) + c.group_size * c.max_new_tokens for group in groups)
    what = f"the largest batch of this run, {len(groups)} prompt(s) and {tokens} tokens, does not fit"
    batch = make_batch(groups, pad, c.layout)
    trainer.model.eval()
    with explained_memory(c, what), untouched(trainer.model), recomputing(trainer.model):
        with trainer.autocast:
            scores = response_logprobs(trainer.model, batch, temperature=c.temperature)
        scores.logprobs.sum().backward()


@contextmanager
def untouched(model: torch.nn.Module) -> Iterator[None]:
    """Room taken for two moments of every trained weight; gradients and random numbers as they were."""
    learned = [p for p in model.parameters() if p.requires_grad]
    with torch.random.fork_rng():
        try:
            moments = [torch.zeros_like(p, dtype=torch.float32) for p in learned for _ in range(2)]
            yield
            del moments
        finally:
            model.zero_grad(set_to_none=True)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
