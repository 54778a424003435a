"""Shared by the rules of the group `values`: which values XLA computes, and how often code runs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.evaluate import EVERY_N
from tpu_magics.check.nodes import nodes_of
from tpu_magics.check.rules import _spelling
from tpu_magics.check.values import (
    ACCELERATOR,
    ARGUMENTS,
    BATCH,
    FUNCTION,
    LIST,
    LOADER,
    OPTIMIZER,
    OUTPUT,
    TENSOR,
    TOKENIZER,
    TRAINER,
    AbstractValue,
)

if TYPE_CHECKING:
    from tpu_magics.check.program import CallSite, Function
    from tpu_magics.check.rule_context import RuleContext

STRUCTURES = (OUTPUT, BATCH)
# Values that the main body of a program creates, and a helper only receives.
_OF_PROGRAMS = frozenset((ACCELERATOR, ARGUMENTS, LOADER, OPTIMIZER, TOKENIZER, TRAINER))
_TIME_TO_LOG = re.compile(
    r"^(should|do|will|must|time_to|is_time_to)_(log|print|report|record|eval|save)|^log_(now|this)"
)
_SYNCS = frozenset(("torch_xla.sync", "torch_xla.core.xla_model.mark_step", "torch_xla.core.xla_model.wait_device_ops"))
_EXITS = frozenset(("sys.exit", "os._exit", "builtins.exit", "builtins.quit"))


def is_computed(value: AbstractValue, ctx: RuleContext) -> bool:
    """Whether it is certainly a tensor, and XLA computes its value here."""
    return value.kind == TENSOR and _here(value, ctx)


def is_readable(value: AbstractValue, ctx: RuleContext) -> bool:
    """The same, and also the results of models and loaders: for operations that only tensors have."""
    return (value.kind == TENSOR or value.kind in STRUCTURES) and _here(value, ctx)


def holds_readable(value: AbstractValue, ctx: RuleContext, deep: int = 3) -> bool:
    """Whether it contains such tensors: showing it reads them."""
    if value.kind != LIST:
        return is_readable(value, ctx)
    inside = (*(value.items or ()), *((value.item,) if value.item is not None else ()))
    return deep > 0 and any(holds_readable(one, ctx, deep - 1) for one in inside)


def _here(value: AbstractValue, ctx: RuleContext) -> bool:
    if value.where == "host" or value.shape:
        return False
    return is_compiled_tf(ctx) if value.lib == "tf" else ctx.on_device


def is_eager_result(value: AbstractValue, ctx: RuleContext) -> bool:
    """Whether it is a TensorFlow tensor that eager code gets from compiled code: `loss = train_step(x)`."""
    eager = value.lib == "tf" and value.kind == TENSOR and value.where != "host" and not ctx.compiled_tf
    return eager and _has_compiled(ctx)


def _has_compiled(ctx: RuleContext) -> bool:
    """Whether TensorFlow code of this program is compiled by XLA."""
    memo = ctx.program.memo
    if "has compiled" not in memo:
        memo["has compiled"] = ctx.program.tpu_tf or any(one.compiled for one in ctx.program.functions)
    return bool(memo["has compiled"])


def is_compiled_tf(ctx: RuleContext) -> bool:
    return ctx.program.uses("tensorflow") and ctx.compiled_tf


def runs_each_step(ctx: RuleContext) -> bool:
    """Whether code here runs in each step, not only every N steps."""
    return ctx.in_step and not ctx.every_n


def may_run_each_step(ctx: RuleContext) -> bool:
    """The same, and also code that may run in a step: functions that are not called here, or called from such code.
    Code before, between and after the steps runs rarely."""
    if ctx.every_n:
        return False
    return ctx.in_step or (ctx.function is not None and _may_be_in_step(ctx.function))


def _may_be_in_step(function: Function) -> bool:
    memo = function.ctx.program.memo
    key = ("no program", id(function))
    if key not in memo:
        memo[key] = False  # for recursive functions
        memo[key] = not _is_program(function) and _has_step_callers(function)
    return bool(memo[key])


def _has_step_callers(function: Function) -> bool:
    return not function.callers or any(may_run_each_step(call.ctx) or call.ctx.top_level for call in function.callers)


def _is_program(function: Function) -> bool:
    """Whether it contains steps, or creates models, loaders or optimizers."""
    if function.has_step:
        return True
    return any(call.value.kind in _OF_PROGRAMS or _makes_steps(call) for call in function.calls)


def _makes_steps(call: CallSite) -> bool:
    value = call.ctx.value(call.node.func)
    return value.kind == FUNCTION and value.ref is not None and bool(value.ref.has_step)


def is_periodic(test: ast.expr, ctx: RuleContext) -> bool:
    """Whether a test holds only in some steps: `step % 100 == 0`."""
    return ctx.value(test).name == EVERY_N


def guarded(node: ast.AST, ctx: RuleContext) -> bool:
    """Whether such a test comes before this in the same expression: `step % 100 == 0 and loss.item() > 3`."""
    for parent, child in expression_parents(node, ctx):
        if isinstance(parent, ast.BoolOp) and isinstance(parent.op, ast.And):
            before = parent.values[: next(i for i, value in enumerate(parent.values) if value is child)]
            if any(is_periodic(value, ctx) for value in before):
                return True
        if isinstance(parent, ast.IfExp) and child is parent.body and is_periodic(parent.test, ctx):
            return True
    return False


def expression_parents(node: ast.AST, ctx: RuleContext) -> Iterator[tuple[ast.AST, ast.AST]]:
    """(parent, child) from a node up to its statement, the statement included."""
    child = node
    for parent in ctx.parents(node):
        yield parent, child
        if isinstance(parent, (ast.stmt, ast.match_case, ast.ExceptHandler)):
            return
        child = parent


def runs_rarely(node: ast.AST, ctx: RuleContext) -> bool:
    """Whether this runs rarely.

    Code in a `raise`, an `except`, an assertion's message, a block that leaves the loop, and under a flag for logging.
    """
    child = node
    for parent in ctx.parents(node):
        of_assert = isinstance(parent, ast.Assert) and child is parent.msg
        if of_assert or isinstance(parent, (ast.Raise, ast.ExceptHandler)):
            return True
        if isinstance(parent, ast.If) and child is not parent.test and _is_rare_branch(parent, child, ctx):
            return True
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.For, ast.While)):
            return False
        child = parent
    return False


def _is_rare_branch(parent: ast.If, child: ast.AST, ctx: RuleContext) -> bool:
    block = parent.body if any(one is child for one in parent.body) else parent.orelse
    flags = (getattr(one, "attr", getattr(one, "id", "")) for one in nodes_of(parent.test))
    if block is parent.body and _tests_for_cpu(parent.test):
        return True
    return _leaves(block, ctx) or (block is parent.body and any(_TIME_TO_LOG.search(flag) for flag in flags))


def _tests_for_cpu(test: ast.expr) -> bool:
    """`if device.type == "cpu":`, where a read is free."""
    if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Eq):
        return False
    return any(isinstance(one, ast.Constant) and one.value == "cpu" for one in (test.left, *test.comparators))


def _leaves(block: list[ast.stmt], ctx: RuleContext) -> bool:
    last = block[-1] if block else None
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return ctx.name(last.value) in _EXITS
    return isinstance(last, (ast.Raise, ast.Break))


def after_sync(node: ast.AST, ctx: RuleContext) -> bool:
    """Whether a statement before this in the loop's body has already synced."""
    if not ctx.loops:
        return False
    body = ctx.loops[-1].node.body
    holders = {id(one) for one in (node, *ctx.parents(node))}
    before = body[: next((number for number, one in enumerate(body) if id(one) in holders), 0)]
    calls = (one.value for one in before if isinstance(one, ast.Expr) and isinstance(one.value, ast.Call))
    return any(_cuts(call, ctx) for call in calls)


def _cuts(call: ast.Call, ctx: RuleContext) -> bool:
    name = ctx.name(call)
    stepped = (
        name == "torch_xla.core.xla_model.optimizer_step" and ctx.constant(ctx.argument(call, "barrier", 1)) is True
    )
    return stepped or name in _SYNCS


def short_source(node: ast.AST, ctx: RuleContext, most: int = 60) -> str:
    """The code of an expression on one line, shortened."""
    return _spelling.shortened(ctx.source(node), most)


def full_source(node: ast.AST, ctx: RuleContext, most: int = 50) -> str:
    """The whole code of an expression; "" if it is long."""
    text = short_source(node, ctx, 10_000)
    return text if len(text) <= most else ""


def imported_name(root: str, ctx: RuleContext) -> str:
    """The name of a package in this program: `import tensorflow as tf` -> "tf"; "" if it is not imported."""
    key = ("spelled", root)
    memo = ctx.program.memo
    if key not in memo:
        trees = [cell.tree for cell in ctx.program.cells if cell.tree is not None]
        names = (alias for tree in trees for one in tree.body if isinstance(one, ast.Import) for alias in one.names)
        memo[key] = next((alias.asname or alias.name for alias in names if alias.name == root), "")
    return str(memo[key])
