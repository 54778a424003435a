"""How many steps the whole training has, as far as its program tells: the length of its loaders, and how often the
loops around them run. A total is recorded once it is known, and withdrawn when the steps contradict it."""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar, cast

from tpu_magics.backends.observe import step_counts
from tpu_magics.backends.observe.sites import Sites, outwards
from tpu_magics.errors import plural
from tpu_magics.runs import events
from tpu_magics.runs.meter import StepMeter
from tpu_magics.runs.origin import OWN, under
from tpu_magics.runs.writer import EventWriter

_BACKENDS = str(Path(OWN) / "backends")
_MOST_LOOPS = 32
_MOST_BATCHES = 4096  # in which a step must have been counted
F = TypeVar("F", bound=Callable[..., None])


@dataclass
class LoaderLoop:
    """A loop over a loader of `batches`. `times`: passes over it in the whole training, `passes`: begun so far;
    `around`: the loops around it; `one_each`: a batch is at most one step; `learned`: steps of a pass by its first
    batches, or of the first pass; `taken`: steps of the `done` passes after it."""

    batches: int
    times: int
    around: frozenset[tuple[int, int]]
    one_each: bool
    passes: int = 0
    learned: float | None = None
    taken: int = 0
    done: int = 0

    @property
    def steps(self) -> float | None:
        """Steps of one pass; None: not known yet."""
        return self.taken / self.done if self.done else self.learned

    def end_pass(self, taken: int) -> bool:
        """A pass has ended. Whether its steps are those of the passes before, but for rounding."""
        if self.passes > 1 and self.steps is not None:
            agrees = abs(taken - self.steps) <= 1
            self.taken, self.done = self.taken + taken, self.done + 1
            return agrees
        taken -= self.one_each and taken == self.batches + 1  # before the first batch, what was pending ran
        if self.learned is None or abs(taken - self.learned) > 1:
            self.learned = taken
        return True

    def __str__(self) -> str:
        return number_of_batches(self.batches, self.times)


def number_of_batches(batches: int, epochs: int) -> str:
    """In words."""
    each = plural(batches, "batch")
    return f"{each} x {epochs:,} epochs" if epochs > 1 else each


@dataclass
class LoaderPass:
    """The pass over a loader that goes on. `began`: steps before it; `iterator`: a weak reference, where it is known.
    While the steps of a batch are learned, `batches`: returned so far, `total`: steps then; `stepped`: (batches, steps)
    whenever there were more steps."""

    loop: LoaderLoop
    began: int
    iterator: Callable[[], Any] | None = None
    batches: int = 0
    total: int = 0
    stepped: list[tuple[int, int]] = field(default_factory=list)

    def on_batch(self, total: int) -> float | None:
        """A batch is returned after `total` steps. The steps of each batch, once there were steps three times, the same
        number at the same distance; 0 if they are not alike. What the first time had is left out: it may be more."""
        done, self.batches = self.batches, self.batches + 1
        if done and total > self.total:
            self.stepped.append((done, total))
        self.total = total
        if len(self.stepped) < 3:
            return None if done < _MOST_BATCHES else 0
        (first, before), (second, between), (third, after) = self.stepped
        alike = (third - second, after - between) == (second - first, between - before)
        return (after - between) / (third - second) if alike else 0


