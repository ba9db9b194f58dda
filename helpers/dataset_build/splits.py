"""Splits by a hash of the prompt: the same prompt is in the same split of every build.

Prompts that resemble each other form a cluster, which goes as a whole to the split of its representative, so
that none of them is tested on what another taught.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from helpers.dataset_build.near import clusters, normalized

SPLITS = ("train", "dev", "test")


def place_of(text: str) -> float:
    """A number in [0, 1) that follows from the words of the prompt alone."""
    return int.from_bytes(sha256(normalized(text).encode()).digest()[:8], "big") / 2**64


def split_prompts(
    texts: Sequence[str], similarity: float, dev_share: float, test_share: float
) -> tuple[list[str], list[int]]:
    """The split of every prompt, and its cluster (the first member's place).

    The member with the smallest hash represents a cluster. That alone would send large clusters to the
    split that small hashes get, so the hash is hashed once more.
    """
    members = clusters(texts, similarity)
    lowest: dict[int, float] = {}
    for text, cluster in zip(texts, members, strict=True):
        lowest[cluster] = min(place_of(text), lowest.get(cluster, 1.0))
    return [split_of(place_of(repr(lowest[cluster])), dev_share, test_share) for cluster in members], members


def split_of(place: float, dev_share: float, test_share: float) -> str:
    """Test prompts are those with the smallest places, then dev, then train."""
    if place < test_share:
        return "test"
    return "dev" if place < test_share + dev_share else "train"
