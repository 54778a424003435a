"""Whether a value that is read in a line decides which branch Python takes, found in the source code."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator
from functools import lru_cache

_DECIDING = (ast.If, ast.While, ast.IfExp, ast.Assert)


@lru_cache(maxsize=256)
def decides(path: str, line: int) -> bool:
    """Whether the statement in `line` of the code at `path` is a condition, or sets a name that a later condition
    uses."""
    tree = parsed(path)
    if tree is None:
        return False
    tests = list(_tests(tree))
    if any(test.lineno <= line <= (test.end_lineno or test.lineno) for test in tests):
        return True
    names = {name for statement in _statements(tree, line) for name in _set_by(statement)}
    asked = {node.id for test in tests if test.lineno > line for node in ast.walk(test) if isinstance(node, ast.Name)}
    return bool(names & asked)


@lru_cache(maxsize=32)
def parsed(path: str) -> ast.Module | None:
    """The source at `path` (also a cell's); None if there is no Python source."""
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError, RecursionError):
        return None


def _tests(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, _DECIDING):
            yield node.test
        elif isinstance(node, ast.comprehension):
            yield from node.ifs
        elif isinstance(node, ast.For) and isinstance(node.iter, ast.Call):
            yield node.iter


def _statements(tree: ast.Module, line: int) -> Iterator[ast.stmt]:
    for node in ast.walk(tree):
        simple = isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr))
        if isinstance(node, ast.stmt) and simple and node.lineno <= line <= (node.end_lineno or node.lineno):
            yield node


def _set_by(statement: ast.stmt) -> Iterator[str]:
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
