"""What an update needs besides the loss: the optimiser, and a watch on the ratios."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from transformers import Trainer, TrainingArguments

from helpers.training.configs import OnlineConfig
from helpers.training.rollouts import MicroBatch
from helpers.training.setup import Workspace


class RatioWatch:
    """Clip fraction, extremes of the ratio, and how far the first ratio of the step was from 1.

    A ratio is clipped where the clipped term is the one that counts: it is above the range while the
    advantage is positive, or below it while the advantage is negative. With `by_response` it is one ratio a
    response, exp of the mean log-ratio, as in GSPO; the extremes of the tokens are then kept beside it.
    """

    def __init__(self, config: OnlineConfig, *, by_response: bool = False) -> None:
        self.low = math.log1p(-min(config.clip_eps, 1 - 1e-9))
        self.high = math.log1p(config.clip_eps if config.clip_eps_high is None else config.clip_eps_high)
        self.by_response = by_response
        self.clipped = self.count = 0
        self.least = self.most = self.least_token = self.most_token = 0.0
        self.first: float | None = None

    def see(self, logprobs: torch.Tensor, micro: MicroBatch) -> None:
        """Take in one micro-batch."""
        mask = micro.taught_mask
        if not mask.any():
            return
        tokens = torch.where(mask, logprobs - micro.old_logprobs, 0.0)
        advantages = micro.advantages.view(len(mask), -1).expand_as(mask)
        self.least_token = min(self.least_token, tokens.min().item())
        self.most_token = max(self.most_token, tokens.max().item())
        if self.by_response:
            sizes = mask.sum(dim=1)
            log_ratio = (tokens.sum(dim=1) / sizes.clamp(min=1))[sizes > 0]
            advantage = advantages[:, 0][sizes > 0]
        else:
            log_ratio, advantage = tokens[mask], advantages[mask]
        outside = ((log_ratio > self.high) & (advantage > 0)) | ((log_ratio < self.low) & (advantage < 0))
        self.clipped += int(outside.sum())
        self.count += log_ratio.numel()
        if self.first is None:
            self.first = log_ratio.abs().max().item()
        self.least = min(self.least, log_ratio.min().item())
        self.most = max(self.most, log_ratio.max().item())

    def metrics(self) -> dict[str, float]:
        """Numbers of the step."""
        found = {
            "clip_fraction": self.clipped / max(self.count, 1),
            "ratio_min": bounded_exp(self.least),
            "ratio_max": bounded_exp(self.most),
            "first_ratio_error": math.expm1(min(self.first or 0.0, 80.0)),
        }
        if self.by_response:
            found |= {
                "token_ratio_min": bounded_exp(self.least_token),
                "token_ratio_max": bounded_exp(self.most_token),
            }
        return found


def bounded_exp(log_ratio: float) -> float:
    """exp without overflow."""
    return math.exp(min(max(log_ratio, -80.0), 80.0))


@contextmanager
def recomputing(model: torch.nn.Module) -> Iterator[None]:
    """Let gradient checkpointing work, where it is on, in a model in eval mode.

    Layers recompute their activations in training mode only, but the rest must stay in eval mode: with any
    dropout the first ratio would not be 1.
    """
    layers = [m for m in model.modules() if getattr(m, "gradient_checkpointing", False) and not m.training]
    for layer in layers:
        layer.training = True
    try:
        yield
    finally:
        for layer in layers:
            layer.training = False


def build_optimizer(space: Workspace, model: torch.nn.Module) -> torch.optim.Optimizer:
    """AdamW as the profile names it (torch's, or the paged 8-bit one), by the Trainer's own table."""
    arguments = TrainingArguments(
        output_dir=str(space.run.path),
        optim=space.profile.optim,
        learning_rate=space.config.learning_rate,
        weight_decay=space.config.weight_decay,
        use_cpu=not torch.cuda.is_available(),
        report_to="none",
    )
    cls, options = Trainer.get_optimizer_cls_and_kwargs(arguments)
    parameters = [p for p in model.parameters() if p.requires_grad]
    return cls([{"params": parameters, "weight_decay": space.config.weight_decay}], **options)
