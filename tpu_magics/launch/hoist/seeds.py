"""Seed calls and environment variables to repeat in the notebook before a build, so that it draws the same random
numbers.

They are found at the top level of a training function, in an `if` whose condition is known, and in helpers that only
seed (`seed_everything(42)`). Calls that draw numbers are detected in the worker, by comparing random states
(worker.py)."""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Iterable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from tpu_magics.launch.hoist.source import function_source
from tpu_magics.launch.hoist.values import (
    FunctionScope,
    SourceText,
    UnknownValue,
    arguments_of,
    function_scope,
    import_bindings,
)
from tpu_magics.runs.origin import is_library

# Settings of a framework that do not affect random numbers: left to the worker.
SWITCHES = frozenset({"use_deterministic_algorithms", "set_float32_matmul_precision"})
DEPTH = 3


@dataclass(frozen=True)
class SeedCall:
    """A seed call to repeat. `line`: in the training function's source."""

    call: ast.Call
    scope: FunctionScope
    line: int


@dataclass(frozen=True)
class EnvironmentSetting:
    """`os.environ[key] = value`, to set before the build and undo after it."""

    key: ast.expr
    value: ast.expr
    scope: FunctionScope


Steps = list["SeedCall | EnvironmentSetting"]


def seed_steps(statement: ast.stmt, scope: FunctionScope) -> Steps | None:
    """The steps of a statement that only seeds; None if it does anything else."""
    return _steps(statement, scope, statement.lineno, 0)


def _steps(statement: ast.stmt, scope: FunctionScope, line: int, depth: int) -> Steps | None:
    if isinstance(statement, ast.If):
        return _conditional(statement, scope, line, depth)
    if isinstance(statement, ast.Assign):
        return _assignment(statement, scope, line)
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        return _call(statement.value, scope, line, depth)
    return None


def _call(call: ast.Call, scope: FunctionScope, line: int, depth: int) -> Steps | None:
    callee = scope.resolve(call.func)
    if callee is None:
        return None
    if scope.backend.seeds_device_only(callee):
        return []
    if scope.backend.is_seed_call(callee):
        return None if scope.problem(arguments_of(call)) else [SeedCall(call, scope.frozen(), line)]
    return _helper(call, callee, scope, line, depth) if depth < DEPTH else None


def _assignment(statement: ast.Assign, scope: FunctionScope, line: int) -> Steps | None:
    """`os.environ[...] = ...`, `torch.backends.... = ...`, `generator = torch.manual_seed(0)`."""
    target = statement.targets[0]
    if isinstance(target, ast.Attribute):
        return [] if ".backends." in ast.unparse(target) else None
    if isinstance(target, ast.Subscript) and scope.resolve(target.value) is os.environ:
        known = not scope.problem(target.slice) and not scope.problem(statement.value)
        return [EnvironmentSetting(target.slice, statement.value, scope.frozen())] if known else None
    if isinstance(target, ast.Name) and isinstance(statement.value, ast.Call):
        callee = scope.resolve(statement.value.func)
        return _call(statement.value, scope, line, DEPTH) if scope.backend.is_seed_call(callee) else None
    return None


def _conditional(statement: ast.If, scope: FunctionScope, line: int, depth: int) -> Steps | None:
    """The branch that is taken; if that is unknown, only if no branch affects the host's random numbers."""
    both = [_block(body, scope, line, depth) for body in (statement.body, statement.orelse)]
    if None in both:
        return None
    if not any(both):
        return []
    try:
        return None if scope.problem(statement.test) else both[0 if scope.value(statement.test) else 1]
    except UnknownValue:
        return None


def _block(statements: Iterable[ast.stmt], scope: FunctionScope, line: int, depth: int) -> Steps | None:
    found: Steps = []
    for statement in statements:
        steps = [] if _is_idle(statement) else _steps(statement, scope, line, depth)
        if steps is None:
            return None
        found += steps
    return found


def _is_idle(statement: ast.stmt) -> bool:
    """Whether a statement has no effect: docstrings, `pass`, prints, settings."""
    if isinstance(statement, ast.Pass):
        return True
    if not isinstance(statement, ast.Expr):
        return False
    value = statement.value
    if isinstance(value, ast.Call):
        name = value.func.attr if isinstance(value.func, ast.Attribute) else getattr(value.func, "id", "")
        return name == "print" or name in SWITCHES
    return isinstance(value, ast.Constant)


# -- helpers --------------------------------------------------------------------------------------------------------
def _helper(call: ast.Call, callee: Any, scope: FunctionScope, line: int, depth: int) -> Steps | None:
    """The steps of a user's function that only seeds."""
    if not isinstance(callee, FunctionType) or is_library(callee.__code__.co_filename):
        return None
    source = function_source(callee)
    if source is None or scope.problem(arguments_of(call)):
        return None
    try:
        args, kwargs = scope.value(arguments_of(call))
        bound = inspect.signature(callee).bind(*args, **kwargs)
    except (UnknownValue, TypeError):
        return None
    bound.apply_defaults()
    inner = function_scope(callee, bound.arguments, scope.backend, SourceText(source.text))
    imports = [part for part in source.node.body if isinstance(part, (ast.Import, ast.ImportFrom))]
    for statement in imports:
        inner.bindings.update(import_bindings(statement, ""))
    body = [part for part in source.node.body if part not in imports]
    return _block(body[:-1] if _returns_a_value(body[-1]) else body, inner, line, depth + 1)


def _returns_a_value(statement: ast.stmt) -> bool:
    """`return seed` or a bare `return`."""
    return isinstance(statement, ast.Return) and not isinstance(statement.value, ast.Call)
