"""The one line that a check prints: text on a terminal, a coloured line in a notebook."""

from __future__ import annotations

import sys
from typing import Any

from markupsafe import Markup, escape

from helpers.course.checks.deciding import CheckResult, decide

GOOD, BAD = "#1a7f4b", "#b3461c"
BOX = "border-left:4px solid {colour};padding:4px 10px;margin:4px 0;white-space:pre-wrap"


def check(name: str, fn: Any, *, quiet: bool = False, timeout: float | None = 20) -> CheckResult:
    """Check a learner's function against an exercise and print one line; what it prints itself is dropped.

    Args:
        name: the exercise, such as "dpo_loss".
        fn: the function.
        quiet: print nothing.
        timeout: seconds until a function that does not come back is stopped; None for no limit. Where there
            is no such timer, as outside the main thread and on Windows, the interrupt button does it.

    Raises:
        KeyError: for an unknown exercise.
    """
    result = decide(name, fn, timeout)
    if quiet:
        return result
    if not in_notebook():
        print(line(result))
        return result
    from IPython.display import display

    display(Shown(result))
    return Silent(result.name, result.passed, result.mistake, result.hint)


def show(result: CheckResult) -> None:
    """Print a result on a terminal."""
    print(line(result))


def line(result: CheckResult) -> str:
    """A result as text."""
    return f"{result.name}: passed" if result.passed else f"{result.name}: {result.hint}"


def html(result: CheckResult) -> str:
    """A result as one escaped line of HTML."""
    colour, word = (GOOD, "passed") if result.passed else (BAD, "not yet:")
    head = Markup('<div style="{}"><b style="color:{}">{}: {}</b>').format(
        BOX.format(colour=colour), colour, result.name, word
    )
    return str(head + (Markup(" ") + escape(result.hint) if result.hint else "") + Markup("</div>"))


class Shown:
    """What a notebook displays."""

    def __init__(self, result: CheckResult) -> None:
        self.result = result

    def _repr_html_(self) -> str:
        return html(self.result)

    def __repr__(self) -> str:
        return line(self.result)


class Silent(CheckResult):
    """A result that was displayed already: as the last value of its cell it does not appear a second time."""

    def _ipython_display_(self) -> None:
        pass


def in_notebook() -> bool:
    """True inside a Jupyter kernel, false in a script and in IPython on a terminal."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return shell is not None and hasattr(shell, "kernel")
