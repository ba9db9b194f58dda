"""What is handed out: the kit that students receive, and the folder that Gradescope runs.

Both are directories, or zips where the name ends in .zip. A directory that exists already is never replaced.
"""

from __future__ import annotations

import subprocess
import tomllib
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from helpers.course.builder.kit import Kit
from helpers.course.builder.leaks import INSTRUCTORS, hidden, leaks_in, telling_lines
from helpers.errors import CourseError
from helpers.files import atomic_path

ZIP_TIME = (1980, 1, 1, 0, 0, 0)  # so that equal contents give equal zips
SHOWN_LEAKS = 3
BUILT = (".egg-info", ".pyc")


def release_kit(kit: Kit, target: str | Path) -> list[str]:
    """Write the student kit: everything but the instructor's part, the tests, and what is hidden or built.

    Returns:
        The names of its files.

    Raises:
        CourseError: where a notebook is missing, or a file holds a line of an answer.
    """
    missing = [kit.shown(kit.student(name)) for name in kit.lessons() if not kit.student(name).is_file()]
    if missing:
        raise CourseError(f"{', '.join(missing)} missing: run python -m helpers build first")
    files = {path.relative_to(kit.root).as_posix(): path for path in kit_files(kit)}
    telling = telling_lines(kit)
    leaks = [
        f"{name} holds a line of the answer to {exercise}: `{line}`"
        for name, path in files.items()
        for exercise, line in leaks_in(path, telling)
    ]
    if leaks:
        more = f"; and {len(leaks) - SHOWN_LEAKS} more" if len(leaks) > SHOWN_LEAKS else ""
        raise CourseError(f"no kit was written. {'; '.join(leaks[:SHOWN_LEAKS])}{more}")
    write_tree(target, {name: path.read_bytes() for name, path in files.items()})
    return sorted(files)


def kit_files(kit: Kit) -> list[Path]:
    """The files of the student kit: those under version control, or all there are where git is not used."""
    instructors = (*INSTRUCTORS, kit.sources.name)
    found = (path for path in tree_files(kit.root) if path.relative_to(kit.root).parts[0] not in instructors)
    return [path for path in found if not hidden(kit, path)]


def tree_files(root: Path) -> list[Path]:
    """Files of a checkout that git knows or would add; every file, but for built ones, without git."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listing = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
        found: Iterable[Path] = (root / name for name in listing.split("\0") if name)
    except (OSError, subprocess.CalledProcessError):
        found = root.rglob("*")
    return sorted(
        path
        for path in set(found)
        if path.is_file() and not any(part.endswith(BUILT) for part in path.relative_to(root).parts)
    )


# ---------------------------------------------------------------------- Gradescope

SETUP = """#!/usr/bin/env bash
# Gradescope runs this once, when it builds the image: a Python of 3.11 to 3.13 with the grader's packages.
set -e
place="${AUTOGRADER_ROOT:-/autograder}"
suits='import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'
apt-get update
apt-get install -y python3-venv || true
python=""
for name in python3.12 python3.11 python3.13 python3; do
    if "$name" -c "$suits" 2>/dev/null; then python="$name"; break; fi
done
if [ -z "$python" ]; then
    apt-get install -y python3.11 python3.11-venv
    python=python3.11
fi
"$python" -m venv "$place/venv"
"$place/venv/bin/pip" install --no-cache-dir -r "$place/source/requirements.txt"
"""

RUN = """#!/usr/bin/env bash
# Gradescope runs this for every submission. It leaves results.json in any case.
place="${AUTOGRADER_ROOT:-/autograder}"
python="${AUTOGRADER_PYTHON:-$place/venv/bin/python}"
results="$place/results/results.json"
mkdir -p "$place/results"
rm -f "$results"
cd "$place/source" || exit 1
# A line such as OPENAI_API_KEY=… in judge.env gives the judge its key; nothing of it is shown.
if [ -f judge.env ]; then set -a; . ./judge.env; set +a; fi
"$python" -m helpers grade "$place/submission" --public_eval public_eval --output "$results" @FLAGS@
if [ ! -s "$results" ]; then
    echo '{"score": 0, "output": "The autograder itself failed: ask staff.", "tests": []}' > "$results"
fi
exit 0
"""


def release_autograder(kit: Kit, target: str | Path, public: Path, flags: str) -> list[str]:
    """Write Gradescope's autograder: scripts, requirements, helpers, the reference answers, the public files.

    Args:
        public: the public evaluation files to grade against.
        flags: of `grade`, as they would be typed. Keys do not belong there.

    Returns:
        The names of its files.
    """
    root = kit.root
    wanted = [path for path in tree_files(root) if _grades(kit, path.relative_to(root))]
    files = {path.relative_to(root).as_posix(): path.read_bytes() for path in wanted}
    files |= {f"public_eval/{path.name}": path.read_bytes() for path in sorted(public.glob("*.jsonl"))}
    files["requirements.txt"] = ("\n".join(requirements(root)) + "\n").encode()
    files["setup.sh"] = SETUP.encode()
    files["run_autograder"] = RUN.replace("@FLAGS@", flags).encode()
    write_tree(target, files, executable=("setup.sh", "run_autograder"))
    return sorted(files)


def _grades(kit: Kit, path: Path) -> bool:
    """True for what grading runs: helpers, and of the instructor's part the answers alone."""
    answers = Path(*kit.package.split("."))
    package = path.suffix == ".py" and (path.is_relative_to("helpers") or path.is_relative_to(answers))
    return package or path == answers.parent / "__init__.py" or path.name == "LICENSE" or _rules(path)


def _rules(path: Path) -> bool:
    """Texts that modules of helpers read beside themselves."""
    return path.is_relative_to("helpers") and path.suffix in (".md", ".json", ".txt")


def requirements(root: Path) -> list[str]:
    """The project's requirements, each with its lower bound."""
    with (root / "pyproject.toml").open("rb") as stream:
        return sorted(tomllib.load(stream)["project"]["dependencies"])


# ---------------------------------------------------------------------- writing


def write_tree(target: str | Path, files: Mapping[str, bytes], executable: tuple[str, ...] = ()) -> None:
    """Write files as a new directory, or as a zip where `target` ends in .zip, whole or not at all."""
    place = Path(target)
    if place.suffix == ".zip":
        with atomic_path(place) as draft, zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in sorted(files.items()):
                member = zipfile.ZipInfo(name, ZIP_TIME)
                mode = 0o100755 if name in executable else 0o100644
                member.compress_type, member.external_attr = zipfile.ZIP_DEFLATED, mode << 16
                archive.writestr(member, data)
        return
    if place.exists():
        raise CourseError(f"{place} exists already: give the name of a new directory, or of a .zip")
    with atomic_path(place) as draft:
        for name, data in files.items():
            (draft / name).parent.mkdir(parents=True, exist_ok=True)
            (draft / name).write_bytes(data)
            if name in executable:
                (draft / name).chmod(0o755)
