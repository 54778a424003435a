"""The loop whose iterations are separate graphs, as opposed to loops that are unrolled into one graph."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.rules._origins import SCOPES
from tpu_magics.check.values import LOADER, TFDATA

if TYPE_CHECKING:
    from tpu_magics.check.rule_context import Loop, RuleContext

# Calls that run the graph: the code after them is another graph.
_CUTS = frozenset(
    ("backward", "step", "optimizer_step", "mark_step", "sync", "item", "tolist", "train_on_batch", "apply_gradients")
)


def step_loop(ctx: RuleContext) -> Loop | None:
    """The innermost loop around this code whose iterations are separate graphs."""
    return next((one for one in reversed(ctx.loops) if one.is_step and _is_cut(ctx, one)), None)


def _is_cut(ctx: RuleContext, loop: Loop) -> bool:
    """A loop over a range that only calls a model is unrolled into one graph."""
    if loop.loader.kind in (LOADER, TFDATA) or loop.loader.ref is not None:
        return True
    key = ("cut", id(loop.node))
    if key not in ctx.program.memo:
        ctx.program.memo[key] = any(_cuts(ctx, node) for node in _outside_of_loops(loop.node.body))
    return bool(ctx.program.memo[key])


def _cuts(ctx: RuleContext, node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    func = node.func
    last = func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""
    return last in _CUTS or bool(getattr(ctx.value(func).ref, "steps", False))


def _outside_of_loops(body: list[ast.stmt]) -> Iterator[ast.AST]:
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (*SCOPES, ast.For, ast.AsyncFor, ast.While)):
            waiting.extend(ast.iter_child_nodes(node))
