"""What is handed out: a kit without answers, and a folder that grades as Gradescope would run it."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from helpers.apps.cli import main
from helpers.apps.releasing import checked_flags
from helpers.course.builder.kit import Kit
from helpers.course.layout import policy_file
from helpers.course.release import kit_files, release_autograder, release_kit, requirements
from helpers.errors import CourseError
from tests.course.test_builder import LESSON, sample_kit

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def kit(tmp_path) -> Kit:
    """The builder's sample with a notebook, tests, runs and hidden files around it."""
    kit = sample_kit(tmp_path / "tree")
    files = {
        f"notebooks/{LESSON}.ipynb": '{"cells": []}',
        "README.md": "read me",
        "data/model.safetensors": "weights",
        "tests/test_all.py": "assert True",
        "runs/mine/metrics.csv": "1",
        ".git_is_not_here/secret": "x",
        "helpers/__pycache__/a.pyc": "x",
        "course.egg-info/PKG-INFO": "x",
    }
    for name, text in files.items():
        (kit.root / name).parent.mkdir(parents=True, exist_ok=True)
        (kit.root / name).write_text(text)
    return kit


KIT = [
    "README.md",
    "data/model.safetensors",
    "helpers/__init__.py",
    "helpers/errors.py",
    f"notebooks/{LESSON}.ipynb",
]


def test_the_kit_is_the_tree_without_answers_tests_runs_and_hidden_files(kit, tmp_path):
    assert release_kit(kit, tmp_path / "kit") == KIT
    written = [path for path in (tmp_path / "kit").rglob("*") if path.is_file()]
    assert sorted(path.relative_to(tmp_path / "kit").as_posix() for path in written) == KIT


def test_a_zip_holds_the_same_and_is_reproducible(kit, tmp_path):
    release_kit(kit, tmp_path / "a.zip")
    release_kit(kit, tmp_path / "b.zip")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    assert zipfile.ZipFile(tmp_path / "a.zip").namelist() == KIT


def test_a_kit_with_a_line_of_an_answer_is_not_written(kit, tmp_path):
    answer = (kit.sources / "answers" / "sums.py").read_text()
    (kit.root / "helpers" / "leak.py").write_text(answer)
    with pytest.raises(CourseError, match=r"no kit was written. helpers/leak.py holds a line of the answer"):
        release_kit(kit, tmp_path / "kit")
    assert not (tmp_path / "kit").exists()


def test_a_kit_without_a_notebook_is_not_written(kit, tmp_path):
    kit.student(LESSON).unlink()
    with pytest.raises(CourseError, match="00_sample.ipynb missing: run python -m helpers build first"):
        release_kit(kit, tmp_path / "kit")


def test_what_exists_is_never_replaced(kit, tmp_path):
    (tmp_path / "kit").mkdir()
    (tmp_path / "kit" / "mine").write_text("mine")
    with pytest.raises(CourseError, match="exists already"):
        release_kit(kit, tmp_path / "kit")
    assert (tmp_path / "kit" / "mine").read_text() == "mine"


def test_the_real_kit_holds_notebooks_helpers_and_data_and_no_answer():
    names = {path.relative_to(ROOT).as_posix() for path in kit_files(Kit(ROOT, "solutions.answers"))}
    assert {"README.md", "helpers/course/checks/__init__.py", "notebooks/03_dpo.ipynb"} <= names
    assert "data/tiny/model/model.safetensors" in names
    assert not [name for name in names if name.startswith(("solutions/", "tests/", "runs/", "."))]


# ---------------------------------------------------------------------- Gradescope


@pytest.fixture(scope="module")
def autograder(tmp_path_factory) -> Path:
    """A folder laid out as Gradescope's /autograder, with nothing submitted yet."""
    place = tmp_path_factory.mktemp("autograder")
    public = ROOT / "data" / "tiny" / "public_eval"
    flags = checked_flags("--judge gold --leaderboard true")
    release_autograder(Kit(ROOT, "solutions.answers"), place / "source", public, flags)
    shutil.copy(place / "source" / "run_autograder", place)
    return place


