"""The user's helper functions that build a model, e.g. `make_model(cfg)`, and whether they can run in the notebook."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import FunctionType

from tpu_magics.check.hoisting import MUTATORS
from tpu_magics.launch.hoist.source import FunctionSource, function_source
from tpu_magics.launch.hoist.values import HoistBackend, SourceText, function_scope, import_bindings
from tpu_magics.runs.origin import is_library

DEPTH = 4
INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def is_helper(function: object, backend: HoistBackend) -> bool:
    """Whether a function returns a model, or an object that contains one; needs its source."""
    helper = _Helper.of(function, backend, 0)
    return helper is not None and any(helper.has_model(value) for value in helper.returns)


def helper_problem(function: object, backend: HoistBackend) -> str:
    """Why a helper cannot be called in the notebook; "" if it can."""
    helper = _Helper.of(function, backend, 0)
    return helper.problem() if helper is not None else ""


class _Helper:
    """A parsed helper function."""

    def __init__(self, function: FunctionType, source: FunctionSource, backend: HoistBackend, depth: int) -> None:
        self.name = function.__name__
        self.depth = depth
        self.backend = backend
        self.source = SourceText(source.text)
        self.nodes = [node for statement in source.node.body for node in _walk(statement)]
        self.returns = [node.value for node in self.nodes if isinstance(node, ast.Return) and node.value is not None]
        self.scope = function_scope(function, {}, backend, self.source)
        for node in self.nodes:
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self.scope.bindings.update(import_bindings(node, ""))
        self.assigned = _assigned(self.nodes)

    @classmethod
    def of(cls, function: object, backend: HoistBackend, depth: int) -> _Helper | None:
        """None if it is not a user's function, or has no source."""
        if not isinstance(function, FunctionType) or is_library(function.__code__.co_filename) or depth > DEPTH:
            return None
        source = function_source(function)
        return cls(function, source, backend, depth) if source is not None else None

    # -- models -----------------------------------------------------------------------------------------------------
    def is_model(self, value: ast.expr) -> bool:
        """Whether an expression is a call that builds a model, or a name to which only such calls are assigned."""
        if isinstance(value, ast.Name):
            values = self.assigned.get(value.id, [])
            return bool(values) and all(isinstance(one, ast.Call) and self._builds(one) for one in values)
        return isinstance(value, ast.Call) and self._builds(value)

    def has_model(self, value: ast.expr) -> bool:
        """Whether an expression contains a model."""
        return any(
            self.is_model(node) if isinstance(node, ast.Call) else self._may_be_model(node.id)
            for node in _walk(value)
            if isinstance(node, (ast.Call, ast.Name))
        )

    def _may_be_model(self, name: str) -> bool:
        return any(isinstance(one, ast.Call) and self._builds(one) for one in self.assigned.get(name, []))

    def _builds(self, call: ast.Call) -> bool:
        callee = self.scope.resolve(call.func)
        if callee is None or self.backend.builds_model(callee):
            return callee is not None
        inner = _Helper.of(callee, self.backend, self.depth + 1)
        return inner is not None and any(inner.is_model(value) for value in inner.returns)

    # -- why not --------------------------------------------------------------------------------------------------
    def problem(self) -> str:
        return self._return_problem() or next(self._effects(), "") or self._inner_problem()

    def _return_problem(self) -> str:
        other = next((value for value in self.returns if not self.is_model(value)), None)
        if other is None:
            return ""
        line = other.lineno
        if isinstance(other, ast.Tuple):
            return f"`{self.name}` returns a tuple (line {line}); only a helper that returns the model alone is hoisted"
        code = self.source.code(other)
        return f"`{self.name}` returns `{code}` (line {line}), which is no call that builds a model"

    def _effects(self) -> Iterator[str]:
        """Side effects of calling it in the notebook."""
        for node in self.nodes:
            if isinstance(node, (ast.Global, ast.Nonlocal)):
                yield f"`{self.name}` sets names outside of itself (line {node.lineno})"
            elif isinstance(node, (ast.Yield, ast.YieldFrom, ast.Await)):
                yield f"`{self.name}` is a generator or waits (line {node.lineno})"
            elif isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
                yield from self._outer_change(node)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS:
                yield from self._outer_change(node.func)

    def _outer_change(self, node: ast.expr) -> Iterator[str]:
        line, code = node.lineno, self.source.code(node)
        while isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        if isinstance(node, ast.Name) and node.id not in self.scope.own:
            yield f"`{self.name}` changes `{code}`, which is not its own (line {line})"

    def _inner_problem(self) -> str:
        """Side effects of the helpers that it calls."""
        calls = (self.scope.resolve(node.func) for node in self.nodes if isinstance(node, ast.Call))
        inner = (_Helper.of(callee, self.backend, self.depth + 1) for callee in calls if callee is not None)
        return next((text for helper in inner if helper is not None for text in helper._effects()), "")


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes of a function's body, without those of inner functions and classes."""
    yield node
    if not isinstance(node, INNER):
        for child in ast.iter_child_nodes(node):
            yield from _walk(child)


def _assigned(nodes: list[ast.AST]) -> dict[str, list[ast.expr | None]]:
    """The values assigned to each name of a function; None for other kinds of assignment."""
    values: dict[str, list[ast.expr | None]] = {}
    plain: set[int] = set()
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    plain.add(id(target))
                    values.setdefault(target.id, []).append(node.value)
    for node in nodes:
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and id(node) not in plain:
            values.setdefault(node.id, []).append(None)
    return values
