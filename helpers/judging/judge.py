"""What every judge has in common: it compares two responses to one prompt and may say that it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

from helpers.errors import CourseError

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


Status = Literal["ok", "unparsed", "refused", "missing"]
# Why a pair should not be trained on, for a judge that says so.
EXCLUDE_TAGS = (
    "all_bad",  # no response is worth learning from
    "near_equal",
    "unclear_prompt",
    "unsafe_prompt",
    "personal_data",
    "wrong_language",
    "truncated",
    "addresses_judge",  # a response that tries to talk to whoever judges it
)


@dataclass(frozen=True)
class Candidates:
    """Two to eight responses to one prompt, in the order in which the judge sees them."""

    example: Example
    responses: tuple[str, ...]


@dataclass(frozen=True)
class Choice:
    """Which of the candidates is best and which worst, as places in `Candidates.responses`, and how clearly.

    `confidence` lies in [0, 1], `strength` (how much better the best is than the worst) and
    `training_quality` go from 1 to 5. Unless `status` is "ok", `best` and `worst` are None: "refused" is a
    judge that declined, "unparsed" an answer that could not be read, "missing" no answer at all.
    """

    best: int | None
    worst: int | None
    confidence: float | None = None
    strength: int | None = None
    usable: bool | None = None
    training_quality: int | None = None
    exclude_tags: tuple[str, ...] = ()
    reason: str = ""
    status: Status = "ok"
    scores: tuple[float, ...] | None = None


FIELDS = ("status", "confidence", "strength", "usable", "training_quality", "exclude_tags", "reason")


def verdict_of(choice: Choice) -> Verdict:
    """A choice among two as a verdict; without a readable answer the winner is None."""
    winner: Literal["A", "B"] | None = None
    if choice.status == "ok" and choice.best in (0, 1):
        winner = "A" if choice.best == 0 else "B"
    values = {name: getattr(choice, name) for name in FIELDS}
    detail = {name: value for name, value in values.items() if value not in (None, "", ())}
    detail["exclude_tags"] = list(choice.exclude_tags)
    scores = choice.scores if choice.scores is not None and len(choice.scores) == 2 else (None, None)
    return Verdict(winner, scores[0], scores[1], detail)


class CostReached(CourseError):
    """The next question might have crossed --max_cost; what the judge answered before is kept."""


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

    def choose(self, candidates: Sequence[Candidates]) -> list[Choice]:
        """Return the best and the worst of each set of candidates, in order."""
        ...
