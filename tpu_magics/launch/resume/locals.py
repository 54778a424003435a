"""A function's local variables while it runs: which of them it reads again, and how to set them from outside."""

from __future__ import annotations

import ast
import ctypes
import dis
import inspect
import linecache
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

from tpu_magics.backends.observe.sites import locals_of

_ENDS = frozenset({"RETURN_VALUE", "RETURN_CONST", "RAISE_VARARGS", "RERAISE", "JUMP_FORWARD", "JUMP_ABSOLUTE"})
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_JUMPS = frozenset({*dis.hasjrel, *dis.hasjabs})


def all_of(frame: FrameType) -> dict[str, Any]:
    """The local variables of a frame; of a cell, the names that it assigns."""
    code = frame.f_code
    if code.co_flags & inspect.CO_OPTIMIZED:
        return locals_of(frame)
    return {name: frame.f_globals[name] for name in assigned_names(code) if name in frame.f_globals}


def live(frame: FrameType) -> dict[str, Any]:
    """Variables that the frame may read before it assigns them again; of a cell all: later cells may read them."""
    code = frame.f_code
    if not code.co_flags & inspect.CO_OPTIMIZED:
        return all_of(frame)
    names = live_names(code, frame.f_lasti)
    own = {*code.co_cellvars}  # inner functions may read them at any time
    found = locals_of(frame).items()
    return {name: value for name, value in found if (name in names or name in own) and name.isidentifier()}


def assign(frame: FrameType, values: Mapping[str, Any]) -> None:
    """Set local variables of a frame that waits for a call to return."""
    if not values:
        return
    optimized = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    names = frame.f_locals if optimized else frame.f_globals
    names.update(values)
    if optimized and sys.version_info < (3, 13):  # later, `f_locals` writes through
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))
        locals_of(frame)  # lets go of the values


@lru_cache(maxsize=256)
def live_names(code: CodeType, offset: int) -> frozenset[str]:
    """The local variables that may be read before they are assigned, after the instruction at `offset`."""
    flow = _flow(code)
    return frozenset().union(*(flow.before[n] for n in flow.next[flow.index(offset)])) if flow.next else frozenset()


@lru_cache(maxsize=64)
def assigned_names(code: CodeType) -> tuple[str, ...]:
    """The names that the code of a module assigns."""
    found = dis.get_instructions(code)
    return tuple(dict.fromkeys(str(one.argval) for one in found if one.opname in ("STORE_NAME", "STORE_GLOBAL")))


def call_number(frame: FrameType) -> int:
    """Which of its function's calls a frame is in, in the order of its text: equal for equal text, however compiled."""
    places = _calls(frame.f_code)
    at = max((offset for offset in places if offset <= frame.f_lasti), default=-1)
    return sorted({*places.values()}).index(places[at]) + 1 if at in places else 0


@lru_cache(maxsize=256)
def _calls(code: CodeType) -> dict[int, tuple[int, ...]]:
    """Where the calls of a function are in its text, by offset. Before Python 3.11 only their order is known."""
    calls = [one for one in dis.get_instructions(code) if one.opname.startswith("CALL")]
    places = ((one.offset, getattr(one, "positions", None) or (one.offset,)) for one in calls)
    return {offset: tuple(at or 0 for at in place) for offset, place in places}


def repeated_by(frame: FrameType) -> frozenset[type]:
    """The kinds of loops, as nodes of `ast`, in whose text a frame is, besides `for` statements. None: no source."""
    return _loops(frame.f_code.co_filename, frame.f_lineno)


@lru_cache(maxsize=256)
def _loops(path: str, line: int) -> frozenset[type]:
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return frozenset()
    found = (one for one in ast.walk(tree) if isinstance(one, (ast.While, *COMPREHENSIONS)))
    return frozenset(type(one) for one in found if one.lineno <= line <= (one.end_lineno or 0))


class _Flow:
    """A function's instructions, which follow which, and what is live before each (backwards, to a fixed point)."""

    def __init__(self, code: CodeType) -> None:
        found = list(dis.get_instructions(code))
        self.offsets = [one.offset for one in found]
        where = {one.offset: n for n, one in enumerate(found)}
        self.next = [tuple(_successors(n, one, where, len(found))) for n, one in enumerate(found)]
        for start, end, target in _handlers(code):
            for n, one in enumerate(found):
                if start <= one.offset < end:
                    self.next[n] += (where[target],)
        uses = [_uses(one) for one in found]
        self.before: list[frozenset[str]] = [frozenset()] * len(found)
        changed = True
        while changed:
            changed = False
            for n in reversed(range(len(found))):
                read, written = uses[n]
                after = frozenset().union(*(self.before[m] for m in self.next[n]))
                now = read | (after - written)
                changed = changed or now != self.before[n]
                self.before[n] = now

    def index(self, offset: int) -> int:
        """The instruction at an offset, or in whose cache it is."""
        return max(n for n, one in enumerate(self.offsets) if one <= max(offset, 0))


@lru_cache(maxsize=64)
def _flow(code: CodeType) -> _Flow:
    return _Flow(code)


def _successors(n: int, one: dis.Instruction, where: Mapping[int, int], count: int) -> Iterator[int]:
    jumps = one.opcode in _JUMPS
    if jumps and one.argval in where:
        yield where[one.argval]
    if one.opname not in _ENDS and not one.opname.startswith("JUMP_BACKWARD") and n + 1 < count:
        yield n + 1


def _handlers(code: CodeType) -> Iterator[tuple[int, int, int]]:
    """(first offset, end, handler) of protected instructions. Python 3.10 has jumps there (SETUP_FINALLY)."""
    parse = getattr(dis, "_parse_exception_table", None)
    for entry in parse(code) if parse is not None else ():
        yield entry.start, entry.end, entry.target


def _uses(one: dis.Instruction) -> tuple[frozenset[str], frozenset[str]]:
    """The local variables that an instruction reads, and those that it writes first."""
    name = one.opname
    if "_FAST" not in name:
        return frozenset(), frozenset()
    names = one.argval if isinstance(one.argval, tuple) else (one.argval,)
    if name.startswith("STORE_FAST_LOAD_FAST"):
        return (frozenset(names[1:]) - {names[0]}), frozenset(names[:1])
    if name.startswith("LOAD_FAST_AND_CLEAR"):  # it is restored after a comprehension
        return frozenset(names), frozenset()
    if name.startswith("LOAD_FAST"):
        return frozenset(names), frozenset()
    return frozenset(), frozenset(names)
