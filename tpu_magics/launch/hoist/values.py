"""Values of a training function's expressions before the function runs, and why an expression has no value yet.

Only expressions without side effects are evaluated: constants, names, attributes, items, arithmetic, displays,
comprehensions, a fixed list of builtins, and constructors of plain settings.
"""

from __future__ import annotations

import ast
import builtins
import copy
import functools
import importlib
import importlib.util
import re
import sys
from collections import ChainMap, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any

from tpu_magics.backends.frameworks import STARTS_THREADS
from tpu_magics.backends.protocols import Backend
from tpu_magics.check import hoisting

PURE = (*(getattr(builtins, name) for name in hoisting.PURE_BUILTINS), OrderedDict)
PLAIN = (str, bytes, dict, list, tuple, set, frozenset, OrderedDict)
READING = (
    *(ast.Constant, ast.JoinedStr, ast.FormattedValue, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.Starred, ast.Slice),
    *(ast.UnaryOp, ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Attribute, ast.Subscript, ast.keyword),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.comprehension),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.expr_context),
)
CODE_LENGTH = 80


PENDING = object()
"""In `Scope.results`: a model that will be built, or could not be."""


class UnknownValue(Exception):
    """An expression has no value before the function runs. The text is a predicate: "depends on the device"."""


@dataclass(frozen=True)
class SourceText:
    """The text that was parsed; empty if only the tree is available."""

    text: str = ""

    def code(self, node: ast.AST) -> str:
        """The first line of a node's source, shortened."""
        first, *rest = (self._first_line(node) or ast.unparse(node)).strip().splitlines() or [""]
        shown = first if len(first) <= CODE_LENGTH else first[: CODE_LENGTH - 3] + "..."
        return shown + " ..." if rest and not shown.endswith("...") else shown

    def _first_line(self, node: ast.AST) -> str:
        """A node's first line, and a second one if it continues. (ast.get_source_segment splits the whole text for each
        node.)"""
        if not (self.text and isinstance(node, (ast.expr, ast.stmt)) and node.end_lineno):
            return ""
        line = _lines(self.text)[node.lineno - 1]
        if node.end_lineno == node.lineno:
            return line[node.col_offset : node.end_col_offset].decode()
        return f"{line[node.col_offset :].decode()}\n..."


@functools.lru_cache(maxsize=8)
def _lines(text: str) -> list[bytes]:
    return [line.encode() for line in re.split(r"\r\n|\r|\n", text)]


@dataclass(frozen=True)
class NameBinding:
    """A name that the function has assigned so far. `problem`: why its value is unknown; else `expression` is its
    value, or `module` (and `attribute`) if it was imported."""

    line: int
    code: str
    expression: ast.expr | None = None
    module: str = ""
    attribute: str = ""
    problem: str = ""
    definition: ast.ClassDef | None = None


