"""The set-up cell of every lesson; the builder puts it where a source says `# %% tags=["setup"]`.

Instructors: put the address of your copy of the course into REPOSITORY, then build. The cell looks for the
course where the notebook lies and above, and fetches it where there is none, as on Colab and Kaggle.
"""

# Finds the course, or fetches it. Run it first; running it again does no harm.
import importlib
import os
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

REPOSITORY = os.environ.get("COURSE_REPO", "")  # where `git clone` finds the course
FOLDER = "alignment-course"  # where it goes, below the working directory


class SetUpError(Exception):
    """What to do, in a sentence; notebooks show it without a traceback."""

    def _render_traceback_(self):
        return [f"Set-up: {self}"]


def run(*command):
    """Run a command; if it fails, say which one and its last words."""
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise SetUpError(
            f"{command[0]} is not installed here; install it, then run this cell again."
        ) from None
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise SetUpError(
            f"`{' '.join(command[:3])} …` failed: {words[-1]}. Is there a network? Then run this cell again."
        )


def fetch(folder):
    """Clone the course and install what it needs and this machine lacks, keeping its torch and numpy."""
    if not REPOSITORY:
        raise SetUpError(
            "the course's files are not here; open this notebook inside a copy of the course, or set the"
            " environment variable COURSE_REPO to the address it can be cloned from and run this cell again."
        )
    print(f"fetching the course from {REPOSITORY}; a few minutes the first time")
    if not (folder / "helpers").is_dir():
        run("git", "clone", "--quiet", "--depth", "1", REPOSITORY, str(folder))
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    needed = project["dependencies"] + project["optional-dependencies"].get("lessons", [])
    present = {package.name: package.version for package in metadata.distributions() if package.name}
    keep = folder / "keep.txt"
    kept = ("torch", "torchvision", "torchaudio", "numpy")
    keep.write_text("".join(f"{name}=={present[name]}\n" for name in kept if name in present))
    run(sys.executable, "-m", "pip", "install", "--quiet", "-c", str(keep), *needed)


def set_up(here=None):
    """Make `helpers` importable."""
    try:
        importlib.import_module("helpers.errors")
        return
    except ImportError:
        pass
    here = Path(here or Path.cwd()).resolve()
    places = [here, *here.parents, here / FOLDER]
    root = next((place for place in places if (place / "helpers" / "errors.py").is_file()), here / FOLDER)
    if root == here / FOLDER:
        fetch(root)
    sys.path.insert(0, str(root))
    importlib.invalidate_caches()


set_up()
