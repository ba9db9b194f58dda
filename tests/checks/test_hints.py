"""Slips that are no misunderstanding: each becomes a sentence that says what to change."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import solutions.answers as answers
from helpers.course.checks import CheckResult, check, exercises
from helpers.course.checks.clock import time_limit
from helpers.course.checks.showing import Shown, Silent, html
from tests.checks.learner import written

HEAD = "def dpo_loss(policy_chosen, policy_rejected, ref_chosen, ref_rejected, beta):\n"
RIGHT = (
    "-F.logsigmoid(beta * ((policy_chosen - ref_chosen) - (policy_rejected - ref_rejected)).float()).mean()"
)


def dpo(body: str) -> Any:
    """A dpo_loss with this body."""
    return written(HEAD + "".join(f"    {line}\n" for line in body.split("\n")), "dpo_loss")


def hint_of(name: str, function: Any, **rest: Any) -> str:
    """What a check says; it must have failed, and as no known mistake."""
    result = check(name, function, quiet=True, **rest)
    assert not result.passed and result.mistake is None, result
    return result.hint


SLIPS = {
    "raise NotImplementedError('write dpo_loss')": "not written yet: replace the line that raises",
    "...\nreturn ...": "not written yet: replace the line that raises NotImplementedError",
    "pass": "it returns None: is the return missing?",
    f"loss = {RIGHT}": "it returns None: is the return missing?",
    f"return {RIGHT}.item()": "expected is a tensor of shape ()",
    f"return {RIGHT}.detach()": "no gradient flows from the result to policy_chosen and policy_rejected",
    f"return torch.tensor({RIGHT}.item())": "no gradient flows",
    f"with torch.no_grad():\n    return {RIGHT}": "no gradient flows",
    f"return {RIGHT}.reshape(1)": "the shape of the result is (1,), and should be ()",
    f"return {RIGHT}.double()": "the result is float64 and should be float32",
    f"return {RIGHT}".replace(".float()", ""): "the result is bfloat16 and should be float32",
    f"return {RIGHT}.to('meta')": "the result is on meta",
    f"policy_chosen -= ref_chosen\nreturn {RIGHT}": "it changes its input policy_chosen in place",
    f"ref_rejected.mul_(1.0)\nreturn {RIGHT}": "it changes its input ref_rejected in place",
    f"policy_chosen[0] = 0\nreturn {RIGHT}": "it changes its input policy_chosen in place",
    f"return {RIGHT}, beta": "it returns a tuple",
    "return policy_chosn.mean()": "NameError, line 2: return policy_chosn.mean()",
    "x = beta[0]\nreturn x": "TypeError, line 2: x = beta[0]",
    "return (policy_chosen[:, None] @ torch.ones(3, 2)).mean()": "the shapes do not fit, line 2",
    "raise SystemExit(3)": "it stops the program (exit), line 2",
    "raise KeyboardInterrupt": "it was interrupted (line 2",
    f"return {RIGHT} * 1.01": "expected 0.621, got 0.6272 for policy_chosen=[-10]",
    f"return {RIGHT} + 0 * policy_rejected.sum() + (policy_rejected - policy_rejected.detach()).sum()": (
        "the value is right, but the gradient in policy_rejected should be"
    ),
    f"return {RIGHT} + 1e-3 * (0.5 + torch.rand(()))": "expected 0.621",
}


@pytest.mark.parametrize("body", SLIPS)
def test_a_slip_becomes_a_hint(body: str) -> None:
    assert SLIPS[body] in hint_of("dpo_loss", dpo(body))


def test_an_endless_loop_is_stopped_and_its_line_named() -> None:
    said = hint_of("dpo_loss", dpo("x = 0\nwhile True:\n    x += 1"), timeout=0.2)
    assert "still running after 0.2 s" in said and "line " in said


def test_an_endless_loop_that_catches_every_exception_is_stopped_too() -> None:
    body = "while True:\n    try:\n        x = 1\n    except Exception:\n        pass"
    assert "still running" in hint_of("dpo_loss", dpo(body), timeout=0.2)


def test_outside_the_main_thread_there_is_no_limit_and_a_check_works() -> None:
    found: list[CheckResult] = []
    thread = threading.Thread(target=lambda: found.append(check("dpo_loss", answers.dpo_loss, quiet=True)))
    thread.start()
    thread.join()
    assert found[0].passed


def test_a_timer_that_ran_before_goes_on() -> None:
    import signal

    signal.setitimer(signal.ITIMER_REAL, 100)
    try:
        with time_limit(1):
            pass
        assert 50 < signal.getitimer(signal.ITIMER_REAL)[0] <= 100
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (3, "it is an int (3), not a function"),
        (None, "it is None, not a function"),
        (dict, "it is a class, not a function"),
        (lambda a, b: a, "it is called as dpo_loss(policy_chosen, policy_rejected, ref_chosen"),
        (lambda: None, "but yours takes ()"),
    ],
)
def test_what_cannot_be_called_as_the_contract_says(function: Any, said: str) -> None:
    assert said in hint_of("dpo_loss", function)


def test_an_optional_argument_must_have_its_name() -> None:
    assert "scale_by_std" in hint_of("group_advantages", lambda rewards, size, by_std=True, eps=1e-4: rewards)


def test_an_unknown_exercise_names_the_close_ones() -> None:
    with pytest.raises(KeyError, match=r"dpo_los.*did you mean dpo_loss"):
        check("dpo_los", answers.dpo_loss)
    with pytest.raises(KeyError, match=r"there are .*grpo_loss"):
        check("x", answers.dpo_loss)


def test_a_pair_of_results_is_looked_at_one_by_one() -> None:
    def halved(*given: Any) -> Any:
        advantages, returns = answers.gae(*given)
        return advantages, returns[:, :0]

    assert "it returns a float" in hint_of("gae", lambda *given: 3.0)
    assert "the shape of the result is" in hint_of("gae", halved)
    assert check("gae", lambda *given: list(answers.gae(*given)), quiet=True).passed


def test_two_slips_at_once_are_told_apart_from_nothing() -> None:
    """A known mistake in half precision is named with caution."""
    body = "return -F.logsigmoid(beta * (policy_chosen - policy_rejected)).mean()"
    result = check("dpo_loss", dpo(body), quiet=True)
    assert result.mistake == "dpo_missing_reference" and result.hint.startswith("looks like this: ")


def test_a_function_may_name_its_arguments_as_it_likes_and_print() -> None:
    def mine(a: Any, b: Any, c: Any, d: Any, strength: float) -> torch.Tensor:
        print("shape", a.shape)
        return answers.dpo_loss(a, b, c, d, strength)

    assert check("dpo_loss", mine, quiet=True).passed


def test_checks_leave_global_settings_and_random_numbers_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    with torch.no_grad():
        assert check("grpo_loss", answers.grpo_loss, quiet=True).passed
        assert not torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), before)
    torch.set_default_dtype(torch.float64)
    try:
        assert check("token_logprobs", answers.token_logprobs, quiet=True).passed
    finally:
        torch.set_default_dtype(torch.float32)


# ---------------------------------------------------------------- what is shown
def test_one_line_is_printed_unless_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    check("dpo_loss", answers.dpo_loss)
    assert capsys.readouterr().out == "dpo_loss: passed\n"
    check("dpo_loss", dpo("pass"))
    assert capsys.readouterr().out == "dpo_loss: it returns None: is the return missing?\n"
    check("dpo_loss", dpo("print(1)"), quiet=True)
    assert capsys.readouterr().out == ""


def test_a_notebook_gets_a_coloured_line_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import IPython
    import IPython.display

    shown: list[Any] = []
    monkeypatch.setattr(IPython, "get_ipython", lambda: SimpleNamespace(kernel=1))
    monkeypatch.setattr(IPython.display, "display", shown.append)
    result = check("dpo_loss", dpo("return '<b>'"))
    assert isinstance(result, Silent) and len(shown) == 1
    assert "not yet" in shown[0]._repr_html_() and repr(shown[0]).startswith("dpo_loss: ")
    assert not result.passed


def test_html_is_escaped() -> None:
    text = html(CheckResult("a", False, None, "<script>alert('x')</script> & more"))
    assert "<script>" not in text and "&lt;script&gt;" in text
    assert "passed" in Shown(CheckResult("a", True))._repr_html_()


# ---------------------------------------------------------------- the command
@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Any:
    """`command("dpo_loss", "mine.py")`: what `python -m helpers check …` returns and prints."""
    from helpers.apps.cli import main

    def call(*words: Any) -> SimpleNamespace:
        status = main(["check", *map(str, words)])
        printed = capsys.readouterr()
        return SimpleNamespace(status=status, out=printed.out, err=printed.err)

    return call


def test_a_file_is_checked(command: Any, tmp_path: Any) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        f"import torch\nimport torch.nn.functional as F\nprint('noise')\n{HEAD}    return {RIGHT}\n"
    )
    good = command("dpo_loss", path)
    assert (good.status, good.out) == (0, "dpo_loss: passed\n")
    path.write_text(path.read_text() + "def sft_loss(logits, input_ids, mask): pass\n")
    both = command(path, "--json")
    assert both.status == 1
    assert [(row["name"], row["passed"]) for row in json.loads(both.out)] == [
        ("dpo_loss", True),
        ("sft_loss", False),
    ]
    assert command("all", path).status == 1


def test_a_notebook_is_checked_and_its_training_cells_are_not_run(command: Any, tmp_path: Any) -> None:
    cells = [HEAD + "    raise NotImplementedError('write dpo_loss')", "train_for_hours()", "!ls"]
    path = tmp_path / "mine.ipynb"
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": cell} for cell in cells]}))
    result = command("dpo_loss", path)
    assert (result.status, result.out) == (
        1,
        "dpo_loss: not written yet: replace the line that raises NotImplementedError\n",
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dpo_loss", "nowhere.py"], "there is no such file"),
        (["dpo_los", "nowhere.py"], "did you mean dpo_loss"),
        (["zzz", "nowhere.py"], "there are "),
        (["mine.txt"], "a Python file or a notebook"),
        ([], "check needs a file"),
        (["a", "b", "c.py"], "at most one exercise"),
        (["empty.py"], "defines no function of an exercise"),
        (["sft_loss", "near.py"], "defines no function sft_loss: is sft_los meant?"),
        (["broken.py"], "line 1: invalid syntax"),
    ],
)
def test_what_cannot_be_checked_says_why(
    words: list[str], said: str, command: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.py").write_text("x = 1\n")
    (tmp_path / "near.py").write_text("def sft_los(): pass\n")
    (tmp_path / "broken.py").write_text("def f(:\n")
    result = command(*words)
    assert result.status == 2 and said in result.err and "Traceback" not in result.err


def test_a_damaged_vector_file_says_so(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from helpers.course.checks.exercise import load
    from helpers.errors import CourseError

    (tmp_path / "checks").mkdir()
    monkeypatch.setenv("COURSE_DATA", str(tmp_path))
    for text in ("{}", "[]", '{"format": 99}', "nonsense"):
        (tmp_path / "checks" / "dpo_loss.json").write_text(text)
        with pytest.raises(CourseError, match=r"dpo_loss.json"):
            load("dpo_loss")


def test_exercises_are_found_where_another_data_directory_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_DATA", "/nowhere")
    assert "dpo_loss" in exercises()
