"""What several test modules compare: trained weights and logged metrics."""

from __future__ import annotations

import csv
from pathlib import Path

import torch
from safetensors.torch import load_file

TIMES = ("tokens_per_second", "rollout_share")


def adapter_weights(path: Path) -> dict[str, torch.Tensor]:
    """The trained adapter (and head) of a run."""
    found = load_file(path / "adapter" / "adapter_model.safetensors")
    if (path / "head.safetensors").exists():
        found |= load_file(path / "head.safetensors")
    return found


def assert_equal_weights(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], atol: float = 0.0) -> None:
    """Equal names and values."""
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=0.0, atol=atol)


def metric_rows(path: Path) -> list[dict[str, str]]:
    """metrics.csv without what measures time."""
    with (path / "metrics.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]
