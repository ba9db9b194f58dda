"""What holds of every right answer and gives none away, tried on inputs drawn anew at every call.

Each property takes a probe (the learner's function with its exercise) and freshly drawn arguments, and gives
back a hint where it fails. A function that only recognises the visible inputs fails here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from helpers.course.checks.exercise import SPELLED, Exercise
from helpers.course.checks.outcomes import call
from helpers.guard import described

Arguments = dict[str, Any]
LOOSE = 1e-4  # of float32 arithmetic in another order
POINTS = {"win": 1.0, "tie": 0.5, "loss": 0.0}  # words that an exercise returns, as numbers
OTHERS = {"A": "B", "B": "A", "win": "loss", "loss": "tie", "tie": "win"}


@dataclass(frozen=True)
class Probe:
    """A function that can be asked."""

    function: Callable[..., Any]
    exercise: Exercise

    def ask(self, arguments: Arguments) -> torch.Tensor:
        """The result as float64, without graph; inputs are copied first."""
        copies = {name: copy(value) for name, value in arguments.items()}
        with torch.enable_grad():
            return as_numbers(call(self.function, self.exercise, copies))

    def gradients(self, arguments: Arguments) -> dict[str, torch.Tensor]:
        """Gradients of the summed result in every input that wants one."""
        leaves = {name: arguments[name].clone().requires_grad_() for name in self.exercise.gradients}
        with torch.enable_grad():
            inputs = {name: leaf.clone() for name, leaf in leaves.items()}
            result = call(self.function, self.exercise, {**arguments, **inputs})
            found = torch.autograd.grad(result.sum(), list(leaves.values()), allow_unused=True)
        pairs = zip(leaves, found, strict=True)
        return {name: torch.zeros_like(leaves[name]) if g is None else g for name, g in pairs}


class Unlike(Exception):
    """A result without numbers: its message is the hint."""


def copy(value: Any) -> Any:
    """A tensor's or list's copy."""
    return (
        value.clone()
        if isinstance(value, torch.Tensor)
        else (list(value) if isinstance(value, list) else value)
    )


def as_numbers(value: Any) -> torch.Tensor:
    """A result as a float64 tensor; several side by side on a last axis, or in a row if shapes differ."""
    value = list(value.values()) if isinstance(value, dict) else value
    if isinstance(value, (tuple, list)):
        parts = [as_numbers(part) for part in value]
        if len({part.shape for part in parts}) > 1:
            return torch.cat([part.reshape(-1) for part in parts])
        return torch.stack(parts, dim=-1) if parts else torch.zeros(0, dtype=torch.float64)
    value = POINTS.get(value, value) if isinstance(value, str) else value
    try:
        return torch.as_tensor(value).detach().cpu().double()
    except (RuntimeError, TypeError, ValueError):
        more = ": does every path through it end in a return?" if value is None else ", not numbers"
        raise Unlike(f"it returns {described(value)}{more}") from None


def equal(a: torch.Tensor, b: torch.Tensor, tolerance: float = LOOSE) -> bool:
    """Equal shapes and numbers; NaN equals nothing."""
    return a.shape == b.shape and torch.allclose(a, b, rtol=tolerance, atol=tolerance)


def rows_of(arguments: Arguments, names: Iterable[str], pick: torch.Tensor) -> Arguments:
    """The arguments with the rows `pick` of those that have rows, tensors or lists."""
    return {**arguments, **{name: picked(arguments[name], pick) for name in names if name in arguments}}


def picked(value: Any, pick: torch.Tensor) -> Any:
    """These rows of a tensor or list."""
    return [value[index] for index in pick.tolist()] if isinstance(value, list) else value[pick]


# ---------------------------------------------------------------------- the batch
def repeatable(probe: Probe, given: Arguments) -> str | None:
    """The same input gives the same result."""
    if not equal(probe.ask(given), probe.ask(given), 0.0):
        return "two calls with the same input differ: nothing may depend on chance or on earlier calls"
    return None


def batch_order(probe: Probe, given: Arguments, rows: list[str], result: str, block: str = "") -> str | None:
    """Rows in another order give the same number, or the same rows in that order; siblings stay together."""
    size = given[block] if block else 1
    blocks = torch.arange(len(given[rows[0]])).view(-1, size)
    order = blocks.roll(1, 0).reshape(-1)
    moved, plain = probe.ask(rows_of(given, rows, order)), probe.ask(given)
    if not equal(moved, plain[order] if result == "rows" else plain):
        return "the result depends on the order of the batch: no row may look at its neighbours"
    return None


def rows_alone(probe: Probe, given: Arguments, rows: list[str], block: str = "") -> str | None:
    """Each row (or group of siblings) by itself gives what it gives within the batch."""
    size = given[block] if block else 1
    blocks = torch.arange(len(given[rows[0]])).view(-1, size)
    alone = [probe.ask(rows_of(given, rows, pick)) for pick in blocks]
    together = probe.ask(given)
    if any(row.shape[1:] != together.shape[1:] or row.shape[:1] != (size,) for row in alone):
        return f"a batch of one gives a result of shape {tuple(alone[0].shape)}: keep the batch axis"
    if not equal(torch.cat(alone), together):
        return "a row gives something else alone than within a batch: no row may look at its neighbours"
    return None


def doubled_batch(probe: Probe, given: Arguments, rows: list[str]) -> str | None:
    """The same batch twice over has the same mean."""
    twice = torch.arange(len(given[rows[0]])).repeat(2)
    if not equal(probe.ask(rows_of(given, rows, twice)), probe.ask(given)):
        return "the same rows twice over give another value: a mean does not grow with the batch"
    return None


def sides_apart(probe: Probe, given: Arguments, rows: list[str]) -> str | None:
    """The rows of some inputs in another order than the rest: without pairs nothing changes."""
    order = torch.arange(len(given[rows[0]])).roll(1)
    if not equal(probe.ask(rows_of(given, rows, order)), probe.ask(given)):
        return "which chosen answer stands beside which rejected one must not matter"
    return None


# ---------------------------------------------------------------------- padding
def padding(probe: Probe, given: Arguments, columns: dict[str, Any], result: str) -> str | None:
    """More columns on the right, masked and full of rubbish, change neither value nor gradients."""
    wide = {**given, **{name: widened(given[name], fill) for name, fill in columns.items()}}
    plain, padded = probe.ask(given), probe.ask(wide)
    if result == "columns":
        if padded.shape[1] != plain.shape[1] + 2 or padded[:, -2:].any():
            return "padding on the right must come out as padding"
        padded = padded[:, :-2]
    if not equal(padded, plain):
        return f"padding changes the result{rubbish(columns)}: only masked-in positions may count"
    if probe.exercise.gradients and not rubbish(columns):  # 0 · NaN in backward is no one's fault
        return padded_gradients(probe, given, wide, columns)
    return None


def padded_gradients(probe: Probe, given: Arguments, wide: Arguments, columns: dict[str, Any]) -> str | None:
    """Gradients under padding: as without on the old columns, zero on the new."""
    plain, padded = probe.gradients(given), probe.gradients(wide)
    for name, gradient in padded.items():
        if name in columns:
            if not equal(gradient[:, -2:], torch.zeros_like(gradient[:, -2:]), 0.0):
                return f"padding receives a gradient in {name}{rubbish(columns)}: it must be exactly 0"
            gradient = gradient[:, :-2]
        if not equal(gradient, plain[name]):
            return f"padding changes the gradient in {name}{rubbish(columns)}"
    return None


def widened(tensor: torch.Tensor, fill: Any) -> torch.Tensor:
    """Two more columns of `fill`."""
    shape = (tensor.shape[0], 2, *tensor.shape[2:])
    value = SPELLED[fill] if isinstance(fill, str) else fill
    return torch.cat([tensor, torch.full(shape, value).to(tensor.dtype)], dim=1)


def rubbish(columns: dict[str, Any]) -> str:
    """What the padding held, in words."""
    kinds = sorted({fill for fill in columns.values() if isinstance(fill, str)})
    return f" (it holds {' and '.join(kinds)} there)" if kinds else ""


# ---------------------------------------------------------------------- numbers
def unchanged_by_shift(probe: Probe, given: Arguments, together: list[str], hint: str) -> str | None:
    """The same constant added to some inputs changes nothing."""
    shift = {name: given[name] + 3.0 for name in together}
    return None if equal(probe.ask({**given, **shift}), probe.ask(given)) else hint


def matters(probe: Probe, given: Arguments, name: str) -> str | None:
    """The result changes when an input does."""
    changed = probe.ask({**given, name: another(given[name])})
    return f"the result does not depend on {name}" if equal(changed, probe.ask(given), 1e-9) else None


def another(tensor: Any) -> Any:
    """Other values of the same kind."""
    if isinstance(tensor, list):
        return [OTHERS[x] if isinstance(x, str) else x + 1 + place % 3 for place, x in enumerate(tensor)]
    if tensor.dtype == torch.bool:
        return ~tensor
    if not tensor.is_floating_point():
        return tensor.flip(-1)
    return tensor.flip(0) * 0.7 + 0.3 + torch.linspace(-0.4, 0.5, tensor.numel()).view_as(tensor)


def depends_on_number(probe: Probe, given: Arguments, name: str, values: list[Any]) -> str | None:
    """Two values of a setting give two results."""
    results = [probe.ask({**given, name: value}) for value in values]
    return f"the result does not depend on {name}" if equal(results[0], results[1], 1e-9) else None


def gradient_reaches(probe: Probe, given: Arguments) -> str | None:
    """Every input that wants a gradient gets one that is finite and not all zero."""
    for name, gradient in probe.gradients(given).items():
        if not gradient.isfinite().all():
            return f"the gradient in {name} is not finite"
        if not gradient.any():
            return f"no gradient reaches {name}"
    return None


def finite_when_huge(probe: Probe, given: Arguments, inputs: list[str], factor: float) -> str | None:
    """Huge inputs keep value and gradients finite."""
    huge = {**given, **{name: given[name] * factor for name in inputs}}
    names = " and ".join(inputs)
    if not probe.ask(huge).isfinite().all():
        return f"with {names} in the tens of thousands the result is not finite: which step overflows?"
    if probe.exercise.gradients:
        for name, gradient in probe.gradients(huge).items():
            if not gradient.isfinite().all():
                return f"with {names} in the tens of thousands the gradient in {name} is not finite"
    return None


def known_value(
    probe: Probe, given: Arguments, equate: dict[str, str], value: float, hint: str, without: str = ""
) -> str | None:
    """Where some inputs are equal, and an optional one is left out, the value is known beforehand."""
    rest = {name: value for name, value in given.items() if name != without}
    result = probe.ask({**rest, **{name: given[other] for name, other in equate.items()}})
    return None if equal(result, torch.full_like(result, value)) else hint


def falls_with(probe: Probe, given: Arguments, name: str, hint: str) -> str | None:
    """A larger input gives a smaller loss."""
    return None if probe.ask({**given, name: given[name] + 0.5}) < probe.ask(given) else hint


def between(probe: Probe, given: Arguments, low: float | None, high: float | None) -> str | None:
    """No result leaves its range."""
    result = probe.ask(given)
    if low is not None and (result < low - LOOSE).any():
        return f"a result of {float(result.min()):.4g} is below {low:g}, which cannot be"
    if high is not None and (result > high + LOOSE).any():
        return f"a result of {float(result.max()):.4g} is above {high:g}, which cannot be"
    return None


def sides_sum_to_one(probe: Probe, given: Arguments, left: str, right: str) -> str | None:
    """Without ties, what one side wins the other loses."""
    total = probe.ask(given) + probe.ask({**given, left: given[right], right: given[left]})
    return (
        None
        if equal(total, torch.ones_like(total))
        else f"{left} and {right} exchanged must give the rest to 1"
    )


def equal_entries_give(
    probe: Probe, given: Arguments, name: str, entry: Any, value: Any, hint: str
) -> str | None:
    """A list of one entry over and over gives a known result."""
    result = probe.ask({**given, name: [entry] * len(given[name])})
    return None if equal(result, as_numbers(value)) else hint


def repeated_list(probe: Probe, given: Arguments, rows: list[str], hint: str) -> str | None:
    """The same prompts twice over have the same mean."""
    return None if equal(probe.ask({**given, **{n: given[n] * 2 for n in rows}}), probe.ask(given)) else hint


def exchanged_sums_to_one(probe: Probe, given: Arguments, swap: list[str], flip: list[str]) -> str | None:
    """With the two sides exchanged (`swap`) and the verdicts turned round (`flip`), the rest to 1."""
    turned = {name: [1 - x for x in given[name]] for name in flip}
    first, second = swap
    total = probe.ask(given) + probe.ask({**given, **turned, first: given[second], second: given[first]})
    if not equal(total, torch.ones_like(total), 1e-3):
        return "with both sides exchanged the two results must sum to 1: what one wins, the other loses"
    return None


def holds_the_mean(probe: Probe, given: Arguments, name: str) -> str | None:
    """An interval lies around the mean."""
    low, high = probe.ask(given).tolist()
    mean = sum(given[name]) / len(given[name])
    if not low <= mean <= high:
        return f"the interval {low:.3g} to {high:.3g} does not hold the mean of {name}, {mean:.3g}"
    return None


def narrower_with_more(probe: Probe, given: Arguments, name: str) -> str | None:
    """Four times as many entries make an interval about half as wide."""
    few, many = (probe.ask({**given, name: given[name] * times}) for times in (1, 4))
    ratio = float((many[1] - many[0]) / (few[1] - few[0]).clamp(min=1e-12))
    if not 0.35 < ratio < 0.7:
        return f"with four times as many {name} the interval must be half as wide; yours is {ratio:.2f} times"
    return None


def as_wide_with(probe: Probe, given: Arguments, name: str, values: list[int]) -> str | None:
    """A setting that only makes the result more exact leaves its width."""
    widths = [float(bounds[1] - bounds[0]) for bounds in (probe.ask({**given, name: v}) for v in values)]
    if not 0.6 < widths[1] / max(widths[0], 1e-12) < 1.6:
        return (
            f"{name} from {values[0]} to {values[1]} changes the width from {widths[0]:.3g} to"
            f" {widths[1]:.3g}: more draws must not shrink it"
        )
    return None


def flat_gives_zero(probe: Probe, given: Arguments, name: str) -> str | None:
    """An input without differences gives zeros."""
    result = probe.ask({**given, name: torch.full_like(given[name], 0.75)})
    return (
        None
        if equal(result, torch.zeros_like(result))
        else f"where all {name} are equal the result must be 0"
    )


def groups_balance(probe: Probe, given: Arguments, size: str) -> str | None:
    """What some siblings gain the others lose."""
    sums = probe.ask(given).view(-1, given[size]).sum(dim=1)
    return (
        None
        if equal(sums, torch.zeros_like(sums), 1e-3)
        else "the siblings of a group must balance: their sum is 0"
    )


def probabilities_sum_to_one(probe: Probe, given: Arguments, logits: str, ids: str) -> str | None:
    """Over all words that may come next, the probabilities sum to 1."""
    total = torch.zeros(())
    for word in range(given[logits].shape[-1]):
        total = total + probe.ask({**given, ids: torch.full_like(given[ids], word)}).exp()
    return (
        None
        if equal(total, torch.ones_like(total))
        else "over the whole vocabulary the probabilities must sum to 1"
    )


# These hold of some inputs, not of each: a mask may hide what was changed. One success in many draws will do.
SOMETIMES = {"matters", "depends_on_number", "gradient_reaches", "falls_with"}
PROPERTIES: dict[str, Callable[..., str | None]] = {
    function.__name__: function
    for function in (
        repeatable,
        batch_order,
        rows_alone,
        doubled_batch,
        sides_apart,
        padding,
        unchanged_by_shift,
        matters,
        depends_on_number,
        gradient_reaches,
        finite_when_huge,
        known_value,
        falls_with,
        between,
        sides_sum_to_one,
        flat_gives_zero,
        groups_balance,
        probabilities_sum_to_one,
        equal_entries_give,
        repeated_list,
        exchanged_sums_to_one,
        holds_the_mean,
        narrower_with_more,
        as_wide_with,
    )
}
