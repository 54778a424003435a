"""Hand-written collate functions: how they find the length that a batch is padded to."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.nodes import nodes_of
from tpu_magics.check.rules._origins import origin

if TYPE_CHECKING:
    from tpu_magics.check.program import Function
    from tpu_magics.check.rule_context import RuleContext

PADS = frozenset(
    ("torch.nn.utils.rnn.pad_sequence", "keras.preprocessing.sequence.pad_sequences", "keras.utils.pad_sequences")
)
_COLLATES = re.compile(r"collat", re.IGNORECASE)
_FIXES_LENGTH = frozenset(("pad", "ConstantPad1d", "ceil", "bisect", "bisect_left", "bisect_right", "next"))
_CREATES = frozenset(("zeros", "ones", "full", "empty"))
_TAKES_LENGTHS = _CREATES | {"new_full", "new_zeros", "new_ones", "pad", "range", "ljust"}
_LENGTHS = frozenset(("size", "numel", "__len__"))


def is_collate(ctx: RuleContext) -> bool:
    """Whether this code is in a collate function: by its name, or by the name of its class."""
    function = ctx.function
    while function is not None:
        if _COLLATES.search(function.name) or (function.cls is not None and _COLLATES.search(function.cls.name)):
            return True
        if id(function) in _given_as_collate(ctx):
            return True
        function = function.outer
    return False


def _given_as_collate(ctx: RuleContext) -> set[int]:
    """The ids of functions that are given as `collate_fn=` or `data_collator=`."""
    memo = ctx.program.memo
    if "collates" not in memo:
        memo["collates"] = {
            id(function)
            for call in ctx.program.all_calls
            for keyword in call.node.keywords
            if keyword.arg in ("collate_fn", "data_collator")
            for function in _functions(call.ctx, keyword.value)
        }
    found: set[int] = memo["collates"]
    return found


def _functions(ctx: RuleContext, node: ast.expr) -> Iterator[Function]:
    from tpu_magics.check.program import Class, Function

    ref = ctx.value(node).ref
    if isinstance(ref, Function):
        yield ref
    elif isinstance(ref, Class) and (method := ref.method("__call__")) is not None:
        yield method


def pads_to_longest(node: ast.Call, ctx: RuleContext) -> bool:
    """Whether a call of `pad_sequence` leaves the length open, and nothing in the function fixes the length."""
    if ctx.name(node).startswith("keras"):
        given = ctx.argument(node, "maxlen", 1)
        return not ctx.has_unknown_arguments(node) and (given is None or ctx.constant(given) is None)
    if node.args and _has_full_length_row(node.args[0]):
        return False
    return not any(_last(one) in _FIXES_LENGTH for one in _calls_of(ctx) if one is not node)


def _has_full_length_row(rows: ast.expr) -> bool:
    """`pad_sequence([torch.zeros(LENGTH), *rows])`: one row of the target length."""
    return any(isinstance(one, ast.Call) and _last(one) in _CREATES for one in nodes_of(rows))


def _calls_of(ctx: RuleContext) -> Iterator[ast.Call]:
    if ctx.function is not None:
        for call in ctx.function.calls:
            yield call.node


def _last(node: ast.Call) -> str:
    func = node.func
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


# -- max(len(row) for row in batch) -----------------------------------------------------------------------------------


def is_longest(node: ast.Call, ctx: RuleContext) -> bool:
    """Whether `max(...)` is the length of the longest row of a batch, and rows are padded to just that."""
    if len(node.args) != 1 or not is_collate(ctx) or not _is_of_lengths(node.args[0], ctx):
        return False
    outer = ctx.parent(node)
    if isinstance(outer, ast.Call) and ctx.name(outer) == "builtins.min":
        outer = ctx.parent(outer)
    if isinstance(outer, ast.Assign) and len(outer.targets) == 1 and isinstance(outer.targets[0], ast.Name):
        return _pads_plainly(ctx, outer.targets[0].id)
    return isinstance(outer, ast.BinOp) and isinstance(outer.op, ast.Sub)


def _is_of_lengths(node: ast.expr, ctx: RuleContext) -> bool:
    node, _ = origin(ctx, node)
    if isinstance(node, (ast.GeneratorExp, ast.ListComp)):
        return _is_length(node.elt)
    if isinstance(node, ast.Call) and ctx.name(node) == "builtins.map":
        return bool(node.args) and ctx.name(node.args[0]) == "builtins.len"
    return False


def _is_length(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        return _last(node) == "len" or _last(node) in _LENGTHS
    return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "shape"


def _pads_plainly(ctx: RuleContext, name: str) -> bool:
    """Whether rows are padded to the exact length: no use of the name rounds it or looks it up in buckets."""
    assert ctx.function is not None
    uses = [one for one in nodes_of(ctx.function.node) if isinstance(one, ast.Name) and one.id == name]
    if sum(isinstance(one.ctx, ast.Store) for one in uses) != 1:
        return False
    loads = [one for one in uses if isinstance(one.ctx, ast.Load)]
    return any(_is_padding(ctx, one) for one in loads) and not any(_is_rounded(ctx, one) for one in loads)


def _is_padding(ctx: RuleContext, use: ast.Name) -> bool:
    """`[0] * (longest - len(row))`, `torch.zeros(n, longest)`, `F.pad(row, (0, longest - len(row)))`."""
    for outer in ctx.parents(use):
        if isinstance(outer, ast.BinOp) and isinstance(outer.op, ast.Sub):
            return True
        if isinstance(outer, ast.Call):
            return _last(outer) in _TAKES_LENGTHS
        if isinstance(outer, ast.stmt):
            return False
    return False


def _is_rounded(ctx: RuleContext, use: ast.Name) -> bool:
    """`longest // 64`, `longest <= bucket`, `round_up(longest)`."""
    node: ast.AST = use
    for outer in ctx.parents(use):
        if isinstance(outer, ast.BinOp):
            if isinstance(outer.op, (ast.FloorDiv, ast.Mod, ast.Div)):
                return True
            if isinstance(outer.left, ast.List) or isinstance(outer.right, ast.List):
                return False  # `[0] * (longest - len(row))`
        elif isinstance(outer, ast.Call):
            return node is not outer.func and _last(outer) not in _TAKES_LENGTHS
        elif not isinstance(outer, (ast.Tuple, ast.UnaryOp, ast.keyword)):
            return isinstance(outer, ast.Compare)
        node = outer
    return False
