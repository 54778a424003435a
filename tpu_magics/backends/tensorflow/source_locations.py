"""The user's source line for each op of a graph."""

# TensorFlow's own parts were read in TensorFlow 2.21. Its own debug info has a line for each instruction, but always
# the same one, in its framework/ops.py.

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from traceback import walk_tb
from typing import Any

import keras
import tensorflow as tf

from tpu_magics.backends.lowered import SourceLine
from tpu_magics.backends.observe.sites import Sites
from tpu_magics.runs.origin import OWN, under

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
