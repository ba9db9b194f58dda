"""Names of people and places that nobody has: syllables put together, a separate stock for every split."""

from __future__ import annotations

import random

from helpers.tiny import lexicon

SPLIT_SHARE = {"train": 0.78, "dev": 0.1, "test": 0.12}
STOCK = 2400  # invented names for people and as many for places
_ONSETS = "b br c d dr f g gr h j k l m n p r s st t tr v w z".split()
_VOWELS = "a e i o u".split()
_MIDDLES = "b d g l ll m n nd r rr s st t v z lm rn sk".split()
_PERSON_ENDS = "a an as ek el en er i in is o on or us".split()
_UNLUCKY = ("nig", "fag", "fuk", "tit", "kik", "dik", "jesus", "rap", "slut")  # not to be spelt by chance
_PLACE_ENDS = "a ara burg dale ena ford ia ield ora ova stad ton um wick".split()


def split_names(seed: int) -> dict[str, dict[str, list[str]]]:
    """Return kind -> split ("train", "dev", "test") -> names; no name is in two kinds or splits.

    "first" are first names for notes, a few of them real; "person" and "place" are invented.
    """
    rng = random.Random(f"names-{seed}")
    taken = {word.casefold() for word in (*lexicon.PLACE, *lexicon.PERSON, *lexicon.FIRST_NAMES)}
    first = list(lexicon.FIRST_NAMES) + _invent(rng, _PERSON_ENDS, STOCK, taken)
    kinds = {
        "first": first,
        "person": _invent(rng, _PERSON_ENDS, STOCK, taken),
        "place": _invent(rng, _PLACE_ENDS, STOCK, taken),
    }
    return {kind: _shares(rng, names) for kind, names in kinds.items()}


def _invent(rng: random.Random, ends: list[str], count: int, taken: set[str]) -> list[str]:
    names: list[str] = []
    while len(names) < count:
        parts = (rng.choice(_ONSETS), rng.choice(_VOWELS), rng.choice(_MIDDLES), rng.choice(ends))
        name = "".join(parts)
        if name not in taken and not any(part in name for part in _UNLUCKY):
            taken.add(name)
            names.append(name.capitalize())
    return names


def _shares(rng: random.Random, names: list[str]) -> dict[str, list[str]]:
    shuffled = rng.sample(names, len(names))
    first = round(len(names) * SPLIT_SHARE["train"])
    second = first + round(len(names) * SPLIT_SHARE["dev"])
    return {"train": shuffled[:first], "dev": shuffled[first:second], "test": shuffled[second:]}
