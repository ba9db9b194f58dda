"""Near duplicates among texts: MinHash signatures, banded to find candidates, compared exactly to be sure.

Broder 1997, *On the resemblance and containment of documents*: two sets have the same minimum under a random
hash with a probability that is their Jaccard similarity. Of `PERMUTATIONS` minima, bands of `rows` are
compared; a pair of similarity s shares a band with probability 1 - (1 - s^rows)^bands (Leskovec, Rajaraman,
Ullman, *Mining of Massive Datasets*, section 3.4). Candidates are then compared by their word shingles
themselves, so that there is no false pair, and the bands are chosen so that a true one is missed at most once
in a million.
"""

from __future__ import annotations

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

import numpy as np

from helpers.errors import CourseError

PERMUTATIONS = 256
SHINGLE = 3  # words
MISS = 1e-6  # largest probability that a pair at the threshold shares no band
_MULTIPLIERS = np.random.default_rng(1997).integers(1, 2**63, PERMUTATIONS, dtype=np.uint64) * 2 + 1
_OFFSETS = np.random.default_rng(2004).integers(0, 2**63, PERMUTATIONS, dtype=np.uint64)


def normalized(text: str) -> str:
    """Case, marks, accents' spelling and white space removed: equal for exact duplicates."""
    return " ".join(re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold()))


def shingles(text: str, size: int = SHINGLE) -> frozenset[str]:
    """Runs of `size` words of the normalised text; a shorter text is one shingle, one of marks itself."""
    words = normalized(text).split() or [text.strip()]
    if len(words) <= size:
        return frozenset([" ".join(words)])
    return frozenset(" ".join(words[i : i + size]) for i in range(len(words) - size + 1))


def jaccard(first: frozenset[str], second: frozenset[str]) -> float:
    """Size of the intersection over size of the union; two empty sets are equal."""
    union = len(first | second)
    return len(first & second) / union if union else 1.0


def signature(items: Iterable[str]) -> np.ndarray:
    """(PERMUTATIONS,) uint64: minima of the items under as many multiply-add hashes modulo 2^64.

    Only the upper half of a product is well mixed, so minima are taken of that.
    """
    digests = [int.from_bytes(blake2b(item.encode(), digest_size=8).digest(), "big") for item in items]
    hashed = np.array(digests, dtype=np.uint64)[:, None] * _MULTIPLIERS + _OFFSETS
    return (hashed >> np.uint64(32)).min(axis=0)


def rows_of_a_band(threshold: float) -> int:
    """The most rows a band may have for pairs at `threshold` to be found but for one in a million."""
    if not 0.1 <= threshold <= 1:
        raise CourseError(f"a similarity threshold must be from 0.1 to 1, not {threshold}")
    fitting = [r for r in (1, 2, 4, 8, 16) if (1 - threshold**r) ** (PERMUTATIONS // r) <= MISS]
    return max(fitting, default=1)


class NearIndex:
    """Texts seen so far, and which of them are at least as similar as `threshold` to a new one."""

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold
        self._rows = rows_of_a_band(threshold)
        self._buckets: dict[tuple[int, bytes], list[int]] = defaultdict(list)
        self._shingles: list[frozenset[str]] = []

    def _bands(self, items: frozenset[str]) -> list[tuple[int, bytes]]:
        minima = signature(items).reshape(-1, self._rows)
        return [(number, band.tobytes()) for number, band in enumerate(minima)]

    def similar(self, text: str) -> list[tuple[int, float]]:
        """(place, similarity) of the texts added before that are near duplicates of `text`, by place."""
        items = shingles(text)
        places = {place for band in self._bands(items) for place in self._buckets.get(band, ())}
        found = ((place, jaccard(items, self._shingles[place])) for place in sorted(places))
        return [(place, value) for place, value in found if value >= self.threshold]

    def add(self, text: str) -> int:
        """Remember a text; returns its place, counted from 0."""
        items = shingles(text)
        for band in self._bands(items):
            self._buckets[band].append(len(self._shingles))
        self._shingles.append(items)
        return len(self._shingles) - 1


def near_pairs(texts: Sequence[str], threshold: float) -> Iterator[tuple[int, int, float]]:
    """Yield (i, j, similarity) with i < j of every pair of near duplicates."""
    index = NearIndex(threshold)
    for place, text in enumerate(texts):
        yield from ((other, place, value) for other, value in index.similar(text))
        index.add(text)


def clusters(texts: Sequence[str], threshold: float) -> list[int]:
    """For each text the first member of its cluster: texts joined by a chain of near duplicates."""
    parents = list(range(len(texts)))

    def root(place: int) -> int:
        while parents[place] != place:
            parents[place] = parents[parents[place]]
            place = parents[place]
        return place

    for first, second, _ in near_pairs(texts, threshold):
        low, high = sorted((root(first), root(second)))
        parents[high] = low
    return [root(place) for place in range(len(texts))]
