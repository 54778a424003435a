"""How often the loops around a line run, for small programs: what is told is what then happens, or nothing is told."""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from tests.backends.observe.loop_samples import KNOWN, NAMES, UNKNOWN, programs
from tpu_magics.backends.observe import step_counts
from tpu_magics.backends.observe.sites import outwards


class FakeLoader:
    """Notes, each time that a pass over it begins, how often that is told to happen, and what is told to be iterated.
    `outside`: how many frames are not the program's."""

    def __init__(self, outside: int) -> None:
        self.outside = outside
        self.times: list[int | None] = []
        self.iterated: list[Any] = []

    def __iter__(self) -> Iterator[int]:
        self.note(sys._getframe(1))
        return iter(range(2))

    def note(self, frame: FrameType) -> None:
        frames = list(outwards(frame))[: -self.outside]
        user = next(one for one in frames if one.f_code.co_name != "tqdm")  # which is a library's
        head = step_counts.header(user)
        self.times.append(None if head is None else step_counts.times(frames[frames.index(user) :], head))
        self.iterated.append(None if head is None else step_counts.iterated(head, user, self, frame))


def after(source: str) -> FakeLoader:
    """The loader of a program that has run."""
    path = f"<cell {len(linecache.cache)}>"
    linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    names: dict[str, Any] = {}
    exec(NAMES, names)
    loader = names["loader"] = FakeLoader(len(list(outwards(sys._getframe()))))
    exec(compile(source, path, "exec"), names)
    return loader


@pytest.mark.parametrize("source", programs(KNOWN).values(), ids=programs(KNOWN))
def test_what_is_told_is_what_happens(source: str) -> None:
    loader = after(source)
    assert loader.times and loader.times == [len(loader.times)] * len(loader.times)
    assert loader.iterated == [loader] * len(loader.times)


@pytest.mark.parametrize("source", programs(UNKNOWN).values(), ids=programs(UNKNOWN))
def test_nothing_is_told_of_what_is_not_known(source: str) -> None:
    loader = after(source)
    assert loader.times and set(loader.times) == {None}


@pytest.mark.parametrize(
    "head", ["zip(loader, items)", "islice(loader, 1)", "(b for b in loader)", "list(b for b in loader)"]
)
def test_a_part_of_a_loader_is_not_the_loader(head: str) -> None:
    loader = after(f"from itertools import islice\nfor batch in {head}:\n    pass\n")
    assert (loader.times, loader.iterated) == ([1], [None])


@pytest.mark.parametrize(
    "expression",
    [
        *("config.asked", "config.other", "guarded.epochs", "len(sized)", "range(len(sized))", "no_such_name"),
        *("epochs // 0", "range(1, 5, 0)", "range(2.5)", "range('3')", "items[5]", "counted()", "int('3')", "-epochs"),
    ],
)
def test_no_code_of_the_user_is_run_and_nothing_fails(expression: str) -> None:
    names: dict[str, Any] = {}
    exec(f"{NAMES}\ndef frame():\n    return __import__('sys')._getframe()", names)
    assert type(step_counts._value(ast.parse(expression, mode="eval").body, names["frame"]())) not in (int, range)
