"""PPO's value: a second trainable adapter and a linear head on the policy's base.

It starts as a copy of the reward model (Ouyang et al. 2022, arXiv 2203.02155, appendix C), so its first
guesses of the score are the reward model's own, made from what was written so far.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from helpers.errors import CourseError
from helpers.models import loading
from helpers.models.adapters import reference
from helpers.models.policy import predicting_hidden
from helpers.models.reward_model import RewardModel, read_card
from helpers.text.groups import TokenBatch
from helpers.training.setup import Policy, Workspace, lora_settings

ADAPTER = "value"


class ValueModel(RewardModel):
    """Values of states. Saved, loaded and restored like the reward model it is a copy of."""

    def token_values(self, batch: TokenBatch) -> torch.Tensor:
        """(N, R) fp32: V of the state that predicts each response token, zeros outside the mask.

        Gradients flow if grad mode is on; call `backward` within the same `active()` block.
        """
        with self._own_adapter():
            states = predicting_hidden(self.model, batch)
        with torch.autocast(states.device.type, enabled=False):
            values = self.head(states.float()).squeeze(-1)
        return values.masked_fill(~batch.mask.to(values.device), 0.0)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Keep the value adapter on, for passes whose activations are recomputed in backward."""
        with reference(self.model, self.adapter):
            yield

    def unfreeze(self) -> list[torch.nn.Parameter]:
        """Let adapter and head require gradients, whichever adapter is active; return them."""
        own = [weight for name, weight in self.model.named_parameters() if f".{self.adapter}." in name]
        weights = [*own, *self.head.parameters()]
        for weight in weights:
            weight.requires_grad_(True)
        return weights


def add_value(space: Workspace, policy: Policy, answers: Any) -> ValueModel:
    """Put a value on the policy's base: the reward model's weights, or fresh ones where there is none.

    The policy's adapter stays the active one. Nothing of the value requires gradients yet.
    """
    options = {"pad_id": space.pad_id, "layout": space.config.layout}
    source = space.config.reward_model
    if source:
        if read_card(Path(source))["kind"] != "adapter":
            raise CourseError(
                f"--reward_model {source} was fully fine-tuned; PPO keeps reward and value as adapters on the"
                " policy's base: train one with `train --algo reward_model --full_finetune false`"
            )
        loaded = ValueModel.load(source, policy.model, answers.last_token_index, name=ADAPTER, **options)
        assert isinstance(loaded, ValueModel)
        return loaded
    settings = lora_settings(space.config, dropout=0.0)
    model = loading.add_adapter(policy.model, ADAPTER, settings, trainable=False, seed=space.config.seed)
    loading.activate(model, policy.adapter, trainable=True)
    value = ValueModel.create(model, ADAPTER, answers.last_token_index, seed=space.config.seed, **options)
    assert isinstance(value, ValueModel)
    value.head.requires_grad_(False)
    return value
