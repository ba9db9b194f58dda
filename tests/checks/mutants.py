"""Small wrong changes to a function, made on its syntax tree, one at a time."""

from __future__ import annotations

import ast
import copy
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

OPERATORS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.GtE: ast.Gt,
    ast.Gt: ast.GtE,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
}
EXCHANGED = {"sum": "mean", "mean": "sum", "minimum": "maximum", "maximum": "minimum"}
EXCHANGED |= {"min": "max", "max": "min", "argmax": "argmin", "exp": "expm1", "expm1": "exp"}
OTHER_WORDS = {
    "A": "B",
    "B": "A",
    "win": "loss",
    "loss": "tie",
    "tie": "win",
    0.5: 0.25,
    2.5: 5.0,
    97.5: 95.0,
}
DROPPED = (
    "clamp",
    "masked_fill",
    "exp",
    "detach",
    "abs",
    "square",
    "all",
)  # method(…) → what it is called on


def mutants(
    function: Callable[..., Any], detach: tuple[str, ...]
) -> Iterator[tuple[str, Callable[..., Any]]]:
    """(what was changed, the changed function); `detach` names the inputs whose gradient may be cut off."""
    source = textwrap.dedent(inspect.getsource(function))
    tree = ast.parse(source)
    del tree.body[0].body[0]  # type: ignore[attr-defined]  # the docstring
    for place, node in enumerate(ast.walk(tree)):
        for new in changes(node, detach):
            changed = copy.deepcopy(tree)
            old = list(ast.walk(changed))[place]
            Replace(old, new).visit(changed)
            yield f"{ast.unparse(node)} -> {ast.unparse(new)}", compiled(changed, function)


class Replace(ast.NodeTransformer):
    """Put `new` where `old` stood."""

    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self.new if node is self.old else self.generic_visit(node)


def changes(node: ast.AST, detach: tuple[str, ...]) -> Iterator[ast.AST]:
    """What a node may be replaced by."""
    if isinstance(node, (ast.BinOp, ast.Compare)):
        yield from of_operator(node)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield node.operand
    elif isinstance(node, ast.Slice):
        yield from of_slice(node)
    elif isinstance(node, ast.Constant) and node.value in OTHER_WORDS:
        yield ast.Constant(OTHER_WORDS[node.value])
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield from of_call(node, node.func)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in detach:
        yield ast.Call(ast.Attribute(node, "detach", ast.Load()), [], [])


def of_operator(node: ast.BinOp | ast.Compare) -> Iterator[ast.AST]:
    """Another sign, another comparison, or one side of `&` alone."""
    if isinstance(node, ast.Compare):
        if type(node.ops[0]) in OPERATORS:
            ops = [OPERATORS[type(node.ops[0])](), *node.ops[1:]]
            yield ast.Compare(node.left, ops, node.comparators)  # type: ignore[arg-type]
    elif type(node.op) in OPERATORS:
        yield ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)  # type: ignore[arg-type]
    elif isinstance(node.op, ast.BitAnd):
        yield from (node.left, node.right)


def of_slice(node: ast.Slice) -> Iterator[ast.AST]:
    """A bound moved by one, either way."""
    for name in ("lower", "upper"):
        bound = getattr(node, name)
        if bound is not None:
            for step in (ast.Add(), ast.Sub()):
                yield ast.Slice(**{**vars_of(node), name: ast.BinOp(bound, step, ast.Constant(1))})


def vars_of(node: ast.Slice) -> dict[str, Any]:
    """The three parts of a slice."""
    return {"lower": node.lower, "upper": node.upper, "step": node.step}


def of_call(node: ast.Call, called: ast.Attribute) -> Iterator[ast.AST]:
    """sum for mean, minimum for maximum, a mask that is dropped, arguments exchanged."""
    if called.attr in EXCHANGED:
        yield ast.Call(
            ast.Attribute(called.value, EXCHANGED[called.attr], ast.Load()), node.args, node.keywords
        )
    if called.attr in DROPPED and not (
        isinstance(called.value, ast.Name) and called.value.id in ("torch", "F")
    ):
        yield called.value
    if called.attr == "where":
        yield node.args[1]
        yield ast.Call(node.func, [node.args[0], node.args[2], node.args[1]], [])


def compiled(tree: ast.Module, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of a changed tree, among the globals of the original."""
    namespace = dict(vars(sys.modules[function.__module__]))
    exec(compile(ast.fix_missing_locations(tree), "mutant.py", "exec"), namespace)
    return namespace[function.__name__]


def exchanged(function: Callable[..., Any], tensors: list[str]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The function with two of its arguments exchanged."""
    names = list(inspect.signature(function).parameters)
    for i, first in enumerate(tensors):
        for second in tensors[i + 1 :]:
            a, b = names.index(first), names.index(second)

            def swapped(*given: Any, a: int = a, b: int = b, **named: Any) -> Any:
                order = list(given)
                order[a], order[b] = order[b], order[a]
                return function(*order, **named)

            swapped.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
            yield f"{first} <-> {second}", swapped
