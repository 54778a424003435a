"""Builds a model in the notebook, and records what a worker needs to check that its own call would build the same. Then
the hoisted call returns the notebook's model there; if anything differs, the original call builds it, and the reason is
reported."""

from __future__ import annotations

import contextlib
import copy
import io
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tpu_magics.backends.protocols import Backend
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch.hoist.candidates import Candidate
from tpu_magics.launch.hoist.fingerprints import (
    NotComparable,
    SharedState,
    device_use,
    files,
    fingerprint,
    generator_use,
    is_generator,
    model_use,
    reference_fingerprints,
    same_callee,
)
from tpu_magics.launch.hoist.functions import SourcePosition, position_of
from tpu_magics.launch.hoist.values import UnknownValue, arguments_of

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class NotHoisted(Exception):
    """The text is the reason. `called`: the builder was called, so its random numbers were drawn."""

    def __init__(self, reason: str, *, called: bool = False) -> None:
        super().__init__(reason)
        self.called = called


@dataclass(frozen=True, eq=False)
class Build:
    """A model that was built in the notebook.

    `number`: of this build in the plan; `place`: position of the call (line, column, end line, end column);
    `arguments`: the plan's own copies, as they are after the build; `marks`, `after_marks`: fingerprints by argument,
    before and after; `reads`, `files`: fingerprints of what else the builder reads; `modes`: a random state with the
    notebook's modes; `drawn`: the random states before and after, of the generators that it drew from; `said`: what it
    printed; `since`: the line from which on the random numbers are known; `parts`: numbers of the builds among its
    arguments."""

    number: int
    candidate: Candidate
    place: SourcePosition
    model: Any
    arguments: Arguments
    marks: Mapping[str, str]
    after_marks: Mapping[str, str]
    reads: Mapping[str, str]
    files: tuple[tuple[str, int, int], ...]
    modes: Any
    drawn: tuple[Any, Any] | None
    said: str
    since: int
    parts: tuple[int, ...] = ()

    @property
    def callee(self) -> Any:
        return self.candidate.callee


