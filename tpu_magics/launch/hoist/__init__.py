"""Hoisting: a model that the training function builds is built once in the notebook, before the fork.

The notebook is left unchanged: its random state, environment and objects, and the function itself.
"""

from __future__ import annotations

import ast
import builtins
import itertools
import os
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import CodeType, FunctionType
from typing import Any

from tpu_magics.backends.protocols import Backend
from tpu_magics.launch.hoist.build import (
    Build,
    Builder,
    InheritedModels,
    NotHoisted,
    OnBuilt,
    OnDeclined,
    argument_fingerprints,
)
from tpu_magics.launch.hoist.candidates import Candidate, DeclinedCall, EnvironmentSetting, SeedCall, Step, read
from tpu_magics.launch.hoist.functions import (
    NAME,
    FunctionSource,
    code_with_replaced_calls,
    function_source,
    source_problem,
    unwrap_function,
    with_replaced_calls,
)
from tpu_magics.launch.hoist.values import (
    FunctionScope,
    SourceText,
    UnknownValue,
    arguments_of,
    function_scope,
)


@dataclass(frozen=True)
class HoistedModel:
    """A model that was built in the notebook. `line` counts in the function's source; `code`: the text of that line;
    `number`: its build."""

    name: str
    line: int
    code: str
    model: Any
    bytes: int
    number: int

    def text(self, workers: int) -> str:
        """One sentence for the user."""
        what = f"hoisted `{self.code}` from line {self.line}: {size(self.bytes)}"
        if workers < 2:
            return f"{what}, built in the notebook"
        return f"{what} once instead of {workers} times ({size(self.bytes * (workers - 1))} saved)"


@dataclass(frozen=True)
class HoistPlan:
    """The models built in the notebook, the calls that stay in the function, and the function with its calls replaced.

    `function` and `code`: None for a cell's tree, which `replace_calls` changes. `pid`: the notebook, whose function
    must not change (0: this process has a function of its own).
    """

    backend: Backend
    namespace: dict[str, Any]
    hoisted: tuple[HoistedModel, ...] = ()
    declined: tuple[DeclinedCall, ...] = ()
    builds: Mapping[int, Build] = field(default_factory=dict)
    function: Any = None
    code: CodeType | None = None
    pid: int = field(default_factory=os.getpid)

    @property
    def models(self) -> dict[str, Any]:
        """The hoisted models by name."""
        return {one.name: one.model for one in self.hoisted}

    def describe(self, workers: int) -> list[str]:
        """One sentence for each hoisted model."""
        return [one.text(workers) for one in self.hoisted]

    def warnings(self) -> list[str]:
        """One sentence for each call that stays in the function."""
        return [one.text() for one in self.declined]

    def install(self, on_declined: OnDeclined, *, replicas: int = 1, on_built: OnBuilt | None = None) -> None:
        """In a worker: pass the models to the function. `on_declined(k, reason)` is called if `hoisted[k]` is built
        there after all, `on_built(k, model)` with the model that is built; `replicas`: threads of this worker that run
        the function."""
        if os.getpid() == self.pid:
            raise RuntimeError(
                "a hoist plan can only be installed in a forked worker: the notebook's function must not change"
            )
        if not self.hoisted:
            return
        inherited = InheritedModels(self.builds, self._reported(), self.backend, on_declined, replicas, on_built)
        if self.function is None or self.code is None:
            self.namespace[NAME] = inherited
        else:
            self.function.__globals__[NAME] = inherited
            self.function.__code__ = self.code

    def _reported(self) -> dict[int, int]:
        """Which of `hoisted` each build belongs to, parts included."""
        return {
            number: position for position, one in enumerate(self.hoisted) for number in _group(one.number, self.builds)
        }


def replace_calls(tree: ast.Module, plan: HoistPlan) -> ast.Module:
    """A cell's tree with the hoisted calls replaced, for workers in which the plan is installed."""
    return with_replaced_calls(tree, _places(plan.builds.values())) if plan.builds else tree


