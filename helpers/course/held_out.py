"""Judges for the held-out answers of an online run: what tells a better policy from a gamed reward.

A judge that was optimised against is no judge any more, so this one trains nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from helpers.judging.gold import gold_scores
from helpers.judging.judge import Comparison, Judge
from helpers.judging.measure import gold_metadata
from helpers.judging.registry import make_judge
from helpers.text.datasets import Example
from helpers.training.configs import OnlineConfig
from helpers.training.samples import reference_text
from helpers.training.setup import RunResult
from helpers.training.watch import HeldOut

Verdicts = Callable[[Sequence[str]], Sequence[float]]


def watched(train: Callable[..., RunResult]) -> Callable[..., RunResult]:
    """An online trainer that has its evaluations judged as `held_out_judge` of its settings says."""

    def train_watched(config: OnlineConfig, answers: Any, **options: Any) -> RunResult:
        return train(config, answers, **{"held_out": held_out_by(config.held_out_judge), **options})

    return train_watched


def held_out_by(name: str | None) -> HeldOut | None:
    """The held-out judge by name: None is gold where the prompts have its facts; "none" is nobody."""
    if name == "none":
        return None
    if name in (None, "gold"):
        return gold_verdicts
    judge = make_judge(name)
    return lambda examples: verdicts_against_references(judge, examples)


def gold_verdicts(examples: Sequence[Example]) -> Verdicts | None:
    """Gold scores; None where a prompt lacks the facts for it."""
    facts = [known for example in examples if (known := gold_metadata(example))]
    if not examples or len(facts) < len(examples):
        return None
    return lambda responses: [
        gold_scores(known, text).total for known, text in zip(facts, responses, strict=True)
    ]


def verdicts_against_references(judge: Judge, examples: Sequence[Example]) -> Verdicts | None:
    """1, ½ or 0 for an answer that beats, ties or loses to the data's own; None where there is none.

    Both orders are asked: a verdict that turns with the order, or cannot be read, counts ½.
    """
    references = [reference_text(example) for example in examples]
    if not examples or not all(references):
        return None

    def verdicts(responses: Sequence[str]) -> list[float]:
        rows = list(zip(examples, responses, references, strict=True))
        first = judge.compare([Comparison(example, own, other) for example, own, other in rows])
        second = judge.compare([Comparison(example, other, own) for example, own, other in rows])
        points = {("A", "B"): 1.0, ("B", "A"): 0.0}
        return [points.get((a.winner or "", b.winner or ""), 0.5) for a, b in zip(first, second, strict=True)]

    return verdicts
