"""Which sizes are decided by data.

What lives here: whether a bound or a size comes out of a tensor's values for certain. What does not: where sizes stand
in calls (tpu204_slice_by_value.py).

That a value may be a tensor is not enough here: a model's layers hand on heights and widths beside their tensors, and
nobody gives a tensor as a size without having computed it. So a size has to be followed to what computed it.
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
    from tpu_magics.check.rule_context import Place
    from tpu_magics.check.values import Value

_DEEPEST = 6  # names followed from one to the next
# Methods of tensors by which people come to a size.
_COMPUTES = frozenset(
    ("max", "min", "amax", "amin", "sum", "mean", "prod", "cumsum", "argmax", "argmin", "count_nonzero", "median",
     "long", "int", "round", "ceil", "floor", "clamp", "squeeze", "unsqueeze", "flatten", "view", "reshape", "to",
     "detach", "add", "sub", "mul", "div", "abs", "any", "all", "float")
)  # fmt: skip

Definition = tuple[ast.expr, bool]  # what a name is given, and whether it is given an item of that


def sizes_of_data(nodes: list[ast.expr], at: Place) -> Iterator[ast.expr]:
    """Those of these sizes (tuples and lists looked into) that data decides."""
    for node in nodes:
        if isinstance(node, (ast.Tuple, ast.List)):
            yield from sizes_of_data(node.elts, at)
        elif is_of_data(node.value if isinstance(node, ast.Starred) else node, at):
            yield node


def is_of_data(node: ast.expr, at: Place) -> bool:
    """Whether a size is a number read out of a tensor, or a tensor that was computed."""
    value = at.value(node)
    if value.kind in (NUMBER, LIST):
        return value.read or _is_list_of_data(value)
    if value.shape:  # tf.shape(x)[0]
        return False
    return value.kind in (TENSOR, OUTPUT) and is_array(value) and _is_computed(node, at, _DEEPEST)


def _is_list_of_data(value: Value) -> bool:
    items = value.items or (() if value.item is None else (value.item,))
    return value.kind == LIST and any(one.read for one in items)


def _is_computed(node: ast.expr, at: Place, deeper: int) -> bool:
    if deeper == 0:
        return False
    if isinstance(node, ast.BinOp):
        return _is_computed(node.left, at, deeper) or _is_computed(node.right, at, deeper)
    if isinstance(node, ast.UnaryOp):
        return _is_computed(node.operand, at, deeper)
    if isinstance(node, ast.Call):
        return _computes(node, at)
    if isinstance(node, ast.Subscript):
        return _is_item_of_data(node.value, at, deeper)
    if isinstance(node, ast.Name) and _is_said_to_be_tensor(node.id, at):
        return True
    if isinstance(node, ast.Name):
        return any(
            _is_item_of_data(given, at, deeper - 1) if item else _is_computed(given, at, deeper - 1)
            for given, item in _definitions(at).get(node.id, ())
        )
    return False


def _is_said_to_be_tensor(name: str, at: Place) -> bool:
    """A parameter annotated as a tensor and nothing else."""
    parameters = at.function.parameters if at.function is not None else ()
    given = next((one.annotation for one in parameters if one.arg == name), None)
    return given is not None and re.search(r"(^|\.)\w*Tensor'?$", ast.unparse(given)) is not None


def _computes(node: ast.Call, at: Place) -> bool:
    """A function of torch or TensorFlow, a reduction of a tensor, or a function of the program that returns one."""
    if at.value(node).kind != TENSOR:
        return False
    if at.name(node).startswith(("torch.", "tensorflow.")):
        return True
    receiver, method = at.method(node)
    return at.value(node.func).kind == FUNCTION or (method in _COMPUTES and is_array(receiver))


def _is_item_of_data(node: ast.expr, at: Place, deeper: int) -> bool:
    """`lengths[i]`, and what a loop over `lengths` gives: items of a tensor or of a batch, not of a model's output."""
    value = at.value(node)
    if isinstance(node, ast.Call) and at.name(node) in ("builtins.enumerate", "builtins.zip"):
        return any(_is_item_of_data(one, at, deeper) for one in node.args)
    if not is_array(value):
        return False
    return value.kind in (TENSOR, BATCH) or _is_computed(node, at, deeper)


def _definitions(at: Place) -> dict[str, list[Definition]]:
    """What each name of this function is given, looked up once."""
    function = at.function
    key = ("definitions", id(function) if function is not None else at.cell_index)
    if key not in at.program.memo:
        top = function.node if function is not None else at.cell.tree
        found: dict[str, list[Definition]] = {}
        for node in () if top is None else nodes_of(top):
            for name, given in _given(node):
                found.setdefault(name, []).append(given)
        at.program.memo[key] = found
    known: dict[str, list[Definition]] = at.program.memo[key]
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
