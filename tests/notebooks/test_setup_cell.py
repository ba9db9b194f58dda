"""The set-up cell where learners run it: in the checkout, below it, with nothing at hand, on Colab."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CELL = ROOT / "solutions" / "setup_cell.py"
# However this checkout is installed, the cell must not find it that way.
HIDE = f"""
import sys
sys.meta_path = [finder for finder in sys.meta_path if "__editable__" not in str(finder)]
sys.path = [place for place in sys.path if place not in ("", {str(ROOT)!r})]
"""
AFTER = "\nimport helpers.errors; print('from', helpers.__path__[0])"


def run_cell(folder: Path, after: str = AFTER, **variables: str) -> subprocess.CompletedProcess:
    """Run the cell as a kernel started in `folder` would, with nothing of this checkout on its path."""
    inherited = {key: value for key, value in os.environ.items() if key not in ("COURSE_REPO", "PYTHONPATH")}
    show = "\ntry:\n    set_up()\nexcept SetUpError as problem:\n    print(*problem._render_traceback_())\n"
    text = CELL.read_text()
    assert text.rstrip().endswith("\nset_up()")
    script = HIDE + text.rstrip().removesuffix("set_up()") + show + after
    command = [sys.executable, "-c", script]
    return subprocess.run(command, cwd=folder, env={**inherited, **variables}, capture_output=True, text=True)


def git(folder: Path, *words: str) -> None:
    author = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", *author, *words], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def origin(tmp_path) -> Path:
    """A repository with a course in it that needs what this Python has."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    place = tmp_path / "origin"
    (place / "helpers").mkdir(parents=True)
    (place / "helpers/__init__.py").write_text("")
    (place / "helpers/errors.py").write_text("")
    (place / "tools").mkdir()
    shutil.copy(ROOT / "tools/add_requirements.py", place / "tools")
    (place / "pyproject.toml").write_text(
        '[project]\nname = "c"\ndependencies = ["numpy>=1"]\n'
        '[project.optional-dependencies]\nlessons = ["pytest"]\n'
    )
    git(place, "init", "-q")
    git(place, "add", ".")
    git(place, "commit", "-qm", "c")
    return place


@pytest.fixture
def content(tmp_path) -> Path:
    """Colab's working directory: empty."""
    place = tmp_path / "content"
    place.mkdir()
    return place


def test_inside_the_checkout_its_own_helpers_are_found():
    for folder in (ROOT, ROOT / "solutions", ROOT / "tests" / "notebooks"):
        assert run_cell(folder).stdout == f"from {ROOT / 'helpers'}\n"


def test_where_helpers_can_be_imported_nothing_happens(content):
    script = CELL.read_text() + "import helpers; print(helpers.__path__[0])"
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "COURSE_REPO": "file:///nowhere"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=content, env=variables, capture_output=True, text=True
    )
    assert done.stdout == f"{ROOT / 'helpers'}\n", done.stderr
    assert list(content.iterdir()) == []


def test_without_an_address_one_sentence_says_what_to_do(content):
    done = run_cell(content, after="")
    assert done.stdout.startswith("Set-up: the course's files are not here; open this notebook inside a copy")
    assert done.stdout.count("\n") == 1 and "COURSE_REPO" in done.stdout


def test_elsewhere_the_course_is_cloned_and_what_it_needs_is_installed(content, origin):
    done = run_cell(content, COURSE_REPO=origin.as_uri(), PIP_NO_INDEX="1")
    assert done.stdout.splitlines()[1:] == [f"from {content / 'alignment-course/helpers'}"], done.stderr


def test_running_it_again_does_no_harm(content, origin):
    for _ in range(2):
        done = run_cell(content, after="\nset_up()" + AFTER, COURSE_REPO=origin.as_uri(), PIP_NO_INDEX="1")
        assert f"from {content / 'alignment-course/helpers'}" in done.stdout, done.stderr


def test_an_address_that_cannot_be_reached_is_said_in_a_sentence(content, tmp_path):
    done = run_cell(content, after="", COURSE_REPO=(tmp_path / "nowhere").as_uri())
    assert done.stdout.splitlines()[-1].startswith("Set-up: fatal: ")
    assert "Is there a network?" in done.stdout and "Traceback" not in done.stderr


def test_a_package_that_cannot_be_installed_is_said_in_a_sentence(content, origin):
    project = origin / "pyproject.toml"
    project.write_text(project.read_text().replace("numpy>=1", "no-such-package-anywhere"))
    git(origin, "commit", "-qam", "needs more")
    done = run_cell(content, after="", COURSE_REPO=origin.as_uri(), PIP_NO_INDEX="1")
    assert "Set-up: ERROR: " in done.stdout and "no-such-package-anywhere" in done.stdout


def test_a_newer_torch_is_never_installed_over_the_machines_own(content, origin):
    project = origin / "pyproject.toml"
    project.write_text(project.read_text().replace("numpy>=1", "torch>=999"))
    git(origin, "commit", "-qam", "needs another torch")
    done = run_cell(content, after="", COURSE_REPO=origin.as_uri(), PIP_NO_INDEX="1")
    assert "Set-up: ERROR: " in done.stdout and "conflicting dependencies" in done.stdout


def test_a_machine_without_git_is_told_so(content):
    done = run_cell(content, after="", COURSE_REPO="https://example.org/course.git", PATH="/nowhere")
    assert done.stdout.splitlines()[-1].startswith("Set-up: git is not installed here")


def test_it_is_plain_python_without_magics():
    lines = CELL.read_text().splitlines()
    assert not [line for line in lines if line.lstrip().startswith(("%", "!"))]
    assert len(lines) < 60
