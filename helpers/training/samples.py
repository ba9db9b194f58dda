"""Answers to a few fixed prompts at every evaluation, so that one sees the model change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from helpers.models.sampling import Sampling, check_sampling, generate
from helpers.text.datasets import Example
from helpers.training.setup import Workspace, encode_prompts
from helpers.training.tracking import Tracker


class SampleLogger:
    """Generates greedy answers to the first `eval_samples` prompts and writes them to samples.jsonl.

    Where `judge` is set, it gives each answer a verdict from 0 to 1 besides, the entry `gold`.

    Args:
        examples: held-out examples; their first response or `reference_response_text` is shown beside.
        model: its context is held against the prompts and the answers' length before training.
        score: optional reward of (prompt ids, response ids) lists, as in online training.
    """

    def __init__(
        self,
        space: Workspace,
        examples: Sequence[Example],
        score: Callable[[list[list[int]], list[list[int]]], list[float]] | None = None,
        *,
        model: torch.nn.Module | None = None,
    ) -> None:
        self.space, self.score = space, score
        self.judge: Callable[[Sequence[str]], Sequence[float]] | None = None
        self.examples = list(examples[: space.config.eval_samples])
        self.prompts = encode_prompts(space, self.examples)
        self.sampling = Sampling(max_new_tokens=space.config.max_new_tokens, greedy=True)
        if model is not None:
            check_sampling(model, self.prompts, self.sampling)
        self.tracker = Tracker.open(space.config, space.run)

    @torch.no_grad()
    def write(self, model: torch.nn.Module, step: int) -> list[dict[str, Any]]:
        """Generate, write and return the rows of this step."""
        if not self.examples:
            return []
        answers = [c[0] for c in generate(model, self.space.encoder, self.prompts, self.sampling)]
        rewards = self.score(self.prompts, [a.ids for a in answers]) if self.score else [None] * len(answers)
        rows = []
        for example, answer, reward in zip(self.examples, answers, rewards, strict=True):
            row = {
                "row_id": example.row_id,
                "prompt": example.messages[-1]["content"],
                "reference_response": reference_text(example),
                "response": answer.text,
                "tokens": len(answer.ids),
                "complete": answer.complete,
            }
            rows.append(row if reward is None else {**row, "reward": reward})
        if self.judge:
            verdicts = self.judge([answer.text for answer in answers])
            rows = [{**row, "gold": float(gold)} for row, gold in zip(rows, verdicts, strict=True)]
        self.space.run.log_samples(step, rows)
        self.tracker.log_samples(step, rows)
        return rows


def reference_text(example: Example) -> str:
    """The answer a data set holds for comparison, or an empty string."""
    if example.responses:
        return example.responses[0]
    return str(example.metadata.get("reference_response_text", ""))
