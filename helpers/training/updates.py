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

    A token is clipped where the clipped term is the one that counts: the ratio is above the range while the
    advantage is positive, or below it while the advantage is negative.
    """

    def __init__(self, config: OnlineConfig) -> None:
        self.low = math.log1p(-min(config.clip_eps, 1 - 1e-9))
        self.high = math.log1p(config.clip_eps if config.clip_eps_high is None else config.clip_eps_high)
        self.clipped = self.tokens = 0
        self.least = self.most = 0.0
        self.first: float | None = None

    def see(self, logprobs: torch.Tensor, micro: MicroBatch) -> None:
        """Take in one micro-batch."""
        mask = micro.batch.mask
        log_ratio = (logprobs - micro.old_logprobs)[mask]
        advantage = micro.advantages.view(len(mask), -1).expand_as(mask)[mask]
        outside = ((log_ratio > self.high) & (advantage > 0)) | ((log_ratio < self.low) & (advantage < 0))
        self.clipped += int(outside.sum())
        self.tokens += log_ratio.numel()
        if self.first is None:
            self.first = log_ratio.abs().max().item()
        self.least = min(self.least, log_ratio.min().item())
        self.most = max(self.most, log_ratio.max().item())

    def metrics(self) -> dict[str, float]:
        """Numbers of the step."""
        return {
            "clip_fraction": self.clipped / max(self.tokens, 1),
            "ratio_min": math.exp(max(self.least, -80.0)),
            "ratio_max": math.exp(min(self.most, 80.0)),
            "first_ratio_error": math.expm1(min(self.first or 0.0, 80.0)),
        }


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
