"""An exercise's check as data: cases, expected outcomes, known mistakes; plain JSON in `data/checks`.

A tensor is written as its dtype, shape and flat data; NaN and infinities are spelled as strings, a memory
layout other than contiguous is named. `encode` and `decode` are each other's inverse.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from helpers.errors import CourseError
from helpers.files import data_dir, read_json

FORMAT = 1
NAMES = "float32 float64 float16 bfloat16 int64 int32 uint8 bool".split()
DTYPES = {name: getattr(torch, name) for name in NAMES}
SPELLED = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


# ---------------------------------------------------------------------- values and JSON
def encode(value: Any, digits: int = 9) -> Any:
    """A tensor, number, list, dictionary or None as JSON; numbers keep `digits` significant digits."""
    if isinstance(value, torch.Tensor):
        data = [encode_number(x, digits) for x in value.detach().reshape(-1).tolist()]
        dtype = str(value.dtype).removeprefix("torch.")
        return {"dtype": dtype, "shape": list(value.shape), "data": data}
    if isinstance(value, (list, tuple)):
        return [encode(item, digits) for item in value]
    if isinstance(value, dict):
        return {"entries": {name: encode(entry, digits) for name, entry in value.items()}}
    if isinstance(value, float):
        number = encode_number(value, digits)
        return {"float": number} if isinstance(number, str) else number
    return value


def encode_number(x: Any, digits: int) -> Any:
    """A number of a tensor; bool as 0 or 1, a float without idle digits, NaN and infinities by name."""
    if isinstance(x, bool) or not isinstance(x, float):
        return int(x)
    if not math.isfinite(x):
        return "nan" if math.isnan(x) else ("inf" if x > 0 else "-inf")
    short = float(f"{x:.{digits}g}")
    return int(short) if short == int(short) and abs(short) < 1e15 else short


def decode(value: Any) -> Any:
    """What `encode` was given."""
    if isinstance(value, dict) and "dtype" in value:
        return tensor_of(value["data"], value["dtype"], value["shape"])
    if isinstance(value, dict) and "float" in value:
        return SPELLED[value["float"]]
    if isinstance(value, dict) and "entries" in value:
        return {name: decode(entry) for name, entry in value["entries"].items()}
    if isinstance(value, list):
        return [decode(item) for item in value]
    return value


def tensor_of(data: list[Any], dtype: str, shape: list[int]) -> torch.Tensor:
    """Flat data as a tensor on the CPU, whatever default device and dtype are set."""
    numbers = [SPELLED[x] if isinstance(x, str) else x for x in data]
    return torch.tensor(numbers, dtype=DTYPES[dtype], device="cpu").reshape(shape)


# ---------------------------------------------------------------------- a check
@dataclass(frozen=True)
class Case:
    """One input, what comes out of it, and what each known mistake makes of it (only where that differs)."""

    why: str
    arguments: dict[str, Any]
    expected: dict[str, Any]
    mistakes: dict[str, dict[str, Any]] = field(default_factory=dict)
    tolerance: float = 1e-5  # relative, and relative to the largest number of the tensor
    floor: float = 1e-7  # absolute
    layout: str = ""  # other than contiguous: "transposed" or "sliced"

    @property
    def size(self) -> int:
        """Numbers in the inputs."""
        return sum(x.numel() for x in self.arguments.values() if isinstance(x, torch.Tensor))


@dataclass(frozen=True)
class Exercise:
    """All that a check of one exercise needs."""

    name: str
    arguments: list[str]  # in the contract's order
    optional: list[str]  # those that are passed by name, and only where a case gives them
    gradients: list[str]  # inputs that come with a gradient
    cases: list[Case]
    mistakes: dict[str, str]  # id → hint
    inputs: dict[str, dict[str, Any]]  # how fresh inputs are drawn
    properties: list[tuple[str, dict[str, Any]]]


def checks_dir() -> Path:
    """Where the vectors lie: with the other data, or in the checkout if $COURSE_DATA lacks them."""
    place = data_dir() / "checks"
    return place if place.is_dir() else Path(__file__).resolve().parents[3] / "data" / "checks"


def exercises() -> list[str]:
    """Names of all exercises that can be checked."""
    return sorted(path.stem for path in checks_dir().glob("*.json"))


def load(name: str) -> Exercise:
    """Read one exercise's check.

    Raises KeyError for an unknown name, naming the close ones; CourseError for a damaged file.
    """
    path = checks_dir() / f"{name}.json"
    if not isinstance(name, str) or name not in exercises():
        near = difflib.get_close_matches(str(name), exercises(), 3, 0.6)
        hint = f"; did you mean {' or '.join(near)}?" if near else f"; there are {', '.join(exercises())}"
        raise KeyError(f"there is no exercise {name!r}{hint}")
    try:
        return from_json(read_json(path))
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError) as problem:
        raise CourseError(f"{path} is damaged ({problem}): restore it from the course's files") from None


def from_json(plain: dict[str, Any]) -> Exercise:
    """An exercise from its JSON."""
    if plain["format"] != FORMAT:
        raise ValueError(f"format {plain['format']}, this version of the course reads {FORMAT}")
    cases = [case_from_json(case) for case in plain["cases"]]
    properties = [(name, parameters) for name, parameters in plain["properties"]]
    rest = {key: plain[key] for key in ("arguments", "optional", "gradients", "mistakes", "inputs")}
    return Exercise(name=plain["exercise"], cases=cases, properties=properties, **rest)


def case_from_json(plain: dict[str, Any]) -> Case:
    """A case from its JSON; outcomes stay JSON until they are compared."""
    arguments = {name: decode(value) for name, value in plain["arguments"].items()}
    return Case(**{**plain, "arguments": arguments})
