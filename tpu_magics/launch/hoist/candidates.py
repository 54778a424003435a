"""Finds the calls in a training function that build a model and may be made in the notebook instead, and the seed calls
and environment variables to repeat there before, so that it draws the same random numbers. Nothing is built.

Read are the function's own statements and those in `with` blocks that do not change how a model is built. A call in an
`if`, a loop, a `try`, an inner function or a comprehension may run never or several times, so it stays. Seeds may stand
in an `if` whose condition is known, and in helpers that only seed (`seed_everything(42)`).
"""

from __future__ import annotations

import ast
import inspect
import os
import pkgutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import FunctionType, ModuleType
from typing import Any

from tpu_magics.check import hoisting
from tpu_magics.check.hoisting import COMPREHENSIONS, FUNCTIONS, children, place_problem
from tpu_magics.launch.hoist.functions import function_source, helper_problem, is_helper
from tpu_magics.launch.hoist.values import (
    PENDING,
    FunctionScope,
    NameBinding,
    SourceText,
    UnknownValue,
    arguments_of,
    free_names,
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
    if scope.backend.randomness.seeds_device_only(callee):
        return []
    if scope.backend.randomness.is_seed_call(callee):
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
        return _call(statement.value, scope, line, DEPTH) if scope.backend.randomness.is_seed_call(callee) else None
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


# -- calls that build a model -----------------------------------------------------------------------------------------


_HARMLESS = tuple(map(pkgutil.resolve_name, hoisting.HARMLESS_CONTEXTS))


@dataclass(frozen=True)
class DeclinedCall:
    """A call that builds a model and stays in the training function. `line` counts in the function's source.

    `certain`: the function always makes this call, so it draws random numbers before later ones; `silent`: the reason
    is reported with the call around it."""

    line: int
    code: str
    reason: str
    certain: bool = False
    silent: bool = False

    def text(self) -> str:
        """One sentence for the user."""
        return f"`{self.code}` in line {self.line} is built by each worker: {self.reason}"


@dataclass(frozen=True, eq=False)
class Candidate:
    """A call that may be made in the notebook. `parts`: the models among its arguments, in build order.

    `weightless`: a module without parameters, hoisted only as a part.
    """

    call: ast.Call
    callee: object
    scope: FunctionScope
    name: str
    line: int
    code: str
    parts: tuple[Candidate, ...] = ()
    weightless: bool = False

    def declined(self, reason: str) -> DeclinedCall:
        """A copy of the call, declined for `reason`."""
        return DeclinedCall(self.line, self.scope.source.code(self.call), reason, certain=True)


Step = SeedCall | EnvironmentSetting | Candidate | DeclinedCall


def read(statements: Sequence[ast.stmt], scope: FunctionScope) -> list[Step]:
    """The steps of a function's body or a cell, in execution order."""
    return list(_read(statements, scope, ""))


def _read(statements: Iterable[ast.stmt], scope: FunctionScope, context: str) -> Iterator[Step]:
    for statement in statements:
        seeds = seed_steps(statement, scope) if not context else None
        if seeds is not None:
            yield from seeds
        elif isinstance(statement, (ast.With, ast.AsyncWith)):
            yield from _read_with(statement, scope, context)
        elif hoisting.is_main_guard(statement):
            yield from _read(statement.body, scope, context)
            continue
        else:
            yield from _Statement(statement, scope).steps(context)
        bind(statement, scope)
        if isinstance(statement, (ast.Return, ast.Raise)):
            return


def _read_with(statement: ast.With | ast.AsyncWith, scope: FunctionScope, context: str) -> Iterator[Step]:
    for item in statement.items:
        yield from _Statement(statement, scope).of(item.context_expr, context)
    harmful = [item.context_expr for item in statement.items if not _is_harmless(item.context_expr, scope)]
    if harmful and not context:
        code = scope.source.code(harmful[0])
        context = hoisting.IN_WITH.format(code=code, line=statement.lineno)
    yield from _read(statement.body, scope, context)


def _is_harmless(context: ast.expr, scope: FunctionScope) -> bool:
    if not isinstance(context, ast.Call):
        return False
    if isinstance(context.func, ast.Attribute) and context.func.attr in hoisting.HARMLESS_METHODS:
        return True
    callee = scope.resolve(context.func)
    return any(callee is known for known in _HARMLESS)


# -- one statement --------------------------------------------------------------------------------------------------
class _Statement:
    """The calls of one statement."""

    def __init__(self, statement: ast.stmt, scope: FunctionScope) -> None:
        self.statement = statement
        self.backend = scope.backend
        self._scope = scope

    @cached_property
    def scope(self) -> FunctionScope:
        """The scope at this statement; computed only for statements with a call, since there may be thousands without
        one."""
        return self._scope.frozen()

    def steps(self, context: str) -> list[Step]:
        return self.of(self.statement, context)

    def of(self, node: ast.AST, context: str) -> list[Step]:
        """Candidates and declined calls in `node`, in order of evaluation."""
        found = self._calls(node, context)
        return [step for step in found if not (isinstance(step, Candidate) and step.weightless)]

    def _calls(self, node: ast.AST, context: str) -> list[Step]:
        if isinstance(node, ast.ClassDef):
            return []
        inner = [
            step
            for child, around in children(node)
            for step in self._calls(child, context or self._around(node, around))
        ]
        return self._call(node, inner, context) if isinstance(node, ast.Call) else inner

    def _around(self, node: ast.AST, conditional: bool) -> str:
        """Why calls inside `node` cannot be hoisted; "" if they can."""
        if not conditional:
            return ""
        return place_problem(node, self.statement.lineno)

    def _call(self, call: ast.Call, inner: list[Step], context: str) -> list[Step]:
        callee = self.scope.resolve(call.func)
        weightless = callee is not None and self.backend.models.builds_weightless(callee)
        problem = self._definition_problem(call)
        if not weightless and not problem and not self._builds(callee):
            return inner
        parts = tuple(step for step in inner if isinstance(step, Candidate))
        problem = problem or context or _part_problem(inner) or self._argument_problem(call, callee, parts)
        if problem:
            declined = DeclinedCall(call.lineno, self.scope.source.code(call), problem, certain=not context)
            before = (
                []
                if context
                else [replace(step, silent=True) if isinstance(step, DeclinedCall) else step for step in inner]
            )
            return [*before, *([] if weightless else [declined])]
        return [self._candidate(call, callee, parts, weightless)]

    def _builds(self, callee: object) -> bool:
        return callee is not None and (self.backend.models.builds_model(callee) or is_helper(callee, self.backend))

    def _definition_problem(self, call: ast.Call) -> str:
        """Why a class that the function defines itself cannot be hoisted."""
        binding = self.scope.bindings.get(call.func.id) if isinstance(call.func, ast.Name) else None
        if binding is None or binding.definition is None:
            return ""
        bases = [self.scope.resolve(base) for base in binding.definition.bases]
        if not any(base is not None and self.backend.models.builds_model(base) for base in bases):
            return ""
        return f"its class is defined in the code that is trained (line {binding.line}), not before"

    def _argument_problem(self, call: ast.Call, callee: object, parts: tuple[Candidate, ...]) -> str:
        function = self.scope.problem(call.func)
        if function:
            return f"it {function}"
        problem = "" if self.backend.models.builds_model(callee) else helper_problem(callee, self.backend)
        built = [id(part.call) for part in parts]
        for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
            found = self.scope.problem(argument, built)
            problem = problem or (f"argument `{self.scope.source.code(argument)}` {found}" if found else "")
        return problem

    def _candidate(self, call: ast.Call, callee: object, parts: tuple[Candidate, ...], weightless: bool) -> Candidate:
        self.scope.results[id(call)] = PENDING
        whole = isinstance(self.statement, (ast.Assign, ast.AnnAssign, ast.Return, ast.Expr))
        code = self.scope.source.code(self.statement if whole else call)
        name = _target(self.statement, call) or _last_name(call.func)
        return Candidate(call, callee, self.scope, name, call.lineno, code, parts, weightless)


def _part_problem(inner: list[Step]) -> str:
    declined = next((step for step in inner if isinstance(step, DeclinedCall)), None)
    return f"its part `{declined.code}` cannot be hoisted: {declined.reason}" if declined else ""


def _target(statement: ast.stmt, call: ast.Call) -> str:
    """The name that the statement assigns to the result of `call`, also through a method (`model =
    Net().to(device)`)."""
    if not isinstance(statement, (ast.Assign, ast.AnnAssign)):
        return ""
    value, (target, *others) = statement.value, _targets(statement)
    while isinstance(value, ast.Call) and value is not call and isinstance(value.func, ast.Attribute):
        value = value.func.value
    return _last_name(target) if value is call and not others and isinstance(target, (ast.Name, ast.Attribute)) else ""


def _last_name(node: ast.AST) -> str:
    """`model` for `self.model`; `Auto` for `Auto.from_pretrained`, which is clearer than the method."""
    if isinstance(node, ast.Attribute):
        builder = node.attr.startswith(("from_", "_from_", "load_"))
        return _last_name(node.value) if builder else node.attr
    return node.id if isinstance(node, ast.Name) else "model"


# -- assigned names ------------------------------------------------------------------------------------------------
def bind(statement: ast.stmt, scope: FunctionScope) -> None:
    """Record in `scope` the names that `statement` assigns and the objects that it changes."""
    for name, binding in _bindings(statement, scope):
        scope.bindings[name] = _unless_set_before(name, binding, scope)
    for name in _changed(statement):
        if not _is_module(name, scope):
            scope.changed.setdefault(name, f"line {statement.lineno} (`{scope.source.code(statement)}`)")


def _bindings(statement: ast.stmt, scope: FunctionScope) -> Iterator[tuple[str, NameBinding]]:
    line, code = statement.lineno, scope.source.code(statement)
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        yield from import_bindings(statement, code)
    elif isinstance(statement, (ast.Assign, ast.AnnAssign)) and _are_names(_targets(statement)):
        for target in _targets(statement):
            yield getattr(target, "id", ""), NameBinding(line, code, expression=statement.value)
    elif isinstance(statement, ast.ClassDef):
        problem = "defines it while the function runs"
        yield statement.name, NameBinding(line, code, problem=problem, definition=statement)
    elif isinstance(statement, (ast.With, ast.AsyncWith)):
        names = {name for item in statement.items if item.optional_vars for name in stored_names(item.optional_vars)}
        yield from ((name, NameBinding(line, code, problem="is known only when the function runs")) for name in names)
    else:
        for name in sorted(stored_names(statement)):
            yield name, NameBinding(line, code, problem="sets it in a way that is known only when the function runs")


def _targets(statement: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return statement.targets if isinstance(statement, ast.Assign) else [statement.target]


def _are_names(targets: list[ast.expr]) -> bool:
    return all(isinstance(target, ast.Name) for target in targets)


def _unless_set_before(name: str, binding: NameBinding, scope: FunctionScope) -> NameBinding:
    """The binding, with a problem if the name has been assigned before: which value it has is not tracked."""
    before = scope.bindings.get(name)
    if binding.module and (before is None or before.module == binding.module):
        return binding
    if before is None and name not in scope.parameters:
        # `model = model.to(device)` in the statements of a cell: what was read is the notebook's value
        values = (one.expression for one in (binding, *scope.bindings.values()) if one.expression is not None)
        if any(name in free_names(value) for value in values):
            return NameBinding(binding.line, binding.code, problem="replaces a value that was read before")
        return binding
    first = f"in line {before.line} and again" if before is not None else "as a parameter and again"
    return NameBinding(binding.line, binding.code, problem=f"sets it {first} in line {binding.line}")


def stored_names(node: ast.AST) -> set[str]:
    """All names that `node` assigns in its own scope, without those inside of functions and classes."""
    if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Lambda, *COMPREHENSIONS)):
        return set()
    names = {name for child in ast.iter_child_nodes(node) for name in stored_names(child)}
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        names.add(node.id)
    if isinstance(node, ast.alias):
        names.add((node.asname or node.name).partition(".")[0])
    caught = getattr(node, "name", None) if isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) else None
    return names | ({caught} if caught else set())


def _changed(statement: ast.stmt) -> Iterator[str]:
    """Root names of the objects that a statement changes: `cfg` for `cfg.sub.width = 8` and `cfg.update(...)`."""
    for node in ast.walk(statement):
        if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
            yield from _first_name(node)
        elif isinstance(node, ast.AugAssign):
            yield from _first_name(node.target)
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in hoisting.MUTATORS
        ):
            yield from _first_name(node.func.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr"):
            yield from _first_name(node.args[0]) if node.args else ()


def _first_name(node: ast.AST) -> Iterator[str]:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id


def _is_module(name: str, scope: FunctionScope) -> bool:
    """Whether `name` is a module: setting its attributes (`torch.backends...`, `os.environ[...]`) changes no value.
    Values that the function computes are not evaluated for this: that may use the device."""
    binding = scope.bindings.get(name)
    if binding is not None and binding.expression is not None:
        return False
    try:
        return isinstance(scope.lookup(name), ModuleType)
    except UnknownValue:
        return False
