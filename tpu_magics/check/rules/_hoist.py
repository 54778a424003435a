"""Which models the launcher can build once in the notebook, and why not: `launch/hoist` told from the code alone.

What lives here: the calls of training code that build models, and for each the first thing that speaks against hoisting
it. What does not: hoisting itself (launch/hoist/read.py and values.py, whose reasons these are).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tpu_magics.check.nodes import nodes_of
from tpu_magics.check.rules import _ranks
from tpu_magics.check.values import CLASS, FUNCTION, LIST, MODEL, MODULE, TENSOR

if TYPE_CHECKING:
    from tpu_magics.check.place import Place
    from tpu_magics.check.program import Call, Class, Function

BUILDERS = frozenset(("from_pretrained", "from_config", "_from_config", "load_from_checkpoint"))
WEIGHTLESS = frozenset(
    ("ReLU", "GELU", "SiLU", "Sigmoid", "Tanh", "Softmax", "LogSoftmax", "LeakyReLU", "ELU", "Identity", "Flatten",
     "Unflatten", "Upsample", "PixelShuffle", "Softplus", "Hardtanh", "CosineSimilarity", "PairwiseDistance", "Fold",
     "Unfold", "ReLU6", "Mish", "GLU", "Hardswish")
)  # fmt: skip
_WEIGHTLESS_ENDS = ("Loss", "LossV2", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "Pool1d", "Pool2d", "Pool3d",
    "Pad1d", "Pad2d", "Pad3d")  # fmt: skip
_WRAPPERS = ("torch.nn.parallel.", "torch.nn.DataParallel", "torch.distributed.", "torch_xla.distributed.")
_HARMLESS = frozenset(
    ("contextlib.nullcontext", "contextlib.suppress", "contextlib.redirect_stdout", "contextlib.redirect_stderr",
     "warnings.catch_warnings", "builtins.open")
)  # fmt: skip
_HARMLESS_METHODS = frozenset(("main_process_first", "local_main_process_first"))
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
_BARE = ("torch.nn.Module", "torch.nn.modules.module.Module")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_DEPTH = 6


def builds(call: Call) -> bool:
    """Whether a call builds a model with weights."""
    value, name = call.value, call.name
    if value.kind != MODEL or value.lib == "tf" or value.made is not call.node:
        return False
    last = name.rpartition(".")[2] if name else value.name
    if name.startswith(_WRAPPERS) or last in WEIGHTLESS or last.endswith(_WEIGHTLESS_ENDS):
        return False
    return value.ref is None or _has_weights(value.ref)


def _has_weights(cls: Class) -> bool:
    """Whether a module class of the program holds layers or parameters, as far as its code tells."""
    known = cls.method("__init__")
    if known is None:
        return not cls.methods or any(base not in _BARE for base in cls.all_bases())
    return any(call.value.kind in (MODEL, TENSOR, LIST) for call in known.calls) or not _is_bare(cls)


def _is_bare(cls: Class) -> bool:
    return all(base in _BARE or base in {one.name for one in cls.line()} for base in cls.all_bases())


def top_builds(calls: list[Call]) -> Iterator[Call]:
    """The calls that build a model, but for those that are a part of another one."""
    found = [call for call in calls if builds(call)]
    nodes = {id(call.node) for call in found}
    yield from (call for call in found if not _is_part(call, nodes))


def _is_part(call: Call, nodes: set[int]) -> bool:
    for parent in call.at.parents(call.node):
        if isinstance(parent, ast.stmt):
            return False
        if id(parent) in nodes:
            return True
    return False


# -- why not ----------------------------------------------------------------------------------------------------------


def reason(call: Call, function: Function | None) -> str:
    """What speaks against building the model of this call, in `function` (None: a cell's statements), once in the
    notebook; "" where nothing does."""
    if call.at.function is not function:
        inner = call.at.function
        return f"it stands in `{inner.name}`, not in the launched function itself" if inner is not None else ""
    return _context(call) or _own_class(call, function) or _arguments(call, function)


def _context(call: Call) -> str:
    child: ast.AST = call.node
    for parent in call.at.parents(call.node):
        if isinstance(parent, _FUNCTIONS):
            return ""
        found = _around(parent, child, call.at)
        if found:
            return found
        child = parent
    return ""


def _around(parent: ast.AST, child: ast.AST, at: Place) -> str:
    line = getattr(parent, "lineno", 0)
    if isinstance(parent, (ast.For, ast.AsyncFor)):
        return f"it is built in a loop (line {line})" if child is not parent.iter else ""
    if isinstance(parent, ast.While):
        return f"it is built in a loop (line {line})"
    if isinstance(parent, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        return "it is built in a comprehension"
    if isinstance(parent, (ast.If, ast.IfExp)):
        return "" if child is parent.test else f"it is built on a condition (line {line})"
    if isinstance(parent, ast.BoolOp):
        return "" if child is parent.values[0] else f"it is built on a condition (line {line})"
    if isinstance(parent, (ast.Try, ast.Match)):
        return f"it is built inside a `{type(parent).__name__.lower()}` (line {line})"
    if isinstance(parent, (ast.With, ast.AsyncWith)) and isinstance(child, ast.stmt):
        return next((_inside(item.context_expr, at) for item in parent.items if not _is_harmless(item, at)), "")
    return ""


def _inside(context: ast.expr, at: Place) -> str:
    return f"it stands inside `with {at.source(context)}`, which may change how it is built"


def _is_harmless(item: ast.withitem, at: Place) -> bool:
    node = item.context_expr
    if not isinstance(node, ast.Call):
        return False
    return at.name(node) in _HARMLESS or (isinstance(node.func, ast.Attribute) and node.func.attr in _HARMLESS_METHODS)


def _own_class(call: Call, function: Function | None) -> str:
    value = call.at.value(call.node.func)
    if function is None or value.kind != CLASS or not _contains(function.node, value.ref.node):
        return ""
    return f"its class `{value.ref.name}` is defined inside of the launched function"


def _contains(outer: ast.AST, node: ast.AST) -> bool:
    return any(one is node for one in nodes_of(outer))


def _arguments(call: Call, function: Function | None) -> str:
    if function is None:
        return ""
    for given in (*call.node.args, *(one.value for one in call.node.keywords)):
        found = _problem(given, call, function, _DEPTH)
        if found:
            return f"its argument `{' '.join(call.at.source(given).split())[:50]}` {found}"
    return ""


def _problem(node: ast.expr, call: Call, function: Function, depth: int) -> str:
    """Why an expression has no value before the function runs."""
    if isinstance(node, ast.Name):
        return _name_problem(node.id, call, function, depth)
    if isinstance(node, ast.Call):
        if call.at.value(node).kind == MODEL:
            return ""
        if not _is_pure(node, call.at):
            return f"calls `{call.at.source(node.func)}`, whose result is known only when the function runs"
        inner: list[ast.expr] = [*node.args, *(one.value for one in node.keywords)]
        inner += [node.func.value] if isinstance(node.func, ast.Attribute) and not call.at.name(node) else []
        return next((text for one in inner if (text := _problem(one, call, function, depth))), "")
    if isinstance(node, ast.Attribute) and node.attr == "device":
        return "depends on the device"
    children = (one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr))
    return next((text for one in children if (text := _problem(one, call, function, depth))), "")


def _is_pure(node: ast.Call, at: Place) -> bool:
    name = at.name(node)
    if name:
        owner = name.split(".")[-2] if name.endswith(tuple(BUILDERS)) else name.rpartition(".")[2]
        return (
            name.removeprefix("builtins.") in _PURE
            or owner.endswith("Config")
            or name in ("types.SimpleNamespace", "argparse.Namespace")
        )
    callee = at.value(node.func)
    if callee.kind == CLASS:
        return not callee.ref.is_module
    return isinstance(node.func, ast.Attribute) and node.func.attr in _PURE_METHODS


def _name_problem(name: str, call: Call, function: Function, depth: int) -> str:
    stored = _stored(function).get(name, [])
    values = _ranks.definitions(function).get(name, [])
    parameter = any(one.arg == name for one in function.parameters)
    if not stored:
        index = parameter and name == _ranks.index_parameter(function)
        return (
            f"needs `{name}`, which has no value before the function runs" if index else _changed(name, call, function)
        )
    if parameter or len(stored) > 1 or len(values) != 1 or depth == 0:
        return f"needs `{name}`, which is set while the function runs (line {stored[-1]})"
    return _problem(values[0], call, function, depth - 1) or _changed(name, call, function)


def _stored(function: Function) -> dict[str, list[int]]:
    """The names that a function sets, other than by imports and definitions, and the lines."""
    memo, key = function.at.program.memo, ("stored", id(function))
    if key not in memo:
        found: dict[str, list[int]] = {}
        for node in nodes_of(function.node):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                found.setdefault(node.id, []).append(node.lineno)
        memo[key] = found
    known: dict[str, list[int]] = memo[key]
    return known


def _changed(name: str, call: Call, function: Function) -> str:
    """Whether the function has changed the object behind a name before the call."""
    for node in nodes_of(function.node):
        line = getattr(node, "lineno", 0)
        if line < call.node.lineno and _changes(node, name) and call.at.value(node).kind not in (MODULE, FUNCTION):
            return f"needs `{name}`, which is changed in line {line}"
    return ""


def _changes(node: ast.AST, name: str) -> bool:
    if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
        return _first(node) == name
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in _MUTATORS and _first(node.func.value) == name
    return False


def _first(node: ast.AST) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return getattr(node, "id", "")


def helper_problem(function: Function) -> str:
    """What speaks against calling a helper that returns a model in the notebook; "" where nothing does."""
    nodes = [node for node in nodes_of(function.node) if isinstance(node, ast.Return) and node.value is not None]
    other = next((node for node in nodes if function.at.value(node.value).kind != MODEL), None)
    if other is not None:
        return f"`{function.name}` returns more than the model (line {other.lineno})"
    if any(isinstance(node, (ast.Global, ast.Nonlocal)) for node in nodes_of(function.node)):
        return f"`{function.name}` sets names outside of itself"
    touched = (call for call in function.calls if call.name.startswith(("torch_xla.", "accelerate.")))
    return f"`{function.name}` uses the device" if next(touched, None) is not None else ""
