"""What the tests of the answers share: finite differences, random numbers, and right values beside slips."""

from __future__ import annotations

from collections.abc import Callable

import torch

Number = float | torch.Tensor


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> torch.Tensor:
    """Normal numbers in float64, equal for equal seeds."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * scale


def finite_difference(
    f: Callable[[torch.Tensor], Number], x: torch.Tensor, step: float = 1e-5
) -> torch.Tensor:
    """Gradient of the scalar `f` at `x` by central differences in float64."""
    x = x.double()
    gradient = torch.zeros_like(x).reshape(-1)
    for i in range(x.numel()):
        move = torch.zeros_like(gradient)
        move[i] = step
        move = move.view_as(x)
        gradient[i] = (float(f(x + move)) - float(f(x - move))) / (2 * step)
    return gradient.view_as(x)


def gradient_of(f: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Gradient of the scalar `f` at the float32 `x` by back-propagation."""
    leaf = x.detach().float().clone().requires_grad_()
    f(leaf).backward()
    assert leaf.grad is not None
    return leaf.grad


def near(actual: Number, expected: Number, tolerance: float = 1e-5) -> None:
    """Assert equality within an absolute and relative tolerance; NaN equals nothing."""
    a, b = (torch.as_tensor(value).detach().double() for value in (actual, expected))
    torch.testing.assert_close(a, b.expand_as(a), rtol=tolerance, atol=tolerance)


def separates(slip: str, ours: Number, right: Number, wrong: Number, tolerance: float = 1e-3) -> None:
    """Assert that the answer is right where the mistake `slip` would give `wrong`, another value."""
    near(ours, right, tolerance)
    a, b = (torch.as_tensor(value).detach().double() for value in (right, wrong))
    same = a.shape == b.shape and torch.allclose(a, b, rtol=10 * tolerance, atol=10 * tolerance)
    assert not same, f"this input does not tell the slip {slip} from the right answer"
