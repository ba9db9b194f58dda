"""Minimal pairs for reward models differ in one property, and the better answer is better."""

from __future__ import annotations

from pathlib import Path

from helpers.files import read_jsonl
from helpers.judging.gold import gold_scores
from helpers.tiny.families import FAMILIES
from helpers.tiny.probes import STYLES, MinimalPair, accuracy_by_property, minimal_pairs


def test_the_better_answer_of_every_minimal_pair_scores_higher(tiny_dir: Path) -> None:
    rows = read_jsonl(tiny_dir / "dev_gen.jsonl")
    facts = {row["prompt_text"]: row["metadata"] for row in rows}
    pairs = minimal_pairs(rows)
    for pair in pairs:
        better, worse = (gold_scores(facts[pair.prompt], text).total for text in (pair.better, pair.worse))
        assert better == 1.0
        assert worse < better, pair
    properties = {pair.property for pair in pairs}
    assert {f"style/{style}" for style in STYLES} <= properties
    assert {name.split("/")[1] for name in properties if name.startswith("content/")} == set(FAMILIES)


def test_accuracy_by_property_counts_ties_as_wrong() -> None:
    pairs = [MinimalPair("p", "a", "b", "style/rude")] * 3 + [MinimalPair("p", "a", "b", "style/cut")]
    assert accuracy_by_property(pairs, [(1, 0), (0, 0), (0, 1), (2, 1)]) == {
        "style/cut": 1.0,
        "style/rude": 1 / 3,
    }
