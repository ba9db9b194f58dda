"""What a preference loss is applied to: weighted pairs, smoothed labels, and batches whose pairs are coupled.

All of it calls the learner's function as it is; nothing here is a loss of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from helpers.errors import CourseError
from helpers.text.datasets import Example
from helpers.training.configs import PreferenceConfig
from helpers.training.trainer import TrainingItem

COUPLED = ("aot",)  # the loss of a batch is not the mean over its parts


def check_preference(config: PreferenceConfig) -> None:
    """Raise CourseError for an option that does not go with the algorithm."""
    if not 0 <= config.label_smoothing < 0.5:
        raise CourseError(
            f"--label_smoothing is the share of wrong labels, below 0.5; not {config.label_smoothing}"
        )
    allowed = {
        "label_smoothing": (("dpo",), "the smoothed loss is DPO's (cDPO)"),
        "length_average": (("ipo",), "only IPO has a form on length-averaged log-probs here"),
        "aot_paired": (("aot",), "it is one of AOT's two forms"),
        "pair_weights": (("dpo", "ipo"), "AOT sorts, and a sorted place belongs to no pair"),
    }
    for name, (algos, reason) in allowed.items():
        if getattr(config, name) and config.algo not in algos:
            raise CourseError(f"--{name} does not go with --algo {config.algo}: {reason}")


def preference_loss(
    function: Callable[..., torch.Tensor],
    policy: torch.Tensor,
    reference: torch.Tensor,
    config: PreferenceConfig,
    items: Sequence[TrainingItem],
) -> torch.Tensor:
    """The learner's loss on (pairs, 2) log-probs, in the form that the config asks for.

    Paired AOT is the same function of other inputs: in place of the log-ratios of chosen and rejected
    responses it sorts the margins (chosen less rejected) of the policy and of the reference.
    """
    if config.aot_paired:
        margins = (side[:, 0] - side[:, 1] for side in (policy, reference))
        nothing = torch.zeros(len(policy), device=policy.device)
        return function(*margins, nothing, nothing, config.beta)
    weights = [item.weight for item in items if item.weight is not None]
    if weights:
        return weighted_mean(function, policy, reference, config, weights)
    return smoothed(function, policy, reference, config)


def smoothed(
    function: Callable[..., torch.Tensor],
    policy: torch.Tensor,
    reference: torch.Tensor,
    config: PreferenceConfig,
) -> torch.Tensor:
    """The loss if a share of the labels is the wrong way round (cDPO; Mitchell, 2023, on noisy labels)."""
    share = config.label_smoothing
    loss = function(policy[:, 0], policy[:, 1], reference[:, 0], reference[:, 1], config.beta)
    if not share:
        return loss
    swapped = function(policy[:, 1], policy[:, 0], reference[:, 1], reference[:, 0], config.beta)
    return (1.0 - share) * loss + share * swapped


def weighted_mean(
    function: Callable[..., torch.Tensor],
    policy: torch.Tensor,
    reference: torch.Tensor,
    config: PreferenceConfig,
    weights: Sequence[float],
) -> torch.Tensor:
    """Mean of weight * loss, the function called on one pair at a time, since it returns a mean itself."""
    losses = [
        weight * smoothed(function, policy[i : i + 1], reference[i : i + 1], config)
        for i, weight in enumerate(weights)
    ]
    return torch.stack(losses).mean()


def lengths_of(items: Sequence[TrainingItem], like: torch.Tensor) -> torch.Tensor:
    """(pairs, 2) tokens of each response, the end-of-turn included."""
    sizes = [[len(response) for response in item.group.responses] for item in items]
    return torch.tensor(sizes, dtype=like.dtype, device=like.device)


# ---------------------------------------------------------------------- coupled batches
@dataclass(frozen=True)
class WholeBatch:
    """The loss of a whole optimiser batch, and its slope along each pair's two log-probs."""

    loss: torch.Tensor  # ()
    slopes: dict[int, torch.Tensor]  # id of the item → (2,)

    def part(self, policy: torch.Tensor, items: Sequence[TrainingItem]) -> torch.Tensor:
        """The whole batch's loss, with a gradient that, weighted by these pairs' share, is their part of it.

        Args:
            policy: (pairs, 2) with gradient, at the weights that the slopes were taken at.
        """
        slopes = torch.stack([self.slopes[id(item)] for item in items])
        share = len(items) / len(self.slopes)
        return self.loss + (slopes * (policy - policy.detach())).sum() / share


def whole_batch(
    policy: torch.Tensor, loss: Callable[[torch.Tensor], torch.Tensor], items: Sequence[TrainingItem]
) -> WholeBatch:
    """Take the loss of (pairs, 2) log-probs and its slopes, which fix a sorting loss's pairing."""
    leaf = policy.detach().clone().requires_grad_()
    with torch.enable_grad():
        value = loss(leaf)
        (slopes,) = torch.autograd.grad(value, leaf)
    return WholeBatch(value.detach(), {id(item): slope for item, slope in zip(items, slopes, strict=True)})


# ---------------------------------------------------------------------- weights
def pair_weights(examples: Sequence[Example], field: str | None) -> list[float | None]:
    """The weight of every pair from a row field, scaled to mean 1 over the data set; None without a field.

    CourseError names the row where the field holds no number of 0 or more.
    """
    if field is None:
        return [None] * len(examples)
    found = [weight_of(example, field) for example in examples]
    mean = sum(found) / len(found)
    if mean == 0:
        raise CourseError(f"--pair_weights {field}: every row holds 0, so there is nothing to learn from")
    return [value / mean for value in found]


def weight_of(example: Example, field: str) -> float:
    """One row's weight as it stands there."""
    value: Any = example.metadata.get(field)
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    if good and math.isfinite(value) and value >= 0:
        return float(value)
    numbers = sorted(k for k, v in example.metadata.items() if isinstance(v, (int, float)))
    raise CourseError(
        f"--pair_weights {field}: row {example.row_id} holds {value!r:.40} there, not a number of 0 or more"
        f" (its numbers: {', '.join(numbers) or 'none'})"
    )
