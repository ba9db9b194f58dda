"""The PPO benchmark: the ratio the right way round, equal training, one base against four."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.course import bench_ppo
from helpers.errors import CourseError


def figures(peak: float, bases: int, score: float = 0.5) -> dict[str, float]:
    return {"peak_gib": peak, "bases": bases, "score": score}


def test_the_ratio_is_that_of_one_base_to_four() -> None:
    result = bench_ppo.compare(figures(1.5, 1), figures(3.0, 4))
    assert result["memory_ratio"] == 0.5 and result["passed"]
    assert not bench_ppo.compare(figures(2.9, 1), figures(3.0, 4))["passed"]


@pytest.mark.parametrize("four", [figures(3.0, 3), figures(3.0, 4, score=0.7)], ids=["bases", "score"])
def test_runs_that_did_not_train_alike_are_not_compared(four: dict[str, float]) -> None:
    with pytest.raises(CourseError, match="did not train alike"):
        bench_ppo.compare(figures(1.5, 1), four)


@pytest.mark.slow
def test_both_ways_train_alike_on_one_base_and_on_four(tmp_path: Path, tiny_dir: Path) -> None:
    setup = bench_ppo.Setup(
        str(tiny_dir),
        "solutions.answers",
        str(tmp_path),
        prompts=2,
        max_new_tokens=8,
        model_name=str(tiny_dir / "model"),
    )
    bench_ppo.prepare(setup)
    one, four = (bench_ppo.train(way, setup) for way in ("one", "four"))
    assert (one["bases"], four["bases"]) == (1, 4)
    assert one["score"] == pytest.approx(four["score"], abs=1e-4)
