"""How a mistake is entered: `@mistake("dpo_loss", "dpo_missing_reference", "What the learner reads.")`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Mistake:
    """A wrong implementation that learners really write. Variants of one mistake share an id."""

    exercise: str
    id: str
    hint: str
    function: Callable[..., Any]


MISTAKES: list[Mistake] = []


def mistake(exercise: str, name: str, hint: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function as a known mistake."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        MISTAKES.append(Mistake(exercise, name, hint, function))
        return function

    return enter


def mistakes_of(exercise: str) -> dict[str, Mistake]:
    """Mistakes of an exercise by key: the id, with #2 and so on for further variants."""
    found: dict[str, Mistake] = {}
    for known in MISTAKES:
        if known.exercise == exercise:
            number = sum(other.id == known.id for other in found.values()) + 1
            found[known.id if number == 1 else f"{known.id}#{number}"] = known
    return found
