"""Flags into dataclasses."""

from __future__ import annotations

import difflib
from dataclasses import field
from typing import Any

from helpers.errors import CourseError
from helpers.training.configs import check_ranges

DEFAULT_ANSWERS = "solutions.answers"
ANSWERS = (
    "Also --answers MODULE_OR_FILE: whose functions are used, such as my_answers.py or a notebook; what it"
    " lacks comes from the reference answers, where they are installed."
)


def text(help_text: str, default: Any = None) -> Any:
    """A flag with its help."""
    return field(default=default, metadata={"help": help_text})


def parse(kind: Any, words: list[str], command: str) -> Any:
    """Read flags into a dataclass; an unknown flag or a value that does not fit is a CourseError."""
    from transformers import HfArgumentParser

    class Parser(HfArgumentParser):
        def error(self, message: str) -> Any:
            raise CourseError(f"{command}: {message}; see python -m helpers {command} --help")

    takes_answers = command.split()[0] in ("train", "evaluate", "submit", "grade", "bench")
    parser = Parser(
        kind,
        prog=f"python -m helpers {command}",
        description=kind.__doc__,
        epilog=ANSWERS if takes_answers else None,
        allow_abbrev=False,
    )
    config, rest = parser.parse_args_into_dataclasses(words, return_remaining_strings=True)
    if rest:
        known = [option for action in parser._actions for option in action.option_strings]
        near = difflib.get_close_matches(rest[0].split("=")[0], known, n=1)
        hint = f"; did you mean {near[0]}?" if near else f"; see python -m helpers {command} --help"
        raise CourseError(f"{command}: unknown argument {rest[0]}{hint}")
    check_ranges(dict(vars(config)))
    return config


def take_flag(words: list[str], flag: str) -> tuple[str | None, list[str]]:
    """Take `--flag value` or `--flag=value` out of the words."""
    rest, value = [], None
    words = list(words)
    while words:
        word = words.pop(0)
        if word == flag:
            if not words:
                raise CourseError(f"{flag} needs a value")
            value = words.pop(0)
        elif word.startswith(f"{flag}="):
            value = word.split("=", 1)[1]
        else:
            rest.append(word)
    return value, rest


def answers_of(spec: str | None) -> Any:
    """The answers of a module, file or notebook; without one the reference answers."""
    from helpers.course.answers import load_answers

    return load_answers(spec or DEFAULT_ANSWERS, fallback=DEFAULT_ANSWERS)


def answers_from(words: list[str]) -> tuple[Any, list[str]]:
    """The answers that `--answers` names, and the other words."""
    spec, rest = take_flag(words, "--answers")
    return answers_of(spec), rest
