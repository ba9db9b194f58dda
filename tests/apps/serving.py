"""A demo in a process of its own, from the line that says where it is served until the test is over."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def served(words: Sequence[str], folder: Path, variables: Mapping[str, str]) -> Iterator[None]:
    """Run `words` in `folder`; fail with what it said if it ends before it serves."""
    process = subprocess.Popen(
        words, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        said = []
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if line.startswith("open http"):
                break
        else:
            pytest.fail("the demo did not start:\n" + "".join(said))
        threading.Thread(target=process.stdout.read, daemon=True).start()  # it never waits for a reader
        yield
    finally:
        process.terminate()
        process.wait(timeout=20)
