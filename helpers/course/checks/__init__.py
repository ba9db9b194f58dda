"""Checks of the exercises: `check("dpo_loss", dpo_loss)` says whether it is right, and if not, why.

Two parts: examples with their right outcomes and those of known mistakes (`data/checks`, built by the
instructor from oracles in float64), and properties that give nothing away, on inputs drawn at every call.
"""

from helpers.course.checks.deciding import CheckResult
from helpers.course.checks.exercise import exercises
from helpers.course.checks.showing import check, show

__all__ = ["CheckResult", "check", "exercises", "show"]
