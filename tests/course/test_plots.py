"""Figures say what to see, survive missing and torn data, and leave matplotlib's global state alone."""

from __future__ import annotations

import base64
import math
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from helpers.course import plots
from helpers.course.plots import Series, Skipped

ROOT = Path(__file__).parents[2]
ALGORITHMS = ("sft", "reward_model", "dpo", "ipo", "aot", "ppo", "grpo", "dr_grpo", "gspo")
COLUMNS = (
    "loss", "accuracy", "margin", "reward_chosen", "reward_rejected", "eval_loss", "eval_perplexity",
    "eval_pair_accuracy", "reward", "kl", "entropy", "mean_length", "clip_fraction", "eval_gold",
)  # fmt: skip
METHODS = {
    "base": {"helpful": 0.5, "harmless": 0.1, "honest": 0.1, "mean_tokens": 19.0, "win_rate_vs_base": None},
    "dpo": {
        "win_rate_vs_base": 0.75, "ci95": [0.68, 0.82], "win_rate_vs_base_strict": 0.73,
        "ci95_strict": [0.65, 0.8], "threshold": 0.65, "helpful": 0.8, "harmless": 0.4, "honest": 0.9,
        "mean_tokens": 12.8,
    },
    "ppo": {"win_rate_vs_base": 0.8, "win_rate_vs_sft": 0.9, "threshold": 0.75, "mean_tokens": 11.0},
}  # fmt: skip


def series(n: int = 60) -> dict[str, Series]:
    steps = np.arange(n, dtype=float)
    return {name: Series(steps, 0.5 + 0.4 * np.sin(steps / 9 + i)) for i, name in enumerate(COLUMNS)}


def lines_at(figure: Figure, value: float, axis: str = "y") -> int:
    """How many straight lines stand at `value`."""
    data = [getattr(line, f"get_{axis}data")() for line in figure.axes[0].lines]
    return sum(len(d) == 2 and all(math.isclose(float(x), value, abs_tol=1e-9) for x in d) for d in data)


def assert_readable(figure: Figure) -> None:
    for axes in figure.axes:
        assert len(axes.get_title(loc="left")) > 15
        assert axes.get_xlabel() and (axes.get_ylabel() or axes.get_yticklabels())


