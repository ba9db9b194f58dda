"""The arithmetic of `qlora_memory_gib` against the memory of a process of its own, within 15 %."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from helpers.course import bench, bench_memory
from helpers.course.bench_memory import SETUPS, WITHIN, Setup, compare
from helpers.errors import CourseError
from solutions import answers


@pytest.mark.parametrize("name", ["tiny, fp32", "tiny, NF4"])
def test_the_prediction_is_near_the_peak_of_a_process_that_trains_tiny(name, tiny_dir):
    assert compare(SETUPS[name], answers)["ratio"] == pytest.approx(1, abs=WITHIN)


@pytest.mark.slow
@pytest.mark.smol
@pytest.mark.parametrize("name", ["smol, NF4", "smol, NF4, checkpointing"])
def test_the_prediction_is_near_the_peak_of_a_process_that_trains_smol_in_4_bits(name):
    try:
        found = compare(SETUPS[name], answers)
    except CourseError as problem:
        pytest.skip(str(problem))
    assert found["ratio"] == pytest.approx(1, abs=WITHIN)


def test_what_cannot_run_is_named_and_a_miss_fails(monkeypatch):
    sizes = {"linear_parameters": 1, "other_parameters": 1, "adapter_parameters": 1, "hidden": 1}
    sizes |= {"intermediate": 1, "layers": 1, "vocab": 1}

    def measured(setup: Setup) -> dict:
        if setup.model_name != "data/tiny/model":
            raise CourseError("the package that carries the model is not installed\nand more")
        return {"peak_gib": 1.25, "seconds": 1.0, "sizes": sizes}

    monkeypatch.setattr(bench_memory, "measured_apart", measured)
    found = SimpleNamespace(qlora_memory_gib=lambda **_: {"total": 1.0})
    monkeypatch.setattr(bench_memory, "load_answers", lambda *_, **__: found)
    result = bench.measure("memory", "solutions.answers", 1, None)
    assert result["passed"] is False and result["tiny, fp32"]["ratio"] == 0.8
    assert set(result["skipped"]) == {name for name in SETUPS if name.startswith("smol")}
