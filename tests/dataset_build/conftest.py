"""A build of few prompts in the bundled world, and judges with known manners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from helpers.dataset_build.settings import BuildSettings
from helpers.judging.judge import Candidates, Choice


class FixedJudge:
    """Prefers what `key` makes larger; counts what it is asked; stops answering after `budget` questions."""

    name, is_proxy = "fixed", True

    def __init__(self, key: Callable[[str], Any], budget: int | None = None, **qualities: Any) -> None:
        self.key, self.budget, self.qualities, self.asked = key, budget, qualities, 0

    def compare(self, comparisons: Any) -> Any:
        raise AssertionError("a build asks for choices")

    def choose(self, candidates: Sequence[Candidates]) -> list[Choice]:
        """Choices, or "missing" once the budget is spent."""
        return [self._choose(one) for one in candidates]

    def _choose(self, one: Candidates) -> Choice:
        if self.budget is not None and self.asked >= self.budget:
            return Choice(None, None, status="missing")
        self.asked += 1
        places = sorted(range(len(one.responses)), key=lambda place: self.key(one.responses[place]))
        known = {"confidence": 0.9, "strength": 4, "usable": True, "training_quality": 4, **self.qualities}
        return Choice(places[-1], places[0], **known)


class FirstJudge(FixedJudge):
    """Takes the first for the best and the last for the worst, whatever they say."""

    def __init__(self) -> None:
        super().__init__(lambda text: 0)

    def _choose(self, one: Candidates) -> Choice:
        self.asked += 1
        return Choice(0, len(one.responses) - 1, confidence=1.0, strength=5, usable=True, training_quality=5)


@pytest.fixture
def settings(tiny_dir: Path, tmp_path: Path) -> Callable[..., BuildSettings]:
    """`settings(limit=4)`: a build of 24 prompts of the bundled world, two short answers each."""

    def make(**changes: Any) -> BuildSettings:
        values: dict[str, Any] = {
            "source": str(tiny_dir),
            "source_split": "dev_gen",
            "output_dir": str(tmp_path / "set"),
            "profile": "tiny",
            "limit": 24,
            "candidates_per_prompt": 2,
            "max_new_tokens": 24,
            "keep_truncated": True,
            "batch_size": 8,
            "dev_share": 0.2,
            "test_share": 0.2,
        }
        return BuildSettings(**{**values, **changes})

    return make


def contents(place: Path) -> dict[str, bytes]:
    """Every file below a directory, by its path in it."""
    return {str(p.relative_to(place)): p.read_bytes() for p in sorted(place.rglob("*")) if p.is_file()}