# ------------------------------------------------------------------ reading metrics.csv
def test_a_torn_and_ragged_file_is_read_as_far_as_it_goes(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss,kl\n1,0.5\n2,,0.1\n3,nan,0.2\n4,0.4,inf,7,7\n5,text,0.3\n6,0.3,0.4\n7,0.29,0.")
    metrics = plots.read_metrics(path)
    assert metrics["loss"].steps.tolist() == [1, 4, 6] and metrics["loss"].values.tolist() == [0.5, 0.4, 0.3]
    assert metrics["loss"].non_finite == 2
    assert metrics["kl"].values.tolist() == [0.1, 0.2, 0.3, 0.4] and metrics["kl"].non_finite == 1


@pytest.mark.parametrize("content", [None, "", "step", "step,loss\n", "a,b\n1,2\n", "\x00\x00\n"])
def test_a_missing_or_empty_file_gives_nothing_to_draw(tmp_path, content):
    path = tmp_path / "metrics.csv"
    if content is not None:
        path.write_text(content)
    figures = plots.training_curves(plots.read_metrics(path), "dpo")
    assert figures and all(isinstance(figure, Skipped) for figure in figures.values())


# ------------------------------------------------------------------ curves
@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_curve_has_a_telling_title_and_labels(algo):
    figures = plots.training_curves(series(), algo, beta=0.1, threshold=0.74)
    assert len(figures) >= 2
    for figure in figures.values():
        assert isinstance(figure, Figure)
        assert_readable(figure)
        assert "{}" not in figure.axes[0].get_title(loc="left")


def test_the_curves_that_the_course_promises_are_there():
    names = {algo: set(plots.training_curves(series(), algo)) for algo in ALGORITHMS}
    assert {"loss", "perplexity"} <= names["sft"]
    assert {"loss", "pair_accuracy"} <= names["reward_model"]
    assert {"loss", "pair_accuracy", "margin"} <= names["dpo"]
    assert {"reward", "kl", "entropy", "length", "clip_fraction", "gold"} <= names["grpo"]


@pytest.mark.parametrize(
    ("algo", "value"),
    [("dpo", math.log(2)), ("aot", math.log(2)), ("ipo", 25.0), ("reward_model", math.log(2))],
)
def test_losses_carry_the_value_they_start_from(algo, value):
    assert lines_at(plots.training_curves(series(), algo, beta=0.1)["loss"], value) == 1


def test_the_reward_model_threshold_is_marked():
    figure = plots.training_curves(series(), "reward_model", threshold=0.74)["pair_accuracy"]
    assert lines_at(figure, 0.74) == lines_at(figure, 0.5) == 1


def test_a_missing_column_skips_its_figure_with_a_sentence():
    metrics = series()
    del metrics["entropy"]
    figures = plots.training_curves(metrics, "grpo")
    assert figures["entropy"].reason == (
        "GRPO entropy is left out: metrics.csv has no values in a column entropy."
    )
    assert isinstance(figures["kl"], Figure)


def test_optional_figures_are_left_out_silently():
    metrics = series()
    del metrics["eval_gold"]
    assert "gold" not in plots.training_curves(metrics, "grpo")


def test_values_left_out_are_counted_on_the_figure():
    metrics = {"loss": Series(np.array([1.0]), np.array([0.5]), non_finite=3)}
    figure = plots.training_curves(metrics, "sft")["loss"]
    assert "3 values that were not finite" in figure.axes[0].get_xlabel()


def test_smoothing_keeps_level_and_length():
    assert np.allclose(plots.smooth(np.full(50, 3.0), 7), 3.0)
    assert plots.smooth(np.arange(50.0), 4).shape == (50,)


# ------------------------------------------------------------------ bars and histograms
def test_bars_and_histograms_are_readable():
    for figure in (
        plots.win_rate_bars(METHODS),
        plots.hhh_bars(METHODS),
        plots.mean_tokens_bars(METHODS),
        plots.reward_histogram([1.0, 2.0, math.nan], [0.0, None, -1.0]),
    ):
        assert isinstance(figure, Figure)
        assert_readable(figure)


def test_win_rates_show_intervals_and_thresholds_of_the_right_comparison():
    figure = plots.win_rate_bars(METHODS)
    assert lines_at(figure, 0.65, "x") == 1, "DPO's threshold against the base"
    assert lines_at(figure, 0.75, "x") == 0, "PPO's threshold is against SFT and has no place here"
    assert len(figure.axes[0].containers) == 3 + 2 + 2, "bars of three, intervals of two, two keys"
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["DPO", "PPO"]


@pytest.mark.parametrize("methods", [{}, {"dpo": {}}, {"dpo": {"win_rate_vs_base": math.nan, "ci95": None}}])
def test_without_data_bars_are_skipped_with_a_sentence(methods):
    for draw in (plots.win_rate_bars, plots.hhh_bars, plots.mean_tokens_bars):
        skipped = draw(methods)
        assert isinstance(skipped, Skipped) and skipped.reason.endswith(".")


@pytest.mark.parametrize("interval", [None, [], [0.5], [None, 0.9], "xy", [math.nan, math.nan], [0.9, 0.1]])
def test_a_malformed_interval_is_not_drawn_and_does_no_harm(interval):
    figure = plots.win_rate_bars({"dpo": {"win_rate_vs_base": 0.05, "ci95": interval}})
    assert base64.b64decode(plots.figure_to_png_base64(figure)).startswith(b"\x89PNG")


def test_equal_scores_and_single_points_can_be_drawn():
    for figure in (
        plots.reward_histogram([0.0], [0.0]),
        plots.training_curves({"loss": Series(np.array([1.0]), np.array([0.5]))}, "dpo")["loss"],
    ):
        plots.figure_to_png_base64(figure)


# ------------------------------------------------------------------ manners
def test_a_png_is_reproducible_and_small():
    first, second = (plots.figure_to_png_base64(plots.win_rate_bars(METHODS)) for _ in range(2))
    assert first == second and len(first) < 60_000 and "\n" not in first


def test_matplotlib_stays_as_it_was():
    before = dict(matplotlib.rcParams)
    plots.figure_to_png_base64(plots.hhh_bars(METHODS))
    assert dict(matplotlib.rcParams) == before


def test_pyplot_is_never_imported():
    code = (
        "import sys; from helpers.course import plots;"
        "plots.figure_to_png_base64(plots.reward_histogram([1., 2.], [0., 1.]));"
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_ppo_shows_how_well_its_value_foretells_and_grpo_has_none(tmp_path):
    path = tmp_path / "metrics.csv"
    path.write_text("step,reward,value_loss,explained_variance\n1,0.1,1.0,-0.2\n2,0.2,0.5,0.4\n")
    metrics = plots.read_metrics(path)
    names = {algo: set(plots.training_curves(metrics, algo)) for algo in ("ppo", "grpo")}
    assert names["ppo"] - names["grpo"] == {"value_loss", "explained_variance"}
