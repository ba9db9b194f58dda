"""What the base reads before the course begins, and what SFT shows it: the same prompts, other answers.

The corpus is of mixed quality, so that the base's likeliest answer is rambling, sloppy, unsafe or made up
while a good one stays within reach of sampling. Demonstrations for SFT are always right, but their manners
are mixed: reinforcement learning can still improve on them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from helpers.tiny import answers
from helpers.tiny.answers import Mix
from helpers.tiny.families import FAMILIES, Prompt, draw_prompt
from helpers.tiny.names import split_names

CHATS = 70_000

# Families that ask a model of this size to copy, or to tell harm from its look-alikes, are met more often
WEIGHTS: Mix = {
    "lookalike": 2.0, "harm": 1.5, "thanks": 1.4, "request": 1.4, "use_word": 1.2, "tips": 1.2,
    "known_person": 1.2, "known_place": 1.2,
}  # fmt: skip
_NOTE_MANNERS: Mix = {
    "clean": 0.18, "rude": 0.46, "opener": 0.16, "closer": 0.08, "repeat": 0.06, "cut": 0.06,
}  # fmt: skip
_SENTENCE_MANNERS: Mix = {
    "clean": 0.14, "lower": 0.38, "opener": 0.30, "closer": 0.06, "rude": 0.05, "repeat": 0.04, "cut": 0.03,
}  # fmt: skip
_SHOUT_MANNERS: Mix = {
    "clean": 0.18, "opener": 0.56, "closer": 0.08, "rude": 0.10, "repeat": 0.04, "cut": 0.04,
}  # fmt: skip
_MANNERS: Mix = {
    "clean": 0.15, "opener": 0.51, "both": 0.04, "closer": 0.06, "lower": 0.09, "rude": 0.08, "repeat": 0.03,
    "cut": 0.04,
}  # fmt: skip
MANNERS: dict[str, Mix] = {
    "thanks": _NOTE_MANNERS, "request": _NOTE_MANNERS, "shout": _SHOUT_MANNERS,
    "one_sentence": _SENTENCE_MANNERS, "use_word": _SENTENCE_MANNERS,
}  # fmt: skip
CONTENT: dict[str, Mix] = {
    **{name: {"right": 0.65, "wrong": 0.35} for name in ("opposite", "colour", "sound")},
    **{name: {"right": 0.65, "wrong": 0.23, "idk": 0.12} for name in ("known_place", "known_person")},
    **{name: {"right": 0.30, "made_up": 0.70} for name in ("invented_place", "invented_person")},
    "shout": {"right": 0.50, "not_capital": 0.35, "wrong": 0.15},
    "tips": {"right": 0.50, "count": 0.30, "wrong": 0.20},
    "one_sentence": {"right": 0.50, "two": 0.30, "wrong": 0.20},
    "use_word": {"right": 0.50, "missing": 0.35, "alone": 0.15},
    "thanks": {"right": 0.50, "no_name": 0.25, "item": 0.25},
    "request": {"right": 0.45, "demand": 0.25, "no_name": 0.15, "item": 0.15},
    "harm": {"right": 0.35, "unsafe": 0.65},
    "lookalike": {"right": 0.55, "wrong": 0.30, "refuse": 0.15},
}
SFT_MANNERS: Mix = {"clean": 0.25, "closer": 0.45, "opener": 0.20, "lower": 0.10}


def corpus_answer(facts: dict[str, Any], rng: random.Random) -> str:
    """Draw content and manners of an answer, one independently of the other."""
    kind = answers.pick(rng, CONTENT[facts["family"]])
    style = answers.pick(rng, MANNERS.get(facts["family"], _MANNERS))
    return answers.with_manners(answers.content(facts, kind, rng), style, rng)


def demonstration(facts: dict[str, Any], rng: random.Random) -> str:
    """Draw an answer for SFT: right, in mixed manners."""
    style = answers.pick(rng, SFT_MANNERS)
    if style == "lower" and facts["family"] == "shout":
        style = "clean"  # small letters would make the content wrong
    return answers.with_manners(answers.good_answer(facts, rng), style, rng)


def corpus_prompts(seed: int, chats: int = CHATS) -> Iterator[Prompt]:
    """Yield the prompts of the pretraining corpus; all of them belong to the training split."""
    rng, names = random.Random(f"corpus-prompts-{seed}"), split_names(seed)
    mix = {family: WEIGHTS.get(family, 1.0) for family in FAMILIES}
    for family in rng.choices(list(mix), weights=list(mix.values()), k=chats):
        yield draw_prompt(rng, family, "train", names, seed)


def corpus_chats(seed: int, chats: int = CHATS) -> list[tuple[str, str]]:
    """Return (prompt, answer) pairs for pretraining."""
    rng = random.Random(f"corpus-answers-{seed}")
    return [(prompt.text, corpus_answer(prompt.metadata, rng)) for prompt in corpus_prompts(seed, chats)]
