"""Manners of an answer: filler around its content, rudeness, capitals and end marks.

The pocket world has a closed stock of filler sentences, so the judge can take them off exactly and read
what is left as the content. Whatever is not on the list counts as content, hence as off the point.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

OPENERS = (
    "Well, that is a good question to ask.",
    "Well, let me think about this for a while.",
)
CLOSERS = (
    "I hope this helps you today.",
    "I hope that is what you need.",
    "I am here if you need more.",
)
RUDE = (
    "Now stop wasting my time.",
    "Now go and bother someone else.",
    "Any fool would know that.",
    "Not that you deserve it.",
)
COST = {"opener": 0.5, "closer": 0.25, "rude": 0.6, "no capital": 0.2, "no end mark": 0.2, "odd marks": 0.3}


@dataclass(frozen=True)
class Manners:
    """An answer taken apart: `core` is what is left without filler, `faults` the names of its bad manners."""

    core: str
    faults: tuple[str, ...]

    @property
    def style(self) -> float:
        """1 for flawless manners, less for every fault, never under 0."""
        return max(0.0, 1.0 - sum(COST[fault] for fault in self.faults))


def plain(text: str) -> str:
    """Return lower-case words joined by single blanks. Marks vanish, foreign characters become ``¤``.

    A character that only looks like a Latin letter stays a visible ``¤``, so it can match no rule.
    """
    text = unicodedata.normalize("NFKC", text).casefold()
    text = re.sub(r"['’‘`]", "", text)
    text = re.sub(r"[^\x00-\x7f]", "¤", text)
    return " ".join(re.findall(r"[a-z0-9¤]+", text))


def _pattern(sentences: tuple[str, ...]) -> str:
    """One regular expression for any of the sentences, whatever marks and blanks stand between the words."""
    return "(?:" + "|".join(r"[\s,.]+".join(plain(line).split()) for line in sentences) + ")"


_AT_START = re.compile(rf"^\W*{_pattern(OPENERS)}(?:[\s,.!?]+|$)", re.IGNORECASE)
_AT_END = {
    "closer": re.compile(rf"(?:^|\s){_pattern(CLOSERS)}[.!?]*\s*$", re.IGNORECASE),
    "rude": re.compile(rf"(?:^|\s){_pattern(RUDE)}[.!?]*\s*$", re.IGNORECASE),
}


def take_apart(response: str) -> Manners:
    """Strip known filler from both ends and note what is wrong with the writing of the rest."""
    core, faults = unicodedata.normalize("NFKC", response).strip(), []
    while match := _AT_START.search(core):
        core = core[match.end() :].strip()
        faults.append("opener")
    stripped = True
    while stripped:
        stripped = False
        for fault, pattern in _AT_END.items():
            if match := pattern.search(core):
                core, stripped = core[: match.start()].strip(), True
                faults.append(fault)
    return Manners(core, (*faults, *_writing_faults(core, response)))


def _writing_faults(core: str, response: str) -> list[str]:
    """Missing capital, missing end mark, and marks or blanks that no careful writer would use."""
    faults = []
    first_letter = re.search(r"[^\W\d_]", core)
    if not first_letter or first_letter.group().islower():
        faults.append("no capital")
    if not core.endswith((".", "!", "?")):
        faults.append("no end mark")
    unprintable = any(unicodedata.category(letter)[0] == "C" and letter != "\n" for letter in response)
    crowded = re.search(r"[^\w\s]{2,}|\s{3,}|[^\s\w.,!?:;'’\"()\-]|_", core)
    if unprintable or crowded:
        faults.append("odd marks")
    return faults
