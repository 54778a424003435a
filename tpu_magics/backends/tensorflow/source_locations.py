"""The user's source line for each op of a graph, and for an error."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from traceback import walk_tb
from typing import Any

import keras
import tensorflow as tf

from tpu_magics.backends.lowered import SourceLine
from tpu_magics.backends.observe.sites import Sites
from tpu_magics.errors import TpuMagicsError
from tpu_magics.runs.origin import OWN, under

# TensorFlow's own parts were read in TensorFlow 2.21. Its own debug info has a line for each instruction, but always
# the same one, in its framework/ops.py.

_LIBRARIES = tuple(str(Path(one.__file__).parent) for one in (tf, keras))
# XLA names the ops of a called function after the call; loops and branches are separate programs.
_INLINED = ("PartitionedCall", "StatefulPartitionedCall")
_PLAIN = ("Const", "Placeholder")
_LINE = re.compile(r'File "([^"]+)", line (\d+)')


class SourceLocations:
    """`cell_names`: file names of cells -> "In [n]"."""

    def __init__(self, cell_names: Mapping[str, str]) -> None:
        self.sites = Sites(cell_names, {}, _LIBRARIES)
        self.is_user_code = self.sites.is_user_code

    def of_graph(self, graph: Any) -> dict[str, SourceLine]:
        """Op name -> the user's line, for ops that have one. Two ops of one name (in two loops) have none, unless the
        line is the same."""
        found: dict[str, SourceLine | None] = {}
        for name, op in ops(graph):
            place = self.of_frames((frame.filename, frame.lineno) for frame in reversed(_stack(op)))
            found[name] = place if found.get(name, place) == place else None
        return {name: place for name, place in found.items() if place}

    def of_frames(self, frames: Iterable[tuple[str, int]]) -> SourceLine | None:
        """The user's innermost line; `frames` come innermost first, and the callers of tpu_magics are ignored."""
        for path, line in frames:
            if under(path, OWN):
                return None
            if self.is_user_code(path):
                return self.place(path, line)
        return None

    def of_error(self, error: BaseException | None) -> SourceLine | None:
        """The line that raised the error or its cause: TensorFlow's text has the lines of functions that AutoGraph
        rewrote, the traceback has the others."""
        found = None
        while error is not None:
            in_text = [(path, int(line)) for path, line in _LINE.findall(str(error))]
            raised = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
            found = self.of_frames(reversed(in_text)) or self.of_frames(reversed(raised)) or found
            error = error.__cause__ or error.__context__
        return found

    def place(self, path: str, line: int) -> SourceLine:
        """The location with its line of code."""
        site = self.sites.of_line(path, line)
        return SourceLine(site.path, site.line, site.code)

    def of_function(self, function: Any) -> SourceLine | None:
        """Where a Python function is defined."""
        code = getattr(function, "__code__", None)
        return (
            self.place(code.co_filename, code.co_firstlineno) if code and self.is_user_code(code.co_filename) else None
        )


def _stack(op: Any) -> list[Any]:
    return list(op.traceback or ())


def ops(graph: Any) -> Iterator[tuple[str, Any]]:
    """(name as in XLA, op) of a graph and all functions that it calls."""
    return _ops(graph, "", set())


def _ops(graph: Any, prefix: str, entered: set[tuple[str, str]]) -> Iterator[tuple[str, Any]]:
    for op in graph.get_operations():
        name = prefix + op.name
        yield name, op
        inner = f"{name}/" if op.type in _INLINED else ""
        for called in () if op.type in _PLAIN else _called(op):
            function = graph._get_function(called)  # TensorFlow 2.21: an AtomicFunction, None if unknown
            if function is not None and (called, inner) not in entered:
                entered.add((called, inner))
                yield from _ops(function.graph, inner, entered)


def _called(op: Any) -> list[str]:
    """Names of the functions among an op's attributes."""
    found: list[str] = []
    for value in op.node_def.attr.values():
        listed = value.list.func if value.HasField("list") else ()
        found += [one.name for one in (*listed, *((value.func,) if value.HasField("func") else ()))]
    return found


# -- errors -----------------------------------------------------------------------------------------------------------


# Forms seen in TensorFlow 2.21: `File "...", line N` of "in user code", "The op is created at" and "Detected at node
# ... defined at (most recent call last)"; `(defined @ path:line)` of a variable is where it was made.

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_AT = re.compile(r"\(defined at (\S+?):(\d+)\)")  # of an op, before TensorFlow 2.9
_MADE = re.compile(r"\(defined @ (\S+?):(\d+)\)")
_OF_XLA = re.compile(
    r"tf2xla conversion failed|XLA compilation|compile-time constant|_XlaMustCompile|XLA_\w+_JIT|"
    r"when compiling with XLA"
)
_SAID = 300  # characters of TensorFlow's message


class LocatedError:
    """`place`: the user's innermost line in the error's text, else in its traceback; `made`: the line that created the
    variable that it is about."""

    def __init__(self, error: BaseException, places: SourceLocations) -> None:
        self.error = error
        self.places = places
        self.text = _COLOUR.sub("", str(error))

    @cached_property
    def place(self) -> SourceLine | None:
        in_text = next(filter(None, (self._location_in(form) for form in (_AT, _LINE))), None)
        return in_text or self._user_location(reversed(self.raised))

    @cached_property
    def is_of_xla(self) -> re.Match[str] | None:
        """The match if the text says that XLA could not compile something."""
        return _OF_XLA.search(self.text)

    @cached_property
    def made(self) -> SourceLine | None:
        return self._location_in(_MADE)

    def _location_in(self, form: re.Pattern[str]) -> SourceLine | None:
        return self._user_location(reversed([(path, int(line)) for path, line in form.findall(self.text)]))

    @cached_property
    def raised(self) -> list[tuple[str, int]]:
        """The traceback, outermost first."""
        return [(frame.f_code.co_filename, line) for frame, line in walk_tb(self.error.__traceback__)]

    def _user_location(self, frames: Iterable[tuple[str, int]]) -> SourceLine | None:
        """Without frames of tpu_magics, which are between the user's line and TensorFlow while a run is observed."""
        return self.places.of_frames(frame for frame in frames if not under(frame[0], OWN) and _is_file(frame[0]))

    def at(self) -> str:
        return f" at {self.place}" if self.place else ""

    def details(self, *others: SourceLine | None) -> list[str]:
        """The code of the line, and of others."""
        found = dict.fromkeys((self.place, *others))
        return [f"{place}: {place.code}" for place in found if place and place.code]

    def quote(self, found: re.Match[str]) -> str:
        """TensorFlow's message: the line of the text in which a pattern was found."""
        start = self.text.rfind("\n", 0, found.start()) + 1
        kind = type(self.error).__name__
        line = self.text[start:].partition("\n")[0].strip().removeprefix(f"{kind}: ")
        return f"{kind}: {line if len(line) <= _SAID else f'{line[:_SAID]} ...'}"

    def explain(self, what: str, why: str, todo: str, quotes: Sequence[str] = ()) -> TpuMagicsError:
        """The explanation. `what` comes without a full stop; the line is added."""
        return TpuMagicsError(f"{what}{self.at()}.", why, todo, [*self.details(self.made), *quotes])


def _is_file(path: str) -> bool:
    """AutoGraph's files are deleted before anybody can read them."""
    return "__autograph_generated_file" not in path.rpartition(os.sep)[2]