def plan_hoists(
    fn_or_tree: Callable[..., Any] | ast.Module,
    *,
    arguments: Mapping[str, Any],
    namespace: dict[str, Any],
    backend: Backend,
    source: str | None = None,
) -> HoistPlan:
    """Find the models that a training function, or the statements of a cell, build themselves, and build them here.

    Args:
        fn_or_tree: the function, or the parsed cell.
        arguments: the values of its parameters; empty for a cell.
        namespace: the notebook's names.
        source: the text of the function's file or of the cell; None: read it from the function's file.

    Raises:
        TpuMagicsError: building a model started the accelerator's runtime in this process.
    """
    empty = HoistPlan(backend, namespace)
    if isinstance(fn_or_tree, ast.Module):
        scope = FunctionScope(
            ChainMap(namespace, vars(builtins)),
            {},
            frozenset(),
            backend,
            SourceText(source or ""),
            namespace.get("__package__"),
        )
        return _plan(empty, read(fn_or_tree.body, scope), None)
    function, known = unwrap_function(fn_or_tree)
    if function is None:
        return empty
    found = function_source(function, source)
    if found is None:
        return replace(empty, declined=tuple(_without_source(function, backend)))
    scope = function_scope(function, {**known, **arguments}, backend, SourceText(found.text))
    return _plan(replace(empty, function=function), read(found.node.body, scope), found)


def _plan(plan: HoistPlan, steps: list[Step], source: FunctionSource | None) -> HoistPlan:
    problem = ""
    if plan.function is not None and source is not None:
        problem = source_problem(plan.function, source)
    if problem:
        steps = [step.declined(problem) if isinstance(step, Candidate) else step for step in steps]
    work = _PlanBuilder(plan.backend, source.node.lineno if source is not None else 1)
    if any(isinstance(step, Candidate) for step in steps):
        with _restored_state(plan.backend):
            work.run(steps)
    else:
        work.declined = [step for step in steps if isinstance(step, DeclinedCall) and not step.silent]
    return _with_code(work.result(plan), source)


def _with_code(plan: HoistPlan, source: FunctionSource | None) -> HoistPlan:
    """The plan with the function's new code; everything is declined if that is not possible."""
    if plan.function is None or source is None or not plan.hoisted:
        return plan
    code = code_with_replaced_calls(plan.function, source, _places(plan.builds.values()))
    if code is not None:
        return replace(plan, code=code)
    reason = "the function's code could not be recompiled with the same closure"
    stays = [plan.builds[one.number].candidate.declined(reason) for one in plan.hoisted]
    return replace(plan, hoisted=(), builds={}, declined=(*plan.declined, *stays))


# -- seeds and builds, in order -------------------------------------------------------------------------------------
class _PlanBuilder:
    """Builds the models of a plan, in order."""

    def __init__(self, backend: Backend, first_line: int) -> None:
        self.backend = backend
        self.builder = Builder(backend)
        self.numbers = itertools.count()
        self.builds: dict[int, Build] = {}
        self.roots: list[int] = []
        self.declined: list[DeclinedCall] = []
        self.since = first_line
        self.unknown = ""  # why the random numbers from here on differ from the worker's
        self.failed = ""

    def run(self, steps: Iterable[Step]) -> None:
        for step in steps:
            if isinstance(step, Candidate):
                self.hoist(step)
            elif isinstance(step, DeclinedCall):
                self.decline(step)
            elif isinstance(step, SeedCall):
                self.seed(step)
            else:
                _set_environ(step)

    def decline(self, declined: DeclinedCall) -> None:
        if not declined.silent:
            self.declined.append(declined)
        if declined.certain:
            self.unknown = (
                f"`{declined.code}` (line {declined.line}) runs before it and draws random numbers in the worker only"
            )

    def seed(self, step: SeedCall) -> None:
        callee = step.scope.resolve(step.call.func)
        try:
            args, kwargs = step.scope.value(arguments_of(step.call))
            callee(*args, **kwargs)
        except Exception:  # the worker raises it, or finds that the numbers differ
            self.unknown = f"the seed call in line {step.line} could not be repeated in the notebook"
            return
        self.unknown = ""
        self.since = step.line

    def hoist(self, candidate: Candidate) -> None:
        """Build a candidate with its parts. If it cannot be hoisted, hoist its parts alone where possible."""
        builds: list[Build] = []
        try:
            build = self._build(candidate, builds)
        except NotHoisted as problem:
            self._leave(candidate, problem, builds)
            return
        self.builds.update((one.number, one) for one in builds)
        candidate.scope.results[id(candidate.call)] = build.model
        self.roots.append(build.number)

    def _build(self, candidate: Candidate, builds: list[Build]) -> Build:
        """A build, added to `builds` after its parts."""
        if self.failed:
            raise NotHoisted(self.failed)
        parts = [self._part(part, builds) for part in candidate.parts]
        build = self.builder.build(candidate, next(self.numbers), parts, self.since)
        if build.drawn is not None and self.unknown:
            raise NotHoisted(self.unknown, called=True)
        builds.append(build)
        return build

    def _part(self, part: Candidate, builds: list[Build]) -> Build:
        try:
            return self._build(part, builds)
        except NotHoisted as problem:
            code = part.scope.source.code(part.call)
            raise NotHoisted(f"its part `{code}` cannot be hoisted: {problem}") from problem.__cause__

    def _leave(self, candidate: Candidate, problem: NotHoisted, builds: list[Build]) -> None:
        """Leave a candidate to the worker. Its built parts become hoisted models of their own."""
        if problem.__cause__ is not None:
            self.failed = f"the model in line {candidate.line} before it could not be built"
        declined = candidate.declined(str(problem))
        if problem.called:
            self.declined.append(declined)
            return
        self.decline(declined)
        inner = {number for one in builds for number in one.parts}
        self.builds.update((one.number, one) for one in builds)
        self.roots += [one.number for one in builds if one.number not in inner]

    # -- the result -------------------------------------------------------------------------------------------------
    def result(self, plan: HoistPlan) -> HoistPlan:
        """The plan with all builds that have weights and were not changed by later builds."""
        for number in [one for one in self.roots if self._was_changed(one)]:
            self.roots.remove(number)
            reason = "building a later model changes the same arguments"
            self.declined.append(self.builds[number].candidate.declined(reason))
        sizes = {number: self.backend.models.model_bytes(self.builds[number].model) for number in self.roots}
        roots = [number for number in self.roots if sizes[number]]
        names = unique_names(self.builds[number].candidate.name for number in roots)
        hoisted = tuple(
            _hoisted(self.builds[number], name, sizes[number]) for name, number in zip(names, roots, strict=True)
        )
        builds = {number: self.builds[number] for root in roots for number in _group(root, self.builds)}
        return replace(plan, hoisted=hoisted, declined=tuple(self.declined), builds=builds)

    def _was_changed(self, root: int) -> bool:
        builds = (self.builds[number] for number in _group(root, self.builds))
        return any(argument_fingerprints(build.arguments, self.backend) != build.after_marks for build in builds)


