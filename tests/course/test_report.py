"""The report is one file that fetches nothing, runs nothing a model wrote, and leaves no result out."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from helpers.course.report import markdown_table, terminal_table, write_report
from helpers.course.tables import duration, number, rate, summary_line
from helpers.errors import CourseError
from helpers.training.run_dir import RunDir

ATTACK = (
    "$\\bad{$<script>alert(1)</script><img src=http://evil.test/x onerror=alert(1)>"
    "\"'></div><!-- {{ 7*7 }} {% raw %}"
)


def method(**fields):
    return {
        "win_rate_vs_base": 0.75, "ci95": [0.68, 0.82], "win_rate_vs_base_strict": 0.7,
        "ci95_strict": [0.6, 0.8],
        "win_rate_vs_sft": 0.55, "ci95_vs_sft": [0.48, 0.62], "kl": 0.22, "kl_per_sequence": 2.8,
        "mean_tokens": 12.8, "truncated_share": 0.25, "helpful": 0.79, "harmless": 0.41, "honest": 0.85,
        "by_family": {"greeting": {"total": 0.9, "n": 8}, "harm": {"total": 0.25, "n": 9}},
        "seconds": 81.0, "threshold": 0.65, "passed": True, **fields,
    }  # fmt: skip


def course(**fields):
    return {
        "profile": "tiny", "seed": 7, "hardware": "CPU, 2 cores", "reason": "no GPU was found",
        "versions": {"torch": "2.13.0", "peft": "0.21.2"}, "started": "2026-01-01 12:00", "seconds": 402.0,
        "prompts": 128,
        "methods": {
            "base": {"helpful": 0.54, "harmless": 0.07, "honest": 0.08, "mean_tokens": 19.2},
            "sft": method(threshold=0.7), "dpo": method(), "grpo": method(passed=False, seconds=67.0),
        },
        "reward_model": {
            "pair_accuracy": 0.803, "pair_accuracy_gold": 0.842, "label_ceiling": 0.913, "threshold": 0.74,
            "passed": True, "seconds": 84.0, "chosen_rewards": [1.0, 2.0], "rejected_rewards": [0.0, -1.0],
        },
        "data_reports": {"train_prefs": "read 4,012\nkept 3,987\ndropped 25: chosen equal to rejected"},
        **fields,
    }  # fmt: skip


def sample(text: str = "Hello.", prompt: str = "Write a greeting."):
    responses = {"base": {"text": text, "total": 0.2}, "dpo": {"text": text, "total": math.nan}}
    return {"prompt": prompt, "family": "greeting", "responses": responses}


@pytest.fixture
def runs(tmp_path) -> dict[str, Path]:
    return make_runs(tmp_path)


@pytest.fixture(scope="module")
def whole_page(tmp_path_factory) -> Page:
    place = tmp_path_factory.mktemp("report")
    return page_of(place, course(), make_runs(place), [sample()])


def make_runs(place: Path) -> dict[str, Path]:
    paths = {}
    for name in ("sft", "dpo"):
        with RunDir(place / "runs" / name) as run:
            run.write_config({"algo": name, "beta": 0.1, "note": ATTACK})
            for step in range(5):
                run.log(step, loss=0.7 - step / 10, skipped_steps=2)
            run.mark_finished({})
        paths[name] = run.path
    return paths


class Page(HTMLParser):
    """Tags, attributes and text of a page, as a browser would see them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.text = ""
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data


def page_of(tmp_path, *arguments) -> Page:
    return Page(write_report(*arguments, tmp_path / "report.html"))


