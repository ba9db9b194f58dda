"""Statements about the tables, figures and merged estimates of an evaluation."""

from __future__ import annotations

import csv
import io
import math

import pytest
from matplotlib.figure import Figure

import solutions.answers as answers
from helpers.course.evaluation import Evaluation, _whole_kl, finite, spread_of, variety
from helpers.course.evaluation_files import csv_table, markdown, outcome_rows, render_text, table_rows
from helpers.course.evaluation_plots import evaluation_figures, save_figures
from helpers.course.plots import Skipped
from helpers.judging.evaluate import compare_policies
from helpers.judging.judge import Verdict
from helpers.judging.measure import PolicyReport
from helpers.text.datasets import Example


class Longer:
    """Prefers the longer answer; refuses to read a question mark."""

    name, is_proxy = "longer", True

    def compare(self, comparisons):
        return [self.one(pair.response_a, pair.response_b) for pair in comparisons]

    @staticmethod
    def one(first: str, second: str) -> Verdict:
        if "?" in first + second:
            return Verdict(None, detail={"status": "refused"})
        return Verdict("A" if len(first) >= len(second) else "B", detail={"reason": "length"})


def evaluation(**responses: list[str]) -> Evaluation:
    rows = [f"row{index}" for index in range(len(responses["base"]))]
    message = {"role": "user", "content": "Say hello."}
    examples = [Example(row, (message,), (), {}) for row in rows]
    reports = [PolicyReport(name, rows, texts, [], []) for name, texts in responses.items()]
    table = compare_policies(reports, examples, Longer(), answers)
    done = Evaluation(examples, table, "base")
    done.add(variety(reports))
    return done


@pytest.fixture
def three() -> Evaluation:
    return evaluation(
        base=["a bc", "a bc", "a bc", "a bc"],
        long=["a much longer answer", "a much longer answer", "a much longer answer", "short?"],
        same=["a bc", "a bc", "a bc", "abcdef"],
    )


def test_columns_that_nobody_fills_are_left_out(three):
    header, rows = table_rows(three.policies())
    assert "win rate" in header and "perplexity SFT" not in header and "reward" not in header
    assert [row[0] for row in rows] == ["base", "long", "same"]
    assert all(len(row) == len(header) for row in rows)


def test_the_table_says_what_was_left_out_and_where_the_controlled_rate_extrapolates(three):
    text = render_text(three)
    assert "long: prompts left out of the rate: 1 refused" in text
    assert "! long: the answers are longer than the baseline's on 100 % of the prompts" in text
    assert "! same" not in text
    assert "a proxy, no ground truth" in markdown(three)


def test_policies_are_subtracted_prompt_by_prompt_where_both_have_an_outcome(three):
    (gap,) = three.differences()
    assert (gap["first"], gap["second"], gap["n"], gap["left_out"]) == ("long", "same", 3, 1)
    assert gap["value"] == 0.5  # three wins against three ties


def test_outcomes_hold_both_verdicts_and_none_where_there_was_none(three):
    rows = [row for row in outcome_rows(three) if row["policy"] == "long"]
    assert [row["outcome"] for row in rows] == [1.0, 1.0, 1.0, None]
    assert (rows[0]["policy_first"]["winner"], rows[0]["policy_second"]["winner"]) == ("A", "B")
    assert rows[3]["policy_first"]["detail"]["status"] == "refused"


def test_the_csv_has_a_column_for_every_figure_and_one_number_a_cell(three):
    header, *rows = csv.reader(io.StringIO(csv_table(three.policies())))
    assert len(header) == len(set(header)) == len(rows[0])
    assert {"win_rate_vs_base", "ci95.low", "ci95.high", "judged_vs_base.consistency"} <= set(header)
    assert not {"ci95", "judged_vs_base"} & set(header)


def test_figures_are_drawn_where_there_are_figures_and_say_why_not_elsewhere(three, tmp_path):
    drawn = evaluation_figures(three.to_dict(), {"base": [0.1, 0.2, 0.9], "long": [1.0, 1.5, 2.0]})
    kinds = {name: type(figure) for name, figure in drawn.items()}
    assert kinds == {
        "win_rates": Figure, "lengths": Figure, "rewards": Figure, "scores": Skipped, "kl": Skipped
    }  # fmt: skip
    (tmp_path / "kl.png").write_bytes(b"of an earlier evaluation")
    skipped = save_figures(drawn, tmp_path)
    assert set(skipped) == {"scores", "kl"}
    assert {file.name for file in tmp_path.iterdir()} == {"win_rates.png", "lengths.png", "rewards.png"}


def test_the_kl_over_batches_weights_tokens_and_sequences_alike():
    parts = [
        {"per_token": 0.5, "per_sequence": 1.0, "tokens": 4, "sequences": 2, "non_finite": 0},
        {"per_token": 0.1, "per_sequence": 0.6, "tokens": 6, "sequences": 1, "non_finite": 1},
    ]
    kl = _whole_kl(parts)
    assert (kl.tokens, kl.sequences, kl.non_finite) == (10, 3, 1)
    assert kl.per_token == pytest.approx(2.6 / 10)
    assert kl.per_sequence == pytest.approx(2.6 / 3)


def test_rewards_are_described_by_mean_spread_and_quantiles():
    found = spread_of([0.0, 1.0, 2.0, 3.0, 4.0])
    assert (found["reward_mean"], found["reward_q50"], found["reward_q25"]) == (2, 2, 1)
    assert found["reward_sd"] == pytest.approx(math.sqrt(2))


def test_what_json_cannot_hold_becomes_none():
    assert finite({"a": (1.0, math.nan), "b": {"c": math.inf}}) == {"a": [1.0, None], "b": {"c": None}}
