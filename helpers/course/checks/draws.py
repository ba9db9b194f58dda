"""Fresh random inputs of an exercise, from the description of its arguments in the vector file.

Sizes are drawn too: P prompts, B rows, T or L (few, more) positions, V words, N = G·(2 or 3) responses in
groups of G.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch


class Draw:
    """One set of sizes and a generator; `arguments(spec)` gives the inputs."""

    def __init__(self, seed: int | None = None) -> None:
        self.seed = random.SystemRandom().getrandbits(48) if seed is None else seed
        self.generator = torch.Generator().manual_seed(self.seed)
        self.sizes = {"B": self.whole(2, 5), "T": self.whole(3, 7), "V": self.whole(4, 8)}
        self.sizes["G"] = self.whole(2, 5)
        self.sizes["L"] = self.whole(8, 14)
        self.sizes["P"] = self.whole(12, 30)
        self.sizes["N"] = self.sizes["G"] * self.whole(2, 4)

    def whole(self, low: int, high: int) -> int:
        """An integer from low up to, not including, high."""
        return int(torch.randint(low, high, (), generator=self.generator))

    def arguments(self, spec: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """Draw every argument in turn; a later one may depend on those before it."""
        drawn: dict[str, Any] = {}
        for name, how in spec.items():
            if torch.rand((), generator=self.generator) < how.get("absent", 0.0):
                continue  # an optional argument that is left out
            drawn[name] = KINDS[how["kind"]](self, how, drawn)
        return drawn

    def shape(self, how: dict[str, Any]) -> tuple[int, ...]:
        """Sizes of letters such as "BTV"."""
        return tuple(self.sizes[letter] for letter in how["shape"])

    def normal(self, how: dict[str, Any], _: Any = None) -> torch.Tensor:
        """Normal numbers of a mean and a scale."""
        noise = torch.randn(self.shape(how), generator=self.generator)
        return noise * how.get("scale", 1.0) + how.get("mean", 0.0)

    def logprob(self, how: dict[str, Any], _: Any = None) -> torch.Tensor:
        """Negative numbers, or numbers near those of an earlier argument (`near`), as policies are."""
        return -(self.normal(how).abs() + 0.1)

    def near(self, how: dict[str, Any], drawn: dict[str, Any]) -> torch.Tensor:
        """An earlier argument with noise."""
        other = drawn[how["of"]]
        return other + torch.randn(other.shape, generator=self.generator) * how.get("scale", 0.3)

    def ids(self, how: dict[str, Any], _: Any = None) -> torch.Tensor:
        """Token ids."""
        return torch.randint(0, self.sizes["V"], self.shape(how), generator=self.generator)

    def codes(self, how: dict[str, Any], _: Any = None) -> torch.Tensor:
        """Codes of four bits, in uint8."""
        return torch.randint(0, 16, self.shape(how), generator=self.generator).to(torch.uint8)

    def attention(self, how: dict[str, Any], _: Any = None) -> torch.Tensor:
        """Right-padded rows of at least `shortest` tokens (default 1), 1 on tokens; one row is full."""
        rows, width = self.shape(how)
        lengths = torch.randint(how.get("shortest", 1), width + 1, (rows,), generator=self.generator)
        lengths[self.whole(0, rows)] = width
        return (torch.arange(width) < lengths[:, None]).long()

    def either_side(self, how: dict[str, Any], _: Any = None) -> torch.Tensor:
        """Rows padded on the right or on the left."""
        attention = self.attention(how)
        flip = torch.rand(len(attention), generator=self.generator) < 0.5
        return torch.where(flip[:, None], attention.flip(1), attention)

    def mask(self, how: dict[str, Any], _: Any = None) -> torch.Tensor:
        """Right-padded rows, true on tokens."""
        return self.attention(how).bool()

    def response(self, how: dict[str, Any], _: Any = None) -> torch.Tensor:
        """True from a place after the first up to the padding; one row at least has tokens."""
        mask = self.mask(how)
        starts = torch.randint(1, 3, (len(mask), 1), generator=self.generator)
        return mask & (torch.arange(mask.shape[1]) >= starts)

    def lengths(self, how: dict[str, Any], _: Any = None) -> torch.Tensor:
        """Whole numbers from 0 to T, one a row."""
        return torch.randint(0, self.sizes["T"] + 1, self.shape(how), generator=self.generator)

    def choice(self, how: dict[str, Any], _: Any = None) -> Any:
        """One of a list."""
        return how["of"][self.whole(0, len(how["of"]))]

    def words(self, how: dict[str, Any], _: Any = None) -> list[Any]:
        """A list of P words, or other entries, drawn from `of`."""
        return [how["of"][self.whole(0, len(how["of"]))] for _ in range(self.sizes["P"])]

    def numbers(self, how: dict[str, Any], _: Any = None) -> list[float]:
        """A list of P numbers, uniform from `low` to `high`."""
        low, high = how.get("low", 0.0), how.get("high", 1.0)
        spread = torch.rand(self.sizes["P"], generator=self.generator, dtype=torch.float64)
        return (low + (high - low) * spread).tolist()

    def group_size(self, *_: Any) -> int:
        """G."""
        return self.sizes["G"]


KINDS: dict[str, Callable[..., Any]] = {
    "normal": Draw.normal,
    "logprob": Draw.logprob,
    "near": Draw.near,
    "ids": Draw.ids,
    "codes": Draw.codes,
    "attention": Draw.attention,
    "either_side": Draw.either_side,
    "mask": Draw.mask,
    "response": Draw.response,
    "lengths": Draw.lengths,
    "choice": Draw.choice,
    "words": Draw.words,
    "numbers": Draw.numbers,
    "group_size": Draw.group_size,
}
