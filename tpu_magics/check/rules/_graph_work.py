"""Tests that decide which operations run, and so change XLA's graph."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.nodes import nodes_of
from tpu_magics.check.rules import _values
from tpu_magics.check.values import MODEL, OPTIMIZER, TENSOR

if TYPE_CHECKING:
    from tpu_magics.check.rule_context import RuleContext

# Calls of these libraries that compute nothing.
_NO_WORK = frozenset(
    ("torch.save", "torch.load", "torch.no_grad", "torch.enable_grad", "torch.inference_mode", "torch.is_tensor",
     "torch_xla.core.xla_model.save", "torch_xla.core.xla_model.master_print",
     "torch_xla.core.xla_model.is_master_ordinal", "torch_xla.core.xla_model.add_step_closure")
)  # fmt: skip
_LIBRARIES = ("torch.", "torch_xla.", "tensorflow.", "keras.ops.")
_WORK_METHODS = frozenset(("backward", "zero_grad", "optimizer_step", "mark_step"))
_READS = frozenset(("item", "tolist", "numpy", "cpu", "to"))


def decides_tensor_work(node: ast.AST, ctx: RuleContext) -> bool:
    """Whether a test changes XLA's graph, and not only what is saved or shown."""
    if isinstance(node, ast.IfExp):
        return any(_is_work(one, ctx) for side in (node.body, node.orelse) for one in nodes_of(side))
    if isinstance(node, (ast.If, ast.While)):
        return any(_is_work(one, ctx) for one in _walk((*node.body, *node.orelse)))
    return False


def _walk(block: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    for statement in block:
        yield from nodes_of(statement)


def _is_work(node: ast.AST, ctx: RuleContext) -> bool:
    if isinstance(node, ast.Call):
        return _is_work_call(node, ctx)
    if isinstance(node, (ast.BinOp, ast.UnaryOp)):
        return ctx.value(node).kind == TENSOR
    if isinstance(node, ast.AugAssign):
        return ctx.value(node.target).kind == TENSOR
    if isinstance(node, ast.Return):
        return not ctx.loops and node.value is not None and _values.holds_readable(ctx.value(node.value), ctx)
    return isinstance(node, ast.Continue)


def _is_work_call(node: ast.Call, ctx: RuleContext) -> bool:
    name = ctx.name(node)
    if name:
        return name.startswith(_LIBRARIES) and name not in _NO_WORK
    if ctx.value(node.func).kind == MODEL:
        return True
    receiver, method = ctx.method(node)
    if method in _WORK_METHODS or (method == "step" and receiver.kind == OPTIMIZER):
        return True
    return receiver.kind == TENSOR and method not in _READS and ctx.value(node).kind == TENSOR
