"""The set-up cell of every lesson; the builder puts it where a source says `# %% tags=["setup"]`.

Instructors: put the address of your copy of the course into REPOSITORY, then build.
"""

# Finds the course's code, or fetches it (Colab, Kaggle). Run it first; running it again does no harm.
import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = os.environ.get("COURSE_REPO", "")  # where `git clone` finds the course


class SetUpError(Exception):
    """What to do, in one line."""

    def _render_traceback_(self):
        return [f"Set-up: {self}"]


def run_command(*command):
    """Run a command; if it fails, its own words are the message."""
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        raise SetUpError(f"{command[0]} is not installed here; install it and run this cell again.") from None
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        cause = next((line for line in words if line.startswith(("fatal", "ERROR"))), words[-1])
        raise SetUpError(f"{cause} Is there a network? Then run this cell again.")


def set_up():
    """Make `helpers` importable."""
    try:
        import helpers.errors  # noqa: F401

        return
    except ImportError:
        pass
    here = Path.cwd()
    clone = here / "alignment-course"
    root = next((place for place in (here, *here.parents) if (place / "helpers/errors.py").is_file()), clone)
    if root == clone:
        if not (clone / "helpers").is_dir():
            if not REPOSITORY:
                raise SetUpError(
                    "the course's files are not here; open this notebook inside a copy of the course, or set"
                    " the environment variable COURSE_REPO to the address it can be cloned from."
                )
            print(f"fetching the course from {REPOSITORY}; a few minutes the first time")
            run_command("git", "clone", "--quiet", "--depth", "1", REPOSITORY, str(clone))
        run_command(sys.executable, str(clone / "tools/add_requirements.py"))
    sys.path.insert(0, str(root))


set_up()
