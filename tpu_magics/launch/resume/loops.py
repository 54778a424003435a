"""Where a rank is in its training loops, and how it gets there again.

A position is the loops that run, the outermost first, each with the number of items that it has taken. To go on from
one, the function runs again up to its loops; each of them passes over its items without its body, with the random
states that it began with, so that the same data come in the same order.
"""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from types import FrameType
from typing import Any, Protocol, TypeVar

from tpu_magics.backends.observe.sites import outwards
from tpu_magics.backends.protocols import LoopRandomStates
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch.resume import locals as local_names
from tpu_magics.launch.resume.rewrite import LoopSite
from tpu_magics.runs.origin import is_library

# Loops over these take their items in threads of their own, ahead of the training (torch_xla 2.9.0).
_AHEAD = frozenset({"MpDeviceLoader", "PerDeviceLoader", "ParallelLoader", "MpDeviceLoaderWrapper"})
T = TypeVar("T")
_DEPTH = 4  # references to follow in search of one
_UNDRAWN = (range, list, tuple)  # taking their items draws no random number
_LOOKED_BACK = 3  # items before which the random states are known: loaders of accelerate take one ahead
_WATCHED = 3  # items at which is looked whether their random numbers are the body's


@dataclass
class LoopLevel:
    """One loop of a position. `key`: its LoopSite's, and where its function was called; `taken`: items so far, the one
    in work included; `states`: random states when it began; `before`: those before each of the last items was taken,
    since what makes an item may draw from the same numbers as the body; `done`: training loops that ended before it, in
    the same pass of the loop around it. For a loop around others: `at_item`: random states when its item was taken,
    `names`: local variables then. `more`: what the loop of a library, or a loader that can tell where it is, needs
    itself, from before the item in work. `length`: of all items, if they tell.
    """

    key: str
    taken: int
    states: Any
    done: list[str] = field(default_factory=list)
    before: list[Any] = field(default_factory=list)
    at_item: Any = None
    names: Mapping[str, Any] = field(default_factory=dict)
    more: Any = None
    length: int | None = None


class LoopListener(Protocol):
    """What is called at a training's loops."""

    def first_loop(self, frames: Sequence[FrameType], objects: Sequence[tuple[str, Any]]) -> LoopRandomStates:
        """Before the first training loop begins, and before each of a library. `objects`: what that trains. Returns the
        random states of the program."""

    def between_items(self, loops: TrainingLoops, frames: Sequence[FrameType]) -> None:
        """An item was taken, and its body is about to run."""

    def draws_between(self, site: LoopSite, names: set[str]) -> None:
        """A generator's items and the body draw from the same random numbers."""

    def repeated(self, site: LoopSite) -> None:
        """A loop begins that something repeats which is no statement."""

    def to_set(self, frame: FrameType, names: Mapping[str, Any]) -> Mapping[str, Any]:
        """The local variables of the checkpoint that it gets now."""

    def arrived(self, loops: TrainingLoops, frames: Sequence[FrameType]) -> None:
        """The position to go on from is reached."""


@dataclass
class _Running:
    site: LoopSite
    level: LoopLevel
    wanted: LoopLevel | None = None
    done: list[str] = field(default_factory=list)  # of the loops in it
    skipped: bool = False
    more: Callable[[], Any] | None = None
    started: bool = False
    frames: int = 0  # that run
    again: bool = False  # it has ended before, and nothing in the text tells how often
    exact: bool = False  # the random states before an item can be set
    after: Any = None  # random states after the item in work was taken, for the first ones


