"""Minimal pairs: two answers that differ in one property, to see what a reward model looks at.

A reward model may rank most pairs right by their manners alone and be blind to content; a policy trained on
it is worse than its accuracy promises. Accuracy by property shows that before any policy is trained.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from helpers.tiny import answers

STYLES = ("opener", "closer", "rude", "lower", "repeat", "cut")


@dataclass(frozen=True)
class MinimalPair:
    """`better` and `worse` answer one prompt; `property` is "style/…" or "content/family/…"."""

    prompt: str
    better: str
    worse: str
    property: str


def minimal_pairs(rows: Iterable[dict[str, Any]], seed: int = 0) -> list[MinimalPair]:
    """Return all pairs for the prompts in `rows` of a generation file, one flaw in each."""
    rng = random.Random(f"minimal-pairs-{seed}")
    pairs = []
    for row in rows:
        facts, prompt = row["metadata"], row["prompt_text"]
        better = answers.good_answer(facts, rng)
        for style in STYLES:
            if (style, facts["family"]) != ("lower", "shout"):  # there small letters are wrong content
                worse = answers.with_manners(better, style, rng)
                pairs.append(MinimalPair(prompt, better, worse, f"style/{style}"))
        for kind in answers.MAKERS[facts["family"]]:
            if kind != "right":
                worse = answers.content(facts, kind, rng)
                pairs.append(MinimalPair(prompt, better, worse, f"content/{facts['family']}/{kind}"))
    return pairs


def accuracy_by_property(
    pairs: Sequence[MinimalPair], scores: Sequence[tuple[float, float]]
) -> dict[str, float]:
    """Return property -> share of pairs whose better answer got the higher score; ties count as wrong.

    Args:
        scores: (score of better, score of worse) for each pair.
    """
    hits: dict[str, list[bool]] = {}
    for pair, (better, worse) in zip(pairs, scores, strict=True):
        hits.setdefault(pair.property, []).append(better > worse)
    return {name: sum(values) / len(values) for name, values in sorted(hits.items())}
