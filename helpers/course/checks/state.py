"""What a learner's function may have set for the whole process, put back after every check."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

CPU = torch.device("cpu")


@contextmanager
def settings_kept() -> Iterator[None]:
    """Run a block with torch's own defaults (float32 on the CPU), and put every setting back afterwards."""
    dtype, device, streams = torch.get_default_dtype(), torch.get_default_device(), (sys.stdout, sys.stderr)
    learns, threads, place = torch.is_grad_enabled(), torch.get_num_threads(), here()
    strict, anomaly = torch.are_deterministic_algorithms_enabled(), torch.is_anomaly_enabled()
    set_defaults(torch.float32, CPU)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams
        set_defaults(dtype, device)
        torch.set_grad_enabled(learns)
        if torch.are_deterministic_algorithms_enabled() != strict:
            torch.use_deterministic_algorithms(strict)
        if torch.is_anomaly_enabled() != anomaly:
            torch.autograd.set_detect_anomaly(anomaly)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)
        if place and here() != place:
            os.chdir(place)


def here() -> str:
    """The working directory; nothing where it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def set_defaults(dtype: torch.dtype, device: torch.device) -> None:
    """Dtype and device of new tensors; the device only where it differs, as setting one slows torch down."""
    torch.set_default_dtype(dtype)
    if torch.get_default_device() != device:
        torch.set_default_device(None if device == CPU else device)


@contextmanager
def chance_kept() -> Iterator[None]:
    """Put the random numbers of torch, NumPy and Python back to where they were."""
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    with torch.random.fork_rng():
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)
