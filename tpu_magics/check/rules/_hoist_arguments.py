"""Why a call that builds a model cannot run in the notebook: its arguments, its class or its helper function.

The reasons are those of launch/hoist/values.py and helpers.py.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.nodes import nodes_of
from tpu_magics.check.rules import _ranks, _runtime
from tpu_magics.check.values import CLASS, DEVICE, MODEL, MODULE

if TYPE_CHECKING:
    from tpu_magics.check.program import CallSite, Function
    from tpu_magics.check.rule_context import RuleContext

BUILDERS = ("from_pretrained", "from_config", "_from_config", "load_from_checkpoint")
_PURE = frozenset(
    ("len", "int", "float", "complex", "str", "bytes", "bool", "abs", "round", "divmod", "pow", "min", "max", "sum",
     "any", "all", "sorted", "list", "tuple", "dict", "set", "frozenset", "range", "zip", "enumerate", "reversed",
     "slice", "repr", "getattr", "hasattr", "isinstance")
)  # fmt: skip
_PURE_METHODS = frozenset(
    ("get", "items", "keys", "values", "copy", "count", "index", "lower", "upper", "strip", "lstrip", "rstrip", "split",
     "join", "format", "startswith", "endswith", "replace", "title", "removeprefix", "removesuffix")
)  # fmt: skip
_MUTATORS = frozenset(
    ("update", "append", "extend", "insert", "add", "pop", "clear", "remove", "discard", "setdefault", "sort",
     "reverse", "popitem", "__setattr__")
)  # fmt: skip
_PLAIN_DATA = ("types.SimpleNamespace", "argparse.Namespace", "collections.OrderedDict")
_MORE_THAN_READING = (ast.Lambda, ast.Await, ast.Yield, ast.YieldFrom, ast.NamedExpr)
_DEVICE_PACKAGES = ("torch_xla.", "accelerate.")
_DEPTH = 6


def problem(call: CallSite, function: Function) -> str:
    """Why a call cannot run in the notebook; "" if it can."""
    found = _callee(call, function)
    if found:
        return found
    for given in (*call.node.args, *(one.value for one in call.node.keywords)):
        found = _problem(given, call, function, _DEPTH)
        if found:
            return f"its argument `{' '.join(call.ctx.source(given).split())[:50]}` {found}"
    return ""


def _callee(call: CallSite, function: Function) -> str:
    name = _first(call.node.func)
    if call.ctx.value(_root(call.node.func)).kind != MODULE:
        found = _changed(name, call, function)
        if found:
            return f"it {found}"
    cls = call.ctx.value(call.node.func)
    if cls.kind != CLASS:
        return ""
    if any(one is cls.ref.node for one in nodes_of(function.node)):
        return f"its class `{cls.ref.name}` is defined inside the launched function"
    init = cls.ref.method("__init__")
    return f"its class `{cls.ref.name}` uses the device" if init is not None and _uses_device(init) else ""


def _uses_device(function: Function) -> bool:
    starters = {id(call.node) for call in _runtime.starters(function.ctx.program)}
    return any(id(call.node) in starters or call.name.startswith(_DEVICE_PACKAGES) for call in function.calls)


# -- expressions -----------------------------------------------------------------------------------------------------


def _problem(node: ast.expr, call: CallSite, function: Function, depth: int) -> str:
    """Why an expression has no value before the function runs."""
    if isinstance(node, _MORE_THAN_READING):
        return "does more than read values"
    value = call.ctx.value(node)
    if (isinstance(node, ast.Attribute) and node.attr == "device") or _is_device(node, call.ctx):
        return "depends on the device"
    if isinstance(node, ast.Name):
        return _name_problem(node.id, call, function, depth)
    parts: list[ast.expr] = [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
    if isinstance(node, ast.Call):
        if value.kind == MODEL:
            return ""
        if not _is_pure(node, call.ctx):
            return f"calls `{call.ctx.source(node.func)}`, whose result is known only while the function runs"
        parts = [*node.args, *(one.value for one in node.keywords)]
        parts += [node.func.value] if isinstance(node.func, ast.Attribute) and not call.ctx.name(node) else []
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        parts = [one.iter for one in node.generators]
    return next((text for one in parts if (text := _problem(one, call, function, depth))), "")


def _is_device(node: ast.expr, ctx: RuleContext) -> bool:
    value = ctx.value(node)
    return _runtime.is_xla_device(value) or (value.kind == DEVICE and value.where == "device")


def _is_pure(node: ast.Call, ctx: RuleContext) -> bool:
    name = ctx.name(node)
    if name:
        owner = name.split(".")[-2] if name.endswith(BUILDERS) else name.rpartition(".")[2]
        return name.removeprefix("builtins.") in _PURE or owner.endswith("Config") or name in _PLAIN_DATA
    callee = ctx.value(node.func)
    if callee.kind == CLASS:
        return not callee.ref.is_module
    return isinstance(node.func, ast.Attribute) and node.func.attr in _PURE_METHODS


# -- names -----------------------------------------------------------------------------------------------------------


def _name_problem(name: str, call: CallSite, function: Function, depth: int) -> str:
    stored = _stored(function).get(name, [])
    parameter = any(one.arg == name for one in function.parameters)
    if not stored:
        index = parameter and name == _ranks.index_parameter(function)
        return f"needs `{name}`, which is known only in a worker" if index else _changed(name, call, function)
    values = _plain(function).get(name, [])
    if parameter or len(stored) > 1 or len(values) != 1 or depth == 0:
        return f"needs `{name}`, which is set while the function runs (line {stored[-1]})"
    return _problem(values[0], call, function, depth - 1) or _changed(name, call, function)


def _stored(function: Function) -> dict[str, list[int]]:
    """The names that a function sets, other than in comprehensions, and the lines."""
    memo, key = function.ctx.program.memo, ("stored", id(function))
    if key not in memo:
        found: dict[str, list[int]] = {}
        for node in nodes_of(function.node):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                found.setdefault(node.id, []).append(node.lineno)
        memo[key] = found
    known: dict[str, list[int]] = memo[key]
    return known


def _plain(function: Function) -> dict[str, list[ast.expr]]:
    """The values of unconditional assignments `name = value`."""
    found: dict[str, list[ast.expr]] = {}
    for statement in _always(function.node.body if isinstance(function.node.body, list) else []):
        if isinstance(statement, ast.Assign):
            names = [one.id for one in statement.targets if isinstance(one, ast.Name)]
        else:
            is_name = isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
            names = [statement.target.id] if is_name else []  # type: ignore[attr-defined]
        value: ast.expr | None = getattr(statement, "value", None)
        if value is not None:
            for name in names:
                found.setdefault(name, []).append(value)
    return found


def _always(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        yield statement
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            yield from _always(statement.body)


def _changed(name: str, call: CallSite, function: Function) -> str:
    """Whether the function has changed the object behind a name before the call."""
    for node in nodes_of(function.node):
        if getattr(node, "lineno", call.node.lineno) < call.node.lineno and _changes(node) == name:
            return f"needs `{name}`, which changes in line {getattr(node, 'lineno', 0)}"
    return ""


def _changes(node: ast.AST) -> str:
    """The name of the object that a node changes in place: `cfg` for `cfg.sub.width = 8` and `cfg.update(...)`."""
    if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
        return _first(node)
    is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _MUTATORS
    return _first(node.func.value) if is_method else ""  # type: ignore[attr-defined]


def _root(node: ast.AST) -> ast.AST:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node


def _first(node: ast.AST) -> str:
    return getattr(_root(node), "id", "")


# -- helper functions ------------------------------------------------------------------------------------------------


def side_effects(helper: Function) -> str:
    """The side effects of calling a helper in the notebook."""
    own = {*_stored(helper), *(one.arg for one in helper.parameters)}
    for node in nodes_of(helper.node):
        if isinstance(node, (ast.Global, ast.Nonlocal)):
            return f"`{helper.name}` sets global or outer names (line {node.lineno})"
        changed = _changes(node)
        if changed and changed not in own:
            return f"`{helper.name}` changes `{changed}`, which it does not create (line {getattr(node, 'lineno', 0)})"
    return f"`{helper.name}` uses the device" if _uses_device(helper) else ""
