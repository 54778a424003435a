"""Builds a model in the notebook, and records what a worker needs to check that its own call would build the same."""

from __future__ import annotations

import contextlib
import io
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch.hoist.candidates import Candidate
from tpu_magics.launch.hoist.fingerprints import (
    NotComparable,
    device_use,
    files,
    fingerprint,
    generator_use,
    is_generator,
    reference_fingerprints,
)
from tpu_magics.launch.hoist.source import SourcePosition, position_of
from tpu_magics.launch.hoist.values import HoistBackend, UnknownValue, arguments_of

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

    backend: HoistBackend

    def build(self, candidate: Candidate, number: int, parts: Sequence[Build], since: int) -> Build:
        """Call the builder. Raises NotHoisted if that is not possible or would have side effects."""
        backend = self.backend
        args, kwargs = self._arguments(candidate, parts)
        self._check_builder(candidate)
        reads = reference_fingerprints(candidate.callee, backend)
        marks = argument_fingerprints((args, kwargs), backend)
        on_disk = files((args, kwargs))
        before = backend.random_state()
        model, said = self._call(candidate, args, kwargs)
        after = backend.random_state()
        after_marks = argument_fingerprints((args, kwargs), backend)
        self._check_built(candidate, model, (args, kwargs), reads)
        _check_changes((args, kwargs), marks, after_marks)
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
            drawn=backend.drawn(before, after),
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
        if self.backend.is_model(value):
            raise NotHoisted("one of its arguments is a model, which the build might change")
        if is_generator(value):
            raise NotHoisted("one of its arguments is a random generator")
        if self.backend.touches_device(value):
            raise NotHoisted("one of its arguments depends on the device")

    def _check_builder(self, candidate: Candidate) -> None:
        device = device_use(candidate.callee, self.backend)
        if device:
            raise NotHoisted(f"its code uses {device}, which may start the accelerator's runtime in the notebook")
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
        if not self.backend.is_model(model):
            raise NotHoisted(f"it gave a {type(model).__name__}, not a model", called=True)
        after = reference_fingerprints(candidate.callee, self.backend)
        changed = next((label for label in reads if after.get(label) != reads[label]), "")
        if changed:
            raise NotHoisted(f"building it changes {changed}", called=True)
        if any(self.backend.shares_memory(model, value) for value in leaves(arguments)):
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
    arguments: Arguments, backend: HoistBackend, alias: Mapping[int, int] | None = None
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
