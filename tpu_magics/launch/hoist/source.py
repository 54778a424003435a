"""The source of a function, and the check that it is the source of its code object."""

from __future__ import annotations
import __future__

import ast
import copy
import functools
import inspect
import linecache
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

FUTURES = functools.reduce(
    lambda mask, name: mask | int(getattr(__future__, name).compiler_flag), __future__.all_feature_names, 0
)
# Attributes that must be equal for two code objects to do the same.
SAME = ("co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_flags", "co_firstlineno", "co_name")


@dataclass(frozen=True)
class FunctionSource:
    """`text` and `tree` of the whole file or cell; `node`: the function in it."""

    text: str
    tree: ast.Module
    node: ast.FunctionDef | ast.AsyncFunctionDef


def function_source(function: FunctionType, text: str | None = None) -> FunctionSource | None:
    """The source of `function`, or None. `text` is used instead of the file's text."""
    code = function.__code__
    text = text if text is not None else "".join(linecache.getlines(code.co_filename, function.__globals__))
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    nodes = (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))
    found = next(
        (node for node in nodes if node.name == code.co_name and _first_line(node) == code.co_firstlineno), None
    )
    return FunctionSource(text, tree, found) if found is not None else None


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


def same_code(left: CodeType, right: CodeType) -> bool:
    """Whether both do the same, line for line."""
    if any(getattr(left, name) != getattr(right, name) for name in SAME):
        return False
    pairs = zip(left.co_consts, right.co_consts, strict=False)
    return len(left.co_consts) == len(right.co_consts) and all(_same_constant(a, b) for a, b in pairs)


def _same_constant(left: Any, right: Any) -> bool:
    if isinstance(left, CodeType) and isinstance(right, CodeType):
        return same_code(left, right)
    return type(left) is type(right) and repr(left) == repr(right)


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
    code = compile_function(source.tree, function)
    if code is None or not same_code(code, function.__code__):
        return "the available source is not that of the running function (edited since, or changed at import)"
    return ""


def code_with_replaced_calls(
    function: FunctionType, source: FunctionSource, numbers: Mapping[SourcePosition, int]
) -> CodeType | None:
    """The function's code with the calls replaced; None if it does not match the function's closure."""
    code = compile_function(with_replaced_calls(source.tree, numbers), function)
    return code if code is not None and code.co_freevars == function.__code__.co_freevars else None
