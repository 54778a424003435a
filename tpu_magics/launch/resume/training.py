"""The checkpoints of one rank, from before its function to after it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

from tpu_magics.backends.base import CheckpointPlan, StopRequested
from tpu_magics.backends.protocols import Backend, LocalBackend, StateStore, Watcher
from tpu_magics.errors import TpuMagicsError, plural
from tpu_magics.launch.resume import locals as local_names
from tpu_magics.launch.resume.loops import LoopLevel, TrainingLoops, following
from tpu_magics.launch.resume.objects import Misfit, TrackedObjects, read_more
from tpu_magics.launch.resume.rewrite import LoopSite, TrainingCode, install
from tpu_magics.launch.resume.saving import (
    PATIENCE,
    RECORDS,
    STATE,
    SaveClock,
    SaveJob,
    SaveReport,
    SaveThread,
    board_of,
)
from tpu_magics.launch.resume.setup_record import differences, refuse, setup_record
from tpu_magics.runs.events import Event, Resumed, Saved, Steps, Total, Value, from_line
from tpu_magics.runs.files import read_regular
from tpu_magics.runs.writer import EventWriter

_USE = (
    "What is found: `for` loops of the notebook's code, a Trainer's and Model.fit. In other code use: for batch in "
    "tpu_magics.resumable(loader, epochs=3)."
)
_OUTSIDE = 3  # steps outside of the loops before it is told: loops that were found may still begin
_IN_ITEM = 8  # steps in one item of a loop, more than there are optimizers in it


@dataclass(frozen=True)
class ResumedState:
    """What a rank goes on from."""

    data: Mapping[str, Any]
    tensors: Mapping[str, Any]
    levels: Sequence[LoopLevel]
    counts: Mapping[str, int]
    setup: Mapping[str, Mapping[str, str]]


def records_before(plan: CheckpointPlan | None, rank: int) -> list[Event]:
    """The steps and logged values of this rank in the run to go on from, and that it goes on."""
    path = plan.resume / RECORDS.format(rank) if plan is not None and plan.resume is not None else None
    if plan is None or path is None:
        return []
    lines = read_regular(path).splitlines() if path.exists() else []
    found = [one for one in map(from_line, lines) if isinstance(one, (Steps, Value, Total))]
    return [*found, Resumed(time.time(), rank, **plan.about["resumed"])]


def read_state(folder: Path, rank: int, store: StateStore) -> ResumedState:
    """The state of a rank, from a folder with the files of a checkpoint. What is the same on all ranks is in rank 0's
    file only. Raises Misfit, OSError."""
    path = folder / STATE.format(rank)
    own = path.exists()
    path = path if own else folder / STATE.format(0)
    data = json.loads(read_regular(path))
    tensors = store.read(folder / Path(STATE.format(0)).stem)
    if own and rank:
        tensors.update(store.read(path.with_suffix("")))
    more = read_more(data, tensors, store)
    levels = [LoopLevel(**level) for level in more["levels"]]
    return ResumedState(data, tensors, levels, more["counts"], more["setup"])


@dataclass(frozen=True)
class RunRecords:
    """The records of a rank, and who writes its steps and logged values there."""

    writer: EventWriter
    watcher: Watcher

    def so_far(self) -> bytes:
        """Its records of steps and logged values."""
        self.watcher.write_all()
        kinds = tuple(f'"kind":"{kind.kind}"'.encode() for kind in (Steps, Value, Total))
        lines = self.writer.path.read_bytes().splitlines(keepends=True)
        return b"".join(line for line in lines if any(kind in line[:40] for kind in kinds))


class TrainingCheckpoints:
    """Saves a rank, and lets it go on. `code`: its training loops; `functions`: the user's; `roots`: what its function
    reaches; `place`: its rank, and the number of ranks; `scratch`: a folder of all ranks on this host; `note`: for
    warnings (code, text)."""

    def __init__(
        self,
        plan: CheckpointPlan,
        code: TrainingCode,
        functions: Sequence[FunctionType],
        backend: Backend | LocalBackend,
        roots: Sequence[tuple[str, Any]],
        place: tuple[int, int],
        scratch: Path,
        records: RunRecords,
        note: Callable[[str, str], None],
    ) -> None:
        self.plan = plan
        self.backend = backend
        self.store = backend.checkpoint_store()
        self.code = code
        self.functions = functions
        self.roots = roots
        self.setup: dict[str, dict[str, str]] = {}
        self.records = records
        self.note = note
        rank, ranks = place
        self.clock = SaveClock(plan, rank, ranks, scratch, board_of(plan, scratch))
        self.thread = SaveThread(self.clock, self.store, self._tell)
        self.resumed: ResumedState | None = None
        if plan.resume is not None:
            self.resumed = read_state(plan.resume, rank, self.store)
        levels = self.resumed.levels if self.resumed is not None else ()
        before = plan.about["resumed"]["ranks"] if self.resumed is not None else ranks
        self.loops = TrainingLoops(code.sites, self, levels, (before, ranks))
        self.objects: TrackedObjects | None = None
        self._told: set[str] = set()
        self._outside = self._in_item = self._failed = 0
        install(self._begin, self.loops.loop)
        if self.resumed is not None:
            self.clock.steps = self.resumed.counts["steps"]

    def _begin(self, key: str) -> str:
        """A training loop begins."""
        self._note_inexact(self.code.sites[key])
        return self.loops.begin(key, sys._getframe(1))

    def _note_inexact(self, site: LoopSite) -> None:
        """Before the first pass of a loop: what will not go on where it was."""
        if site.inside:
            self._tell_items(site, f"{_listed(site.inside)} in it runs as a whole")
        if site.nexts:
            names = ", ".join(f"`{name}`" for name in site.nexts)
            self._note_once(
                f"inexact-resume {site.key}",
                f"next() is called on {names} in `{site.head}` (line {site.line}): after a --resume it begins at its "
                "start again, so the data come in another order than in the unbroken run. Iterate over the loader "
                "itself, or over tpu_magics.resumable(loader, epochs=...).",
            )

    # -- LoopListener ---------------------------------------------------------------------------------------------
    def first_loop(self, frames: Sequence[FrameType], objects: Sequence[tuple[str, Any]]) -> Any:
        whole = [one for _, one in objects]
        if self.objects is not None and self.objects.has(whole):
            return self.loops.states
        if self.objects is None:
            self.setup = setup_record(frames, self.functions, self.code.statements)
            self.clock.begin()
            if self.resumed is not None and not self.plan.force:
                refuse(differences(self.resumed.setup, self.setup))
        names = [local_names.all_of(one) for one in frames]
        local = [(f"{n}:{name}", value) for n, one in enumerate(names) for name, value in one.items()]
        roots = [*objects, *local, *self.roots]
        self.objects = TrackedObjects(roots, self.backend.object_state(), self.store, whole, self.objects)
        return self.backend.loop_random_states([node.value for node in self.objects.snapshot.nodes])

    def between_items(self, loops: TrainingLoops, frames: Sequence[FrameType]) -> None:
        self._in_item = 0
        steps, stepped = self.store.new_steps(self.records.watcher.total_steps)
        if self.clock.due(steps, stepped, self.thread.busy):
            if loops.known:
                self._save(loops, frames, stepped)
            if self.clock.stops:
                self.thread.finish()
                raise StopRequested

    def draws_between(self, site: LoopSite, names: set[str]) -> None:
        self._note_once(
            f"inexact-resume {site.key}",
            f"The generator in `{site.head}` (line {site.line}) draws from the same random numbers as its body "
            f"({', '.join(sorted(names))}). After a --resume the items that were done are passed over without it: "
            "if these numbers decide which items come, others may come then. Give the generator numbers of its own, "
            "for example random.Random(0).",
        )

    def repeated(self, site: LoopSite) -> None:
        self._note_once(
            "rarely-saved",
            f"Checkpoints are saved in the first pass only of `{site.head}` (line {site.line}): a comprehension, map() "
            "or the like repeats it, and a resume could not tell how often it had. Repeat it by a `for` statement.",
        )

    # -- what cannot be saved -------------------------------------------------------------------------------------
    def step_done(self) -> None:
        """An optimizer has stepped."""
        site = self.loops.innermost
        if site is None and self.loops.in_library:
            return  # the loop of Model.fit is known from its second batch on
        if site is None:
            self._outside += 1
            if self._outside == (_OUTSIDE if self.code.expected() else 1):
                self._tell_outside()
        else:
            self._in_item += 1
            if self._in_item == _IN_ITEM:
                self._tell_items(site, f"{_IN_ITEM} steps were done in one of them")

    def _tell_outside(self) -> None:
        heads = [f"`{site.head}` (line {site.line})" for site in self.code.expected()]
        known = f" that were found, {_listed(heads)}" if heads else ", of which none was found"
        what = f"No checkpoint can be saved now: the training runs outside of the loops{known}."
        self._note_once("no-loop", f"{what} {self._reasons()}{_USE}")

    def _tell_items(self, site: LoopSite, why: str) -> None:
        where = f" (line {site.line})" if site.line else ""
        what = f"Checkpoints are saved only between the items of `{site.head}`{where}: {why}."
        self._note_once("rarely-saved", f"{what} {self._reasons()}{_USE}")

    def _reasons(self) -> str:
        reasons = self.code.reasons()
        return f"Not found: {_listed(reasons)}. " if reasons else ""

    def _note_once(self, code: str, text: str) -> None:
        if code not in self._told and not self.clock.rank:
            self._told.add(code)
            self.note(code.partition(" ")[0], text)

    def save_and_stop(self) -> bool:
        """Save at the next item, and end the training. Returns whether a training loop has begun."""
        if self.objects is None:
            return False
        self.clock.want()
        return True

    @contextmanager
    def running(self) -> Iterator[None]:
        """Around the function. After it, the save that is being written is waited for, also where an error ended it."""
        try:
            with following(self.loops), self.store.following_steps(self.records.watcher, self.step_done):
                yield
        except KeyboardInterrupt:
            raise
        except BaseException:
            self.thread.finish(PATIENCE)
            raise
        self.clock.end()
        self.thread.finish()
        self._tell_failed("The training has ended without a newer checkpoint")
        if self.resumed is not None:
            raise _misfit("the loop in which it was saved does not run")
        if self.objects is None:
            self._note_once("no-loop", f"No checkpoint was saved: no training loop was found. {self._reasons()}{_USE}")

    def arrived(self, loops: TrainingLoops, frames: Sequence[FrameType]) -> None:  # noqa: ARG002
        assert self.objects is not None
        assert self.resumed is not None
        resumed = self.resumed
        try:
            names = self.objects.apply(resumed.data, resumed.tensors)
        except Misfit as problem:
            raise _misfit(problem) from None
        if len(names) != len(frames):
            raise _misfit("other functions run")
        for frame, values in zip(frames, names, strict=True):
            local_names.assign(frame, self.to_set(frame, values))
        self.resumed = None
        self.records.watcher.go_on_from(resumed.counts["synced"])
        self.store.new_steps(self.records.watcher.total_steps)
        self.clock.begin()

    def to_set(self, frame: FrameType, names: Mapping[str, Any]) -> Mapping[str, Any]:
        """Without those that the training never changed, and that are other ones now (--force)."""
        assert self.resumed is not None
        before, now = self.resumed.setup["values"], self.setup["values"]
        keys = {name: f"{frame.f_code.co_name}: {name}" for name in names}
        new = {name for name, key in keys.items() if before.get(key) == repr(names[name]) != now.get(key)}
        return {name: value for name, value in names.items() if name not in new}

    # -- saving ---------------------------------------------------------------------------------------------------
    def _save(self, loops: TrainingLoops, frames: Sequence[FrameType], stepped: bool) -> None:
        assert self.objects is not None
        began = time.monotonic()
        self.thread.finish()  # the host has no room for the copies of two saves
        counts = {"steps": self.clock.steps, "synced": self.records.watcher.total_steps}
        levels = [self._level(level) for level in loops.position()]
        more = {"levels": levels, "counts": counts, "setup": self.setup}
        names = [local_names.live(frame) for frame in frames]
        document = self.objects.changes(names, more, gradients=not stepped)
        tensors = document.tensors
        if self.clock.rank:
            shared = self.store.replicated([node.value for node in self.objects.snapshot.nodes])
            tensors = {key: tensor for key, tensor in tensors.items() if id(tensor) not in shared}
        copies = self.store.fetch(tensors)
        self._tell_left(document.left)
        self.clock.number += 1
        records = self.records.so_far()
        copied = time.monotonic() - began
        number, step = self.clock.number - 1, self.clock.steps
        job = SaveJob(number, step, document.data, copies, copied, counts["synced"], records)
        self.thread.add(job)

    def _level(self, level: LoopLevel) -> dict[str, Any]:
        """Without what its loader tells, if no checkpoint can have that: then the items are passed over."""
        assert self.objects is not None
        kept = level.more is None or self.objects.can_write(level.more)
        return vars(level) if kept else {**vars(level), "more": None}

    def _tell(self, report: SaveReport) -> None:
        """In the thread that writes. What fails again and again is said once, and counted."""
        if report.problem:
            self._failed += 1
            if report.problem not in self._told:
                self._told.add(report.problem)
                what = f"No checkpoint at step {report.step:,}: {report.problem}."
                self.note("not-saved", f"{what} The training goes on, and it is tried again.")
            return
        self._tell_failed(f"Saved again: step {report.step:,}")
        fields = {name: value for name, value in vars(report).items() if name not in ("problem", "left")}
        self.records.writer.record(Saved, **fields)
        if report.left:
            self._note_once("not-removed", f"Older checkpoints could not be removed: {report.left}.")

    def _tell_failed(self, what: str) -> None:
        """If saves have failed that were not counted aloud."""
        if self._failed:
            self.note("not-saved", f"{what}. Before it, {plural(self._failed, 'checkpoint')} could not be saved.")
            self._failed = 0

    def _tell_left(self, left: Mapping[str, str]) -> None:
        new = {name: why for name, why in left.items() if name not in self._told}
        if new and not self.clock.rank:
            self._told.update(new)
            names = "; ".join(f"`{name}`: {why}" for name, why in list(new.items())[:5])
            more = f"; and {len(new) - 5} more" if len(new) > 5 else ""
            self.note("not-in-checkpoint", f"Not in the checkpoints, so it begins anew after a resume: {names}{more}.")


def _listed(parts: Sequence[str]) -> str:
    more = f", and {len(parts) - 3} more" if len(parts) > 3 else ""
    return ", ".join(parts[:3]) + more


def _misfit(problem: object) -> TpuMagicsError:
    return TpuMagicsError(
        "The checkpoint does not fit what the code makes now.",
        f"{problem}.",
        "Undo the change of the model or the training function, or train from the beginning, without --resume.",
    )
