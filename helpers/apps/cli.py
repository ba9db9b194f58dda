"""The command line: `python -m helpers COMMAND …`. Flags take underscores or dashes."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence

from helpers.errors import CourseError
from helpers.files import explained

SUMMARY = {
    "course": "the main job: train every method, evaluate, submit, grade, report",
    "train": "one training run: --algo sft, reward_model, dpo, ppo, grpo, …",
    "evaluate": "base and adapters on held-out prompts, in one table",
    "judge": "whether a judge can be trusted: self, position, agree; cost; rubric",
    "submit": "write submission files: policy, reward_model, best, zip or export",
    "grade": "grade a submission directory or zip",
    "check": "exercises in a file or notebook: right, or a hint",
    "doctor": "what the curves of a training run mean, in words",
    "hacking": "reward hacking: signs in a run, pairs against it, remedies compared",
    "report": "runs and evaluations as one page to hand in",
    "profile": "which profile this machine gets, and why",
    "data": "build a preference data set, report on one, or build-tiny",
    "export": "an adapter merged into its base, in full precision, for other tools",
    "demo": "policies side by side in the browser: blind votes, rewards, a gallery; --export_space",
    "build": "the lessons' notebooks from their sources; --check compares them",
    "release": "the students' kit, or the folder that Gradescope runs",
    "bench": "speed and memory of this machine's runs, as JSON lines",
}


def usage() -> str:
    """The list of commands."""
    lines = [f"  {name:<10} {text}" for name, text in SUMMARY.items()]
    return "usage: python -m helpers COMMAND [flags]; COMMAND --help lists the flags\n\n" + "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit status: 0 done, 1 failed checks, 2 bad input, 130 Ctrl-C."""
    words = list(sys.argv[1:] if argv is None else argv)
    show_any_letter()
    if not words or words[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if words else 2
    try:
        check_words(words)
        status = run(words[0], words[1:])
        if sys.stdout is not None:  # as it is under >&-
            sys.stdout.flush()  # here, where a reader that went away can still be told from a fault
        return status
    except CourseError as problem:
        return complain(f"error: {problem}", 2)
    except KeyboardInterrupt as problem:
        return complain(str(problem) or "interrupted; the same command goes on where it can", 130)
    except BrokenPipeError:  # the reader, such as `head`, went away
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as problem:  # a place nobody looked at before it was used
        place = f"{problem.filename}: " if isinstance(problem.filename, str) else ""
        return complain(f"error: {place}{explained(problem)}", 2)


def complain(message: str, status: int) -> int:
    """Print a message on stderr, below any progress bar; return the status."""
    if "tqdm" in sys.modules:
        for bar in list(getattr(sys.modules["tqdm"].tqdm, "_instances", ())):
            bar.close()
    rank = os.environ.get("RANK") or "0"  # of several processes under a launcher
    print(message if rank == "0" else f"process {rank}: {message}", file=sys.stderr)
    return status


def show_any_letter() -> None:
    """Let a terminal without UTF-8 show what it cannot as an escape, instead of stopping there."""
    for stream in (sys.stdout, sys.stderr):
        if (getattr(stream, "encoding", None) or "utf-8").lower().replace("-", "") != "utf8":
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def check_words(words: Sequence[str]) -> None:
    """Refuse empty values, as an unset shell variable leaves them, null bytes, and a place that is gone."""
    try:
        os.getcwd()
    except OSError:
        raise CourseError("the working directory is gone: change to one that exists") from None
    for place, word in enumerate(words):
        flag = word[:-1] if word.startswith("-") and word.endswith("=") else None
        if not word.strip():
            flag = words[place - 1] if place else "the command"
        if flag:
            raise CourseError(f"{flag} is empty: give it a value, or leave it out")
        if "\0" in word:
            raise CourseError(f"{word!r} holds a null byte")


def run(command: str, words: list[str]) -> int:
    """Find the command and run it."""
    if command not in SUMMARY:
        near = difflib.get_close_matches(command, SUMMARY, n=1)
        raise CourseError(
            f"unknown command {command!r}{f'; did you mean {near[0]}?' if near else ''}\n\n{usage()}"
        )
    from helpers.quiet import quiet_libraries

    quiet_libraries()
    from helpers.models import processes

    processes.check_launcher() if command == "train" else processes.refuse_several(command)
    from helpers.apps import commands  # torch and transformers load only when there is work for them

    return commands.COMMANDS[command](words)
