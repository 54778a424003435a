"""The expression that a name was last assigned."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tpu_magics.check.rule_context import RuleContext

_FAR = 12  # assignments from name to name that are followed
_TRIES = (ast.Try, getattr(ast, "TryStar", ast.Try))  # newer than the oldest Python we run on
_BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Match, *_TRIES)
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


class NameAssignment(NamedTuple):
    """One assignment: its position, the assigned value, and the path to the item if it was unpacked."""

    cell: int
    line: int
    value: ast.expr
    path: tuple[int, ...]


def origin(ctx: RuleContext, node: ast.expr) -> tuple[ast.expr, tuple[int, ...]]:
    """The expression that a name was assigned, and the path of items to it; any other node is its own origin."""
    path: tuple[int, ...] = ()
    for _ in range(_FAR):
        if not isinstance(node, ast.Name):
            break
        given = _last(ctx, node)
        if given is None or given.value is node:
            break
        node, path = given.value, (*given.path, *path)
        while path and isinstance(node, (ast.Tuple, ast.List)) and path[0] < len(node.elts):
            node, path = node.elts[path[0]], path[1:]
    return node, path


def _last(ctx: RuleContext, node: ast.Name) -> NameAssignment | None:
    """The last assignment above the name, in its function or at the level of the notebook."""
    if ctx.function is not None:
        here = _assigned_in_function(ctx).get(node.id)
        if here is not None:
            return next((one for one in reversed(here) if one.line < node.lineno), None)
        if any(one.arg == node.id for one in ctx.function.parameters):
            return None
    found = _assigned_at_top(ctx).get(node.id, [])
    if ctx.function is not None:
        return found[-1] if found else None
    return next((one for one in reversed(found) if (one.cell, one.line) < (ctx.cell_index, node.lineno)), None)


def _assigned_in_function(ctx: RuleContext) -> dict[str, list[NameAssignment]]:
    function = ctx.function
    assert function is not None
    key = ("origins", id(function))
    if key not in ctx.program.memo:
        body = function.node.body
        ctx.program.memo[key] = _gathered(body if isinstance(body, list) else [], ctx.cell_index)
    found: dict[str, list[NameAssignment]] = ctx.program.memo[key]
    return found


def _assigned_at_top(ctx: RuleContext) -> dict[str, list[NameAssignment]]:
    if "origins" not in ctx.program.memo:
        found: dict[str, list[NameAssignment]] = {}
        for index, cell in enumerate(ctx.program.cells):
            for name, given in _gathered(cell.tree.body if cell.tree is not None else [], index).items():
                found.setdefault(name, []).extend(given)
        ctx.program.memo["origins"] = found
    top: dict[str, list[NameAssignment]] = ctx.program.memo["origins"]
    return top


def _gathered(body: list[ast.stmt], cell: int) -> dict[str, list[NameAssignment]]:
    found: dict[str, list[NameAssignment]] = {}
    for node in own_statements(body):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                _add_assignment(target, node.value, (), cell, node.lineno, found)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            _add_assignment(node.target, node.value, (), cell, node.lineno, found)
    return found


def _add_assignment(
    target: ast.expr,
    value: ast.expr,
    path: tuple[int, ...],
    cell: int,
    line: int,
    found: dict[str, list[NameAssignment]],
) -> None:
    if isinstance(target, ast.Name):
        found.setdefault(target.id, []).append(NameAssignment(cell, line, value, path))
    elif isinstance(target, (ast.Tuple, ast.List)) and not any(isinstance(one, ast.Starred) for one in target.elts):
        for number, one in enumerate(target.elts):
            _add_assignment(one, value, (*path, number), cell, line, found)


def own_statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """All statements of a body in order, with those of its loops and branches, without those of inner functions."""
    waiting = list(body)[::-1]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, _BLOCKS):
            inner = [one for name in ("body", "orelse", "finalbody") for one in getattr(node, name, ())]
            inner += [one for case in _cases(node) for one in case.body]
            waiting.extend(inner[::-1])


def _cases(node: ast.stmt) -> list[ast.ExceptHandler | ast.match_case]:
    return [*getattr(node, "handlers", ()), *getattr(node, "cases", ())]


def own_nodes(body: Iterable[ast.stmt]) -> Iterator[ast.AST]:
    """All nodes of these statements in order, without those of inner functions and classes."""
    waiting: list[ast.AST] = []
    waiting.extend(list(body)[::-1])
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, SCOPES):
            waiting.extend(list(ast.iter_child_nodes(node))[::-1])
