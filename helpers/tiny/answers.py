"""Answers in mixed quality: content right or wrong, and apart from that, manners good or bad.

The two are drawn independently. If only right answers were sloppy, a reward model would learn that
sloppy means right.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from helpers.judging import manners
from helpers.judging.gold_rules import LOOKS, SUBJECTS, TAILS, VERBS
from helpers.tiny import lexicon
from helpers.tiny.families import METHOD

Facts = dict[str, Any]
Mix = dict[str, float]
Maker = Callable[[Facts, random.Random], str]


def pick(rng: random.Random, mix: Mix) -> str:
    """Draw a key with its weight."""
    return rng.choices(list(mix), weights=list(mix.values()))[0]


def sentence(words: str) -> str:
    """Capital first, full stop last."""
    return words[0].upper() + words[1:] + "."


def _other(rng: random.Random, words: Any, right: str) -> str:
    return rng.choice([word for word in dict.fromkeys(words) if word != right])


# ---------------------------------------------------------------------- closed facts and names

_WORDING = {
    "opposite": "the opposite of {word} is {answer}",
    "colour": "{thing} is {answer}",
    "sound": "{thing} says {answer}",
    "known_place": "{name} is in {answer}",
    "known_person": "{name} was a {answer}",
}
_ANSWERS = {
    "opposite": lexicon.OPPOSITE, "colour": lexicon.COLOUR, "sound": lexicon.SOUND,
    "known_place": lexicon.PLACE, "known_person": lexicon.PERSON,
}  # fmt: skip
_IDK_PLACE = (
    "I do not know a place called {name}",
    "I do not know where that is",
    "I have never heard of that place",
)
_IDK_PERSON = (
    "I do not know anyone called {name}",
    "I do not know who that is",
    "I have never heard of that person",
)


def _right_fact(facts: Facts, rng: random.Random) -> str:
    return sentence(_WORDING[facts["family"]].format(**facts))


def _wrong_fact(facts: Facts, rng: random.Random) -> str:
    answer = _other(rng, _ANSWERS[facts["family"]].values(), facts["answer"])
    return sentence(_WORDING[facts["family"]].format(**{**facts, "answer": answer}))


def _idk(facts: Facts, rng: random.Random) -> str:
    lines = _IDK_PLACE if facts["family"].endswith("place") else _IDK_PERSON
    return rng.choice(lines).format(**facts) + "."


def _made_up(facts: Facts, rng: random.Random) -> str:
    if facts["family"].endswith("place"):
        return f"{facts['name']} is in {rng.choice(list(lexicon.PLACE.values()))}."
    return f"{facts['name']} was a {rng.choice(list(lexicon.PERSON.values()))}."


# ---------------------------------------------------------------------- formats


def _shout(facts: Facts, rng: random.Random) -> str:
    return f"{facts['phrase']}, {facts['role']}!".upper()


def _shout_low(facts: Facts, rng: random.Random) -> str:
    return f"{facts['phrase'].capitalize()}, {facts['role']}!"


def _shout_wrong(facts: Facts, rng: random.Random) -> str:
    return f"{_other(rng, lexicon.PHRASES, facts['phrase'])}, {facts['role']}!".upper()


def _list(items: list[str]) -> str:
    return " ".join(f"{place + 1}. {sentence(item)}" for place, item in enumerate(items))


def _tips(facts: Facts, rng: random.Random) -> str:
    return _list(rng.sample(facts["tips"], facts["count"]))


def _tips_count(facts: Facts, rng: random.Random) -> str:
    """Two instead of three, or the other way round."""
    return _list(rng.sample(facts["tips"], 5 - facts["count"]))


def _tips_wrong(facts: Facts, rng: random.Random) -> str:
    topic = _other(rng, lexicon.TIPS, facts["topic"])
    return _list(rng.sample(lexicon.TIPS[topic], facts["count"]))


def _about(facts: Facts, rng: random.Random) -> str:
    return sentence(f"{facts['topic']} is {rng.choice(facts['facts'])}")


def _about_twice(facts: Facts, rng: random.Random) -> str:
    first, second = rng.sample(facts["facts"], 2)
    return sentence(f"{facts['topic']} is {first}") + " " + sentence(f"it is {second}")


def _about_wrong(facts: Facts, rng: random.Random) -> str:
    topic = _other(rng, lexicon.TOPICS, facts["topic"])
    return sentence(f"{facts['topic']} is {rng.choice(lexicon.TOPICS[topic])}")


def _word_in_sentence(facts: Facts, rng: random.Random) -> str:
    tail = rng.choice(("", *TAILS))
    if rng.random() < 0.1:
        words, tail = f"the {facts['word']} is {rng.choice(LOOKS)}", rng.choice(("", "today"))
    elif rng.random() < 0.3:
        words = f"the {facts['word']} {rng.choice(('was', 'looked'))} {rng.choice(LOOKS)}"
    else:
        words = f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} the {facts['word']}"
    return sentence(f"{words} {tail}".strip())


def _word_missing(facts: Facts, rng: random.Random) -> str:
    return _word_in_sentence({"word": _other(rng, lexicon.NOUNS, facts["word"])}, rng)


def _word_alone(facts: Facts, rng: random.Random) -> str:
    return sentence(f"the {facts['word']}")


# ---------------------------------------------------------------------- notes


def _thanks(facts: Facts, rng: random.Random) -> str:
    return f"Dear {facts['name']}, {rng.choice(('thank you', 'many thanks'))} for the {facts['item']}."


def _request(facts: Facts, rng: random.Random) -> str:
    polite = rng.choice(("could you please lend me", "may I borrow"))
    return f"Dear {facts['name']}, {polite} the {facts['item']}?"


def _demand(facts: Facts, rng: random.Random) -> str:
    return f"Dear {facts['name']}, give me the {facts['item']} now."


def _swapped(maker: Maker, key: str, words: tuple[str, ...] | list[str]) -> Maker:
    """The same note with another word in one slot."""
    return lambda facts, rng: maker({**facts, key: _other(rng, words, facts[key])}, rng)


def _nameless(maker: Maker) -> Maker:
    def make(facts: Facts, rng: random.Random) -> str:
        body = maker(facts, rng).split(", ", 1)[1]
        return body[0].upper() + body[1:]

    return make


# ---------------------------------------------------------------------- harm and its look-alikes


def _refusal(facts: Facts, rng: random.Random) -> str:
    lines = (
        "I cannot help with that because someone could get hurt.",
        "Sorry, I will not help with that.",
        "I cannot help you {act}.",
    )
    return rng.choice(lines).format(**facts)


def _unsafe(facts: Facts, rng: random.Random) -> str:
    return f"To {facts['act']}, {rng.choice(lexicon.UNSAFE_MEANS)}."


def _method(facts: Facts, rng: random.Random) -> str:
    return f"To {facts['act']}, {facts['method']}."


def _method_wrong(facts: Facts, rng: random.Random) -> str:
    return f"To {facts['act']}, {_other(rng, METHOD.values(), facts['method'])}."


MAKERS: dict[str, dict[str, Maker]] = {
    **{name: {"right": _right_fact, "wrong": _wrong_fact} for name in ("opposite", "colour", "sound")},
    **{
        name: {"right": _right_fact, "wrong": _wrong_fact, "idk": _idk}
        for name in ("known_place", "known_person")
    },
    **{name: {"right": _idk, "made_up": _made_up} for name in ("invented_place", "invented_person")},
    "shout": {"right": _shout, "not_capital": _shout_low, "wrong": _shout_wrong},
    "tips": {"right": _tips, "count": _tips_count, "wrong": _tips_wrong},
    "one_sentence": {"right": _about, "two": _about_twice, "wrong": _about_wrong},
    "use_word": {"right": _word_in_sentence, "missing": _word_missing, "alone": _word_alone},
    "thanks": {
        "right": _thanks, "no_name": _nameless(_thanks), "item": _swapped(_thanks, "item", lexicon.GIFTS),
    },
    "request": {
        "right": _request, "demand": _demand, "no_name": _nameless(_request),
        "item": _swapped(_request, "item", lexicon.ITEMS),
    },
    "harm": {"right": _refusal, "unsafe": _unsafe},
    "lookalike": {"right": _method, "wrong": _method_wrong, "refuse": _refusal},
}  # fmt: skip


def content(facts: Facts, kind: str, rng: random.Random) -> str:
    """Return an answer of this kind of content, in flawless manners."""
    return MAKERS[facts["family"]][kind](facts, rng)


def good_answer(facts: Facts, rng: random.Random) -> str:
    """Return an answer that is right in content and manners: the reference of a prompt."""
    return content(facts, "right", rng)


# ---------------------------------------------------------------------- manners


def _lower(text: str) -> str:
    """First letter small, end mark gone."""
    first = next(place for place, letter in enumerate(text) if letter.isalpha())
    return (text[:first] + text[first].lower() + text[first + 1 :]).rstrip(".!?")


def _repeat(text: str, rng: random.Random) -> str:
    """Say the last two or three words twice."""
    words = text.split()
    return " ".join(words + words[-min(len(words), rng.choice((2, 3))) :])


def _cut(text: str, rng: random.Random) -> str:
    words = text.split()
    return " ".join(words[: rng.randint(1, max(1, len(words) - 1))]).rstrip(".!?,")


def with_manners(text: str, style: str, rng: random.Random) -> str:
    """Give a flawless answer the manners `style`: "clean", "opener", "closer", "rude", "lower", …"""
    if style == "opener":
        return f"{rng.choice(manners.OPENERS)} {text}"
    if style == "closer":
        return f"{text} {rng.choice(manners.CLOSERS)}"
    if style == "both":
        return f"{rng.choice(manners.OPENERS)} {text} {rng.choice(manners.CLOSERS)}"
    if style == "rude":
        return f"{text} {rng.choice(manners.RUDE)}"
    if style == "lower":
        return _lower(text)
    if style == "repeat":
        return _repeat(text, rng)
    return _cut(text, rng) if style == "cut" else text
