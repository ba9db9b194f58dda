"""How many prompts it takes to tell one win rate from another, by the normal approximation.

Outcomes are 1, 0.5 or 0 a prompt. Two systems measured on the same prompts are easier to tell apart the more
their outcomes agree from prompt to prompt, which is what `correlation` is about.
"""

from __future__ import annotations

import math
from typing import Any

from scipy import stats

from helpers.errors import CourseError


def outcome_variance(rate: float, ties: float = 0.0) -> float:
    """Variance of one prompt's outcome, 1, 0.5 or 0, at this win rate: rate (1 - rate) - ties / 4.

    Raises:
        CourseError: for rates outside [0, 1], or more ties than that win rate allows.
    """
    if not 0 <= rate <= 1:
        raise CourseError(f"a win rate is a number from 0 to 1, not {rate}")
    if not 0 <= ties <= 2 * min(rate, 1 - rate) + 1e-12:
        raise CourseError(
            f"a win rate of {rate} allows a share of ties from 0 to {2 * min(rate, 1 - rate):g}, not {ties}"
        )
    return max(rate * (1 - rate) - ties / 4, 0.0)


def power(
    n: int, p0: float, p1: float, *, alpha: float = 0.05, ties: float = 0.0, correlation: float | None = None
) -> float:
    """How often n prompts show at level `alpha` (two-sided) that the true win rate p1 is not p0.

    The normal approximation: power = Φ((√n |p1 - p0| - z s0) / s1), z the 1 - alpha/2 quantile, s0 and s1
    the deviations of one prompt's outcome at p0 and p1.

    Args:
        p0: the rate to be told from, such as a threshold.
        ties: share of prompts that are ties, at both rates.
        correlation: None: p0 is a fixed number. Otherwise p0 is another system, measured on the same n
            prompts, and this is the correlation of both outcomes; 0 is what separate prompts would give.
    """
    if n < 1:
        raise CourseError(f"the number of prompts is at least 1, not {n}")
    at_null, at_truth = _deviations(p0, p1, ties, correlation)
    reach = math.sqrt(n) * abs(p1 - p0) - stats.norm.ppf(1 - alpha / 2) * at_null
    return float(stats.norm.cdf(reach / at_truth)) if at_truth > 0 else float(reach > 0)


def _deviations(p0: float, p1: float, ties: float, correlation: float | None) -> tuple[float, float]:
    v0, v1 = outcome_variance(p0, ties), outcome_variance(p1, ties)
    if correlation is None:
        return math.sqrt(v0), math.sqrt(v1)
    if not -1 <= correlation < 1:
        raise CourseError(f"a correlation of two systems is at least -1 and under 1, not {correlation}")
    both = math.sqrt(max(v0 + v1 - 2 * correlation * math.sqrt(v0 * v1), 0.0))
    return both, both


def can_tell(n: int, p0: float, p1: float, *, power_wanted: float = 0.8, **options: Any) -> bool:
    """Whether n prompts show the difference at least with `power_wanted`; options as in `power`."""
    return power(n, p0, p1, **options) >= power_wanted


def prompts_needed(
    p0: float,
    p1: float,
    power: float = 0.8,
    *,
    alpha: float = 0.05,
    ties: float = 0.0,
    correlation: float | None = None,
) -> int:
    """The least number of prompts that tells p1 from p0 with this power; options as in the function `power`.

        n = ((z s0 + z_power s1) / (p1 - p0))²

    Raises:
        CourseError: for equal rates, which no number of prompts can tell apart.
    """
    if p0 == p1:
        raise CourseError(f"no number of prompts tells {p0} from {p1}: give two different win rates")
    if not 0 < power < 1:
        raise CourseError(f"the power is a number between 0 and 1, such as 0.8, not {power}")
    at_null, at_truth = _deviations(p0, p1, ties, correlation)
    spread = stats.norm.ppf(1 - alpha / 2) * at_null + stats.norm.ppf(power) * at_truth
    return max(math.ceil((spread / (p1 - p0)) ** 2), 1)
