"""In the worker: a hoisted call returns the notebook's model if it would build the same one.

If anything differs, the model is built in the worker by the original call, and the reason is reported.
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tpu_magics.launch.hoist.build import (
    Arguments,
    Build,
    NotHoisted,
    argument_fingerprints,
    has_plain_state,
    leaves,
    named_arguments,
)
from tpu_magics.launch.hoist.fingerprints import files, reference_fingerprints, same_callee
from tpu_magics.launch.hoist.values import HoistBackend

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
        backend: HoistBackend,
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
        now = self.backend.random_state()
        if not same_callee(callee, build.callee):
            return (
                f"`{build.candidate.scope.source.code(build.candidate.call.func)}` is not what it was in the notebook"
            )
        if not self.backend.same_modes(build.modes, now):
            return "the default dtype, the default device or the gradient mode is not what it was in the notebook"
        if build.drawn is not None and not self.backend.same_drawn(build.drawn[0], now):
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
            self.backend.set_random_state(build.drawn[1])
        if build.said:
            print(build.said, end="")
        return model

    def _adopt(self, model: Any, old: Any, new: Any) -> None:
        """Make the model refer to `new` instead of `old`, so that later changes of the argument reach the model."""
        if old is new or self.backend.is_model(new):
            return
        if has_plain_state(new):
            object.__setattr__(new, "__dict__", old.__dict__)  # configs and frozen dataclasses have a __setattr__
        elif type(new) is dict:
            new.clear()
            new.update(old)
        elif type(new) is list:
            new[:] = old
        self.backend.replace_reference(model, old, new)

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
        now = self.backend.random_state()
        fresh = {id(replica.models[part.number]): self._rebuilt(part, replica) for part in taken}
        self.backend.set_random_state(now)
        args, kwargs = _replaced(arguments, fresh)
        return args, kwargs

    def _rebuilt(self, part: Build, replica: _Replica) -> Any:
        callee, arguments = replica.called[part.number]
        args, kwargs = self._with_fresh_parts(part, replica, arguments)
        if part.drawn is not None:
            self.backend.set_random_state(part.drawn[0])
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
