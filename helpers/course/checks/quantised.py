"""What holds of every right quantisation of one block of numbers: codes, then one scale."""

from __future__ import annotations

from collections.abc import Callable

import torch

from helpers.course.checks.properties import Arguments, Probe, equal


def codes_keep_under_scale(probe: Probe, given: Arguments, name: str) -> str | None:
    """Four times the weights have the same codes, and four times the scale."""
    plain, larger = probe.ask(given), probe.ask({**given, name: given[name] * 4})
    if not equal(larger[:-1], plain[:-1], 0.0) or not equal(larger[-1], 4 * plain[-1]):
        return f"{name} times 4 must give the same codes and a scale four times as large"
    return None


def codes_go_with_weights(probe: Probe, given: Arguments, name: str) -> str | None:
    """Weights in another order have their codes in that order, and the same scale."""
    plain, rolled = probe.ask(given), probe.ask({**given, name: given[name].roll(1)})
    if not equal(rolled, torch.cat([plain[:-1].roll(1), plain[-1:]]), 0.0):
        return "each weight has a code of its own, whatever place it stands in"
    return None


def largest_is_extreme(probe: Probe, given: Arguments, name: str, codes: list[int]) -> str | None:
    """The weight of the largest size gets the first or the last code."""
    place = int(given[name].abs().argmax())
    if int(probe.ask(given)[place]) not in codes:
        return f"the weight of the largest size must get code {codes[0]} or {codes[1]}"
    return None


OF_BLOCKS: dict[str, Callable[..., str | None]] = {
    function.__name__: function
    for function in (codes_keep_under_scale, codes_go_with_weights, largest_is_extreme)
}
