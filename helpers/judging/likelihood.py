"""How likely held-out answers are under a policy: what an alignment method has kept of the language."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from helpers.guard import guarded
from helpers.judging.measure import Role
from helpers.models.policy import layout_for, response_logprobs
from helpers.text.groups import Group, make_batch


def text_perplexity(
    role: Role,
    groups: Sequence[Group],
    pad_id: int,
    answers: Any,
    *,
    batch_size: int = 32,
    layout: str = "packed",
) -> float:
    """Perplexity of the groups' responses under `role`, every token weighted alike over the whole set.

    Args:
        groups: prompts with the held-out responses; prompts are not counted.
        answers: namespace with `perplexity`, called on one batch after another.

    Returns:
        exp of the mean negative log-likelihood in nats a response token; NaN without groups, infinite where
        it overflows.
    """
    perplexity = guarded(answers).perplexity
    device = next(role.model.parameters()).device
    layout = layout_for(role.model, groups, layout) if groups else layout
    nats, tokens = 0.0, 0
    with role.active():
        for start in range(0, len(groups), batch_size):
            batch = make_batch(groups[start : start + batch_size], pad_id, layout).to(device)
            scores = response_logprobs(role.model, batch)
            count = int(scores.mask.sum())
            nats += math.log(perplexity(scores.logprobs, scores.mask)) * count
            tokens += count
    if not tokens:
        return math.nan
    return math.exp(nats / tokens) if nats / tokens < 700 else math.inf
