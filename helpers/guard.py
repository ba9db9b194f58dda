"""A fence around a learner's functions: what goes wrong inside them becomes one sentence that names them.

Trainers, evaluation and grading call the exercises through `guarded(answers)`. A function that raises, gives
back something of the wrong kind or shape, or changes what it was given raises CourseError with the function,
the file and line, and what was expected. Whether its numbers are right is another question, for the checks.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch

from helpers.errors import CourseError
from helpers.files import fingerprint


def guarded(answers: Any) -> Any:
    """Wrap a namespace of answers; wrapping twice is wrapping once."""
    return answers if isinstance(answers, Guarded) else Guarded(answers)


class Guarded:
    """The answers, with a fence around each function."""

    def __init__(self, answers: Any) -> None:
        self._answers = answers
        self._fenced: dict[str, Callable[..., Any]] = {}

    def fingerprints(self, *names: str) -> dict[str, str]:
        """What each function does, as a hash: equal for equal code, whatever its comments."""
        return {name: code_fingerprint(inspect.unwrap(getattr(self, name))) for name in names}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            return getattr(self._answers, name)
        if name not in self._fenced:
            self._fenced[name] = fence(name, getattr(self._answers, name, None), self._answers)
        return self._fenced[name]


def fence(name: str, function: Any, answers: Any = None) -> Callable[..., Any]:
    """Wrap one function. CourseError where there is none of that name, or it is not a function."""
    if function is None:
        source = getattr(answers, "__file__", None) or getattr(answers, "__name__", "the answers")
        raise CourseError(f"{source} defines no function {name}(): write it, or give a file that has it")
    if not callable(function):
        raise CourseError(f"{name} in the answers is {described(function)}, not a function")

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        versions = [version_of(value) for value in args]
        try:
            result = function(*args, **kwargs)
        except (CourseError, torch.OutOfMemoryError):
            raise
        except (Exception, SystemExit) as problem:
            raise CourseError(f"{name} raised {problem_in(function, problem)}") from problem
        for place, (value, before) in enumerate(zip(args, versions, strict=True)):
            if version_of(value) != before:
                raise CourseError(
                    f"{name} changed its input {argument_name(function, place)} in place"
                    f"{defined_at(function)}: compute a new tensor instead of writing into it"
                )
        try:
            return EXPECTED.get(name, accept)(result, *args)
        except Unfit as problem:
            raise CourseError(
                f"{name} returned {described(result)}{defined_at(function)}; expected: {problem}"
            ) from None

    return call


# ---------------------------------------------------------------------- what each may return
class Unfit(Exception):
    """The message says what was expected."""


def accept(result: Any, *_: Any) -> Any:
    """Anything."""
    return result


def loss(result: Any, *args: Any) -> torch.Tensor:
    """A real scalar that depends on the inputs; () or (1,) is taken."""
    if not isinstance(result, torch.Tensor) or result.numel() != 1 or not result.is_floating_point():
        raise Unfit("one number as a tensor of shape () (have you forgotten .mean() or the return?)")
    learns = torch.is_grad_enabled() and any(isinstance(a, torch.Tensor) and a.requires_grad for a in args)
    if learns and result.grad_fn is None:
        raise Unfit(
            "a tensor with a gradient towards the inputs"
            " (.detach(), .item(), torch.tensor(…), comparisons and torch.no_grad() cut it off)"
        )
    return result.reshape(())


def scalar(result: Any, *_: Any) -> torch.Tensor:
    """One number, as a tensor."""
    value = number(result)
    return result.reshape(()) if isinstance(result, torch.Tensor) else torch.tensor(value)


def number(result: Any, *_: Any) -> float:
    """One real number, as a float."""
    if isinstance(result, torch.Tensor) and result.numel() == 1 and not result.is_complex():
        return float(result.item())
    if isinstance(result, (int, float)) or (hasattr(result, "dtype") and getattr(result, "ndim", 1) == 0):
        return float(result)
    raise Unfit("one number")


def share(result: Any, *_: Any) -> float:
    """A number from 0 to 1."""
    value = number(result)
    if not 0 <= value <= 1:
        raise Unfit("a share from 0 to 1")
    return value


def like_first(result: Any, first: torch.Tensor, *_: Any) -> torch.Tensor:
    """Real numbers in the shape of the first input."""
    if not isinstance(result, torch.Tensor) or result.shape != first.shape or not result.is_floating_point():
        raise Unfit(f"a floating-point tensor of shape {tuple(first.shape)}")
    return result


def like_second(result: Any, _: Any, second: torch.Tensor, *__: Any) -> torch.Tensor:
    """Real numbers in the shape of the second input."""
    return like_first(result, second)


def advantages_and_returns(result: Any, first: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Two tensors of real numbers in the shape of the first input."""
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise Unfit("a pair (advantages, returns)")
    return like_first(result[0], first), like_first(result[1], first)


def token_mask(result: Any, _: Any, attention_mask: torch.Tensor) -> torch.Tensor:
    """A boolean mask in the shape of the attention mask."""
    shape = attention_mask.shape
    if not isinstance(result, torch.Tensor) or result.shape != shape or result.dtype != torch.bool:
        raise Unfit(f"a boolean tensor of shape {tuple(shape)}")
    return result