@dataclass(frozen=True)
class Builder:
    """Builds candidates, in this process."""

    backend: Backend

    def build(self, candidate: Candidate, number: int, parts: Sequence[Build], since: int) -> Build:
        """Call the builder. Raises NotHoisted if that is not possible or would have side effects."""
        backend = self.backend
        args, kwargs = self._arguments(candidate, parts)
        self._check_builder(candidate)
        reads = reference_fingerprints(candidate.callee, backend)
        marks = argument_fingerprints((args, kwargs), backend)
        on_disk = files((args, kwargs))
        before = backend.randomness.random_state()
        shared = SharedState(candidate.callee)
        try:
            model, said = self._call(candidate, args, kwargs)
            after = backend.randomness.random_state()
            after_marks = argument_fingerprints((args, kwargs), backend)
            self._check_built(candidate, model, (args, kwargs), reads)
            _check_changes((args, kwargs), marks, after_marks)
        except NotHoisted:
            shared.restore()
            raise
        return Build(
            number=number,
            candidate=candidate,
            place=position_of(candidate.call),
            model=model,
            arguments=(args, kwargs),
            marks=marks,
            after_marks=after_marks,
            reads=reads,
            files=on_disk,
            modes=before,
            drawn=backend.randomness.drawn(before, after),
            said=said,
            since=since,
            parts=tuple(part.number for part in parts),
        )

    def _arguments(self, candidate: Candidate, parts: Sequence[Build]) -> Arguments:
        built = {id(part.candidate.call): part.model for part in parts}
        scope = candidate.scope
        try:
            found = scope.value(arguments_of(candidate.call), built)
        except UnknownValue as unknown:
            raise NotHoisted(f"an argument {unknown}") from None
        known = {id(part.model) for part in parts}
        for value in leaves(found):
            if id(value) not in known:
                self._check_argument(value)
        for part in parts:
            scope.keep(part.model)
        try:
            args, kwargs = scope.own_copy(found)
        except UnknownValue as unknown:
            raise NotHoisted(f"an argument {unknown}") from None
        return args, kwargs

    def _check_argument(self, value: object) -> None:
        if self.backend.models.is_model(value):
            raise NotHoisted("one of its arguments is a model, which the build might change")
        if is_generator(value):
            raise NotHoisted("one of its arguments is a random generator")
        if self.backend.models.touches_device(value):
            raise NotHoisted("one of its arguments depends on the device")

    def _check_builder(self, candidate: Candidate) -> None:
        device = device_use(candidate.callee, self.backend)
        if device:
            raise NotHoisted(f"its code uses {device}, which may start the accelerator's runtime in the notebook")
        model = model_use(candidate.callee, self.backend)
        if model:
            raise NotHoisted(f"its code uses the model {model}, which the build might change")
        generator = generator_use(candidate.callee)
        if generator:
            raise NotHoisted(f"its code reads the random generator {generator}")

    def _call(self, candidate: Candidate, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, str]:
        """Call the builder. Its output is recorded, to be printed where the call stands."""
        was_up = self.backend.runtime_initialized()
        callee: Any = candidate.callee
        said = io.StringIO()
        try:
            with contextlib.redirect_stdout(said):
                model = callee(*args, **kwargs)
        except (Exception, SystemExit) as error:
            text, *_ = str(error).splitlines() or [""]
            reason = f"building it in the notebook raised {type(error).__name__}: {text}"
            raise NotHoisted(reason, called=True) from error
        finally:
            if not was_up and self.backend.runtime_initialized():
                raise self._runtime_error(candidate)
        return model, said.getvalue()

    def _runtime_error(self, candidate: Candidate) -> TpuMagicsError:
        return TpuMagicsError(
            f"Building the model of `{candidate.code}` (line {candidate.line}) started the device's runtime in the "
            "notebook.",
            "The model is built once in the notebook for all workers. Its code used the device, and a process with a "
            "running runtime cannot be forked.",
            "Restart the kernel, and train with `--hoist off` or do not use the device in the model's code.",
        )

    def _check_built(self, candidate: Candidate, model: Any, arguments: Arguments, reads: Mapping[str, str]) -> None:
        if not self.backend.models.is_model(model):
            raise NotHoisted(f"it gave a {type(model).__name__}, not a model", called=True)
        after = reference_fingerprints(candidate.callee, self.backend)
        changed = next((label for label in reads if after.get(label) != reads[label]), "")
        if changed:
            raise NotHoisted(f"building it changes {changed}", called=True)
        if any(self.backend.models.shares_memory(model, value) for value in leaves(arguments)):
            raise NotHoisted("the model lies in the memory of one of its arguments, so nothing is copied", called=True)


def leaves(value: Any) -> Iterator[Any]:
    """All values in plain containers."""
    if type(value) in (list, tuple, set, frozenset):
        for item in value:
            yield from leaves(item)
    elif type(value) in (dict, OrderedDict):
        yield from leaves([*value.keys(), *value.values()])
    else:
        yield value


def argument_fingerprints(
    arguments: Arguments, backend: Backend, alias: Mapping[int, int] | None = None
) -> dict[str, str]:
    """Fingerprints of all arguments, by position or name. Raises NotHoisted for values that cannot be compared."""
    fingerprints: dict[str, str] = {}
    for name, value in named_arguments(arguments):
        try:
            fingerprints[name] = fingerprint(value, backend, alias)
        except NotComparable as error:
            raise NotHoisted(f"argument {name} cannot be compared in the worker ({error})") from None
    return fingerprints


def named_arguments(arguments: Arguments) -> list[tuple[str, Any]]:
    """The arguments, each with its number (from 1) or keyword."""
    args, kwargs = arguments
    return [*((str(number), value) for number, value in enumerate(args, 1)), *kwargs.items()]


def has_plain_state(value: object) -> bool:
    """Whether the attributes of `value` are its whole state."""
    kind = type(value)
    plain = kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__
    return plain and hasattr(value, "__dict__") and not any(getattr(base, "__slots__", ()) for base in kind.__mro__)


