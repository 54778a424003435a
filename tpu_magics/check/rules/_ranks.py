"""Conditions on the rank, and the code under them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tpu_magics.check.nodes import nodes_of
from tpu_magics.check.rules import _launches

if TYPE_CHECKING:
    from tpu_magics.check.program import Function
    from tpu_magics.check.rule_context import RuleContext

RANK = "%rank"
_ATTRIBUTES = frozenset(
    ("is_main_process", "is_local_main_process", "is_last_process", "process_index", "local_process_index",
     "is_world_process_zero", "is_local_process_zero", "is_global_zero", "global_rank", "local_rank", "global_ordinal",
     "local_ordinal", "is_master_ordinal", "is_master", "is_main")
)  # fmt: skip
_PARAMETERS = frozenset(
    ("rank", "local_rank", "global_rank", "ordinal", "is_main", "is_master", "is_main_process", "process_index",
     "is_rank_zero", "is_master_process")
)  # fmt: skip
_DECORATORS = frozenset(
    ("on_main_process", "on_local_main_process", "on_last_process", "on_process", "on_local_process", "rank_zero_only")
)
_VARIABLES = frozenset(("RANK", "LOCAL_RANK"))
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_LEAVING = (ast.Return, ast.Continue, ast.Break, ast.Raise)
_DEPTH = 5


@dataclass(frozen=True)
class RankGuard:
    """A condition on the rank before a node. `others`: the code of the other ranks; `main`: whether the ranks that run
    the node are the main one (True), all but it (False), or unknown (None)."""

    test: ast.expr
    others: Sequence[ast.stmt | ast.expr]
    main: bool | None


def guard(node: ast.AST, ctx: RuleContext) -> RankGuard | None:
    """The innermost condition on the rank that decides whether `node` runs, in its own function."""
    child = node
    for parent in ctx.parents(node):
        found = _of_parent(parent, child, ctx)
        if found is not None:
            return found
        if isinstance(parent, _FUNCTIONS):
            return None
        child = parent
    return None


def _of_parent(parent: ast.AST, child: ast.AST, ctx: RuleContext) -> RankGuard | None:
    if isinstance(parent, (ast.If, ast.IfExp)) and child is not parent.test and depends(parent.test, ctx):
        body, orelse = _branches(parent)
        first = child in body
        main = polarity(parent.test, ctx)
        return RankGuard(parent.test, orelse if first else body, main if first or main is None else not main)
    if isinstance(parent, ast.BoolOp):
        before = parent.values[: next((n for n, one in enumerate(parent.values) if one is child), 0)]
        test = next((one for one in before if depends(one, ctx)), None)
        return None if test is None else RankGuard(test, (), polarity(test, ctx))
    return _early_exit(parent, child, ctx) if isinstance(child, ast.stmt) else None


def _branches(node: ast.If | ast.IfExp) -> tuple[Sequence[ast.stmt | ast.expr], Sequence[ast.stmt | ast.expr]]:
    if isinstance(node, ast.IfExp):
        return [node.body], [node.orelse]
    return node.body, node.orelse


def _early_exit(parent: ast.AST, child: ast.stmt, ctx: RuleContext) -> RankGuard | None:
    """`if not is_main: return` before the node."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and child in block:
            for one in block[: block.index(child)]:
                leaves = isinstance(one, ast.If) and not one.orelse and isinstance(one.body[-1], _LEAVING)
                if leaves and isinstance(one, ast.If) and depends(one.test, ctx):
                    main = polarity(one.test, ctx)
                    return RankGuard(one.test, one.body, None if main is None else not main)
    return None


# -- dependence on the rank


def depends(node: ast.expr, ctx: RuleContext, depth: int = _DEPTH) -> bool:
    """Whether an expression has other values on other ranks."""
    return any(_is_rank(one, ctx, depth) for one in nodes_of(node))


def _is_rank(node: ast.AST, ctx: RuleContext, depth: int) -> bool:
    if not isinstance(node, (ast.Name, ast.Attribute, ast.Call, ast.Constant)):
        return False
    if ctx.value(node).name == RANK:
        return True
    if isinstance(node, ast.Attribute):
        return node.attr in _ATTRIBUTES
    if isinstance(node, ast.Constant):
        return node.value in _VARIABLES if isinstance(node.value, str) else False
    return isinstance(node, ast.Name) and depth > 0 and _is_rank_name(node.id, ctx, depth)


