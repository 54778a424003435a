"""Reads of a model's weights between the optimizer's step and the sync that runs it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.inference.values import MODEL
from tpu_magics.check.rules import _launches, _ranks
from tpu_magics.check.syntax import nodes_of

if TYPE_CHECKING:
    from tpu_magics.check.program import CallSite, CheckedProgram, Function
    from tpu_magics.check.rule_context import RuleContext


_WEIGHTS = frozenset(("parameters", "named_parameters", "buffers", "named_buffers", "state_dict"))
_READS = frozenset(("cpu", "item", "tolist", "numpy"))


def reads(program: CheckedProgram) -> Iterator[CallSite]:
    """The calls that read each weight of a model for itself, after a step of the same function that no sync has run."""
    functions: list[Function | None] = [*program.functions, None]
    for function in functions:
        calls = _ranks.top_calls(program) if function is None else function.calls
        steps = [call for call in calls if _is_step(call)]
        if steps:
            yield from (call for call in calls if _reads_weights(call) and _is_pending(call, steps, calls))


def _is_step(call: CallSite) -> bool:
    if call.name == _ranks.OPTIMIZER_STEP:
        return not _ranks.syncs(call)
    return call.method == "step" and call.receiver.kind == "optimizer" and call.receiver.lib != "tf"


def _is_pending(read: CallSite, steps: list[CallSite], calls: list[CallSite]) -> bool:
    """Whether a step before the read, in the same iteration, has certainly not been run."""
    before = [one for one in calls if _position(one) < _position(read)]
    return any(
        step.ctx.loops == read.ctx.loops[: len(step.ctx.loops)]
        and not _in_other_branch(step, read)
        and not any(_position(step) < _position(one) and _may_sync(one) for one in before)
        for step in steps
        if step in before and not _ranks.in_step_context(step)
    )


def _may_sync(call: CallSite) -> bool:
    if _ranks.syncs(call) or "sync" in call.name or "sync" in call.method or call.name == "builtins.next":
        return True
    target = _launches.targets(call.ctx.program).get(id(call.node))
    if target is None:
        return False
    inside = _launches.closure({target}, call.ctx.program)
    return any(_ranks.is_compiled(one, call.ctx.program) or any(map(_ranks.syncs, one.calls)) for one in inside)


def _in_other_branch(step: CallSite, read: CallSite) -> bool:
    """`if fused: optimizer.step() else: ...read...`"""
    around = {id(one): child for one, child in _ancestors(step)}
    for one, child in _ancestors(read):
        if id(one) in around and isinstance(one, (ast.If, ast.Try, ast.Match)):
            mine, other = around[id(one)], child
            body = one.body if isinstance(one, (ast.If, ast.Try)) else []
            return (mine in body) != (other in body)
    return False


def _ancestors(call: CallSite) -> Iterator[tuple[ast.AST, ast.AST]]:
    child: ast.AST = call.node
    for parent in call.ctx.parents(call.node):
        yield parent, child
        child = parent


def _position(call: CallSite) -> tuple[int, int, int]:
    return call.ctx.cell_index, call.node.lineno, call.node.col_offset


# -- the read ---------------------------------------------------------------------------------------------------------
def _reads_weights(call: CallSite) -> bool:
    if call.name == "torch.save":
        return any(_is_state(one, call.ctx) for given in call.node.args[:1] for one in nodes_of(given))
    if not (call.method in _READS or _moves_home(call) or (call.name == "builtins.float" and call.node.args)):
        return False
    read = call.node.args[0] if call.name == "builtins.float" else call.node.func
    inside = [one for one in nodes_of(read) if one is not call.node.func]
    if any(isinstance(one, ast.Attribute) and one.attr in _READS for one in inside):
        return False  # it is on the host already
    names = {one.id for one in inside if isinstance(one, ast.Name)}
    return bool(names) and any(names & over for over in _over_weights(call))


def _moves_home(call: CallSite) -> bool:
    return call.method == "to" and bool(call.node.args) and call.ctx.constant(call.node.args[0]) == "cpu"


def _over_weights(call: CallSite) -> Iterator[set[str]]:
    """The names that the loops and comprehensions around a call bind to weights of a model."""
    for parent in call.ctx.parents(call.node):
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return
        if isinstance(parent, (ast.For, ast.AsyncFor)):
            around: list[ast.For | ast.AsyncFor | ast.comprehension] = [parent]
        else:
            around = list(getattr(parent, "generators", ()))
        for one in around:
            if _is_over_weights(one.iter, call.ctx):
                yield {name.id for name in nodes_of(one.target) if isinstance(name, ast.Name)}


def _is_over_weights(iterated: ast.expr, ctx: RuleContext) -> bool:
    """`model.parameters()`, also within `enumerate`, and `model.state_dict().items()`."""
    return any(
        isinstance(one, ast.Call)
        and isinstance(one.func, ast.Attribute)
        and one.func.attr in _WEIGHTS
        and ctx.value(one.func.value).kind == MODEL
        for one in nodes_of(iterated)
    )


def _is_state(node: ast.AST, ctx: RuleContext) -> bool:
    own = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "state_dict"
    return own and _is_over_weights(node, ctx)  # type: ignore[arg-type]
