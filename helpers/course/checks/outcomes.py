"""What a function makes of one input (value, gradients, or an exception), and when two of these agree."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from helpers.course.checks.clock import TimeUp
from helpers.course.checks.exercise import Case, Exercise, decode, encode, encode_number, tensor_of
from helpers.course.checks.state import settings_kept
from helpers.guard import version_of


@dataclass
class Outcome:
    """One call. `gradients` holds None for an input that the result does not depend on by a graph."""

    value: Any = None
    gradients: dict[str, torch.Tensor | None] = field(default_factory=dict)
    error: str | None = None  # kind of exception
    changed: list[str] = field(default_factory=list)  # arguments written to
    problem: BaseException | None = None  # the exception itself, where there was a call

    def to_json(self) -> dict[str, Any]:
        """The outcome as it is kept in a vector file."""
        if self.error is not None:
            return {"error": self.error}
        plain: dict[str, Any] = {"value": encode(self.value, 7)}
        if self.gradients:
            plain["gradients"] = {name: flat(gradient) for name, gradient in self.gradients.items()}
        if self.changed:
            plain["changed"] = self.changed
        return plain

    @classmethod
    def from_json(cls, plain: dict[str, Any], case: Case) -> Outcome:
        """Read what `to_json` wrote; gradients have the shape and precision of their inputs."""
        if "error" in plain:
            return cls(error=plain["error"])
        gradients: dict[str, torch.Tensor | None] = {}
        for name, data in plain.get("gradients", {}).items():
            like = case.arguments[name]
            dtype = str(like.dtype).removeprefix("torch.")
            gradients[name] = None if data is None else tensor_of(data, dtype, list(like.shape))
        return cls(decode(plain["value"]), gradients, changed=plain.get("changed", []))


def flat(gradient: torch.Tensor | None) -> list[Any] | None:
    """A gradient's numbers; its shape is that of the input."""
    return None if gradient is None else [encode_number(x, 7) for x in gradient.reshape(-1).tolist()]


# ---------------------------------------------------------------------- calling
def laid_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values in another memory order, so that `view` on it may fail; differentiable."""
    if layout == "transposed" and tensor.dim() > 1:
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if layout:
        return torch.stack([tensor, tensor], dim=-1)[..., 0]
    return tensor


def call(function: Callable[..., Any], exercise: Exercise, arguments: dict[str, Any]) -> Any:
    """Call by position, as the trainers do; optional arguments by name."""
    given = [arguments[name] for name in exercise.arguments if name not in exercise.optional]
    named = {name: arguments[name] for name in exercise.optional if name in arguments}
    with settings_kept():
        return function(*given, **named)


def misfit(function: Callable[..., Any], exercise: Exercise) -> str | None:
    """Why the function cannot be called as the contract says, or None."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    try:
        call(signature.bind, exercise, dict.fromkeys(exercise.arguments))
    except TypeError:
        wanted = ", ".join(exercise.arguments)
        return f"it is called as {exercise.name}({wanted}), but yours takes {signature}"
    return None


@torch.enable_grad()
def run(function: Callable[..., Any], exercise: Exercise, case: Case) -> Outcome:
    """Call a function on a fresh copy of a case and look at everything that comes out.

    Inputs with a gradient are no leaves: an in-place change shows as such, and not as autograd's complaint.
    """
    tensors = {name: x for name, x in case.arguments.items() if isinstance(x, torch.Tensor)}
    leaves = {name: x.clone().requires_grad_(name in exercise.gradients) for name, x in tensors.items()}
    copies = {name: laid_out(leaf.clone(), case.layout) for name, leaf in leaves.items()}
    lists = {name: list(value) for name, value in case.arguments.items() if isinstance(value, list)}
    arguments = {**case.arguments, **copies, **lists}
    before = {name: (version_of(value), value.shape) for name, value in copies.items()}
    try:
        value = call(function, exercise, arguments)
        changed = [name for name, x in copies.items() if (version_of(x), x.shape) != before[name]]
        changed += [name for name, x in lists.items() if x != case.arguments[name]]
        wanted = {name: leaves[name] for name in exercise.gradients if name in leaves}
        gradients = {} if changed else gradients_of(value, wanted)
    except (TimeUp, KeyboardInterrupt):
        raise
    except BaseException as problem:  # of a kind of its own, GeneratorExit, SystemExit
        return Outcome(error=type(problem).__name__, problem=problem)
    return Outcome(detached(value), gradients, changed=changed)


def detached(value: Any) -> Any:
    """A result, or each of several, without its graph."""
    if isinstance(value, tuple):
        return tuple(detached(part) for part in value)
    return value.detach() if isinstance(value, torch.Tensor) else value


def gradients_of(value: Any, leaves: dict[str, torch.Tensor]) -> dict[str, torch.Tensor | None]:
    """Gradients of a weighted sum of the result; None for all where no graph leads back to any input."""
    if not isinstance(value, torch.Tensor) or is_special(value) or not value.requires_grad:
        return dict.fromkeys(leaves)
    if any(leaf.device != value.device for leaf in leaves.values()):
        return {}
    weights = 1.0 + (torch.arange(value.numel(), device=value.device) % 3) * 0.5
    total = (value.reshape(-1) * weights.to(value.dtype)).sum()
    found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    if all(gradient is None for gradient in found):
        return dict.fromkeys(leaves)
    zeros = [torch.zeros_like(leaf) for leaf in leaves.values()]
    pairs = zip(leaves, found, zeros, strict=True)
    return {name: zero if gradient is None else gradient for name, gradient, zero in pairs}


# ---------------------------------------------------------------------- comparing
def same(a: Outcome, b: Outcome, case: Case) -> bool:
    """True where two outcomes agree within the tolerance of the case; `b` is the recorded one."""
    if a.error is not None or b.error is not None:
        return a.error == b.error
    if sorted(a.changed) != sorted(b.changed) or not same_value(a.value, b.value, case):
        return False
    return not wrong_gradients(a, b, case)


def wrong_gradients(a: Outcome, b: Outcome, case: Case) -> list[str]:
    """Inputs whose gradients differ."""
    return [name for name in b.gradients if not same_value(a.gradients.get(name), b.gradients[name], case)]


def same_value(a: Any, b: Any, case: Case) -> bool:
    """Equal kind, shape, dtype and device, and numbers equal within the tolerance."""
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        if is_special(a) or a.shape != b.shape or a.dtype != b.dtype or a.device != b.device:
            return False
        return close(a, b, case)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(same_value(x, y, case) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_value(a[name], b[name], case) for name in b)
    if is_number(a) and is_number(b):
        return close(torch.tensor(float(a)), torch.tensor(float(b)), case)
    return type(a) is type(b) and not isinstance(a, torch.Tensor) and a == b


def is_special(tensor: torch.Tensor) -> bool:
    """A nested or sparse tensor, which has no shape or no plain numbers to compare."""
    return tensor.is_nested or tensor.layout != torch.strided


def is_number(value: Any) -> bool:
    """An int or a float, of Python or NumPy, but no truth value."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def close(a: torch.Tensor, b: torch.Tensor, case: Case) -> bool:
    """Equal numbers: NaN equals NaN, and rounding is measured against the largest number of `b`."""
    a, b = a.double(), b.double()
    finite = b[b.isfinite()].abs()
    atol = max(case.tolerance * (float(finite.max()) if finite.numel() else 0.0), case.floor)
    return torch.allclose(a, b, rtol=case.tolerance, atol=atol, equal_nan=True)
