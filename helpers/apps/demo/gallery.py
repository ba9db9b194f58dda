"""The gallery: answers before and after, picked by reward gain, and said to be picked.

The largest gains of many prompts show what a method can do, not what it does. So the gallery keeps all the
gains, gives their mean beside the picked ones, and shows a random draw or the largest losses as readily.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from helpers.apps.demo.lineup import BASE, Lineup
from helpers.errors import CourseError
from helpers.files import fingerprint, read_json, write_json
from helpers.text.datasets import Example
from helpers.text.groups import Group

PICKS = ("largest gains", "random", "largest losses")
CHUNK = 16  # prompts answered while the model is locked, so that others wait for seconds at most


@dataclass(frozen=True)
class Change:
    """One prompt's greedy answers before and after, and what the reward model makes of them."""

    prompt: str
    before: str
    after: str
    reward_before: float
    reward_after: float

    @property
    def gain(self) -> float:
        """Reward after minus reward before."""
        return self.reward_after - self.reward_before


@dataclass(frozen=True)
class Gallery:
    """All changes from one policy to another on a set of prompts."""

    policy: str
    baseline: str
    changes: tuple[Change, ...]

    @property
    def mean_gain(self) -> float:
        """Mean over all prompts, not over the picked ones."""
        return fmean(change.gain for change in self.changes)

    @property
    def improved(self) -> float:
        """Share of the prompts with a higher reward after."""
        return fmean(change.gain > 0 for change in self.changes)

    def pick(self, how: str = PICKS[0], count: int = 6, seed: int = 0) -> list[Change]:
        """`count` changes: "largest gains" or "largest losses" first, or "random" ones by `seed`."""
        if how not in PICKS:
            raise CourseError(f"the gallery picks {', '.join(PICKS)}, not {how!r}")
        if how == "random":
            return random.Random(seed).sample(self.changes, min(count, len(self.changes)))
        ranked = sorted(self.changes, key=lambda change: change.gain, reverse=how == PICKS[0])
        return ranked[:count]

    def caption(self, how: str, shown: int) -> str:
        """What is on the wall, and how it got there."""
        words = {
            PICKS[0]: f"Picked: the {shown} largest reward gains",
            PICKS[1]: f"A random draw: {shown}",
            PICKS[2]: f"Picked: the {shown} largest reward losses",
        }
        return (
            f"{words[how]} of {len(self.changes)} held-out prompts, {self.baseline} → {self.policy}, greedy"
            f" answers. Over all of them the mean gain is {self.mean_gain:+.2f};"
            f" {self.improved:.0%} have a higher reward than before."
        )


def make_gallery(
    lineup: Lineup,
    examples: Sequence[Example],
    policy: str,
    baseline: str = BASE,
    *,
    max_new_tokens: int = 64,
    progress: Callable[[float], None] | None = None,
) -> Gallery:
    """Answer the prompts greedily with both policies and score all answers.

    Raises CourseError without a reward model, without prompts, or for a policy compared with itself.
    """
    if lineup.reward_model is None:
        raise CourseError("the gallery ranks by reward: give a reward model with --reward_model DIR")
    if not examples:
        raise CourseError("there are no prompts for the gallery")
    if policy == baseline or not {policy, baseline} <= set(lineup.policies):
        raise CourseError(f"the gallery compares two policies of {', '.join(lineup.policies)}")
    changes: list[Change] = []
    for chunk in chunks(examples, CHUNK):
        changes += compare_chunk(lineup, chunk, (baseline, policy), max_new_tokens)
        if progress:
            progress(len(changes) / len(examples))
    return Gallery(policy, baseline, tuple(changes))


def chunks(examples: Sequence[Example], size: int) -> Iterator[Sequence[Example]]:
    """Consecutive parts of at most `size`."""
    for start in range(0, len(examples), size):
        yield examples[start : start + size]


def compare_chunk(
    lineup: Lineup, examples: Sequence[Example], policies: tuple[str, str], max_new_tokens: int
) -> list[Change]:
    """Answers and rewards of two policies on a few prompts."""
    limit = lineup.budget.max_prompt_tokens
    prompts = [lineup.encoder.encode_prompt(example.messages, limit) for example in examples]
    answers = [lineup.greedy(policy, prompts, max_new_tokens) for policy in policies]
    rows = list(zip(prompts, *answers, strict=True))
    rewards = lineup.rewards([Group(ids, [before.ids, after.ids]) for ids, before, after in rows])
    return [
        Change(example.messages[-1]["content"], before.text, after.text, float(old or 0), float(new or 0))
        for example, (_, before, after), (old, new) in zip(examples, rows, rewards, strict=True)
    ]


def kept_gallery(path: Path, make: Callable[[], Gallery], *key: Any) -> Gallery:
    """The gallery in the file `path` if it was made from the same `key`, else a new one, kept there."""
    mark = fingerprint(*key)
    if path.exists():
        found = read_json(path)
        if isinstance(found, dict) and found.get("made_from") == mark:
            changes = tuple(Change(**change) for change in found["changes"])
            return Gallery(found["policy"], found["baseline"], changes)
    gallery = make()
    write_json(path, {"made_from": mark, **asdict(gallery)})
    return gallery
