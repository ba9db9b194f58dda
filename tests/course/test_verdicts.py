"""PPO is measured against the SFT model it started from, and must stay near it."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.course.tables import result_rows
from helpers.course.verdicts import highest_kl, opponent_of, verdict_on


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run whose KL rose to 0.3 and fell again; one odd token lifted k3 of that step to 9."""
    rows = ["step,kl,kl_k1", "1,0.0,0.0", "2,9.0,0.3", "2,,", "3,nan,nan", "4,0.1,0.1", ""]
    (tmp_path / "metrics.csv").write_text("\n".join(rows), encoding="utf-8")
    return tmp_path


def test_the_highest_kl_of_a_run_skips_what_is_no_number(run: Path, tmp_path: Path) -> None:
    assert highest_kl(run) == 0.3
    assert highest_kl(None) is None and highest_kl(tmp_path / "nowhere") is None


def test_ppo_is_measured_against_sft_and_the_others_against_the_base() -> None:
    assert opponent_of("ppo") == "sft"
    assert {opponent_of(name) for name in ("base", "sft", "dpo", "grpo", "gspo")} == {"base"}


@pytest.mark.parametrize(
    ("rate", "kl", "passed"), [(0.76, 0.2, True), (0.74, 0.2, False), (0.9, 0.6, False), (None, 0.1, None)]
)
def test_ppo_passes_with_a_win_rate_of_75_per_cent_and_a_kl_below_a_half(
    rate: float | None, kl: float, passed: bool | None, run: Path
) -> None:
    figures = {"win_rate_vs_base": 0.99, "win_rate_vs_sft": rate, "kl": 9.0, "kl_vs_sft": kl}
    verdict = verdict_on("ppo", figures, run)
    assert verdict["passed"] is passed
    assert (verdict["threshold"], verdict["threshold_on"]) == (0.75, "win_rate_vs_sft")
    assert (verdict["kl_limit"], verdict["kl_highest"]) == (0.5, max(kl, 0.3))


def test_a_drift_during_training_counts_even_if_the_end_is_near(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,kl_k1\n1,0.1\n2,0.7\n3,0.1\n", encoding="utf-8")
    verdict = verdict_on("ppo", {"win_rate_vs_sft": 0.9, "kl_vs_sft": 0.1}, tmp_path)
    assert verdict["passed"] is False and verdict["kl_highest"] == 0.7


def test_the_table_shows_ppos_kl_to_sft_with_the_sum_beside_it() -> None:
    row = {"win_rate_vs_sft": 0.8, "kl": 1.5, "kl_sum": 20.0, "kl_vs_sft": 0.123, "kl_sum_vs_sft": 1.75}
    header, rows = result_rows({"methods": {"ppo": {**row, "threshold": 0.75}, "dpo": row}})
    column = {name: [cells[header.index(name)] for cells in rows] for name in ("KL/token", "KL/answer")}
    assert column == {"KL/token": ["0.123 to SFT", "1.500"], "KL/answer": ["1.75 to SFT", "20.00"]}
    assert rows[0][header.index("threshold")] == "0.75 vs SFT"
