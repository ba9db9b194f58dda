"""`release kit` and `release autograder`."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from helpers.apps.flags import parse, text
from helpers.apps.grading import GradeConfig, known_judge
from helpers.apps.submitting import PAIRS, PROMPTS, public_directory, public_file
from helpers.course.builder.kit import Kit
from helpers.course.release import release_autograder, release_kit
from helpers.errors import CourseError

KINDS = ("kit", "autograder")


@dataclass
class ReleaseConfig:
    """Write what is handed out: the students' kit, or the folder that Gradescope runs.

    The target is a new directory, or a zip where its name ends in .zip.
    """

    target: str = text("a new directory, or a .zip", "")
    public_eval: str | None = text("autograder: directory of the public evaluation files; default: bundled")
    grade_flags: str = text("autograder: flags of grade, such as '--judge openai --max_cost 2'", "")


def release(words: list[str], package: str) -> int:
    """release kit|autograder TARGET. `package` names the reference answers."""
    if words[:1] in (["-h"], ["--help"]):
        print(
            f"usage: python -m helpers release {'|'.join(KINDS)} TARGET [flags]; --help after it lists them"
        )
        return 0
    if not words or words[0] not in KINDS:
        raise CourseError(f"release needs one of {', '.join(KINDS)} as its first word")
    kind, rest = words[0], words[1:]
    if rest and not rest[0].startswith("-"):
        rest = ["--target", *rest]
    config = parse(ReleaseConfig, rest, f"release {kind}")
    if not config.target:
        raise CourseError(f"release {kind} needs a place: python -m helpers release {kind} DIR, or FILE.zip")
    kit = Kit(Path(__file__).resolve().parents[2], package)
    if kind == "kit":
        names = release_kit(kit, config.target)
    else:
        public = public_directory(config.public_eval)
        public_file(public, PROMPTS), public_file(public, PAIRS)
        names = release_autograder(kit, config.target, public, checked_flags(config.grade_flags))
    print(f"{config.target}: {len(names)} files")
    return 0


def checked_flags(flags: str) -> str:
    """The flags of `grade`, quoted for a shell; CourseError where grade would refuse them."""
    try:
        words = shlex.split(flags)
    except ValueError as problem:
        raise CourseError(f"--grade_flags {flags}: {problem}; close every quotation mark") from None
    if any(word.startswith("sk-") or "api_key" in word.lower() for word in words):
        raise CourseError("--grade_flags would be written into the release: a key belongs into judge.env")
    config = parse(GradeConfig, words, "grade")
    known_judge(config.judge)
    if config.submission or config.public_eval or config.output:
        raise CourseError("--grade_flags: submission, public_eval and output are set by run_autograder")
    return shlex.join(words)
