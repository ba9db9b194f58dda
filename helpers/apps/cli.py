"""The command line: `python -m helpers COMMAND …`. Flags take underscores or dashes."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence

from helpers.errors import CourseError

SUMMARY = {
    "course": "the main job: train every method, evaluate, submit, grade, report",
    "train": "one training run: --algo sft, reward_model, dpo or grpo",
    "evaluate": "base and adapters on held-out prompts, in one table",
    "submit": "write submission files: policy, reward_model or zip",
    "grade": "grade a submission directory or zip",
    "profile": "which profile this machine gets, and why",
    "data": "build-tiny, or report on a data set",
    "bench": "speed and memory of this machine's runs, as JSON lines",
}


def usage() -> str:
    """The list of commands."""
    lines = [f"  {name:<10} {text}" for name, text in SUMMARY.items()]
    return "usage: python -m helpers COMMAND [flags]; COMMAND --help lists the flags\n\n" + "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status: 0 done, 1 failed checks, 2 bad input, 130 Ctrl-C."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if words else 2
    try:
        return run(words[0], words[1:])
    except CourseError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as `head`, went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def run(command: str, words: list[str]) -> int:
    """Find the command and run it."""
    if command not in SUMMARY:
        near = difflib.get_close_matches(command, SUMMARY, n=1)
        raise CourseError(
            f"unknown command {command!r}{f'; did you mean {near[0]}?' if near else ''}\n\n{usage()}"
        )
    from helpers.quiet import quiet_libraries

    quiet_libraries()
    from helpers.apps import commands  # torch and transformers load only when there is work for them

    return commands.COMMANDS[command](words)
