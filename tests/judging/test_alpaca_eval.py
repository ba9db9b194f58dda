"""Our statistics give the published AlpacaEval 2 numbers back from the published verdicts.

Annotations are 1 for the baseline (GPT-4 turbo) and 2 for the model, probabilities between them. Raw win
rate and standard error must be equal. The length-controlled rate may differ a little: AlpacaEval's fit has a
term for the difficulty of each instruction, estimated over all models of its board, and regularisation by
cross-validation; ours fits one model alone. Where lengths overlap that makes less than one point. For a
model that is nearly always the shorter one it makes more (ours 9.70, published 6.82): there the number is an
extrapolation, and our warning says so.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.files import read_json, read_jsonl
from helpers.judging.statistics import length_controlled
from solutions.answers import length_controlled_win_rate

FUSECHAT, VERBOSE = "FuseChat-Llama-3.2-1B-Instruct", "alpaca-7b_verbose"


@pytest.fixture(scope="module")
def place(real_data: Path) -> Path:
    folder = real_data / "alpaca_eval"
    if not folder.is_dir():
        pytest.skip(f"the published AlpacaEval verdicts are not at {folder}")
    return folder


def published(place: Path, name: str, figure: str) -> float:
    return float(read_json(place / "published.json")[name][figure])


def annotated(place: Path, name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Preferences in [0, 1] and both lengths, of the rows that have an annotation."""
    rows = [row for row in read_jsonl(place / f"{name}.jsonl") if known(row)]
    preferences = np.array([row["preference"] - 1 for row in rows])
    ours, theirs = (np.array([row[key] for row in rows]) for key in ("length_model", "length_baseline"))
    return preferences, ours, theirs


def known(row: dict[str, Any]) -> bool:
    """Annotations may be missing, as null, NaN or outside [1, 2]."""
    value = row.get("preference")
    return isinstance(value, (int, float)) and math.isfinite(value) and 1 <= value <= 2


@pytest.mark.parametrize("name", [FUSECHAT, VERBOSE])
def test_raw_win_rate_and_standard_error_are_the_published_ones(place, name):
    preferences, *_ = annotated(place, name)
    assert len(preferences) == published(place, name, "n_total")
    assert 100 * preferences.mean() == pytest.approx(published(place, name, "win_rate"), abs=1e-6)
    error = 100 * preferences.std(ddof=1) / math.sqrt(len(preferences))
    assert error == pytest.approx(published(place, name, "standard_error"), abs=1e-6)


def test_the_length_controlled_rate_is_within_one_point_of_the_published_one(place):
    found = length_controlled(length_controlled_win_rate, *annotated(place, FUSECHAT))
    target = published(place, FUSECHAT, "length_controlled_winrate")
    assert 100 * found.value == pytest.approx(target, abs=1.0)
    assert found.ci95[0] < target / 100 < found.ci95[1]
    assert found.warning is None


def test_where_lengths_hardly_overlap_the_warning_says_so(place):
    """537 characters on average against about 2,000."""
    found = length_controlled(length_controlled_win_rate, *annotated(place, VERBOSE))
    assert found.overlap < 0.2
    assert "shorter than the baseline's" in found.warning and "extrapolation" in found.warning
    assert 100 * found.value == pytest.approx(9.70, abs=0.01)
    assert published(place, VERBOSE, "length_controlled_winrate") == pytest.approx(6.82, abs=0.01)
