"""The whole build: equal twice, resumed after a kill, read by training; what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.apps.cli import main
from helpers.dataset_build import candidates, verdicts
from helpers.dataset_build.build import build_data_set
from helpers.dataset_build.near import jaccard, shingles
from helpers.dataset_build.settings import BuildSettings, authors, check_settings
from helpers.errors import CourseError
from helpers.files import read_json, read_jsonl
from helpers.judging.gold import GoldJudge, gold_scores
from helpers.judging.judge import CostReached
from helpers.models.profiles import pick_profile
from helpers.text.datasets import load_examples
from tests.dataset_build.conftest import FirstJudge, FixedJudge, contents

Make = Callable[..., BuildSettings]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many prompts each call of the sampler got."""
    seen: list[int] = []
    real = candidates.generate

    def counted(model: Any, encoder: Any, prompts: Any, *args: Any, **how: Any) -> Any:
        seen.append(len(prompts))
        return real(model, encoder, prompts, *args, **how)

    monkeypatch.setattr(candidates, "generate", counted)
    return seen


def test_two_builds_are_equal_byte_for_byte_and_the_pairs_are_right(settings: Make, tmp_path: Path):
    first = build_data_set(settings(output_dir=str(tmp_path / "a")), GoldJudge())
    build_data_set(settings(output_dir=str(tmp_path / "b")), GoldJudge())
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    pairs = [row for path in (tmp_path / "a").glob("*_prefs.jsonl") for row in read_jsonl(path)]
    assert len(pairs) == first["pairs"]["kept"] > 5
    for row in pairs:
        better, worse = (gold_scores(row["metadata"], row[n]) for n in ("chosen_text", "rejected_text"))
        assert better.total > worse.total
    assert first["prompts"]["kept"] == 24 == first["pairs"]["kept"] + sum(first["pairs"]["dropped"].values())
    assert read_json(tmp_path / "a" / "manifest.json") == json.loads(json.dumps(first))


def test_no_two_files_of_different_splits_hold_similar_prompts(settings: Make, tmp_path: Path):
    build_data_set(settings(limit=60, candidates_per_prompt=2), GoldJudge())
    texts = {
        split: [shingles(row["prompt_text"]) for row in read_jsonl(tmp_path / "set" / f"{split}_gen.jsonl")]
        for split in ("train", "dev", "test")
    }
    assert sum(map(len, texts.values())) == 60
    for one, other in (("train", "dev"), ("train", "test"), ("dev", "test")):
        assert all(jaccard(a, b) < 0.5 for a in texts[one] for b in texts[other])


def test_another_threshold_begins_at_the_pairs(settings: Make, drawn: list[int]):
    judge = FixedJudge(len)
    all_of_them = build_data_set(settings(), judge)
    asked, answered = judge.asked, len(drawn)
    none_of_them = settings(min_confidence=0.95)
    with pytest.raises(CourseError, match="no pair is left: confidence too low"):
        build_data_set(none_of_them, judge)
    assert (
        (judge.asked, len(drawn)) == (asked, answered) == (2 * all_of_them["verdicts"]["prompts_judged"], 3)
    )


def test_a_judge_of_places_only_gives_no_pair_and_the_card_shows_why(settings: Make):
    with pytest.raises(CourseError, match="the orders disagree on the best"):
        build_data_set(settings(), FirstJudge())


def test_what_a_judge_left_open_is_asked_again_and_nothing_else(settings: Make, tmp_path: Path):
    poor = FixedJudge(len, budget=32)  # 24 prompts in one order, 8 of them in the other
    part = build_data_set(settings(candidates_per_prompt=3), poor)
    assert part["verdicts"]["prompts_judged"] == 8
    assert part["pairs"]["dropped"]["not judged yet"] == 16
    assert "answered 8 of 24" in part["verdicts"]["stopped"]
    rich = FixedJudge(len)
    whole = build_data_set(settings(candidates_per_prompt=3), rich)
    assert whole["verdicts"]["prompts_judged"] == 24 and rich.asked == 32
    build_data_set(settings(candidates_per_prompt=3, output_dir=str(tmp_path / "at_once")), FixedJudge(len))
    assert contents(tmp_path / "set") == contents(tmp_path / "at_once")


