"""Supervised fine-tuning with `transformers.Trainer`: mean NLL over the response tokens of the batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from helpers.errors import CourseError
from helpers.guard import guarded
from helpers.models.policy import response_logprobs
from helpers.text.groups import Group, TokenBatch, make_batch, pad_groups
from helpers.training.configs import SFTConfig
from helpers.training.fit import fit
from helpers.training.samples import SampleLogger
from helpers.training.setup import (
    RunResult,
    Workspace,
    add_policy,
    finished_result,
    fit_layout,
    load_groups,
    open_workspace,
)
from helpers.training.trainer import TrainingItem


@dataclasses.dataclass
class SFTObjective:
    """Token-weighted negative log-likelihood of the responses.

    The trainer computes log-probs in chunks; with `fused` off it calls the answer `sft_loss` on full logits
    (right-padded, masked by the answer `response_mask` where there is one), which is the same number.
    """

    space: Workspace
    answers: Any
    eval_groups: Sequence[Group]
    samples: SampleLogger

    def weight(self, items: Sequence[TrainingItem]) -> float:
        """Number of response tokens."""
        return float(sum(len(response) for item in items for response in item.group.responses))

    def loss(
        self, model: torch.nn.Module, items: Sequence[TrainingItem]
    ) -> tuple[torch.Tensor, dict[str, float]]:
        """Mean NLL over the response tokens of `items`."""
        groups = [item.group for item in items]
        if not self.space.config.fused:
            return self.full_loss(model, groups), {}
        batch = make_batch(groups, self.space.pad_id, self.space.config.layout).to(device_of(model))
        scores = response_logprobs(model, batch)
        return -scores.logprobs.sum() / scores.mask.sum().clamp(min=1), {}

    def full_loss(self, model: torch.nn.Module, groups: Sequence[Group]) -> torch.Tensor:
        """The same through full logits and the answer `sft_loss`."""
        batch = pad_groups(groups, self.space.pad_id).to(device_of(model))
        logits = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
        return self.answers.sft_loss(logits, batch.input_ids, self.mask_of(batch, groups))

    def mask_of(self, batch: TokenBatch, groups: Sequence[Group]) -> torch.Tensor:
        """(rows, width) bool: response tokens, by the answer `response_mask` or as the batch was laid out."""
        if answer := response_mask_in(self.answers):
            lengths = [len(group.prompt_ids) for group in groups for _ in group.responses]
            return answer(torch.tensor(lengths, device=batch.input_ids.device), batch.attention_mask)
        return batch.mask_in_rows()

    @torch.no_grad()
    def evaluate(self, model: torch.nn.Module, step: int) -> dict[str, float]:
        """Perplexity of the held-out responses; answers to the sample prompts go to samples.jsonl."""
        self.samples.write(model, step)
        logprobs = []
        for start in range(0, len(self.eval_groups), 16):
            batch = make_batch(
                self.eval_groups[start : start + 16], self.space.pad_id, self.space.config.layout
            )
            scores = response_logprobs(model, batch.to(device_of(model)))
            logprobs.append(scores.logprobs[scores.mask])
        if not logprobs:
            return {}
        flat = torch.cat(logprobs)[None]
        return {"perplexity": self.answers.perplexity(flat, torch.ones_like(flat, dtype=torch.bool))}


def response_mask_in(answers: Any) -> Callable[..., torch.Tensor] | None:
    """The answer `response_mask`; None in lesson 01, where a learner has not the functions of lesson 00."""
    try:
        return answers.response_mask
    except CourseError:
        return None


def device_of(model: torch.nn.Module) -> torch.device:
    """Where the model's parameters lie."""
    return next(model.parameters()).device


def train_sft(config: SFTConfig, answers: Any, *, stop_at_step: int | None = None) -> RunResult:
    """Fine-tune an adapter on instruction data; the result is `final/adapter`.

    Args:
        answers: namespace with `perplexity` and, with `fused` off, `sft_loss` and perhaps `response_mask`.
        stop_at_step: stop there as an interruption would (tests).
    """
    answers = guarded(answers)
    masks = ("response_mask",) if response_mask_in(answers) else ()
    used = () if config.fused else ("sft_loss", *masks)
    space = open_workspace(config, "sft", answers.fingerprints(*used))
    if done := finished_result(space.run):
        return done
    _, groups = load_groups(space, "sft")
    eval_examples, eval_groups = load_groups(space, "sft", evaluation=True)
    policy = add_policy(space)
    fit_layout(space, policy.model, [*groups, *eval_groups])
    objective = SFTObjective(
        space, answers, eval_groups, SampleLogger(space, eval_examples, model=policy.model)
    )
    items = [TrainingItem(group) for group in groups]
    return fit(
        space,
        policy.model,
        items,
        objective,
        save=policy.save,
        load=policy.restore,
        stop_at_step=stop_at_step,
    )
