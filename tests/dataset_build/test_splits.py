"""Splits: by the prompt alone, and nothing in one split resembles anything in another."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.dataset_build.near import jaccard, shingles
from helpers.dataset_build.splits import place_of, split_prompts

WORDS = st.sampled_from("how do I bake a cake with two eggs and some sugar please now".split())
TEXTS = st.lists(st.lists(WORDS, min_size=1, max_size=10).map(" ".join), min_size=2, max_size=25)


@settings(max_examples=40, deadline=None)
@given(TEXTS, st.sampled_from([0.3, 0.5, 0.8]))
def test_near_duplicates_never_cross_splits(texts: list[str], similarity: float):
    places, _ = split_prompts(texts, similarity, 0.3, 0.3)
    for (text, split), (other, other_split) in itertools.combinations(zip(texts, places, strict=True), 2):
        if jaccard(shingles(text), shingles(other)) >= similarity:
            assert split == other_split


def test_a_random_split_would_leak_where_this_does_not():
    texts = [
        f"tell me about topic number {i // 5} in the {w} style" for i in range(100) for w in ("old", "new")
    ]
    places, _ = split_prompts(texts, 0.5, 0.2, 0.2)
    similar = [
        (i, j)
        for i, j in itertools.combinations(range(len(texts)), 2)
        if jaccard(shingles(texts[i]), shingles(texts[j])) >= 0.5
    ]
    alternating = ["train" if i % 2 else "test" for i in range(len(texts))]
    assert any(alternating[i] != alternating[j] for i, j in similar)
    assert all(places[i] == places[j] for i, j in similar)


def test_shares_come_out_on_many_prompts():
    texts = [f"{place_of(str(i))} {place_of(str(-i))} {i}" for i in range(2000)]
    places, members = split_prompts(texts, 0.5, 0.1, 0.2)
    assert len(set(members)) == 2000
    assert abs(places.count("dev") - 200) < 60 and abs(places.count("test") - 400) < 80


def test_a_prompt_stays_in_its_split_when_others_come():
    texts = [f"{place_of(str(i))} {i} {place_of(str(-i))}" for i in range(200)]
    assert split_prompts(texts, 0.5, 0.2, 0.2)[0][:50] == split_prompts(texts[:50], 0.5, 0.2, 0.2)[0]


def test_words_decide_not_case_or_marks():
    assert place_of("Bake a cake!") == place_of("bake  a cake") != place_of("bake two cakes")
