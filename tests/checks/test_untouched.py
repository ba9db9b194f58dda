"""A check leaves no trace in the process, and no function is so odd that it ends in a traceback."""

import os
import random

import numpy as np
import pytest
import torch

from helpers.apps.cli import main
from helpers.course.checks import check
from solutions.answers import dpo_loss


def state():
    """Everything that a function can set for the whole process."""
    return (
        torch.get_rng_state().tolist(),
        random.getstate(),
        np.random.get_state()[1].tolist(),  # noqa: NPY002
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_grad_enabled(),
        torch.is_anomaly_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        os.getcwd(),
    )


def seeds_everything():
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002


SETTINGS = {
    "seeds": seeds_everything,
    "dtype": lambda: torch.set_default_dtype(torch.float64),
    "device": lambda: torch.set_default_device("meta"),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "directory": lambda: os.chdir("/"),
}


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_what_a_function_sets_is_put_back(setting):
    def sets_and_answers(*args, **kwargs):
        result = dpo_loss(*args, **kwargs)
        setting()
        return result

    before = state()
    assert check("dpo_loss", sets_and_answers, quiet=True).passed
    assert state() == before


def test_gradient_mode_is_put_back():
    def switches_off(*args, **kwargs):
        torch.set_grad_enabled(False)
        return dpo_loss(*args, **kwargs)

    assert not check("dpo_loss", switches_off, quiet=True).passed
    assert torch.is_grad_enabled()


def test_defaults_set_before_a_check_neither_disturb_it_nor_are_lost():
    try:
        torch.set_default_dtype(torch.float64)
        torch.set_default_device("meta")
        assert check("dpo_loss", dpo_loss, quiet=True).passed
        assert (torch.get_default_dtype(), torch.get_default_device().type) == (torch.float64, "meta")
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")

    __repr__ = __str__


def throws(problem):
    def function(*args, **kwargs):
        raise problem

    return function


def gives(value):
    return lambda *args, **kwargs: value


ODD = {
    "an exception of the lowest kind": (throws(BaseException("odd")), "raises BaseException"),
    "an exit of a generator": (throws(GeneratorExit("odd")), "raises GeneratorExit"),
    "an exception that cannot be printed": (throws(Mute()), "raises Mute"),
    "a value that cannot be printed": (gives(Mute()), "returns a Mute"),
    "a nested tensor": (gives(torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])), "nested"),
    "a sparse tensor": (gives(torch.zeros(2, requires_grad=True).to_sparse()), "sparse"),
    "no function that can be printed": (Mute(), "it is a Mute"),
}


@pytest.mark.parametrize(("function", "hint"), ODD.values(), ids=ODD)
def test_odd_functions_get_a_hint(function, hint):
    assert hint in check("dpo_loss", function, quiet=True).hint


def test_a_path_without_return_is_named_as_such():
    def forgets_batches_of_many_rows(policy_chosen, *args, **kwargs):
        if tuple(policy_chosen.reshape(-1)[:1].tolist()) in seen:
            return dpo_loss(policy_chosen, *args, **kwargs)
        return None

    seen = set()
    check("dpo_loss", lambda chosen, *_, **__: seen.add(tuple(chosen.reshape(-1)[:1].tolist())), quiet=True)
    assert (
        "does every path through it end in a return"
        in check("dpo_loss", forgets_batches_of_many_rows, quiet=True).hint
    )


@pytest.mark.parametrize("seconds", ["-1", "nan", "inf"])
def test_a_time_limit_is_a_number_of_seconds(seconds, tmp_path, capsys):
    (tmp_path / "mine.py").write_text("def dpo_loss(): ...", encoding="utf-8")
    assert main(["check", str(tmp_path / "mine.py"), "--timeout", seconds]) == 2
    assert "--timeout" in capsys.readouterr().err
