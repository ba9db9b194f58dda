"""What goes wrong inside a learner's function is told with its name, its line and what was expected."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest
import torch

import solutions.answers
from helpers.errors import CourseError
from helpers.guard import guarded

LOG_PROBS = [torch.randn(4, requires_grad=place < 2) for place in range(4)]


def call(name, function, *args):
    return getattr(guarded(SimpleNamespace(**{name: function})), name)(*args)


def dpo(function):
    return call("dpo_loss", function, *LOG_PROBS, 0.1)


def write_into(chosen, *_):
    with torch.no_grad():
        chosen.zero_()
    return chosen.sum()


def write_into_reference(chosen, rejected, ref_chosen, *_):
    ref_chosen += 1
    return chosen.sum()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda *a: None, "returned None"),
        (lambda *a: 1.5, r"returned a float \(1.5\)"),
        (lambda *a: "x", r"returned a str \('x'\)"),
        (lambda *a: [a[0].mean()], "returned a list"),
        (lambda *a: (a[0].mean(), 1), "returned a tuple"),
        (lambda *a: a[0] - a[1], r"float32 tensor of shape \(4,\).*expected: one number.*\.mean\(\)"),
        (lambda *a: a[0].mean().item(), "returned a float"),
        (lambda *a: a[0].mean().detach(), "without gradient.*detach"),
        (lambda *a: (a[0] > a[1]).float().mean(), "without gradient"),
        (lambda *a: torch.tensor(1.0, requires_grad=True), "gradient towards the inputs"),
        (lambda *a: a[0].mean().to(torch.complex64), "complex64"),
        (lambda *a: 1 / 0, r"raised ZeroDivisionError.*test_guard.py line \d+"),
        (lambda *a: undefined, "NameError.*undefined"),  # noqa: F821
        (lambda: None, "TypeError.*positional arguments"),
        (lambda *a: exit(3), "SystemExit"),
        (write_into, "its input chosen in place"),
        (write_into_reference, "its input ref_chosen in place"),
    ],
)
def test_a_wrong_loss_is_named_and_described(function, said):
    with pytest.raises(CourseError, match=f"^dpo_loss .*{said}"):
        dpo(function)


def test_a_right_loss_passes_as_it_is():
    assert dpo(solutions.answers.dpo_loss).requires_grad
    assert dpo(lambda chosen, *_: chosen.sum()[None]).shape == ()
    with torch.no_grad():
        assert not dpo(lambda chosen, *_: chosen.sum()).requires_grad


def test_ctrl_c_and_a_full_memory_stay_what_they_are():
    for problem in (KeyboardInterrupt, torch.OutOfMemoryError):

        def raises(*_, problem=problem):
            raise problem

        with pytest.raises(problem):
            dpo(raises)


MASK = torch.tensor([[True, True, False], [True, True, True]])


@pytest.mark.parametrize(
    ("name", "result", "args"),
    [
        ("last_token_index", torch.tensor([1.0, 2.0]), (MASK,)),
        ("last_token_index", torch.tensor([1, 3]), (MASK,)),
        ("last_token_index", torch.tensor([-1, 2]), (MASK,)),
        ("last_token_index", torch.tensor([[1], [2]]), (MASK,)),
        ("last_token_index", 2, (MASK,)),
        ("response_mask", MASK.float(), (None, MASK)),
        ("response_mask", MASK[:1], (None, MASK)),
        ("group_advantages", torch.zeros(2, 2), (torch.zeros(4), 2)),
        ("group_advantages", [0.0] * 4, (torch.zeros(4), 2)),
        ("group_advantages", torch.zeros(4, dtype=torch.long), (torch.zeros(4), 2)),
        ("pair_accuracy", None, ()),
        ("pair_accuracy", float("nan"), ()),
        ("pair_accuracy", torch.tensor([True, False]), ()),
        ("win_rate", 55.0, (["win"],)),
        ("combine_orders", ["win"], (["A", "B"], ["B", "A"])),
        ("combine_orders", ["win", None], (["A", "B"], ["B", "A"])),
        ("combine_orders", "wl", (["A", "B"], ["B", "A"])),
        ("bootstrap_ci", 0.5, ([1.0],)),
        ("bootstrap_ci", (0.1, None), ([1.0],)),
        ("bootstrap_ci", (0.1, 0.2, 0.3), ([1.0],)),
        ("approx_kl", torch.zeros(3), ()),
        ("perplexity", "low", ()),
    ],
)
def test_every_function_that_trainers_call_is_held_to_its_contract(name, result, args):
    with pytest.raises(CourseError, match=f"{name} returned .*expected: "):
        call(name, lambda *_: result, *args)


@pytest.mark.parametrize(
    "value", [torch.tensor(0.5), torch.tensor([0.5]), 0.5, functools.partial(float, 0.5)()]
)
def test_a_number_may_come_as_a_tensor(value):
    assert call("pair_accuracy", lambda *_: value) == 0.5


def test_a_missing_function_is_named():
    with pytest.raises(CourseError, match=r"defines no function dpo_loss\(\)"):
        guarded(SimpleNamespace()).dpo_loss  # noqa: B018
    with pytest.raises(CourseError, match=r"dpo_loss in the answers is an int \(3\)"):
        guarded(SimpleNamespace(dpo_loss=3)).dpo_loss  # noqa: B018
    assert guarded(guarded(solutions.answers)).dpo_loss.__doc__ == solutions.answers.dpo_loss.__doc__


def test_a_place_for_results_is_tried_before_the_work(tmp_path):
    from helpers.errors import CourseError
    from helpers.files import check_place

    check_place(None, "--output")
    check_place(tmp_path / "new" / "out.json", "--output")
    assert (tmp_path / "new").is_dir() and not (tmp_path / "new" / "out.json").exists()
    (tmp_path / "file").write_text("")
    for bad in (tmp_path, tmp_path / "file" / "out.json", "/proc/nothing/out.json"):
        with pytest.raises(CourseError, match="--output"):
            check_place(bad, "--output")