def _contained(method: F) -> F:
    """Errors in it end the counting ahead, and nothing else."""

    @functools.wraps(method)
    def call(self: TrainingProgress, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception:
            self.give_up()

    return cast(F, call)


class TrainingProgress:
    """The total of one rank; create it where its observer is created, outside the user's code. `limit`: `--steps`;
    `learning`: whether it is to be told of the next batches."""

    def __init__(self, writer: EventWriter, steps: StepMeter, sites: Sites, limit: int | None) -> None:
        self.writer = writer
        self.steps = steps
        self.sites = sites
        self.limit = limit
        self.learning = False
        self.stopped = False
        self._loops: dict[tuple[tuple[int, int], ...], LoaderLoop] = {}
        self._pass: LoaderPass | None = None
        self._goal = 0  # of a library's training loop
        self._recorded = (0, "")
        self._outside = _outside(sys._getframe())

    # -- loops over loaders -----------------------------------------------------------------------------------------
    @_contained
    def on_loader(self, frame: FrameType, loader: Any, length: Callable[[Any], int | None], one_each: bool) -> None:
        """`frame` begins to iterate over `loader`. `one_each`: each of its batches is a step, or none."""
        user = self.sites.user_frame(frame)
        head = step_counts.header(user) if user is not None and not self.stopped else None
        if user is None or head is None:
            return
        frames = self._inside(user)
        key = tuple((id(one.f_code), one.f_lineno) for one in frames)
        loop = self._loops.get(key)
        if loop is None and frames:
            batches = length(step_counts.iterated(head, user, loader, frame))
            times = step_counts.times(frames, head) if batches is not None else None
            if batches is not None and times is not None and len(self._loops) < _MOST_LOOPS:
                loop = self._loops[key] = LoaderLoop(batches, times, step_counts.around(frames, head), one_each)
        if loop is not None:
            self._begin(loop)
        elif one_each:
            self.give_up()

    def _begin(self, loop: LoaderLoop) -> None:
        self._end_pass()
        for other in self._loops.values():
            if not other.around <= loop.around:
                other.times = other.passes  # a loop around it has ended
        loop.passes += 1
        if loop.passes > loop.times:
            self.give_up()
        if not self.stopped:
            self._pass = LoaderPass(loop, self.steps.total)
            self.learning = loop.steps is None
            self._update()

    def _end_pass(self) -> None:
        ended, self._pass, self.learning = self._pass, None, False
        if ended is not None:
            agrees = ended.loop.end_pass(self.steps.total - ended.began)
            if not agrees:
                self.give_up()

    @_contained
    def on_batch(self, iterator: Any = None) -> None:
        """While `learning`: a loader returns a batch. `iterator`: of a loader in host memory."""
        current = self._pass
        if current is None or not self._is_of(current, iterator):
            return
        each = current.on_batch(self.steps.total)
        self.learning = each is None
        if each:
            current.loop.learned = current.loop.batches * each
            self._update()

    def _is_of(self, current: LoaderPass, iterator: Any) -> bool:
        if current.iterator is None and iterator is not None and not current.batches:
            current.iterator = weakref.ref(iterator)
        return iterator is (current.iterator() if current.iterator is not None else None)

    @_contained
    def check(self) -> None:
        """Now and then: whether the steps of the pass are those that its batches should have taken."""
        current = self._pass
        iterator = current.iterator() if current is not None and current.iterator is not None else None
        batches = getattr(iterator, "_num_yielded", None)  # torch 2.9: of a DataLoader's iterator
        if current is None or current.loop.steps is None or not isinstance(batches, int):
            return
        each = current.loop.steps / current.loop.batches
        if abs(self.steps.total - current.began - each * batches) > 2 + each:
            self.give_up()

    # -- a library's training loop ----------------------------------------------------------------------------------
    @_contained
    def on_training(self, frame: FrameType, left: float | None, source: str) -> None:
        """A library's training loop, called by `frame` or its callers, has `left` steps ahead (None: not known)."""
        user = self.sites.user_frame(frame)
        once = user is not None and step_counts.times(self._inside(user)) == 1
        self._goal = self.steps.total + round(left) if once and left is not None else 0
        self._write(self._goal, source if self._goal else "")

    # -- the record -------------------------------------------------------------------------------------------------
    def give_up(self) -> None:
        """The loops cannot be counted ahead. A total that was recorded is withdrawn."""
        self.stopped, self.learning, self._pass = True, False, None
        self._write(0, "")

    def _update(self) -> None:
        left = 0.0
        for loop in self._loops.values():
            if loop.steps is None:
                return
            left += (loop.times - loop.passes) * loop.steps
        if self._pass is not None and self._pass.loop.steps is not None:
            left += max(0.0, self._pass.loop.steps - (self.steps.total - self._pass.began))
        source = " + ".join(dict.fromkeys(str(loop) for loop in self._loops.values() if loop.steps))
        self._write(max(self.steps.total + round(left), self._goal), source)

    def _write(self, steps: int, source: str) -> None:
        if self.limit is not None and steps > self.limit:
            steps, source = self.limit, "--steps"
        if (steps, source) != self._recorded:
            self._recorded = steps, source
            self.writer.record(events.Total, steps=steps, source=source)

    def _inside(self, frame: FrameType) -> list[FrameType]:
        """A frame and its callers, without ours and those that ran before the observer was created."""
        frames = list(outwards(frame))
        return [one for one in frames[: max(0, len(frames) - self._outside)] if not under(one.f_code.co_filename, OWN)]


def _outside(frame: FrameType) -> int:
    """How many callers the frame has that is observed: the innermost that neither observes nor enters a context."""
    files = [one.f_code.co_filename for one in outwards(frame)]
    ours = (n for n, file in enumerate(files) if not (under(file, _BACKENDS) or file == contextlib.__file__))
    return len(files) - 1 - next(ours, len(files) - 1)