@dataclass(frozen=True, eq=False)
class FunctionScope:
    """The names that are visible at one position: assigned names, parameters, and outer names.

    `outer`: closure, globals, builtins; `own`: names that are local to the function; `changed`: names whose object the
    function has changed so far, and where; `results`: values of expressions that are evaluated only once, and models
    built, by the `id` of their node.
    """

    outer: Mapping[str, Any]
    parameters: Mapping[str, Any]
    own: frozenset[str]
    backend: Backend
    source: SourceText
    package: str | None = None
    bindings: dict[str, NameBinding] = field(default_factory=dict)
    changed: dict[str, str] = field(default_factory=dict)
    results: dict[int, Any] = field(default_factory=dict)
    owned: dict[int, Any] = field(default_factory=dict)

    def frozen(self) -> FunctionScope:
        """A copy of the scope in its current state."""
        return replace(self, bindings=dict(self.bindings), changed=dict(self.changed))

    # -- why not ----------------------------------------------------------------------------------------------------
    def problem(self, node: ast.AST, built: Iterable[int] = (), bound: frozenset[str] = frozenset()) -> str:
        """Why `node` has no value before the function runs; "" if it has one.

        `built`: ids of the calls inside that will be made before; `bound`: names of surrounding comprehensions.
        """
        if id(node) in built:
            return ""
        if isinstance(node, ast.Name):
            return "" if node.id in bound else self._name_problem(node.id)
        if isinstance(node, ast.Call):
            return self._call_problem(node) or self._any_problem(ast.iter_child_nodes(node), built, bound)
        if not isinstance(node, READING):
            return "is more than an expression that reads values"
        if isinstance(node, ast.Attribute) and node.attr == "device":
            return hoisting.ON_DEVICE
        return self._any_problem(ast.iter_child_nodes(node), built, bound | _bound_by(node))

    def _any_problem(self, nodes: Iterable[ast.AST], built: Iterable[int], bound: frozenset[str]) -> str:
        return next((text for text in (self.problem(node, built, bound) for node in nodes) if text), "")

    def _name_problem(self, name: str) -> str:
        if name in self.changed:
            return f"needs `{name}`, which is changed in {self.changed[name]}"
        binding = self.bindings.get(name)
        if binding is not None:
            return self._binding_problem(binding)
        if name in self.parameters or (name not in self.own and name in self.outer):
            return ""
        return f"needs `{name}`, which has no value before the function runs"

    def _binding_problem(self, binding: NameBinding) -> str:
        expression = binding.expression
        inner = binding.problem
        if not inner and expression is not None and id(expression) not in self.results:
            inner = self.problem(expression)
        return f"comes from line {binding.line} (`{binding.code}`), which {inner}" if inner else ""

    def _call_problem(self, call: ast.Call) -> str:
        callee = self.resolve(call.func)
        pure = any(callee is one for one in PURE)
        if callee is not None and (pure or self.backend.models.builds_config(callee)):
            return ""
        if self._is_pure_method(call.func):
            return ""
        if callee is not None and self.backend.models.touches_device(callee):
            return hoisting.ON_DEVICE
        return hoisting.UNKNOWN_RESULT.format(code=self.source.code(call.func))

    def _is_pure_method(self, function: ast.expr) -> bool:
        if (
            not isinstance(function, ast.Attribute)
            or function.attr not in hoisting.PURE_METHODS
            or self.problem(function.value)
        ):
            return False
        try:
            return type(self.value(function.value)) in PLAIN
        except UnknownValue:
            return False

    # -- what -------------------------------------------------------------------------------------------------------
    def resolve(self, node: ast.expr) -> Any:
        """The object of a name or dotted name; None if unknown."""
        if not isinstance(node, (ast.Name, ast.Attribute)) or self._unresolved(node):
            return None
        try:
            return self.value(node)
        except UnknownValue:
            return None

    def _unresolved(self, node: ast.expr) -> bool:
        """Whether the first part of a dotted name has no value; changes of its object do not matter."""
        while isinstance(node, ast.Attribute):
            node = node.value
        if not isinstance(node, ast.Name):
            return True
        return bool(replace(self, changed={})._name_problem(node.id))

    def value(self, node: ast.expr, built: Mapping[int, Any] | None = None) -> Any:
        """The value of an expression without a problem. Raises UnknownValue if evaluating it fails."""
        if id(node) in self.results:
            if self.results[id(node)] is PENDING:
                raise UnknownValue("needs a model that is not built in the notebook")
            return self.results[id(node)]
        if isinstance(node, ast.Name):
            return self.lookup(node.id)
        tree, names = _with_names(node, built or {})
        names.update({name: self.lookup(name) for name in free_names(tree) if name not in names})
        try:
            code = compile(ast.Expression(tree), "<argument>", "eval")
            result = eval(code, {"__builtins__": builtins, **names})
        except Exception as error:
            raise UnknownValue(f"could not be evaluated in the notebook ({type(error).__name__}: {error})") from error
        return self._once(node, result)

    def _settled(self, expression: ast.expr) -> Any:
        """The value of an assigned expression: the same object at each use."""
        result = self.value(expression)
        return self.results.setdefault(id(expression), result)

    def _once(self, node: ast.expr, value: Any) -> Any:
        """Keep settings objects: each name for one must refer to the same object, which is none of the notebook's."""
        if isinstance(node, ast.Call) and self.backend.models.builds_config(self.resolve(node.func)):
            value = self.results[id(node)] = self.own_copy(value)
        return value

    def own_copy(self, value: Any) -> Any:
        """A copy that a build may change without changing the notebook's objects; one copy for each object."""
        try:
            copied = copy.deepcopy(value, self.owned)
        except Exception as error:
            raise UnknownValue(f"cannot be copied ({type(error).__name__}: {error})") from error
        self.keep(copied)
        return copied

    def keep(self, value: Any) -> None:
        """Do not copy `value` again: it belongs to the plan."""
        self.owned[id(value)] = value

    def lookup(self, name: str) -> Any:
        """The object of a name. Raises UnknownValue if it is unknown."""
        binding = self.bindings.get(name)
        if binding is not None:
            return self._bound_value(binding)
        if name in self.parameters:
            return self.parameters[name]
        if name in self.own or name not in self.outer:
            raise UnknownValue(f"needs `{name}`, which has no value before the function runs")
        return self.outer[name]

    def _bound_value(self, binding: NameBinding) -> Any:
        if binding.problem:
            raise UnknownValue(binding.problem)
        if binding.expression is not None:
            return self._settled(binding.expression)
        try:
            return _imported(binding, self.package)
        except Exception as error:
            raise UnknownValue(f"needs an import that failed ({type(error).__name__}: {error})") from error


