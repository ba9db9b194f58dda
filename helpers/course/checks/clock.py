"""A time limit for a learner's function, and the line it was at."""

from __future__ import annotations

import linecache
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from helpers.guard import code_file

LONGEST = 1e6  # seconds; timers take no more than some years


class TimeUp(BaseException):
    """Not an Exception, so that `except Exception` in the learner's loop does not swallow it."""


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """Raise TimeUp after `seconds`; no limit outside the main thread, or on a system without such a timer."""
    in_main = threading.current_thread() is threading.main_thread()
    if not seconds or seconds <= 0 or not in_main or not hasattr(signal, "setitimer"):
        yield
        return

    def ring(*_: Any) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGALRM, ring)
    remaining, interval = signal.setitimer(signal.ITIMER_REAL, min(seconds, LONGEST))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, remaining, interval)
        signal.signal(signal.SIGALRM, before)


def line_in(function: Callable[..., Any], problem: BaseException) -> str:
    """ "line 3: return a + b", the learner's line that `problem` comes from, or nothing."""
    file = code_file(function)
    lines = [frame.lineno for frame in traceback.extract_tb(problem.__traceback__) if frame.filename == file]
    if not lines or file is None or lines[-1] is None:
        return ""
    code = linecache.getline(file, lines[-1]).strip()
    return f"line {lines[-1]}{f': {code}' if code else ''}"