def _check_changes(arguments: Arguments, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """Raise NotHoisted if the build changed an argument in a way that cannot be repeated in the worker."""
    for name, value in named_arguments(arguments):
        if before[name] != after[name] and not has_plain_state(value) and type(value) not in (dict, list):
            raise NotHoisted(f"building it changes argument {name}", called=True)


# -- in the worker ----------------------------------------------------------------------------------------------------


OnDeclined = Callable[[int, str], None]
OnBuilt = Callable[[int, Any], None]


@dataclass
class _Replica:
    """The state of one thread that runs the function: its models and arguments by build number, ids that stand for the
    notebook's, and the calls made so far."""

    models: Mapping[int, Any]
    arguments: Mapping[int, Arguments]
    alias: Mapping[int, int]
    called: dict[int, tuple[Any, Arguments]] = field(default_factory=dict)
    reported_builds: set[int] = field(default_factory=set)


class InheritedModels:
    """Called in place of each builder, with the number of its build.

    Args:
        builds: all builds whose calls were replaced, by number.
        reported: the index in `plan.hoisted` of each build.
        on_declined: called with that index and the reason when a worker builds a model itself.
        on_built: called with that index and the model that was built in the worker.
        replicas: threads of this worker that run the function; the second and later ones get copies.
    """

    def __init__(
        self,
        builds: Mapping[int, Build],
        reported: Mapping[int, int],
        backend: Backend,
        on_declined: OnDeclined,
        replicas: int = 1,
        on_built: OnBuilt | None = None,
    ) -> None:
        self.on_built = on_built
        self.builds = builds
        self.reported = reported
        self.backend = backend
        self.on_declined = on_declined
        self.lock = threading.Lock()
        self.reported_builds: set[int] = set()
        first = _Replica(
            {number: build.model for number, build in builds.items()},
            {number: build.arguments for number, build in builds.items()},
            {},
        )
        # Copied now: later the first replica has trained its own models.
        self.first = first
        self.free = [first, *(_copied(first) for _ in range(replicas - 1))]
        self.replicas: dict[threading.Thread, _Replica] = {}

    def __call__(self, number: int, callee: Any, /, *args: Any, **kwargs: Any) -> Any:
        build = self.builds[number]
        replica = self._replica()
        reason = self._difference(build, replica, callee, (args, kwargs))
        if reason or replica is None:
            return self._build_here(build, replica, callee, (args, kwargs), reason)
        replica.called[number] = (callee, (args, kwargs))
        return self._hand_over(build, replica, (args, kwargs))

    def _replica(self) -> _Replica | None:
        """This thread's state; None if more threads run the function than expected."""
        with self.lock:
            thread = threading.current_thread()
            if thread not in self.replicas and self.free:
                self.replicas[thread] = self.free.pop(0)
            return self.replicas.get(thread)

    # -- checking --------------------------------------------------------------------------------------------------
    def _difference(self, build: Build, replica: _Replica | None, callee: Any, arguments: Arguments) -> str:
        """Why the call would not build the notebook's model; "" if it would."""
        if replica is None:
            return "more threads run the function than the worker has devices"
        if build.number in replica.called:
            return "the line ran again, and each run builds a model of its own"
        now = self.backend.randomness.random_state()
        if not same_callee(callee, build.callee):
            return (
                f"`{build.candidate.scope.source.code(build.candidate.call.func)}` is not what it was in the notebook"
            )
        if not self.backend.randomness.same_modes(build.modes, now):
            return "the default dtype, the default device or the gradient mode is not what it was in the notebook"
        if build.drawn is not None and not self.backend.randomness.same_drawn(build.drawn[0], now):
            return f"random numbers were drawn or seeded between line {build.since} and the build"
        return self._argument_difference(build, replica, arguments) or self._other_difference(build, arguments)

    def _argument_difference(self, build: Build, replica: _Replica, arguments: Arguments) -> str:
        try:
            marks = argument_fingerprints(arguments, self.backend, replica.alias)
        except NotHoisted as problem:
            return str(problem)
        for name in [*build.marks, *marks]:
            if build.marks.get(name) != marks.get(name):
                return f"argument {name} is not what it was in the notebook"
        return ""

    def _other_difference(self, build: Build, arguments: Arguments) -> str:
        reads = reference_fingerprints(build.callee, self.backend)
        changed = next((label for label in {**build.reads, **reads} if build.reads.get(label) != reads.get(label)), "")
        if changed:
            return f"{changed}, which its code reads, is not what it was in the notebook"
        return "files that it reads have changed" if files(arguments) != build.files else ""

    # -- the hoisted model
    # ------------------------------------------------------------------------------------------------
    def _hand_over(self, build: Build, replica: _Replica, arguments: Arguments) -> Any:
        """The notebook's model, with all side effects that building it here would have."""
        model = replica.models[build.number]
        own = dict(named_arguments(replica.arguments[build.number]))
        for name, value in named_arguments(arguments):
            self._adopt(model, own[name], value)
        if build.drawn is not None:
            self.backend.randomness.set_random_state(build.drawn[1])
        if build.said:
            print(build.said, end="")
        return model

    def _adopt(self, model: Any, old: Any, new: Any) -> None:
        """Make the model refer to `new` instead of `old`, so that later changes of the argument reach the model."""
        if old is new or self.backend.models.is_model(new):
            return
        if has_plain_state(new):
            object.__setattr__(new, "__dict__", old.__dict__)  # configs and frozen dataclasses have a __setattr__
        elif type(new) is dict:
            new.clear()
            new.update(old)
        elif type(new) is list:
            new[:] = old
        self.backend.models.replace_reference(model, old, new)

    # -- built in the worker
    # --------------------------------------------------------------------------------------------
    def _build_here(
        self, build: Build, replica: _Replica | None, callee: Any, arguments: Arguments, reason: str
    ) -> Any:
        self._report(build, replica, reason)
        args, kwargs = arguments
        if replica is not None:
            args, kwargs = self._with_fresh_parts(build, replica, arguments)
        model = callee(*args, **kwargs)
        if self.on_built is not None and replica is self.first and self._stands_for(build):
            self.on_built(self.reported[build.number], model)
        return model

    def _stands_for(self, build: Build) -> bool:
        """Whether the model built here replaces a hoisted model that no other thread of this worker uses."""
        whole = build.number == max(n for n, one in self.reported.items() if one == self.reported[build.number])
        return whole and build.number not in self.first.called

    def _report(self, build: Build, replica: _Replica | None, reason: str) -> None:
        """Report the first reason for each model, once."""
        hoisted = self.reported[build.number]
        reported_builds = replica.reported_builds if replica is not None else self.reported_builds
        if hoisted not in reported_builds:
            reported_builds.add(hoisted)
            self.on_declined(hoisted, reason)

    def _with_fresh_parts(self, build: Build, replica: _Replica, arguments: Arguments) -> Arguments:
        """The arguments with new models: the notebook's were already used in the build."""
        given = {id(value) for value in leaves(arguments)}
        taken = [self.builds[part] for part in build.parts if id(replica.models[part]) in given]
        if not taken:
            return arguments
        now = self.backend.randomness.random_state()
        fresh = {id(replica.models[part.number]): self._rebuilt(part, replica) for part in taken}
        self.backend.randomness.set_random_state(now)
        args, kwargs = _replaced(arguments, fresh)
        return args, kwargs

    def _rebuilt(self, part: Build, replica: _Replica) -> Any:
        callee, arguments = replica.called[part.number]
        args, kwargs = self._with_fresh_parts(part, replica, arguments)
        if part.drawn is not None:
            self.backend.randomness.set_random_state(part.drawn[0])
        return callee(*args, **kwargs)


def _copied(replica: _Replica) -> _Replica:
    """A copy that keeps the references between models and their arguments."""
    memo: dict[int, Any] = {}
    models, arguments = copy.deepcopy((replica.models, replica.arguments), memo)
    alias = {id(models[number]): id(model) for number, model in replica.models.items()}
    return _Replica(models, arguments, alias)


def _replaced(value: Any, fresh: Mapping[int, Any]) -> Any:
    """`value` with models replaced; containers are new."""
    if id(value) in fresh:
        return fresh[id(value)]
    if type(value) in (list, tuple):
        return type(value)(_replaced(item, fresh) for item in value)
    if type(value) in (dict, OrderedDict):
        return type(value)((key, _replaced(item, fresh)) for key, item in value.items())
    return value
