"""`report`: a page and its Markdown twin from whatever runs there are: safe, whole, honest about gaps."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from helpers.apps.cli import main
from helpers.course.handout import write_handout
from helpers.course.report_blocks import escaped, fenced
from helpers.course.report_results import better
from helpers.errors import CourseError
from helpers.files import write_json, write_jsonl
from helpers.training.run_dir import RunDir
from tests.course.test_report import ATTACK, Page, course

RECORDINGS = Path(__file__).parent / "recordings"


def make_run(
    place: Path, algo: str = "dpo", *, finished: bool = True, text: str = "Hello.", **config: Any
) -> Path:
    """A training run with curves and samples of two evaluations."""
    with RunDir(place) as run:
        run.write_config({"algo": algo, "beta": 0.1, "seed": 0, "max_new_tokens": 48, **config})
        for step in range(1, 9):
            run.log(step, loss=0.7 - step / 20, accuracy=0.5 + step / 20, reward=step / 8, kl=step / 100)
        for step in (0, 8):
            rows = [
                {
                    "row_id": f"p{i}",
                    "prompt": f"{text} {i}",
                    "response": f"{text} {i} at {step}",
                    "reward": i + step,
                }
                for i in range(8)
            ]
            run.log_samples(step, rows)
        if finished:
            run.mark_finished({"seconds": 12.0, "eval_accuracy": 0.8})
    return place


def make_evaluation(place: Path, *, text: str = "Hello.") -> Path:
    """What `evaluate --output_dir` leaves, of two policies and four prompts."""
    compared = {"win_rate_vs_base": 0.75, "ci95": [0.6, 0.9], "kl": 0.2, "mean_tokens": 12.0, "helpful": 0.8}
    figures = {
        "prompts": 4, "judge": "gold", "is_proxy": True, "baseline": "base", "omitted": {"perplexity": text},
        "settings": {"seed": 0}, "policies": {"base": {"mean_tokens": 20.0}, "dpo": compared},
        "differences": [{"first": "dpo", "second": "ipo", "value": 0.1, "ci95": [0.0, 0.2], "n": 4}],
    }  # fmt: skip
    write_json(place / "evaluation.json", figures)
    outcomes = (1.0, 1.0, 0.5, 0.0)
    rows = [
        {"row_id": f"p{i}", "policy": "dpo", "opponent": "base", "outcome": outcome,
         "policy_first": {"winner": "A", "score_a": 0.9 - i / 10, "score_b": i / 10}}
        for i, outcome in enumerate(outcomes)
    ]  # fmt: skip
    write_jsonl(place / "outcomes.jsonl", rows)
    for name in ("base", "dpo"):
        answers = [
            {"row_id": f"p{i}", "prompt_messages": [{"role": "user", "content": f"{text} {i}"}],
             "response_text": f"{name} says {text}", "reward": float(i)}
            for i in range(4)
        ]  # fmt: skip
        write_jsonl(place / "responses" / f"{name}.jsonl", answers)
    return place


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[Page, str]:
    """The report of a course run, an evaluation, a hacked recording, all full of hostile text."""
    place = tmp_path_factory.mktemp("handout")
    home = place / "course"
    make_run(home / "dpo", text=ATTACK, note=ATTACK)
    write_json(home / "course.json", course(profile=ATTACK, reason=ATTACK))
    evaluation = make_evaluation(place / "evaluation", text=ATTACK)
    paths = [home, evaluation, RECORDINGS / "hacked_grpo_0", place / "nothing"]
    page, twin, left_out = write_handout(paths, place / "out", title=ATTACK)
    assert left_out == [f"{place / 'nothing'}: there is no such directory"]
    return Page(page), twin.read_text(encoding="utf-8")


# ---------------------------------------------------------------------- one file, nothing fetched
def test_the_page_loads_no_outside_resource_and_runs_nothing(everything: tuple[Page, str]) -> None:
    page, _ = everything
    kinds = {tag for tag, _ in page.tags}
    assert kinds.isdisjoint({"script", "link", "iframe", "object", "embed", "base", "form", "svg", "video"})
    for tag, attributes in page.tags:
        for name, value in attributes.items():
            assert not name.startswith("on"), f"{tag} runs {name}"
            if name in ("src", "href", "srcset", "action", "poster", "background"):
                assert value.startswith(("data:image/png;base64,", "#")), f"{tag} fetches {value[:60]}"
    style = re.search(r"<style>(.*?)</style>", page.source, re.DOTALL)
    assert style and not re.search(r"url\(|@import|https?:", style[1])
    policy = next(a["content"] for t, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; img-src data:")
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in page.tags


def test_hostile_text_is_shown_as_text(everything: tuple[Page, str]) -> None:
    page, twin = everything
    assert "<script>alert(1)</script>" in page.text and "{{ 7*7 }}" in page.text
    assert all(attributes.get("src", "").startswith("data:") for tag, attributes in page.tags if tag == "img")
    outside = re.sub(r"(?ms)^(`{3,})text$.*?^\1$", "", twin)
    assert "<script" not in outside and "http://evil" not in outside and "](" not in outside


# ---------------------------------------------------------------------- all parts
def test_every_part_is_there_in_both(everything: tuple[Page, str]) -> None:
    page, twin = everything
    parts = ["Questions", "Methods", "Budgets", "Results", "Reward distributions", "Curves", "Reward hacking",
             "Samples, good and bad", "Environment", "Hashes", "How to reproduce", "Left out"]  # fmt: skip
    for part in parts:
        assert f">{part}</h2>" in page.source, part
        assert f"\n## {part}\n" in twin, part
    anchors = {attributes["id"] for _, attributes in page.tags if "id" in attributes}
    assert {a["href"][1:] for tag, a in page.tags if tag == "a"} == anchors


def test_questions_are_answered_from_intervals(everything: tuple[Page, str]) -> None:
    page, _ = everything
    assert "yes: 0.75 (.68–.82); threshold 0.65 reached" in page.text
    assert "the held-out judge: 0.53 → 0.07" in page.text
    row = {"rate": 0.55, "ci": [0.45, 0.65]}
    assert better(row, "rate", "ci").startswith("not shown: ")
    assert better({"rate": 0.3, "ci": [0.2, 0.4]}, "rate", "ci").startswith("no: ")


def test_figures_are_inline_and_named_in_the_twin(everything: tuple[Page, str]) -> None:
    page, twin = everything
    titles = [attributes["alt"] for tag, attributes in page.tags if tag == "img"]
    for title in ("Reward and judge: where they part, the reward is gamed",
                  "Win rate against the frozen base: bars should pass the black mark"):  # fmt: skip
        assert title in titles and f"*Figure, in report.html: {title}*" in twin
    assert all(titles)


def test_hacking_is_named_where_it_was(everything: tuple[Page, str]) -> None:
    page, twin = everything
    assert "judge falls" in page.text and "judge falls" in twin
    assert "No sign of reward hacking" not in page.text


def test_samples_are_labelled_as_picked(everything: tuple[Page, str]) -> None:
    page, _ = everything
    assert "picked: clearest win (2 won, 1 tied, 1 lost), by the judge" in page.text
    assert page.text.count("clearest loss") == 1, "there was one"
    assert "picked: best of 8 by reward" in page.text and "picked: worst of 8 by reward" in page.text
    assert "by the held-out judge's score" in page.text


def test_a_proxy_is_called_one(everything: tuple[Page, str]) -> None:
    assert "Judge: gold. It is a proxy" in everything[0].text


def test_hashes_are_those_of_the_files(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    page, twin, _ = write_handout([run], tmp_path / "out")
    known = hashlib.sha256((run / "config.json").read_bytes()).hexdigest()[:16]
    assert known in page.read_text(encoding="utf-8") and known in twin.read_text(encoding="utf-8")


def test_the_command_is_that_of_the_run(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "run", "dpo", processes=2, output_dir="runs/my run", resume=True, train_limit=None
    )
    text = write_handout([run], tmp_path / "out")[1].read_text(encoding="utf-8")
    line = next(line for line in text.split("\n") if "helpers train" in line)
    assert line == (
        "torchrun --standalone --nproc_per_node 2 -m helpers train --algo dpo --beta 0.1"
        " --max_new_tokens 48 --output_dir 'runs/my run'"
    )


# ---------------------------------------------------------------------- gaps
def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / name) for name in ("first", "second")]
    text = write_handout(runs, tmp_path / "out")[1].read_text(encoding="utf-8")
    assert "DPO (first)" in text and "DPO (second)" in text


def test_an_unfinished_run_says_so(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", finished=False)
    with (run / "metrics.csv").open("a") as stream:
        stream.write("9,0.1")  # torn by a crash
    text = write_handout([run], tmp_path / "out")[1].read_text(encoding="utf-8")
    assert "not at its end" in text and "--resume continues it" in text


def spoil(place: Path, kind: str) -> Path:
    """A directory that is no run, or one no longer."""
    place.mkdir(parents=True)
    if kind == "holds runs":
        make_run(place / "my_dpo")
    elif kind == "foreign":
        (place / "config.json").write_text('{"model_type": "qwen2"}')
    elif kind == "torn config":
        (place / "config.json").write_text('{"algo": "dp')
    elif kind == "binary":
        (place / "course.json").write_bytes(b"\xff\xfe\x00")
    elif kind == "course of another kind":
        (place / "course.json").write_text('{"methods": [1, 2]}')
    elif kind == "evaluation of another kind":
        (place / "evaluation.json").write_text("[]")
    elif kind == "damaged end":
        make_run(place)
        (place / "finished.json").write_text("{")
    return place


SPOILT = {
    "empty": "nothing to report",
    "holds runs": "it holds the runs my_dpo",
    "foreign": "does not say which algo",
    "torn config": "is not valid JSON",
    "binary": "is not UTF-8",
    "course of another kind": "holds no methods",
    "evaluation of another kind": "holds no policies",
    "damaged end": "is not valid JSON",
}


@pytest.mark.parametrize("kind", SPOILT)
def test_what_cannot_be_reported_is_one_line(
    tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    place = spoil(tmp_path / "spoilt", kind)
    assert main(["report", str(place), "--output_dir", str(tmp_path / "out")]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: ") and shown.count("\n") == 1
    assert SPOILT[kind] in shown and "spoilt" in shown
    assert not (tmp_path / "out").exists()


def test_odd_values_cost_a_part_and_not_the_report(tmp_path: Path) -> None:
    """Figures as words, lists as numbers, samples that are none: still a page."""
    run = make_run(tmp_path / "run", per_device_train_batch_size="four", group_size=[2], beta={"a": 1})
    (run / "samples.jsonl").write_text('{"step": 3, "prompt": 5, "response": null, "reward": "high"}\n[1]\n')
    place = make_evaluation(tmp_path / "evaluation")
    figures = json.loads((place / "evaluation.json").read_text())
    figures |= {"omitted": 3, "differences": 7, "settings": "none", "prompts": None}
    figures["policies"]["dpo"] |= {
        "ci95": "wide",
        "win_rate_vs_base": "high",
        "judged_vs_base": {"left_out": 2},
    }
    write_json(place / "evaluation.json", figures)
    (place / "outcomes.jsonl").write_text("{}\n")
    page, _, left_out = write_handout([run, place], tmp_path / "out")
    assert left_out == [] and "(no answer)" in page.read_text(encoding="utf-8")


def test_one_bad_run_among_good_ones_is_told_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run", "sft")
    words = ["report", str(run), str(tmp_path / "no"), "--output_dir", str(tmp_path / "out")]
    assert main(words) == 1
    shown = capsys.readouterr()
    assert shown.err == f"left out: {tmp_path / 'no'}: there is no such directory\n"
    assert f"report: {tmp_path / 'out' / 'report.html'}" in shown.out
    assert main(["report"]) == 2
    assert "report needs a run" in capsys.readouterr().err


def test_a_damaged_part_of_a_course_does_not_take_it_down(tmp_path: Path) -> None:
    home = tmp_path / "course"
    make_run(home / "sft", "sft")
    spoil(home / "dpo", "torn config")
    write_json(home / "course.json", course())
    page, _, left_out = write_handout([home], tmp_path / "out")
    assert len(left_out) == 1 and "dpo/config.json is not valid JSON" in left_out[0]
    text = Page(page).text
    assert left_out[0] in text and "SFT" in text


def test_the_place_must_be_a_directory(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("")
    with pytest.raises(CourseError, match="is a file, not a directory"):
        write_handout([make_run(tmp_path / "run", "sft")], tmp_path / "out")


# ---------------------------------------------------------------------- Markdown
def test_markdown_means_nothing_it_was_not_told_to_mean() -> None:
    assert escaped("# a *b* [c](http://d) <e> `f` | g_h\ni") == (
        r"\# a \*b\* \[c\](http\://d) &lt;e> \`f\` \| g\_h i"
    )
    assert escaped("1. one") == r"1\. one"
    assert fenced("a ``` b") == ["````text", "a ``` b", "````"]