class TrainingLoops:
    """The training loops of a rank. `sites`: by key; `resume`: the position to go on from; `ranks`: of the run that
    was there, and of this one."""

    def __init__(
        self,
        sites: Mapping[str, LoopSite],
        listener: LoopListener,
        resume: Sequence[LoopLevel] = (),
        ranks: tuple[int, int] = (1, 1),
    ) -> None:
        self.sites = sites
        self.listener = listener
        self.states: LoopRandomStates | None = None
        self.ranks = ranks
        self._wanted = list(resume)
        self._running: list[_Running] = []
        self._ended: list[str] = []  # outside of any other
        self.in_library = False  # in a call of Model.fit or the like, also before its loop is known

    def position(self) -> list[LoopLevel]:
        """Where this rank is, in `LoopListener.between_items`."""
        assert self.states is not None
        last = self._running[-1]
        if last.more is not None:
            last.level.more = last.more()
        if not last.site.outer:
            last.level.at_item = self.states.read()
        return [one.level for one in self._running]

    @property
    def innermost(self) -> LoopSite | None:
        """The loop that runs, in no other; None outside of all loops."""
        return self._running[-1].site if self._running else None

    @property
    def known(self) -> bool:
        """Whether a position tells all: no loop runs again without a statement that repeats it."""
        return not any(one.again for one in self._running)

    @property
    def resuming(self) -> bool:
        """Whether the position to go on from is not reached yet."""
        return bool(self._wanted)

    # -- called by the user's code ----------------------------------------------------------------------------------
    def begin(self, key: str, frame: FrameType | None = None) -> str:
        """Before the iterable of a loop is made."""
        frame = frame if frame is not None else sys._getframe(1)
        return self._begin(self.sites[key], frame, ())

    def _begin(self, site: LoopSite, frame: FrameType, objects: Sequence[tuple[str, Any]]) -> str:
        frames = user_frames(frame)
        key = site.key + ("" if objects else "".join(f"@{local_names.call_number(one)}" for one in frames[:-1]))
        if self.states is None or objects:
            self.states = self.listener.first_loop(frames, objects)
        states = self.states
        while self._running and not self._running[-1].started:  # its iterable raised
            self._running.pop()
        before = self._running[-1].done if self._running else self._ended
        running = _Running(site, LoopLevel(key, 0, None, list(before)), frames=len(frames))
        if not objects:
            self._tell_repeated(running, frames)
        depth = len(self._running)
        if depth < len(self._wanted):
            wanted = self._wanted[depth]
            missing = wanted.done[len(before) :]
            if any(one != wanted.key for one in missing):
                self._check(missing[0], key, site)
                running.skipped = True
            else:  # passes of the same loop that are missing are those of a `while` loop around it
                self._check(wanted.key, key, site)
                before[:] = wanted.done
                running.level.done = list(before)
                running.wanted = wanted
                states.write(wanted.states)
        running.level.states = states.read()
        self._running.append(running)
        return key

    def _tell_repeated(self, running: _Running, frames: Sequence[FrameType]) -> None:
        """The passes of a loop are counted by `for` statements, which are loops too, and those of a `while` statement
        follow from the local variables. What a comprehension or map() has done is known to nobody."""
        around = self._running[-1].frames - 1 if self._running else 0
        kinds = [kind for one in frames[max(0, around) :] for kind in local_names.repeated_by(one)]
        inside = any(issubclass(kind, local_names.COMPREHENSIONS) for kind in kinds)
        running.again = running.level.key in running.level.done and (inside or not kinds)
        if running.again or inside:
            self.listener.repeated(running.site)

    def _check(self, wanted: str, key: str, site: LoopSite) -> None:
        if wanted != key:
            loop = wanted.partition("@")[0]
            raise TpuMagicsError(
                "The checkpoint does not fit this code: other training loops run.",
                f"The checkpoint was saved in `{loop}`, and now `{site.head}` (line {site.line}) begins.",
                "Undo the change of the loops, or train from the beginning, without --resume.",
            )

    def over(self, site: LoopSite, items: Iterable[Any]) -> Iterator[Any]:
        """The items of a loop of our own, in a generator that the user's code iterates."""
        self._begin(site, sys._getframe(1), ())
        return self._items(items, lambda: sys._getframe(2))

    def loop(self, _key: str, items: Iterable[Any]) -> Iterator[Any]:
        """The items of a loop that was begun."""
        return self._items(items, lambda: sys._getframe(2))

    def _items(self, items: Iterable[Any], caller: Callable[[], FrameType]) -> Iterator[Any]:
        """The items of a loop that was begun. `caller`: called when an item is taken, returns the frame of the loop."""
        running = self._running[-1]
        running.started = True
        try:
            if running.skipped:
                return
            running.level.length = _length(items)
            iterator = self._there(running, items)
            while (item := self._next(running, items, iterator)) is not _NO_MORE:
                running.level.taken += 1
                running.done.clear()
                self._item_taken(running, items, caller())
                yield item
                del item  # an item must not outlive its body: the device has no room for two
        finally:
            self._end(running)

    def _end(self, running: _Running) -> None:
        if running in self._running:
            del self._running[self._running.index(running) :]
            (self._running[-1].done if self._running else self._ended).append(running.level.key)

    # -- called by the loop of a library (backends/torch/trainer_loops.py) -------------------------------------------
    def begin_library(self, key: str, more: Callable[[], Any], *objects: tuple[str, Any]) -> None:
        self._begin(LoopSite(key, 0, False, key), sys._getframe(1), objects)
        self._running[-1].started = True
        self._running[-1].more = more

    def library_item(self, items: Any) -> None:
        running = self._running[-1]
        running.level.taken = running.wanted.taken if running.wanted is not None else running.level.taken + 1
        self._item_taken(running, items, sys._getframe(1))

    def end_library(self) -> None:
        self._running.pop()

    def passed_over(self, key: str) -> Any:
        """Whether a call of a library had ended before the checkpoint: then what `more` returned when the run was
        saved, else None."""
        done = self._running[-1].done if self._running else self._ended
        wanted = self._wanted[len(self._running)] if len(self._running) < len(self._wanted) else None
        if wanted is None or wanted.done[len(done) : len(done) + 1] != [key]:
            return None
        done.append(key)
        return wanted.more if wanted.more is not None else {}

    @contextmanager
    def library_call(self, key: str) -> Iterator[Any]:
        done = self._running[-1].done if self._running else self._ended
        depth = len(self._running)
        wanted = self._wanted[depth] if depth < len(self._wanted) else None
        if wanted is not None and key in wanted.done[len(done) :]:
            raise TpuMagicsError(
                f"The checkpoint was saved in a later {key}() of this function, and the first cannot be left out.",
                "A library's training is gone on from, but not passed over.",
                f"Call {key}() once in each cell, or train from the beginning, without --resume.",
            )
        self.in_library = True
        try:
            yield wanted.more if wanted is not None and wanted.key == key else None
        finally:
            self.in_library = False
        done.append(key)

    # -- the items ----------------------------------------------------------------------------------------------------
    def _there(self, running: _Running, items: Iterable[Any]) -> Iterator[Any]:
        """An iterator whose next item is the one that was in work, or the first."""
        wanted = running.wanted
        if wanted is not None and wanted.more is not None and self.ranks[0] == self.ranks[1]:
            assert self.states is not None
            self.states.set_loader_state(items, wanted.more["loader"])
            running.level.taken, running.exact = wanted.taken - 1, True
            return iter(items)
        iterator = iter(items)
        self._fit(running)
        running.exact = wanted is not None and not takes_ahead(items)
        self._skip(running, items, iterator)
        return iterator

    def _next(self, running: _Running, items: Iterable[Any], iterator: Iterator[Any]) -> Any:
        """The next item. Before those next to the one in work, the random states are as they were."""
        assert self.states is not None
        level, wanted = running.level, running.wanted
        if isinstance(items, _UNDRAWN):
            return next(iterator, _NO_MORE)
        if wanted is not None and running.exact and 0 <= wanted.taken - 1 - level.taken < len(wanted.before):
            self.states.write(wanted.before[level.taken - wanted.taken])
        loader = self.states.loader_state(items)
        level.more = {"loader": loader} if loader is not None else None
        states = self.states.read(device=False)
        level.before = [*level.before[1 - _LOOKED_BACK :], states]
        found = next(iterator, _NO_MORE)
        if wanted is None and level.taken < _WATCHED and found is not _NO_MORE:
            self._watch(running, items, states)
        return found

    def _watch(self, running: _Running, items: Iterable[Any], before: Any) -> None:
        """Look at the first items: whether their generator draws from the same random numbers as the body."""
        assert self.states is not None
        body = self.states.moved(running.after, before) if running.after is not None else set()
        running.after = self.states.read(device=False)
        shared = body & self.states.moved(before, running.after)
        if shared and has_generator(items):
            self.listener.draws_between(running.site, shared)

    def _fit(self, running: _Running) -> None:
        """Where another number of ranks divides the data, each has another number of items."""
        wanted, length = running.wanted, running.level.length
        if wanted is None or wanted is not self._wanted[-1] or self.ranks[0] == self.ranks[1]:
            return
        if wanted.length and length:
            wanted.taken = max(1, wanted.taken * length // wanted.length)
        elif length is None:
            wanted.taken = max(1, wanted.taken * self.ranks[0] // self.ranks[1])

    def _skip(self, running: _Running, items: Iterable[Any], iterator: Iterator[Any]) -> None:
        """All items before the one that was in work."""
        for _ in range(running.wanted.taken - 1 if running.wanted is not None else 0):
            if self._next(running, items, iterator) is _NO_MORE:
                raise TpuMagicsError(
                    "The data are shorter than when the checkpoint was saved.",
                    f"`{running.site.head}` (line {running.site.line}) ended after {running.level.taken:,} items; the "
                    f"checkpoint was saved at item {running.wanted.taken:,}.",  # type: ignore[union-attr]
                    "Use the same data, or train from the beginning, without --resume.",
                )
            running.level.taken += 1

    def _item_taken(self, running: _Running, items: Any, frame: FrameType) -> None:
        assert self.states is not None
        frames = user_frames(frame)
        frame = frames[-1] if frames else frame
        wanted, running.wanted = running.wanted, None
        if wanted is not None:
            if len(self._running) == len(self._wanted):
                self._arrive(wanted, items, frames)
                return
            if wanted.at_item is not None:
                self.states.write(wanted.at_item)
            local_names.assign(frame, self.listener.to_set(frame, wanted.names))
        if running.site.outer:
            running.level.at_item = self.states.read()
            running.level.names = _small(local_names.live(frame))
        if not self.resuming:
            self.listener.between_items(self, frames)

    def _arrive(self, wanted: LoopLevel, items: Any, frames: Sequence[FrameType]) -> None:
        """At the position to go on from. What takes its items ahead has drawn random numbers for later ones."""
        assert self.states is not None
        if takes_ahead(items):
            self.states.write_unmoved(wanted.at_item, wanted.states)
        else:
            self.states.write(wanted.at_item)
        self._wanted = []
        running = self._running[-1]
        if running.site.outer:
            running.level.at_item, running.level.names = wanted.at_item, wanted.names
        self.listener.arrived(self, frames)


_NO_MORE: Any = object()
_current: list[TrainingLoops] = []  # of this process


@contextmanager
def following(loops: TrainingLoops) -> Iterator[None]:
    """Within it, `resumable` is iterated by these loops."""
    _current.append(loops)
    try:
        yield
    finally:
        _current.remove(loops)


def resumable(loader: Iterable[T], epochs: int = 1) -> Iterator[T]:
    """The batches of `epochs` passes over a loader, for a loop that a run can be resumed in:
    `for batch in tpu_magics.resumable(loader, epochs=3):`.

    Plain `for` loops of a notebook's code are found without it; this is for code that cannot be read (a library's own,
    a generated one), and for a `while` loop. Outside of a run with checkpoints it only iterates.

    Args:
        loader: anything that can be iterated `epochs` times, in an order that its random state decides.
        epochs: number of passes.
    """
    if not _current:
        for _ in range(epochs):
            yield from loader
        return
    loops = _current[-1]
    for _ in loops.over(LoopSite("resumable: epochs", 0, True, "for ... in resumable(...)"), range(epochs)):
        yield from loops.over(LoopSite("resumable: batches", 0, False, "for ... in resumable(...)"), loader)


def _length(items: Any) -> int | None:
    try:
        return len(items)
    except Exception:  # a loader's own code
        return None


def user_frames(frame: FrameType) -> list[FrameType]:
    """The functions of the user's that run, the outermost first; not those that have started the run."""
    inside = takewhile(lambda one: one.f_globals.get("__name__") != "tpu_magics.launch.work", outwards(frame))
    found = [one for one in inside if not is_library(one.f_code.co_filename, one.f_code.co_name)]
    return found[::-1]


def takes_ahead(items: Any) -> bool:
    """Whether something in `items` takes its items in a thread of its own."""
    return any(base.__name__ in _AHEAD for one in _inside(items) for base in type(one).__mro__)


def has_generator(items: Any) -> bool:
    """Whether a function with `yield` makes the items."""
    return any(issubclass(type(one), types.GeneratorType) for one in _inside(items))


def _inside(items: Any) -> Iterator[Any]:
    """What items are made of, as far as a few references lead."""
    level, seen = [items], {id(items)}
    for _ in range(_DEPTH):
        yield from level
        inner = [part for one in level if not issubclass(type(one), _OPEN) for part in gc.get_referents(one)]
        level = [part for part in inner if id(part) not in seen and not issubclass(type(part), _OPEN)][:1000]
        seen.update(map(id, level))


_OPEN = (types.ModuleType, types.FunctionType, type, str, bytes, int, float)


def _small(names: Mapping[str, Any]) -> dict[str, Any]:
    """The plain ones, copied: they may change until a checkpoint is written."""
    found = {}
    for name, value in names.items():
        copied = _copy(value, 0)
        if copied is not _TOO_LARGE:
            found[name] = copied
    return found


_TOO_LARGE = object()
_MOST = 1000


def _copy(value: Any, depth: int) -> Any:
    if value is None or type(value) in (int, float, bool, str, bytes):
        return value
    if depth < 3 and type(value) in (tuple, frozenset) and len(value) <= _MOST:
        parts = [_copy(one, depth + 1) for one in value]
        return _TOO_LARGE if any(one is _TOO_LARGE for one in parts) else type(value)(parts)
    return _TOO_LARGE
