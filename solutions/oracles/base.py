"""What an oracle is: the right answer by its definition, in float64, with the inputs it is asked on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

Properties = tuple[tuple[str, dict[str, Any]], ...]


@dataclass(frozen=True)
class Given:
    """One input of an exercise, and what makes it worth asking."""

    why: str
    arguments: dict[str, Any]
    tolerance: float = 1e-5
    floor: float = 1e-7
    layout: str = ""
    gradients: bool = True  # False: only the value is compared, as under NaN, which spreads in backward


@dataclass(frozen=True)
class Oracle:
    """An exercise as the instructor has it."""

    name: str
    function: Callable[..., Any]
    cases: Callable[[], list[Given]]
    inputs: dict[str, dict[str, Any]]  # how fresh inputs are drawn, see helpers.course.checks.draws
    gradients: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    properties: Properties = ()
    fresh_floor: float = 1e-6  # absolute tolerance on fresh draws; larger where chance has a part
    arguments: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "arguments", tuple(inspect.signature(self.function).parameters))


ORACLES: dict[str, Oracle] = {}


def oracle(**description: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter a function as the oracle of the exercise of its name."""

    def enter(function: Callable[..., Any]) -> Callable[..., Any]:
        ORACLES[function.__name__] = Oracle(name=function.__name__, function=function, **description)
        return function

    return enter


# ---------------------------------------------------------------------- inputs
def row(*numbers: float) -> torch.Tensor:
    """A float32 vector."""
    return torch.tensor(numbers, dtype=torch.float32)


def rows(*lists: list[float]) -> torch.Tensor:
    """A float32 matrix."""
    return torch.tensor(lists, dtype=torch.float32)


def flags(*lines: str) -> torch.Tensor:
    """A bool matrix from lines such as "1110"."""
    return torch.tensor([[letter == "1" for letter in line] for line in lines], dtype=torch.bool)


def noise(seed: int, *shape: int, scale: float = 1.0, mean: float = 0.0) -> torch.Tensor:
    """Normal numbers with two decimals, equal for equal seeds."""
    numbers = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return torch.round((numbers * scale + mean) * 100) / 100


def words(seed: int, vocabulary: int, *shape: int) -> torch.Tensor:
    """Token ids."""
    return torch.randint(0, vocabulary, shape, generator=torch.Generator().manual_seed(seed))


def in_bfloat16(arguments: dict[str, Any]) -> dict[str, Any]:
    """The floating-point tensors in bfloat16."""
    return {
        name: value.bfloat16() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in arguments.items()
    }


def matter(*names: str) -> Properties:
    """The property that each of these inputs changes the result."""
    return tuple(("matters", {"name": name}) for name in names)


# ---------------------------------------------------------------------- asking
def in_float64(value: Any) -> Any:
    """A float tensor in float64; all else as it is."""
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def zero() -> torch.Tensor:
    """0 in float64, the start of a sum."""
    return torch.zeros((), dtype=torch.float64)


def softplus(x: torch.Tensor) -> torch.Tensor:
    """log(1 + exp(x)) without overflow: −log σ(−x)."""
    return torch.log1p(torch.exp(-x)) + x if x > 0 else torch.log1p(torch.exp(x))