def _hoisted(build: Build, name: str, nbytes: int) -> HoistedModel:
    one = build.candidate
    return HoistedModel(name, one.line, one.code, build.model, nbytes, build.number)


def _group(root: int, builds: Mapping[int, Build]) -> Iterator[int]:
    """A build and its parts, theirs included."""
    yield root
    for part in builds[root].parts:
        yield from _group(part, builds)


def _places(builds: Iterable[Build]) -> dict[tuple[int, int, int, int], int]:
    return {build.place: build.number for build in builds}


def unique_names(names: Iterable[str]) -> list[str]:
    """`model`, `model_2`, ... in order."""
    unique: list[str] = []
    for name in names:
        candidates = [name, *(f"{name}_{n}" for n in range(2, len(unique) + 3))]
        unique.append(next(one for one in candidates if one not in unique))
    return unique


def size(nbytes: int) -> str:
    """`410 MB`, `2.9 GB`: three figures at most, in powers of 1000."""
    value, units = float(nbytes), ["bytes", "kB", "MB", "GB", "TB"]
    while value >= 999.5 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{value:.0f} {units[0]}" if value >= 9.95 or units[0] == "bytes" else f"{value:.1f} {units[0]}"


# -- restoring the notebook -----------------------------------------------------------------------------------------
@contextmanager
def _restored_state(backend: Backend) -> Iterator[None]:
    """Restore the notebook's random state and environment afterwards; meanwhile seeds do not start the accelerator."""
    state, environ = backend.randomness.random_state(), dict(os.environ)
    try:
        with backend.randomness.seeds_without_runtime():
            yield
    finally:
        backend.randomness.set_random_state(state)
        for name in [name for name in os.environ if name not in environ]:
            del os.environ[name]
        os.environ.update(environ)


def _set_environ(step: EnvironmentSetting) -> None:
    try:
        os.environ[step.scope.value(step.key)] = step.scope.value(step.value)
    except (UnknownValue, TypeError, ValueError):
        return


def _without_source(function: FunctionType, backend: Backend) -> Iterator[DeclinedCall]:
    """The declined calls of a function without source."""
    code = function.__code__
    for name in code.co_names:
        if backend.models.builds_model(function.__globals__.get(name)):
            yield DeclinedCall(code.co_firstlineno, name, "the source of the function is not available")
