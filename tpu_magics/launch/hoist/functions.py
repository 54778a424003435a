"""The user's functions: their source, checked to be that of the running function, and helpers that build a model, e.g.
`make_model(cfg)`, and whether they can run in the notebook."""

from __future__ import annotations
import __future__

import ast
import copy
import functools
import inspect
import linecache
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from tpu_magics.backends.protocols import Backend
from tpu_magics.check.hoisting import MUTATORS
from tpu_magics.launch.hoist.values import SourceText, function_scope, import_bindings
from tpu_magics.runs.origin import is_library

FUTURES = functools.reduce(
    lambda mask, name: mask | int(getattr(__future__, name).compiler_flag), __future__.all_feature_names, 0
)
# Attributes of a code object that follow from the text of its function alone.
_OF_TEXT = (
    *("co_name", "co_firstlineno", "co_flags", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount"),
    *("co_varnames", "co_freevars", "co_cellvars"),
)
_EDITED = "the available source is not that of the running function (edited since, or changed at import)"


@dataclass(frozen=True)
class FunctionSource:
    """`text` and `tree` of the whole file or cell; `node`: the function in it; `is_own`: it is not read from a file,
    which may have been edited since, but was kept by who compiled it, as a notebook's cells are."""

    text: str
    tree: ast.Module
    node: ast.FunctionDef | ast.AsyncFunctionDef
    is_own: bool = False


def function_source(function: FunctionType, text: str | None = None) -> FunctionSource | None:
    """The source of `function`, or None. `text` is used instead of the file's text."""
    code = function.__code__
    if text is not None:
        return _source_in(text, function)
    found = _source_in("".join(linecache.getlines(code.co_filename, function.__globals__)), function)
    if not _is_stale(code.co_filename):
        return found
    made = None if found is None else compile_function(found.tree, function)
    if made is not None and same_code(made, code, compiled=False):
        return found
    linecache.checkcache(code.co_filename)  # its module was edited and loaded again
    return _source_in("".join(linecache.getlines(code.co_filename, function.__globals__)), function)


def _is_stale(path: str) -> bool:
    """Whether a file has changed since its lines were read."""
    entry = linecache.cache.get(path, ())
    if len(entry) != 4 or entry[1] is None:
        return False
    try:
        now = Path(entry[3]).stat()
    except OSError:
        return False
    return (now.st_size, now.st_mtime) != entry[:2]


def _source_in(text: str, function: FunctionType) -> FunctionSource | None:
    code = function.__code__
    entry = linecache.cache.get(code.co_filename, ())
    is_own = len(entry) == 4 and entry[1] is None  # no time of a file
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    nodes = (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    found = next(
        (node for node in nodes if node.name == code.co_name and _first_line(node) == code.co_firstlineno), None
    )
    return FunctionSource(text, tree, found, is_own) if found is not None else None


def compile_function(tree: ast.Module, function: FunctionType) -> CodeType | None:
    """The code object of `function` in `tree`, compiled with the flags of its own file."""
    code = function.__code__
    flags = (code.co_flags & FUTURES) | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        module = compile(tree, code.co_filename, "exec", flags=flags, dont_inherit=True)
    except (SyntaxError, ValueError):
        return None
    place = (code.co_name, code.co_firstlineno, getattr(code, "co_qualname", ""))
    matches = (
        one for one in _nested(module) if place == (one.co_name, one.co_firstlineno, getattr(one, "co_qualname", ""))
    )
    return next(matches, None)


def same_code(left: CodeType, right: CodeType, compiled: bool = True) -> bool:
    """Whether both are of the same text, line for line. `compiled`: also their instructions, which differ with the text
    around a function: where a cell imports `mod`, Python 3.11 and newer compile `mod.f()` in another way."""
    if any(getattr(left, name) != getattr(right, name) for name in _OF_TEXT) or {*left.co_names} != {*right.co_names}:
        return False
    if compiled and (left.co_code, left.co_names) != (right.co_code, right.co_names):
        return False
    return _same_constant(left.co_consts, right.co_consts, compiled)


def _same_constant(left: Any, right: Any, compiled: bool) -> bool:
    if isinstance(left, CodeType) and isinstance(right, CodeType):
        return same_code(left, right, compiled)
    if type(left) is tuple and type(right) is tuple:
        pairs = zip(left, right, strict=False)
        return len(left) == len(right) and all(_same_constant(a, b, compiled) for a, b in pairs)
    if type(left) is frozenset and type(right) is frozenset:  # in any order
        return sorted(map(_text, left)) == sorted(map(_text, right))
    return type(left) is type(right) and repr(left) == repr(right)


def _text(value: object) -> str:
    return f"{type(value).__name__} {value!r}"


def _nested(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _nested(constant)


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


# -- unwrapping callables ------------------------------------------------------------------------------------------
def unwrap_function(function: Any) -> tuple[FunctionType | None, Mapping[str, Any]]:
    """The function inside of partials, bound methods, callable objects and `functools.wraps` decorators, and the
    parameters that they fill in."""
    known: dict[str, Any] = {}
    while not isinstance(function, FunctionType) or hasattr(function, "__wrapped__"):
        if isinstance(function, functools.partial):
            known.update(_first_arguments(function.func, *function.args), **function.keywords)
            function = function.func
        elif inspect.ismethod(function):
            known.update(_first_arguments(function.__func__, function.__self__))
            function = function.__func__
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif not isinstance(function, type) and inspect.ismethod(getattr(function, "__call__", None)):  # noqa: B004
            function = function.__call__
        else:
            return None, known
    return function, known


def _first_arguments(function: Any, *given: Any) -> dict[str, Any]:
    try:
        return inspect.signature(function).bind_partial(*given).arguments
    except (TypeError, ValueError):
        return {}


# -- replacing calls: `Net(cfg)` becomes `__tpu_magics_hoisted__(0, Net, cfg)` ----------------------------------------

NAME = "__tpu_magics_hoisted__"


SourcePosition = tuple[int, int, int, int]


def position_of(node: ast.expr) -> SourcePosition:
    """The position of an expression in its source."""
    return node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0


class _CallReplacer(ast.NodeTransformer):
    def __init__(self, numbers: Mapping[SourcePosition, int]) -> None:
        self.numbers = numbers

    def visit_Call(self, node: ast.Call) -> ast.Call:
        number = self.numbers.get(position_of(node))
        self.generic_visit(node)
        if number is not None:
            first = ast.copy_location(ast.Constant(number), node.func)
            node.args = [first, node.func, *node.args]
            node.func = ast.copy_location(ast.Name(NAME, ast.Load()), node.func)
        return node


def with_replaced_calls(tree: ast.Module, numbers: Mapping[SourcePosition, int]) -> ast.Module:
    """A copy of `tree` in which the calls at these positions are replaced."""
    changed: ast.Module = _CallReplacer(numbers).visit(copy.deepcopy(tree))
    return changed


def source_problem(function: FunctionType, source: FunctionSource) -> str:
    """Why the code of `function` cannot be recompiled from its source; "" if it can."""
    alone = (one for one in source.tree.body if any(node is source.node for node in ast.walk(one)))
    for tree in (source.tree, ast.Module([*alone], [])):  # IPython compiles each statement of a cell by itself
        code = compile_function(tree, function)
        if code is not None and same_code(code, function.__code__, compiled=not source.is_own):
            return ""
    return _EDITED


def code_with_replaced_calls(
    function: FunctionType, source: FunctionSource, numbers: Mapping[SourcePosition, int]
) -> CodeType | None:
    """The function's code with the calls replaced; None if it does not match the function's closure."""
    code = compile_function(with_replaced_calls(source.tree, numbers), function)
    return code if code is not None and code.co_freevars == function.__code__.co_freevars else None


# -- helpers that build a model ---------------------------------------------------------------------------------------


DEPTH = 4
INNER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def is_helper(function: object, backend: Backend) -> bool:
    """Whether a function returns a model, or an object that contains one; needs its source."""
    helper = _Helper.of(function, backend, 0)
    return helper is not None and any(helper.has_model(value) for value in helper.returns)


def helper_problem(function: object, backend: Backend) -> str:
    """Why a helper cannot be called in the notebook; "" if it can."""
    helper = _Helper.of(function, backend, 0)
    return helper.problem() if helper is not None else ""


class _Helper:
    """A parsed helper function."""

    def __init__(self, function: FunctionType, source: FunctionSource, backend: Backend, depth: int) -> None:
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
    def of(cls, function: object, backend: Backend, depth: int) -> _Helper | None:
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
        if callee is None or self.backend.models.builds_model(callee):
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
