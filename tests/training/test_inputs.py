"""A run is known by what it read, not by the paths alone."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest

from helpers.files import write_jsonl
from helpers.training.inputs import WHOLE, content_hash, inputs_of
from helpers.training.run_dir import OtherRun, RunDir


def config(**settings):
    return SimpleNamespace(**{"dataset_name": None, "init_adapter": None, "reward_model": None, **settings})


def rows(place, text):
    write_jsonl(place / "sft_train.jsonl", [{"row_id": "1", "response_text": text}])
    return place


def test_other_rows_under_the_same_path_are_another_input(tmp_path):
    first = inputs_of(config(dataset_name=str(rows(tmp_path / "data", "yes"))))
    again = inputs_of(config(dataset_name=str(tmp_path / "data")))
    other = inputs_of(config(dataset_name=str(rows(tmp_path / "data", "no"))))
    assert first == again != other


def test_a_copy_elsewhere_is_the_same_input(tmp_path):
    rows(tmp_path / "data", "yes")
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    assert content_hash(tmp_path / "data", data=True) == content_hash(tmp_path / "copy", data=True)


def test_what_lies_beside_the_rows_does_not_count_for_data_and_does_for_adapters(tmp_path):
    before = [content_hash(rows(tmp_path / "data", "yes"), data=data) for data in (True, False)]
    (tmp_path / "data" / "README.md").write_text("words")
    (tmp_path / "data" / "deeper").mkdir()
    (tmp_path / "data" / "deeper" / "more.jsonl").write_text("{}")
    after = [content_hash(tmp_path / "data", data=data) for data in (True, False)]
    assert after[0] == before[0] and after[1] != before[1]


def test_both_ends_of_a_very_large_file_count(tmp_path, monkeypatch):
    monkeypatch.setattr("helpers.training.inputs.WHOLE", 10)
    monkeypatch.setattr("helpers.training.inputs.END", 4)
    marks = set()
    for text in ("abcdefghijklmnop", "Xbcdefghijklmnop", "abcdefghijklmnoX", "abcdefghijklmnopq"):
        (tmp_path / "x.jsonl").write_text(text)
        marks.add(content_hash(tmp_path / "x.jsonl", data=True))
    assert len(marks) == 4 and WHOLE > 2**20


def test_hub_ids_missing_paths_and_nothing_have_no_hash(tmp_path):
    assert inputs_of(config(dataset_name="owner/name", init_adapter=str(tmp_path / "gone"))) == {}
    assert inputs_of(SimpleNamespace(dataset_name=None)) == {}
    (tmp_path / "empty").mkdir()
    assert inputs_of(config(reward_model=str(tmp_path / "empty"))) == {}


def test_a_finished_run_on_other_data_is_refused_in_words(tmp_path):
    with RunDir(tmp_path / "run") as run:
        run.write_config({"seed": 0, "inputs.dataset_name": "aaaa"})
        run.log(1, loss=1.0)
    with pytest.raises(OtherRun, match="what --dataset_name names has changed since"):
        RunDir(tmp_path / "run").write_config({"seed": 0, "inputs.dataset_name": "bbbb"})


def test_a_run_that_recorded_no_inputs_goes_on_and_so_does_one_whose_input_is_gone(tmp_path):
    for old, new in (({}, {"inputs.reward_model": "a"}), ({"inputs.reward_model": "a"}, {})):
        place = tmp_path / str(len(old))
        with RunDir(place) as run:
            run.write_config({"seed": 0, **old})
            run.log(1, loss=1.0)
        RunDir(place).write_config({"seed": 0, **new})