def positions(result: Any, attention_mask: torch.Tensor) -> torch.Tensor:
    """One column of the first input for each of its rows."""
    rows, width = attention_mask.shape
    fits = isinstance(result, torch.Tensor) and result.shape == (rows,)
    if not fits or result.is_floating_point() or result.is_complex() or result.dtype == torch.bool:
        raise Unfit(f"an integer tensor of shape ({rows},)")
    if rows and (int(result.min()) < 0 or int(result.max()) >= width):
        raise Unfit(f"a tensor of positions from 0 to {width - 1}")
    return result


def verdicts(result: Any, first: Sequence[Any], *_: Any) -> list[str]:
    """A win, loss or tie for every pair of orders."""
    fits = isinstance(result, (list, tuple)) and len(result) == len(first)
    if not fits or any(word not in ("win", "loss", "tie") for word in result):
        raise Unfit(f'a list of {len(first)} words, each "win", "loss" or "tie"')
    return list(result)


def interval(result: Any, *_: Any) -> tuple[float, float]:
    """Two numbers, the lower first."""
    try:
        if len(result) != 2:
            raise TypeError
        low, high = (share(part) for part in result)
    except (TypeError, Unfit):
        raise Unfit("a pair of shares (low, high) from 0 to 1") from None
    return low, high


EXPECTED: dict[str, Callable[..., Any]] = {
    "aot_loss": loss,
    "approx_kl": scalar,
    "best_of_n": positions,
    "bootstrap_ci": interval,
    "bradley_terry_loss": loss,
    "combine_orders": verdicts,
    "dpo_loss": loss,
    "dr_grpo_loss": loss,
    "gae": advantages_and_returns,
    "group_advantages": like_first,
    "grpo_loss": loss,
    "gspo_loss": loss,
    "ipo_loss": loss,
    "kl_shaped_rewards": like_second,
    "last_token_index": positions,
    "length_controlled_win_rate": share,
    "pair_accuracy": share,
    "perplexity": number,
    "ppo_policy_loss": loss,
    "ppo_value_loss": loss,
    "response_mask": token_mask,
    "sft_loss": loss,
    "whiten": like_first,
    "win_rate": share,
}


# ---------------------------------------------------------------------- words
def described(value: Any) -> str:
    """A value's kind, and its shape or content where that is short."""
    if isinstance(value, torch.Tensor):
        cut_off = "" if value.requires_grad else ", without gradient"
        return f"a {str(value.dtype).removeprefix('torch.')} tensor of shape {tuple(value.shape)}{cut_off}"
    if value is None or value is ...:
        return str(value)
    text = safely(repr, value)
    kind = type(value).__name__
    name = f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
    return f"{name} ({text})" if len(text) <= 40 and isinstance(value, (int, float, str)) else name


def safely(spell: Callable[[Any], str], value: Any) -> str:
    """`repr` or `str` of a value whose own method may raise; then nothing."""
    try:
        return spell(value)
    except Exception:
        return ""


def words_of(problem: BaseException) -> str:
    """The first line of an exception's message."""
    return safely(str, problem).strip().split("\n")[0]


def problem_in(function: Callable[..., Any], problem: BaseException) -> str:
    """The exception, and the line of the learner's file that it comes from."""
    words = f"{type(problem).__name__}: {words_of(problem)}".strip().removesuffix(":")[:300]
    file = code_file(function)
    lines = [frame.lineno for frame in traceback.extract_tb(problem.__traceback__) if frame.filename == file]
    return words + (f" ({file} line {lines[-1]})" if lines else defined_at(function))


def code_file(function: Callable[..., Any]) -> str | None:
    """The file a function was written in; None for what was not written in Python."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code.co_filename if code is not None else None


def defined_at(function: Callable[..., Any]) -> str:
    """ "(file line n)" behind a space, or nothing where it is not known."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f" ({code.co_filename} line {code.co_firstlineno})" if code is not None else ""


def argument_name(function: Callable[..., Any], place: int) -> str:
    """What the learner called an argument."""
    try:
        return list(inspect.signature(function).parameters)[place]
    except (IndexError, TypeError, ValueError):
        return f"number {place + 1}"


def version_of(value: Any) -> int | None:
    """How often a tensor was written to; None for what has no count."""
    if isinstance(value, torch.Tensor) and not value.is_inference():
        return value._version
    if isinstance(value, list):
        return hash(tuple(map(repr, value)))
    return None


# ---------------------------------------------------------------------- what a function does
def code_fingerprint(function: Any, seen: frozenset[str] = frozenset()) -> str:
    """Hash a function's code with the functions and constants of its own file that it uses."""
    code = getattr(function, "__code__", None)
    if code is None:
        return fingerprint(repr(type(function)))
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        text = ast.dump(without_docstrings(tree))
    except (OSError, TypeError, SyntaxError):  # defined where no source is kept
        text = f"{code.co_code.hex()} {code.co_consts!r}"
    parts = [text]
    for name in sorted(set(code.co_names) - seen):
        value = function.__globals__.get(name)
        if isinstance(value, (bool, int, float, str, tuple)):
            parts.append(f"{name}={value!r}")
        elif code_file(value) == code.co_filename if callable(value) else False:
            parts.append(code_fingerprint(value, seen | {name, function.__name__}))
    return fingerprint(*parts)


def without_docstrings(tree: ast.Module) -> ast.Module:
    """Drop what is there to be read by people alone."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list) or not body or not isinstance(body[0], ast.Expr):
            continue
        text = body[0].value
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            del body[0]
    return tree
