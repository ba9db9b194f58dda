"""What every judge has in common: it compares two responses to one prompt and may say that it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from helpers.text.datasets import Example


@dataclass(frozen=True)
class Comparison:
    """Two responses to one prompt, in the order in which the judge sees them."""

    example: Example
    response_a: str
    response_b: str


@dataclass(frozen=True)
class Verdict:
    """A judge's answer. `winner` None means missing or unreadable: counted, never given to either side."""

    winner: Literal["A", "B"] | None
    score_a: float | None = None
    score_b: float | None = None
    detail: dict[str, Any] = field(default_factory=dict)


class Judge(Protocol):
    """Anything that compares responses.

    A judge is asked twice for every pair, once in each order. One that finds both equal says "A" both
    times, which `combine_orders` reads as a tie.
    """

    name: str
    is_proxy: bool  # true where the verdict is a model's opinion and no ground truth

    def compare(self, comparisons: Sequence[Comparison]) -> list[Verdict]:
        """Return one verdict for each comparison, in order."""
        ...
