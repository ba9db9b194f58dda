"""Whether a method reached its threshold: its win rate, and for PPO how far it went from its start."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from helpers.course.autograder import KL_LIMITS, WIN_THRESHOLDS, baseline_of
from helpers.training.run_rows import read_metric_rows

# Of the win rate against the method's own opponent: the benchmark's, and the course's own for SFT.
THRESHOLDS = {"sft": 0.70, **WIN_THRESHOLDS}


def opponent_of(name: str) -> str:
    """What a method is measured against: "base" or "sft"."""
    return baseline_of(name) if name in WIN_THRESHOLDS else "base"


def verdict_on(name: str, figures: Mapping[str, Any], run: Path | None) -> dict[str, Any]:
    """The threshold, what it is about, whether it was reached; None where it cannot be told.

    A method with a limit on its KL keeps it in the evaluation and in every step of its training.

    Args:
        figures: what `PolicyRow.to_dict` gives.
        run: the training run's directory.
    """
    threshold, opponent = THRESHOLDS.get(name), opponent_of(name)
    rate = figures.get(f"win_rate_vs_{opponent}")
    passed = None if rate is None or threshold is None else rate >= threshold
    result = {"threshold": threshold, "threshold_on": f"win_rate_vs_{opponent}"}
    if name not in KL_LIMITS:
        return {**result, "passed": passed}
    measured = figures.get("kl" if opponent == "base" else f"kl_vs_{opponent}")
    known = [kl for kl in (measured, highest_kl(run)) if kl is not None]
    kept = all(kl < KL_LIMITS[name] for kl in known)
    highest = max(known, default=None)
    return {
        **result,
        "kl_limit": KL_LIMITS[name],
        "kl_highest": highest,
        "passed": None if passed is None else passed and kept,
    }


def highest_kl(run: Path | None) -> float | None:
    """The largest KL to its reference that a run logged; None where it logged none.

    It goes by k1, the mean log-ratio: one sampled token that the policy has all but given up can lift k3 of a
    single step to any height, while thousands of tokens say that the policy is near.
    """
    rows = read_metric_rows(run / "metrics.csv")[1] if run else []
    values = [float(row["kl_k1"]) for row in rows if row.get("kl_k1")]
    return max((kl for kl in values if math.isfinite(kl)), default=None)
