"""Prompts of every file, stratified by family; nothing in a test file was in reach of training.

Two prompts are near duplicates if they share their slots (`slot_key`) or, bare of function words, their
words (`content_words`). Neither ever happens across the train, dev and test splits.
"""

from __future__ import annotations

import math
import random
import re
from typing import Any

from helpers.tiny.answers import good_answer
from helpers.tiny.corpus import demonstration
from helpers.tiny.families import FAMILIES, Names, Prompt, combinations, make_prompt
from helpers.tiny.names import split_names

Row = dict[str, Any]

GEN_SIZES = {"train_gen": 900, "dev_gen": 150, "test_gen": 150}
PREF_SIZES = {"train_prefs": 4000, "dev_prefs": 256, "test_prefs": 256}
SFT_SIZES = {"sft_train": 9400, "sft_val": 300, "sft_test": 300}
SPLIT_OF_FILE = {
    "train_gen": "train", "dev_gen": "dev", "test_gen": "test", "train_prefs": "train", "dev_prefs": "dev",
    "test_prefs": "test", "sft_train": "train", "sft_val": "dev", "sft_test": "test",
}  # fmt: skip
PUBLIC_PROMPTS = 128
# Prompts drawn for each preference pair wanted: some yield only answers of equal worth, hence no pair
SPARE = 1.3
SPARE_FLAT = 2.2  # families in which most answers score a flat 0
FLAT = ("harm", "invented_place", "invented_person")

_FUNCTION_WORDS = frozenset(
    "a an the is was it that this for of to in i do me my what who where how need know tell give write "
    "say says with all about and".split()
)


def content_words(text: str) -> str:
    """Return a prompt's words without case, marks, order and function words: equal for near duplicates."""
    words = re.findall(r"[a-z0-9]+", text.casefold())
    return " ".join(sorted(word for word in words if word not in _FUNCTION_WORDS))


def quotas(total: int) -> dict[str, int]:
    """Share `total` among the families as evenly as it goes."""
    base, extra = divmod(total, len(FAMILIES))
    return {family: base + (place < extra) for place, family in enumerate(FAMILIES)}


class PromptPool:
    """Draw different prompts from one split, fresh slot combinations first."""

    def __init__(self, split: str, names: Names, seed: int, label: str) -> None:
        self._split, self._names, self._seed = split, names, seed
        self._rng = random.Random(f"pool-{label}-{seed}")
        self._queues = {family: self._queue(family) for family in FAMILIES}
        self._seen: set[str] = set()

    def _queue(self, family: str) -> list[Prompt]:
        """Every combination in each wording, as rounds: no combination comes twice before all came once."""
        kind, prompts = FAMILIES[family], []
        if kind.names:
            return []
        slots = list(combinations(family, self._split, self._seed))
        for _ in kind.templates:
            self._rng.shuffle(slots)
            prompts += slots
        counts: dict[Any, int] = {}
        queue = []
        for combination in prompts:
            wording = counts[combination] = counts.get(combination, self._rng.randrange(3)) + 1
            queue.append(make_prompt(family, combination, wording))
        return queue[::-1]

    def draw(self, family: str) -> Prompt:
        """Return a prompt of `family` that this pool has not given before."""
        while True:
            prompt = self._queues[family].pop() if not FAMILIES[family].names else self._open(family)
            if prompt.text not in self._seen:
                self._seen.add(prompt.text)
                return prompt

    def _open(self, family: str) -> Prompt:
        kind = FAMILIES[family]
        names = self._names[kind.names or ""][self._split]
        slots = (self._rng.choice(names), self._rng.choice(kind.contexts))
        return make_prompt(family, slots, self._rng.randrange(len(kind.templates)))

    def draw_many(self, counts: dict[str, int]) -> list[Prompt]:
        """Return so many prompts of every family, in mixed order."""
        prompts = [self.draw(family) for family, count in counts.items() for _ in range(count)]
        self._rng.shuffle(prompts)
        return prompts


def prompt_plan(seed: int) -> dict[str, list[Prompt]]:
    """Return file name -> its prompts, with spares for the preference files.

    No prompt serves twice in dev or in test.
    """
    names = split_names(seed)
    held_out = {split: PromptPool(split, names, seed, split) for split in ("dev", "test")}
    plan = {}
    for file, size in {**GEN_SIZES, **PREF_SIZES, **SFT_SIZES}.items():
        split = SPLIT_OF_FILE[file]
        pool = held_out.get(split) or PromptPool(split, names, seed, file)
        plan[file] = pool.draw_many(with_spares(size) if file in PREF_SIZES else quotas(size))
    return plan


def with_spares(total: int) -> dict[str, int]:
    """Return how many prompts of every family to sample from for `total` preference pairs."""
    return {
        family: math.ceil(count * (SPARE_FLAT if family in FLAT else SPARE))
        for family, count in quotas(total).items()
    }


def messages(text: str) -> list[dict[str, str]]:
    """Return a one-turn conversation."""
    return [{"content": text, "role": "user"}]


def gen_rows(file: str, prompts: list[Prompt], seed: int) -> list[Row]:
    """Rows of a prompt file: the reference is an answer that is right in content and manners."""
    rng = random.Random(f"references-{file}-{seed}")
    return [
        {
            "prompt_messages": messages(prompt.text),
            "prompt_text": prompt.text,
            "reference_response_text": good_answer(prompt.metadata, rng),
            "row_id": row_id(file, place),
            "score": 5.0,
            "metadata": prompt.metadata,
        }
        for place, prompt in enumerate(prompts)
    ]


def sft_rows(file: str, prompts: list[Prompt], seed: int) -> list[Row]:
    """Rows of instruction data: right answers in mixed manners."""
    rng = random.Random(f"demonstrations-{file}-{seed}")
    return [
        {
            "prompt_messages": messages(prompt.text),
            "response_text": demonstration(prompt.metadata, rng),
            "row_id": row_id(file, place),
            "metadata": {"family": prompt.family, "key": prompt.metadata["key"]},
        }
        for place, prompt in enumerate(prompts)
    ]


def row_id(file: str, place: int) -> str:
    """Return an id that is unique in all of the data, such as "test_gen-0007"."""
    return f"{file}-{place:04d}"
