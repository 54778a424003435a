"""The packages that code uses, and what it calls of them."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tpu_magics.launch import object_graph


def packages_of_tree(tree: ast.AST) -> set[str]:
    """The packages that the code imports anywhere."""
    packages: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            packages.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            packages.add(node.module.partition(".")[0])
    return packages


def calls_use_spmd(source: str) -> bool:
    """Whether the code calls torch_xla's `use_spmd()`."""
    if "use_spmd" not in source:
        return False
    try:
        calls = [node.func for node in ast.walk(ast.parse(textwrap.dedent(source))) if isinstance(node, ast.Call)]
    except (SyntaxError, ValueError):
        return False
    return any("use_spmd" in (getattr(one, "attr", ""), getattr(one, "id", "")) for one in calls)


def packages_of_code(code: types.CodeType, namespace: Mapping[str, Any]) -> set[str]:
    """The packages that compiled code imports or uses a module, class or function of."""
    names = set(object_graph.names_in(code))
    read = (_package(namespace[name]) for name in names if name in namespace)
    return {name.partition(".")[0] for name in names if name not in namespace} | {name for name in read if name}


def packages_of_function(function: Callable[..., Any]) -> set[str]:
    """The packages that a function imports or uses, without those of its helpers."""
    plain = next((one for one in _unwrapped(function) if isinstance(one, types.FunctionType)), None)
    own = {_package(one) for one in _unwrapped(function)} - {""}
    return own if plain is None else own | packages_of_code(plain.__code__, plain.__globals__)


def _unwrapped(function: Any) -> Iterator[Any]:
    """A callable, and the callables that it wraps."""
    if isinstance(function, functools.partial):
        yield from _unwrapped(function.func)
        return
    yield function
    inner = getattr(function, "__func__", function)
    if inner is not function:
        yield getattr(function, "__self__", None)
    try:
        yield inspect.unwrap(inner)
    except ValueError:  # it wraps itself
        pass


def _package(value: Any) -> str:
    """The package of a module, a class, a function, or an object's class."""
    kind = value if issubclass(type(value), (types.ModuleType, type, types.FunctionType)) else type(value)
    name = kind.__name__ if isinstance(kind, types.ModuleType) else getattr(kind, "__module__", "")
    return name.partition(".")[0] if isinstance(name, str) else ""