def function_scope(
    function: FunctionType, known: Mapping[str, Any], backend: Backend, source: SourceText
) -> FunctionScope:
    """The scope of a function's body, with `known` as its parameters."""
    code = function.__code__
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    closure = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
    return FunctionScope(
        outer=ChainMap(closure, function.__globals__, vars(builtins)),
        parameters=dict(known),
        own=frozenset(code.co_varnames + code.co_cellvars),
        backend=backend,
        source=source,
        package=function.__globals__.get("__package__"),
    )


def import_bindings(statement: ast.Import | ast.ImportFrom, code: str) -> Iterator[tuple[str, NameBinding]]:
    """The names that an import binds."""
    for alias in statement.names:
        if isinstance(statement, ast.ImportFrom):
            module = "." * statement.level + (statement.module or "")
            yield alias.asname or alias.name, NameBinding(statement.lineno, code, module=module, attribute=alias.name)
        elif alias.asname:
            yield alias.asname, NameBinding(statement.lineno, code, module=alias.name)
        else:
            first = alias.name.partition(".")[0]
            yield first, NameBinding(statement.lineno, code, module=first)


def arguments_of(call: ast.Call) -> ast.Tuple:
    """`((a, *b), {"k": v, **d})` for `f(a, *b, k=v, **d)`: all arguments as one expression."""
    keys: list[ast.expr | None] = [ast.Constant(keyword.arg) if keyword.arg else None for keyword in call.keywords]
    values = [keyword.value for keyword in call.keywords]
    both = ast.Tuple([ast.Tuple(call.args, ast.Load()), ast.Dict(keys, values)], ast.Load())
    ast.copy_location(both, call)
    return ast.fix_missing_locations(both)


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018  (reading an empty cell raises)
    except ValueError:
        return False
    return True


def _imported(binding: NameBinding, package: str | None) -> Any:
    name = importlib.util.resolve_name(binding.module, package) if binding.module.startswith(".") else binding.module
    if name not in sys.modules and name.partition(".")[0] in STARTS_THREADS:
        raise ImportError(f"{name} is left to the worker")
    module = importlib.import_module(name)
    if not binding.attribute:
        return module
    try:
        return getattr(module, binding.attribute)
    except AttributeError:
        return importlib.import_module(f"{name}.{binding.attribute}")


def _bound_by(node: ast.AST) -> frozenset[str]:
    """The names that a comprehension binds."""
    generators = getattr(node, "generators", ())
    stored = (name for part in generators for name in ast.walk(part.target))
    return frozenset(name.id for name in stored if isinstance(name, ast.Name))


def free_names(tree: ast.AST) -> Iterator[str]:
    """The names that an expression reads, without those that it binds itself."""
    stored = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in stored:
            yield node.id


class _Names(ast.NodeTransformer):
    """Replaces each call that has been made with a name."""

    def __init__(self, built: Mapping[int, Any]) -> None:
        self.built = built
        self.names: dict[str, Any] = {}

    def visit(self, node: ast.AST) -> Any:
        if id(node) not in self.built:
            return self.generic_visit(node)
        name = f"__built_{len(self.names)}__"
        self.names[name] = self.built[id(node)]
        return ast.copy_location(ast.Name(name, ast.Load()), node)


def _with_names(node: ast.expr, built: Mapping[int, Any]) -> tuple[ast.expr, dict[str, Any]]:
    """A copy of `node` in which the calls of `built` are names, and the values of these names."""
    memo: dict[int, Any] = {}
    copied = copy.deepcopy(node, memo)
    names = _Names({id(memo[key]): value for key, value in built.items() if key in memo})
    return names.visit(copied), names.names
