"""Near duplicates: what MinHash finds is what comparing every pair finds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.dataset_build.near import (
    MISS,
    PERMUTATIONS,
    NearIndex,
    clusters,
    jaccard,
    near_pairs,
    normalized,
    rows_of_a_band,
    shingles,
    signature,
)
from helpers.errors import CourseError

WORDS = st.sampled_from("how do I bake a cake with two eggs and some sugar please".split())
TEXTS = st.lists(st.lists(WORDS, min_size=1, max_size=12).map(" ".join), min_size=2, max_size=12)


def test_shingles_are_runs_of_three_words_and_a_short_text_is_one():
    assert shingles("How do I bake?") == {"how do i", "do i bake"}
    assert shingles("Hello, you") == {"hello you"}
    assert shingles("???") == {"???"} and shingles("???") != shingles("!!!")


def test_case_marks_and_spelling_of_accents_make_no_difference():
    assert normalized("  Caf\u00e9,  NOW! ") == normalized("cafe\u0301 now")


def test_jaccard_is_shared_over_all():
    assert jaccard(frozenset("abc"), frozenset("bcd")) == 2 / 4
    assert jaccard(frozenset(), frozenset()) == 1.0


@pytest.mark.parametrize("shared", [0, 20, 50, 80, 100])
def test_equal_minima_estimate_the_similarity(shared: int):
    first = frozenset(f"a{i}" for i in range(100 - shared)) | frozenset(f"s{i}" for i in range(shared))
    second = frozenset(f"b{i}" for i in range(100 - shared)) | frozenset(f"s{i}" for i in range(shared))
    similarity = jaccard(first, second)
    estimate = float(np.mean(signature(first) == signature(second)))
    assert abs(estimate - similarity) <= 4 * np.sqrt(similarity * (1 - similarity) / PERMUTATIONS)


@pytest.mark.parametrize("threshold", [0.1, 0.3, 0.5, 0.7, 0.8, 1.0])
def test_bands_miss_a_pair_at_the_threshold_once_in_a_million(threshold: float):
    rows = rows_of_a_band(threshold)
    assert (1 - threshold**rows) ** (PERMUTATIONS // rows) <= MISS


def test_a_threshold_that_means_nothing_is_refused():
    with pytest.raises(CourseError, match="from 0.1 to 1"):
        NearIndex(0.0)


@settings(max_examples=40, deadline=None)
@given(TEXTS, st.sampled_from([0.3, 0.5, 0.8, 1.0]))
def test_pairs_found_are_those_of_comparing_all(texts: list[str], threshold: float):
    found = {(first, second) for first, second, _ in near_pairs(texts, threshold)}
    sets = [shingles(text) for text in texts]
    expected = {
        (i, j)
        for i, j in itertools.combinations(range(len(texts)), 2)
        if jaccard(sets[i], sets[j]) >= threshold
    }
    assert found == expected


def test_a_cluster_is_joined_by_a_chain():
    words = "one two three four five six seven eight nine ten".split()
    chain = [" ".join(words[i : i + 7]) for i in range(4)]  # each 4/6 like the next, the ends 2/8
    assert clusters([*chain, "something else altogether here"], 0.5) == [0, 0, 0, 0, 4]
    assert jaccard(shingles(chain[0]), shingles(chain[3])) < 0.5
