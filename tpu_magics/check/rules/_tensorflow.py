"""Shared by the rules of the group `tensorflow`: what runs in a strategy's scope."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from tpu_magics.check.inference.values import STRATEGY
from tpu_magics.check.program import STRATEGIES, remembered
from tpu_magics.check.rule_context import under_strategy

if TYPE_CHECKING:
    from tpu_magics.check.program import CallSite, CheckedProgram, Function
    from tpu_magics.check.rule_context import RuleContext

IN, OUT, UNKNOWN = "in", "out", "unknown"
_ENTERED = ("__enter__", "enter_context")
_SET = ("tensorflow.distribute.experimental_set_strategy",)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEEP = 10


def strategies(program: CheckedProgram) -> list[CallSite]:
    """The calls that make a TPUStrategy."""
    return program.calls(*STRATEGIES)


def strategy_name(program: CheckedProgram) -> str:
    """The name of the program's TPUStrategy."""
    for call in program.methods("scope"):
        if isinstance(call.node.func, ast.Attribute):
            return call.ctx.source(call.node.func.value)
    for call in strategies(program):
        target = assignment_target(call.node, call.ctx)
        if target is not None:
            return call.ctx.source(target)
    return "strategy"


def assignment_target(node: ast.AST, ctx: RuleContext) -> ast.expr | None:
    """The target that a value is bound to on its line."""
    parent = ctx.parent(node)
    if isinstance(parent, ast.Assign):
        return parent.targets[0]
    return parent.target if isinstance(parent, (ast.AnnAssign, ast.NamedExpr)) else None


# -- the scope ---------------------------------------------------------------------------------------------------------


def is_entered(program: CheckedProgram) -> bool:
    """Whether a scope is entered without `with`, so that its extent is unknown."""
    if program.calls(*_SET):
        return True
    return any(program.methods(method) for method in _ENTERED)


def state(call: CallSite) -> str:
    """Whether a call runs in a strategy's scope: IN, OUT or UNKNOWN."""
    return _state(call.node, call.ctx, _DEEP)


def is_in_scope(call: CallSite) -> bool:
    return state(call) == IN


def is_receiver_in_scope(call: CallSite) -> bool:
    """Whether `x` of `x.method(...)` is bound in a scope."""
    func = call.node.func
    return isinstance(func, ast.Attribute) and call.ctx.source(func.value) in _bound_in_scope(call.ctx.program)


@remembered
def _bound_in_scope(program: CheckedProgram) -> set[str]:
    targets = ((assignment_target(one.node, one.ctx), one) for one in program.all_calls)
    return {one.ctx.source(target) for target, one in targets if target is not None and is_in_scope(one)}


def _state(node: ast.AST, ctx: RuleContext, deep: int) -> str:
    if under_strategy(ctx) or _is_under_with(node, ctx):
        return IN
    function = ctx.function
    if function is None:
        return OUT
    if deep == 0 or isinstance(function.node, ast.Lambda) or (function.cls is not None and function.cls.is_module):
        return UNKNOWN
    if not function.callers:
        return OUT if _uses_strategy(function) else UNKNOWN
    result = {_state(one.node, one.ctx, deep - 1) for one in function.callers}
    return IN if IN in result else OUT if result == {OUT} else UNKNOWN


def _is_under_with(node: ast.AST, ctx: RuleContext) -> bool:
    for outer in ctx.parents(node):
        if isinstance(outer, _FUNCTIONS):
            return False
        if isinstance(outer, ast.Lambda):
            return True  # its caller may be in the scope
        if isinstance(outer, (ast.With, ast.AsyncWith)) and any(_is_scope(item.context_expr) for item in outer.items):
            return True
    return False


def _is_scope(node: ast.expr) -> bool:
    """`strategy.scope()`, also as one side of a condition."""
    if isinstance(node, ast.IfExp):
        return _is_scope(node.body) or _is_scope(node.orelse)
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "scope"


def knows_strategy(function: Function) -> bool:
    """Whether a function creates a strategy, gets one, or enters a scope."""
    if any(value.kind == STRATEGY for value in (*function.argument_values.values(), *function.env.values())):
        return True
    return _uses_strategy(function)


def _uses_strategy(function: Function) -> bool:
    return any(call.method == "scope" or call.name in STRATEGIES for call in function.calls)