def run(place: Path, python: str = sys.executable) -> tuple[int, dict]:
    """What Gradescope does with a submission; the exit status and results.json."""
    environment = {**os.environ, "AUTOGRADER_ROOT": str(place), "AUTOGRADER_PYTHON": python}
    done = subprocess.run(["./run_autograder"], cwd=place, env=environment, capture_output=True, timeout=120)
    return done.returncode, json.loads((place / "results" / "results.json").read_text())


# Gradescope's documentation lists these fields of results.json and of a test case, and no others.
RESULTS = set(
    "score execution_time output output_format test_output_format test_name_format visibility "
    "stdout_visibility extra_data tests leaderboard".split()
)
TEST = set(
    "score max_score status name name_format number output output_format tags visibility extra_data".split()
)
VISIBILITY = {"hidden", "after_due_date", "after_published", "visible"}
FORMATS = {"text", "html", "simple_format", "md", "ansi"}


def test_the_folder_grades_what_was_submitted_and_writes_results_alone(autograder):
    base = ROOT / "data" / "tiny" / "public_eval" / "public_test_gen_base_responses_128.jsonl"
    target = autograder / "submission" / "anything" / policy_file("dpo")
    target.parent.mkdir(parents=True)
    shutil.copy(base, target)
    before = {path for path in autograder.rglob("*") if "__pycache__" not in path.parts}
    status, results = run(autograder)
    assert status == 0
    after = {path for path in autograder.rglob("*") if "__pycache__" not in path.parts}
    assert {path.relative_to(autograder).as_posix() for path in after - before} == {
        "results",
        "results/results.json",
    }
    assert set(results) <= RESULTS
    assert results["score"] == sum(test["score"] for test in results["tests"]) == 0
    for test in results["tests"]:
        assert set(test) <= TEST
        assert test["visibility"] in VISIBILITY and test["output_format"] in FORMATS
        assert test["status"] in ("passed", "failed")
    dpo = next(test for test in results["tests"] if test["name"] == "dpo")
    assert dpo["extra_data"]["value"] == 0.5  # the base against itself
    assert results["leaderboard"] == [{"name": "dpo", "value": 0.5}]


def test_a_grader_that_cannot_start_says_so_in_results(autograder):
    status, results = run(autograder, python="/nowhere/python")
    assert status == 0
    assert results == {"score": 0, "output": "The autograder itself failed: ask staff.", "tests": []}


def test_the_scripts_are_executable_sound_and_the_packages_have_lower_bounds(autograder, tmp_path):
    for name in ("setup.sh", "run_autograder"):
        path = autograder / "source" / name
        assert path.stat().st_mode & stat.S_IXUSR
        assert subprocess.run(["bash", "-n", str(path)]).returncode == 0
    lines = (autograder / "source" / "requirements.txt").read_text().splitlines()
    assert lines == requirements(ROOT) and all(">=" in line for line in lines)
    public = ROOT / "data" / "tiny" / "public_eval"
    release_autograder(Kit(ROOT, "solutions.answers"), tmp_path / "a.zip", public, "")
    members = {member.filename: member for member in zipfile.ZipFile(tmp_path / "a.zip").infolist()}
    assert members["run_autograder"].external_attr >> 16 & stat.S_IXUSR  # at the root, as Gradescope wants
    assert not [name for name in members if name.startswith(("tests/", "solutions/oracles", "solutions/0"))]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--judge typo", "--judge typo"),
        ("--jugde gold", "unknown argument"),
        ("--output x.json", "set by run_autograder"),
        ("--openai_api_key sk-123", "a key belongs into judge.env"),
        ("--judge_model 'my model", "--grade_flags .*quotation"),
        ("--judge_model my\\", "--grade_flags"),
    ],
)
def test_flags_that_grade_would_refuse_are_refused(flags, message):
    with pytest.raises(CourseError, match=message):
        checked_flags(flags)


def test_the_command_names_what_it_lacks(tmp_path, capsys):
    assert main(["release"]) == 2
    assert main(["release", "kit"]) == 2
    assert main(["release", "autograder", str(tmp_path / "a"), "--public_eval", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "one of kit, autograder" in said and "needs a place" in said
    assert "holds no public_test_gen_prompts" in said