def test_a_cost_cap_keeps_the_batches_judged_before_it(
    settings: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(verdicts, "JUDGED_TOGETHER", 8)
    judge = FixedJudge(len)
    real = judge.choose

    def capped(sets: Any) -> Any:
        if judge.asked >= 32:
            raise CostReached("--max_cost $1.00 would be passed")
        return real(sets)

    monkeypatch.setattr(judge, "choose", capped)
    part = build_data_set(settings(candidates_per_prompt=3), judge)
    assert part["verdicts"]["prompts_judged"] == 16
    assert part["verdicts"]["stopped"] == "--max_cost $1.00 would be passed"
    rich = FixedJudge(len)
    assert build_data_set(settings(candidates_per_prompt=3), rich)["verdicts"]["stopped"] == ""
    assert rich.asked == 16
    with pytest.raises(CostReached):
        build_data_set(settings(limit=8, candidates_per_prompt=3), judge)


def test_a_build_killed_while_it_samples_goes_on_and_ends_equal(
    settings: Make, drawn: list[int], tmp_path: Path, root: Path
):
    wanted = settings(limit=60, batch_size=4, output_dir=str(tmp_path / "killed"))
    flags = [
        word
        for name, value in vars(wanted).items()
        if value not in (None, False)
        for word in ((f"--{name}",) if value is True else (f"--{name}", str(value)))
    ]
    threads = {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    process = subprocess.Popen(
        [sys.executable, "-m", "helpers", "data", "build", *flags],
        cwd=root,
        env={**os.environ, **threads},
        stderr=subprocess.DEVNULL,
    )
    journal = tmp_path / "killed" / "stages" / "candidates_base.jsonl.partial"
    end = time.monotonic() + 60
    while time.monotonic() < end and (not journal.exists() or journal.read_bytes().count(b"\n") < 3):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = journal.read_bytes().count(b"\n") - 1
    assert 2 <= done < 15, "killed in the middle"
    assert main(["data", "build", *flags]) == 0
    assert len(drawn) == 15 - done
    place = flags.index("--output_dir") + 1
    assert main(["data", "build", *flags[:place], str(tmp_path / "whole"), *flags[place + 1 :]]) == 0
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_several_authors_and_temperatures(settings: Make, tiny_dir: Path, tmp_path: Path):
    sft = tiny_dir / "adapters" / "sft"
    manifest = build_data_set(
        settings(limit=6, models=f"base,tuned={sft}", temperatures="0,1.2"), FixedJudge(len)
    )
    assert [author["answers"] for author in manifest["authors"]] == [12, 12]
    for name in ("base", "tuned"):
        rows = read_jsonl(tmp_path / "set" / "stages" / f"candidates_{name}.jsonl")[1:]
        assert [[a["temperature"] for a in row["answers"]] for row in rows] == [[0, 1.2]] * 6
    assert str(tiny_dir.parent.parent) not in (tmp_path / "set" / "manifest.json").read_text()


def test_training_reads_it(
    settings: Make, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    build_data_set(settings(), FixedJudge(len))
    assert main(["data", "report", str(tmp_path / "set"), "--split", "train_prefs"]) == 0
    assert "read as preference" in capsys.readouterr().out
    words = (
        f"train --algo dpo --profile tiny --dataset_name {tmp_path / 'set'} --max_steps 2 --eval_samples 0"
    )
    small = "--per_device_train_batch_size 4 --gradient_accumulation_steps 1"
    assert main([*words.split(), *small.split(), "--output_dir", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "final" / "adapter" / "adapter_config.json").is_file()
    for split, kind in (("train_gen", "prompts"), ("sft_train", "sft")):
        assert load_examples(tmp_path / "set", split=split, kind=kind).examples


def test_stale_files_of_an_earlier_build_go(settings: Make, tmp_path: Path):
    build_data_set(settings(), FixedJudge(len))
    assert (tmp_path / "set" / "test_prefs.jsonl").exists()
    manifest = build_data_set(settings(dev_share=0, test_share=0), FixedJudge(len))
    assert set(manifest["files"]) == {f"{name}.jsonl" for name in ("train_prefs", "train_gen", "sft_train")}
    assert {p.name for p in (tmp_path / "set").glob("*.jsonl")} == set(manifest["files"])


def test_a_directory_with_other_things_is_left_alone(settings: Make, tmp_path: Path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(CourseError, match="holds other things"):
        build_data_set(settings(output_dir=str(tmp_path / "mine")), GoldJudge())


def test_the_gold_judge_without_facts_is_refused_before_anything_is_sampled(
    settings: Make, tmp_path: Path, drawn: list[int]
):
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": "What should I cook on Sunday?"}))
    with pytest.raises(CourseError, match="carry no facts to judge by"):
        build_data_set(settings(source=str(tmp_path / "p.jsonl"), source_split=None), GoldJudge())
    assert drawn == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": ""}, "needs --source"),
        ({"output_dir": ""}, "needs --output_dir"),
        ({"personal_data": "burn"}, "--personal_data is one of"),
        ({"limit": 0}, "--limit must be at least 1"),
        ({"split_similarity": 0.9}, "above --near_duplicate"),
        ({"dev_share": 0.5, "test_share": 0.5}, "nothing to train on"),
        ({"min_confidence": 2.0}, "--min_confidence must be from 0 to 1"),
        ({"temperatures": "hot"}, "give numbers of 0 or more"),
        ({"temperatures": "0"}, "every answer is the same"),
        ({"max_chars": 4}, "is below --min_chars"),
    ],
)
def test_settings_that_cannot_work_are_named(settings: Make, changes: dict[str, Any], message: str):
    with pytest.raises(CourseError, match=message):
        check_settings(settings(**changes))


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (" , ", "names nobody"),
        ("base,base=data/tiny/adapters/sft", "is taken"),
        ("base,b=base,c=base,d=base,e=base", "2 to 8"),
    ],
)
def test_authors_that_cannot_work_are_named(settings: Make, models: str, message: str):
    with pytest.raises(CourseError, match=message):
        authors(settings(models=models), pick_profile("tiny"))


def test_real_prompts(settings: Make, real_data: Path, tmp_path: Path):
    source = real_data / "wildchat_min4_judged_5k_v1"
    manifest = build_data_set(
        settings(source=str(source), source_split="test_gen", limit=6, max_prompt_tokens=200), FixedJudge(len)
    )
    assert manifest["prompts"]["read"] == 256 and manifest["prompts"]["kept"] == 6
    assert manifest["pairs"]["kept"] >= 4
