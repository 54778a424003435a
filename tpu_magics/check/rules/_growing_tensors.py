"""Tensors that grow from step to step: `x = torch.cat([x, new])` (TPU304)."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tpu_magics.check.nodes import nodes_of
from tpu_magics.check.rules._origins import own_nodes
from tpu_magics.check.rules._step_loops import step_loop

if TYPE_CHECKING:
    from tpu_magics.check.rule_context import Loop, RuleContext

JOINS = frozenset(("cat", "concat", "concatenate", "hstack", "vstack", "dstack"))


def grown_tensor(node: ast.Assign, ctx: RuleContext) -> str:
    """The name of `x = torch.cat([x, new])` in a step, or in a loop that calls a model with it; else ""."""
    target, value = node.targets[0], node.value
    if not isinstance(value, ast.Call) or not isinstance(target, (ast.Name, ast.Attribute)) or not value.args:
        return ""
    name = ctx.name(value)
    if name.rpartition(".")[2] not in JOINS or not name.startswith("torch.") or ctx.value(value).where == "host":
        return ""
    written, parts = ctx.source(target), value.args[0]
    if not isinstance(parts, (ast.List, ast.Tuple)) or written not in [ctx.source(one) for one in parts.elts]:
        return ""
    if not ctx.on_device or ctx.every_n or not ctx.loops or _is_reassigned(written, node, ctx.loops[-1]):
        return ""
    if not (_in_decoding_loop(written, ctx) or _grows_in_step(ctx)):
        return ""
    return written


def _grows_in_step(ctx: RuleContext) -> bool:
    loop = step_loop(ctx)
    return loop is not None and ctx.loops[-1] is loop


def _is_reassigned(written: str, node: ast.Assign, loop: Loop) -> bool:
    """Whether each iteration of the loop starts with a new tensor of that name."""
    return _is_target(loop.node, written) or any(
        isinstance(one, ast.Assign)
        and one is not node
        and any(ast.unparse(target) == written for target in one.targets)
        for one in loop.node.body
    )


def _is_target(node: ast.AST, written: str) -> bool:
    target = getattr(node, "target", None)
    return target is not None and any(isinstance(one, ast.Name) and one.id == written for one in nodes_of(target))


def _in_decoding_loop(written: str, ctx: RuleContext) -> bool:
    """`logits = model(ids); ids = torch.cat([ids, next_id], dim=-1)`: the model gets the growing tensor."""
    return any(
        isinstance(one, ast.Call)
        and ctx.value(one.func).kind == "model"
        and any(ast.unparse(given) == written for given in (*one.args, *(keyword.value for keyword in one.keywords)))
        for one in own_nodes(ctx.loops[-1].node.body)
    )