# ------------------------------------------------------------------ self-contained and safe
def test_nothing_is_fetched_and_nothing_runs(whole_page):
    page = whole_page
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "iframe", "object", "embed", "base"})
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), f"{tag} runs {name}"
            if name in ("src", "href", "srcset", "action", "poster"):
                assert value.startswith(("data:image/png;base64,", "#")), f"{tag} fetches {value[:50]}"
    assert "url(" not in page.source and "@import" not in page.source
    policy = next(a["content"] for t, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy


def test_hostile_text_is_shown_and_not_obeyed(tmp_path, runs):
    hostile = course(
        profile=ATTACK, reason=ATTACK, hardware=ATTACK, data_reports={ATTACK: ATTACK}, command=ATTACK,
        versions={ATTACK: ATTACK}, methods={ATTACK: method(by_family={ATTACK: {"total": 0.5, "n": ATTACK}})},
    )  # fmt: skip
    rows = [{**sample(ATTACK, ATTACK), "family": ATTACK}]
    page = page_of(tmp_path, hostile, {ATTACK.replace("/", ""): runs["dpo"]}, rows)
    assert {tag for tag, _ in page.tags}.isdisjoint({"script"})
    assert all(not name.startswith("on") for _, attributes in page.tags for name in attributes)
    assert all(a["src"].startswith("data:") for tag, a in page.tags if tag == "img")
    assert page.text.count("<script>alert(1)</script>") >= 8, "the text itself is there to be read"
    assert "{{ 7*7 }}" in page.text and "49" not in re.findall(r"-- (\S+)", page.text)


def test_text_that_no_file_can_hold_is_replaced(tmp_path):
    page = page_of(tmp_path, {}, {}, [sample("a\x00b\x1bc\ud800d żółć 🙂")])
    assert "a\ufffdb\ufffdc\ufffdd żółć 🙂" in page.text


def test_the_page_suits_phones_and_both_colour_schemes(whole_page):
    page = whole_page
    assert any(a.get("name") == "viewport" for _, a in page.tags)
    assert "prefers-color-scheme: dark" in page.source and "max-width:600px" in page.source
    assert all(a.get("alt") for tag, a in page.tags if tag == "img")


# ------------------------------------------------------------------ content
def test_everything_that_was_measured_is_on_the_page(whole_page):
    page = whole_page
    for text in (
        "tiny", "CPU, 2 cores", "no GPU was found", "torch 2.13.0", "6 min 42 s", "0.75 (.68–.82)",
        "0.70 (.60–.80)", "0.55 (.48–.62)", "0.220", "25 %", "against gold labels 0.84", "label ceiling 0.91",
        "greeting", "harm", "dropped 25: chosen equal to rejected", "Write a greeting.", "✓ passed",
        "✗ missed",
        "3 of 4 thresholds reached", "python -m helpers course --profile tiny --seed 7",
        "Update steps skipped because they were not finite: 2.", '"beta": 0.1',
    ):  # fmt: skip
        assert text in page.text, text
    anchors = {a["id"] for _, a in page.tags if "id" in a}
    assert {a["href"][1:] for tag, a in page.tags if tag == "a"} == anchors


def test_curves_bars_and_histograms_are_pictures_on_the_page(whole_page):
    page = whole_page
    captions = " ".join(a["alt"] for tag, a in page.tags if tag == "img")
    for part in (
        "Win rate",
        "Helpful, harmless, honest",
        "Answer length",
        "Chosen answers",
        "SFT loss",
        "ln 2",
    ):
        assert part in captions
    assert "DPO implicit reward margin is left out" in page.text
    assert len(page.source) < 2_000_000


def test_rewards_are_taken_from_the_run_where_the_course_has_none(tmp_path):
    run = tmp_path / "rm"
    run.mkdir()
    (run / "eval_rewards.json").write_text('{"chosen": [1, 2], "rejected": [0, 1]}')
    page = page_of(tmp_path, {"reward_model": {"pair_accuracy": 0.8}}, {"reward_model": run}, [])
    assert "Chosen answers" in " ".join(a["alt"] for tag, a in page.tags if tag == "img")


def test_loading_reports_are_taken_from_the_runs_where_the_course_has_none(tmp_path, runs):
    (runs["sft"] / "data_report.txt").write_text("train (sft_train)\nkept 9 of 10")
    assert "kept 9 of 10" in page_of(tmp_path, {}, {"sft": runs["sft"]}, []).text


def test_the_evaluation_may_call_the_figures_by_its_own_names():
    row = {"win_rate_vs_base": 0.8, "strict_win_rate_vs_base": 0.7, "strict_ci95": [0.6, 0.8], "kl_sum": 2.5}
    reward = {"pair_accuracy": 0.8, "ci95": [0.7, 0.9], "gold_accuracy": 0.85, "label_accuracy": 0.91}
    table = terminal_table({"methods": {"dpo": row}, "reward_model": reward}, 200)
    assert "0.70 (.60–.80)" in table and "2.50" in table
    assert "accuracy 0.80 (.70–.90) (against gold labels 0.85, label ceiling 0.91)" in table


def test_missing_columns_and_the_grade_are_explained(tmp_path):
    facts = {"omitted": {"strict": "the judge gives no scores"}, "grade": {"score": 70.0, "max_score": 100}}
    text = page_of(tmp_path, facts, {}, []).text
    assert "strict is left out: the judge gives no scores." in text and "70.0 of 100.0 points" in text


def test_a_proxy_judge_is_called_one(tmp_path):
    page = page_of(tmp_path, {"judge": {"name": "reward model", "is_proxy": True}}, {}, [])
    assert "reward model (a proxy, not ground truth)" in page.text and "The judge is a proxy" in page.text


# ------------------------------------------------------------------ missing data
EMPTY = (
    {},
    {"methods": None, "reward_model": None, "data_reports": None, "versions": None, "hardware": None},
    {"methods": {"dpo": None}, "reward_model": {"pair_accuracy": math.nan}},
    {"methods": {"dpo": dict.fromkeys(method())}, "seconds": math.nan, "seed": None},
    {"methods": {"dpo": {key: math.nan for key in method() if key != "by_family"}}},
    {"methods": {"dpo": {"by_family": {"harm": None}, "ci95": "x", "threshold": "high"}}},
)


@pytest.mark.parametrize("empty", EMPTY)
def test_missing_figures_become_dashes(tmp_path, empty):
    rows = [{}, {"prompt": None, "responses": None}, {"responses": {"dpo": None, "base": "text"}}]
    page = page_of(tmp_path, empty, {"dpo": tmp_path / "nowhere"}, rows)
    assert "does not exist, so there are no curves" in page.text
    for text in (page.text, terminal_table(empty), markdown_table(empty)):
        assert "nan" not in text.lower().replace("finance", "") and "None" not in text


def test_a_torn_run_still_gets_its_report(tmp_path, runs):
    (runs["dpo"] / "config.json").write_text('{"algo": "dp')
    with (runs["dpo"] / "metrics.csv").open("a") as stream:
        stream.write("9,0.1")
    (runs["dpo"] / "finished.json").unlink()
    page = page_of(tmp_path, {}, runs, [])
    assert "This run has not come to its end" in page.text


def test_a_directory_as_output_is_refused(tmp_path):
    with pytest.raises(CourseError, match="report.html"):
        write_report(course(), {}, [], tmp_path)


def test_a_failed_report_leaves_the_old_one(tmp_path, monkeypatch):
    target = tmp_path / "report.html"
    target.write_text("old")
    monkeypatch.setattr("helpers.course.report.clean_text", lambda html: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        write_report({}, {}, [], target)
    assert target.read_text() == "old"


# ------------------------------------------------------------------ tables
@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_the_terminal_table_carries_every_method_at_every_width(width):
    table = terminal_table(course(), width)
    for name in ("base", "SFT", "DPO", "GRPO"):
        assert re.search(rf"^{name}\b", table, re.MULTILINE)
    assert table.count("passed") == 3 and table.count("missed") == 1
    assert "pair accuracy 0.80" in table and "3 of 4 thresholds reached in 6 min 42 s" in table


def test_the_terminal_table_fits_and_is_aligned():
    lines = terminal_table(course(), 80).split("\n\n")[0].split("\n")
    assert max(map(len, lines)) <= 80
    assert {len(line) for line in lines[:1] + lines[3:]} == {len(lines[1])}
    assert "(.68–.82)" in terminal_table(course(), 120) and "0.79/0.41/0.85" in terminal_table(course(), 200)


def test_the_markdown_table_has_a_row_for_every_method():
    lines = markdown_table(course(methods={"a|b": method(), "dpo": method()})).split("\n")
    assert [line.count("|") - line.count("\\|") for line in lines[:4]] == [lines[0].count("|")] * 4
    assert lines[2].startswith("| A\\|B ") and lines[3].startswith("| DPO | 0.75 (.68–.82) |")


def test_ppo_is_measured_against_sft():
    table = terminal_table(course(methods={"ppo": method(threshold=0.75)}), 200)
    assert "0.75 vs SFT" in table


def test_figures_are_written_for_readers():
    assert [duration(s) for s in (0.4, 99, 432, 7500, None, "x")] == [
        "0 s", "99 s", "7 min 12 s", "2 h 05 min", "–", "–",
    ]  # fmt: skip
    assert [number(v) for v in (0.5, None, math.inf, "0.25")] == ["0.50", "–", "–", "0.25"]
    assert rate({"w": 1.0, "ci": (0.95, 1.0)}, "w", "ci") == "1.00 (.95–1.00)"
    assert summary_line({}) == "No thresholds were checked."
