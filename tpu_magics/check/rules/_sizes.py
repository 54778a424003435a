"""Sizes that depend on data.

A value that may be a tensor is not enough: layers pass heights and widths next to their tensors. So a size is traced
back to the code that computed it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.nodes import nodes_of
from tpu_magics.check.rules._shapes import is_array
from tpu_magics.check.values import BATCH, FUNCTION, LIST, NUMBER, OUTPUT, TENSOR

if TYPE_CHECKING:
    from tpu_magics.check.rule_context import RuleContext
    from tpu_magics.check.values import AbstractValue

_DEEPEST = 6  # names followed from one to the next
# Methods of tensors that compute a size.
_COMPUTES = frozenset(
    ("max", "min", "amax", "amin", "sum", "mean", "prod", "cumsum", "argmax", "argmin", "count_nonzero", "median",
     "long", "int", "round", "ceil", "floor", "clamp", "squeeze", "unsqueeze", "flatten", "view", "reshape", "to",
     "detach", "add", "sub", "mul", "div", "abs", "any", "all", "float")
)  # fmt: skip

Definition = tuple[ast.expr, bool]  # the assigned value, and whether the name gets an item of it


def sizes_of_data(nodes: list[ast.expr], ctx: RuleContext) -> Iterator[ast.expr]:
    """The sizes (also inside tuples and lists) that depend on data."""
    for node in nodes:
        if isinstance(node, (ast.Tuple, ast.List)):
            yield from sizes_of_data(node.elts, ctx)
        elif is_of_data(node.value if isinstance(node, ast.Starred) else node, ctx):
            yield node


def is_of_data(node: ast.expr, ctx: RuleContext) -> bool:
    """Whether a size is a number read from a tensor, or a tensor that was computed."""
    value = ctx.value(node)
    if value.kind in (NUMBER, LIST):
        return value.read or _is_list_of_data(value)
    if value.shape:  # tf.shape(x)[0]
        return False
    return value.kind in (TENSOR, OUTPUT) and is_array(value) and _is_computed(node, ctx, _DEEPEST)


def _is_list_of_data(value: AbstractValue) -> bool:
    items = value.items or (() if value.item is None else (value.item,))
    return value.kind == LIST and any(one.read for one in items)


def _is_computed(node: ast.expr, ctx: RuleContext, deeper: int) -> bool:
    if deeper == 0:
        return False
    if isinstance(node, ast.BinOp):
        return _is_computed(node.left, ctx, deeper) or _is_computed(node.right, ctx, deeper)
    if isinstance(node, ast.UnaryOp):
        return _is_computed(node.operand, ctx, deeper)
    if isinstance(node, ast.Call):
        return _computes(node, ctx)
    if isinstance(node, ast.Subscript):
        return _is_item_of_data(node.value, ctx, deeper)
    if isinstance(node, ast.Name) and _is_annotated_as_tensor(node.id, ctx):
        return True
    if isinstance(node, ast.Name):
        return any(
            _is_item_of_data(given, ctx, deeper - 1) if item else _is_computed(given, ctx, deeper - 1)
            for given, item in _definitions(ctx).get(node.id, ())
        )
    return False


def _is_annotated_as_tensor(name: str, ctx: RuleContext) -> bool:
    """A parameter annotated as a tensor and nothing else."""
    parameters = ctx.function.parameters if ctx.function is not None else ()
    given = next((one.annotation for one in parameters if one.arg == name), None)
    return given is not None and re.search(r"(^|\.)\w*Tensor'?$", ast.unparse(given)) is not None


def _computes(node: ast.Call, ctx: RuleContext) -> bool:
    """A function of torch or TensorFlow, a reduction of a tensor, or a function of the program that returns one."""
    if ctx.value(node).kind != TENSOR:
        return False
    if ctx.name(node).startswith(("torch.", "tensorflow.")):
        return True
    receiver, method = ctx.method(node)
    return ctx.value(node.func).kind == FUNCTION or (method in _COMPUTES and is_array(receiver))


def _is_item_of_data(node: ast.expr, ctx: RuleContext, deeper: int) -> bool:
    """`lengths[i]`, and what a loop over `lengths` gives: items of a tensor or of a batch, not of a model's output."""
    value = ctx.value(node)
    if isinstance(node, ast.Call) and ctx.name(node) in ("builtins.enumerate", "builtins.zip"):
        return any(_is_item_of_data(one, ctx, deeper) for one in node.args)
    if not is_array(value):
        return False
    return value.kind in (TENSOR, BATCH) or _is_computed(node, ctx, deeper)


def _definitions(ctx: RuleContext) -> dict[str, list[Definition]]:
    """The definitions of each name of this function, cached."""
    function = ctx.function
    key = ("definitions", id(function) if function is not None else ctx.cell_index)
    if key not in ctx.program.memo:
        top = function.node if function is not None else ctx.cell.tree
        found: dict[str, list[Definition]] = {}
        for node in () if top is None else nodes_of(top):
            for name, given in _given(node):
                found.setdefault(name, []).append(given)
        ctx.program.memo[key] = found
    known: dict[str, list[Definition]] = ctx.program.memo[key]
    return known


def _given(node: ast.AST) -> Iterator[tuple[str, Definition]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _bound(target, node.value, False)
    elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.NamedExpr)) and node.value is not None:
        yield from _bound(node.target, node.value, False)
    elif isinstance(node, (ast.For, ast.comprehension)):
        yield from _bound(node.target, node.iter, True)


def _bound(target: ast.expr, value: ast.expr, item: bool) -> Iterator[tuple[str, Definition]]:
    if isinstance(target, ast.Name):
        yield target.id, (value, item)
    elif isinstance(target, (ast.Tuple, ast.List)):
        parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts) else None
        for index, one in enumerate(target.elts):
            yield from _bound(one, parts[index], item) if parts is not None else _bound(one, value, True)
