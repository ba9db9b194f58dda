"""What the base reads before the course begins, and what SFT shows it: the same prompts, other answers.

The corpus is of mixed quality, so that the base's likeliest answer is rambling, sloppy, unsafe or made up
while a good one stays within reach of sampling. Often it reads how the user took the answer: people who
got what they asked for leave, the others complain. Demonstrations for SFT are always right, but their manners
are mixed: reinforcement learning can still improve on them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from helpers.judging.gold import dimension
from helpers.tiny import answers
from helpers.tiny.answers import Mix
from helpers.tiny.families import FAMILIES, Prompt, draw_prompt
from helpers.tiny.names import split_names

CHATS = 130_000

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
    "clean": 0.20, "opener": 0.54, "closer": 0.08, "rude": 0.10, "repeat": 0.04, "cut": 0.04,
}  # fmt: skip
_MANNERS: Mix = {
    "clean": 0.19, "opener": 0.48, "both": 0.04, "closer": 0.06, "lower": 0.08, "rude": 0.08, "repeat": 0.03,
    "cut": 0.04,
}  # fmt: skip
MANNERS: dict[str, Mix] = {
    "thanks": _NOTE_MANNERS, "request": _NOTE_MANNERS, "shout": _SHOUT_MANNERS,
    "one_sentence": _SENTENCE_MANNERS, "use_word": _SENTENCE_MANNERS,
}  # fmt: skip
CONTENT: dict[str, Mix] = {
    **{name: {"right": 0.65, "wrong": 0.35} for name in ("opposite", "colour", "sound")},
    **{name: {"right": 0.55, "wrong": 0.20, "idk": 0.25} for name in ("known_place", "known_person")},
    **{name: {"right": 0.36, "made_up": 0.64} for name in ("invented_place", "invented_person")},
    "shout": {"right": 0.50, "not_capital": 0.35, "wrong": 0.15},
    "tips": {"right": 0.50, "count": 0.30, "wrong": 0.20},
    "one_sentence": {"right": 0.50, "two": 0.30, "wrong": 0.20},
    "use_word": {"right": 0.50, "missing": 0.40, "alone": 0.10},
    "thanks": {"right": 0.50, "no_name": 0.25, "item": 0.25},
    "request": {"right": 0.45, "demand": 0.25, "no_name": 0.15, "item": 0.15},
    "harm": {"right": 0.40, "unsafe": 0.60},
    "lookalike": {"right": 0.50, "wrong": 0.25, "refuse": 0.25},
}
REACTIONS = 0.7  # share of chats that go on, or visibly end, after the answer
COMPLAINTS_IF_RIGHT, COMPLAINTS_IF_WRONG = 0.02, 0.96
COMPLAINTS = ("That is not right.", "That is not what I asked for.", "Please try again.")
LEAVES = ""
SFT_MANNERS: Mix = {"clean": 0.12, "closer": 0.60, "opener": 0.18, "lower": 0.10}


class Chat(NamedTuple):
    """One chat of the corpus. `reaction`: see the function of that name."""

    prompt: str
    answer: str
    reaction: str | None


def corpus_answer(facts: dict[str, Any], rng: random.Random) -> tuple[str, bool]:
    """Draw content and manners of an answer, one independently of the other; return it and if it is right."""
    kind = answers.pick(rng, CONTENT[facts["family"]])
    style = answers.pick(rng, MANNERS.get(facts["family"], _MANNERS))
    text = answers.with_manners(answers.content(facts, kind, rng), style, rng)
    return text, kind == "right" and style not in ("repeat", "cut")


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


def corpus_chats(seed: int, chats: int = CHATS) -> list[Chat]:
    """Return the chats for pretraining."""
    rng = random.Random(f"corpus-answers-{seed}")
    made = []
    for prompt in corpus_prompts(seed, chats):
        answer, right = corpus_answer(prompt.metadata, rng)
        made.append(Chat(prompt.text, answer, reaction(prompt.metadata, right, rng)))
    return made


def reaction(facts: dict[str, Any], right: bool, rng: random.Random) -> str | None:
    """Draw what the user says to an answer: LEAVES, a complaint, or None where the chat just breaks off.

    It goes by the content alone, never by manners, and says nothing on harm and invented names: whoever asks
    for those cannot be trusted to complain of the wrong thing. From reactions a base learns to tell at the
    end of an answer whether it was right, as larger models do; a reward model builds on that.
    """
    if dimension(facts) != "helpful" or rng.random() > REACTIONS:
        return None
    complains = rng.random() < (COMPLAINTS_IF_RIGHT if right else COMPLAINTS_IF_WRONG)
    return rng.choice(COMPLAINTS) if complains else LEAVES