def _is_rank_name(name: str, ctx: RuleContext, depth: int) -> bool:
    function = ctx.function
    while function is not None:
        values = definitions(function).get(name)
        if values:
            return all(depends(one, function_context(function), depth - 1) for one in values)
        if any(one.arg == name for one in function.parameters):
            return name in _PARAMETERS or name == index_parameter(function)
        function = function.outer
    return False


def function_context(function: Function) -> RuleContext:
    """A context inside the function: that of its first call, or of its definition."""
    return function.calls[0].ctx if function.calls else function.ctx


def index_parameter(function: Function) -> str:
    """The parameter in which xmp.spawn and torch_xla.launch pass the rank; "" if there is none."""
    kinds = {one.kind for one in _launches.launches(function.ctx.program) if one.function is function}
    if not kinds & {_launches.SPAWN, _launches.LAUNCH} or not function.parameters:
        return ""
    return function.parameters[0].arg


def definitions(function: Function) -> dict[str, list[ast.expr]]:
    """The values of plain assignments to each name of a function."""
    memo = function.ctx.program.memo
    key = ("definitions", id(function))
    if key not in memo:
        memo[key] = _definitions(function.node)
    found: dict[str, list[ast.expr]] = memo[key]
    return found


def _definitions(tree: ast.AST) -> dict[str, list[ast.expr]]:
    found: dict[str, list[ast.expr]] = {}
    for node in nodes_of(tree):
        for target, value in _assigned(node):
            if isinstance(target, ast.Name):
                found.setdefault(target.id, []).append(value)
    return found


def _assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from zip(target.elts, node.value.elts, strict=False)
            else:
                yield target, node.value
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        yield node.target, node.value


# -- the ranks --------------------------------------------------------------------------------------------------------


def polarity(test: ast.expr, ctx: RuleContext, depth: int = _DEPTH) -> bool | None:
    """True if the condition holds on the main rank only, False if on all others, None if unknown."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        found = polarity(test.operand, ctx, depth)
        return None if found is None else not found
    if isinstance(test, ast.BoolOp):
        parts = [found for one in test.values if depends(one, ctx) and (found := polarity(one, ctx, depth)) is not None]
        return parts[0] if parts else None
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compared(test.ops[0], test.comparators[0], ctx)
    if isinstance(test, ast.Name) and depth and ctx.function is not None:
        values = definitions(ctx.function).get(test.id, [])
        return polarity(values[0], ctx, depth - 1) if len(values) == 1 else "main" in test.id or None
    return True if isinstance(test, (ast.Attribute, ast.Call)) else None


def _compared(op: ast.cmpop, other: ast.expr, ctx: RuleContext) -> bool | None:
    """`rank == 0`, `rank in (-1, 0)`: the main one; `rank != 0`, `rank > 0`, `rank not in [-1, 0]`: the others."""
    if isinstance(op, (ast.In, ast.NotIn)):
        return isinstance(op, ast.In)
    if ctx.constant(other) != 0 or isinstance(ctx.constant(other), bool):
        return None
    if isinstance(op, (ast.Eq, ast.Is, ast.LtE)):
        return True
    return False if isinstance(op, (ast.NotEq, ast.IsNot, ast.Gt)) else None


# -- guards around functions


def is_guarded(node: ast.AST, ctx: RuleContext) -> bool:
    """Whether only some ranks run `node`: by a condition here, a decorator, or a condition around every call."""
    if guard(node, ctx) is not None:
        return True
    return ctx.function is not None and _is_guarded_function(ctx.function)


def _is_guarded_function(function: Function) -> bool:
    memo = function.ctx.program.memo
    key = ("guarded", id(function))
    if key not in memo:
        memo[key] = False
        memo[key] = is_for_one_rank(function) or _is_only_called_guarded(function)
    return bool(memo[key])


def _is_only_called_guarded(function: Function) -> bool:
    if function.launched:
        return False
    # Without callers it is only passed on (a closure, a callback), and its caller is unknown.
    return all(is_guarded(call.node, call.ctx) for call in function.callers)


def is_for_one_rank(function: Function) -> bool:
    """Whether a decorator makes only one rank run the function."""
    return any(_last(one) in _DECORATORS for one in getattr(function.node, "decorator_list", ()))


def _last(node: ast.expr) -> str:
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
