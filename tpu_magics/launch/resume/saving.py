"""When a rank saves, how the ranks agree on it, and the thread that writes while the training goes on.

All ranks save at the same item of their loops: when it is time, they wait for each other between two items. Each copies
its state to host memory; a thread of its own writes it to the scratch folder, and that of rank 0 then puts the files of
all ranks into the store.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tpu_magics.backends.base import CheckpointPlan
from tpu_magics.backends.protocols import StateStore
from tpu_magics.checkpoints.lock import PlaceLost
from tpu_magics.checkpoints.store import Board, CheckpointStore, FolderBoard, open_place
from tpu_magics.errors import TpuMagicsError

STATE = "rank-{}.json"  # of a rank, without the ending its tensors
RECORDS = "rank-{}.records.jsonl"
# seconds in which ranks must have met between two items, rank 0 has the files of the others, and after an error of the
# function its last save is written
PATIENCE = 60.0
FIRST_WAIT = 1.0  # seconds that a rank waits for the others before it goes on by an item; twice as long each time
READ = 0.1  # seconds more for each rank, where they are on several hosts
FETCHES = 1800.0  # seconds that a worker waits for the one that fetches a checkpoint to its host
MOST_UNSTEPPED = 64  # items without an optimizer's step after which a save comes in the middle of one
NOW, STOP = "now", "stop"
LAST_SAVE = "saving a checkpoint before the run stops (a second stop skips it)."
NEVER = 0, False
_BEGUN = "begun"
_POLL, REMOTE_POLL = 0.002, 0.2  # seconds


@dataclass
class SaveJob:
    """The state of a rank at one item, in host memory. `number`: of the save; `step`: optimizer steps before it,
    `synced`: steps as the observer counts them; `copied`: seconds that the training waited; `records`: its
    steps and logged values so far, as in its file of events."""

    number: int
    step: int
    data: Mapping[str, Any]
    tensors: Mapping[str, Any]
    copied: float
    synced: int
    records: bytes
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True)
class SaveReport:
    """A save that ended. `problem`: why there is no checkpoint, or ""; `copied`: seconds that the training waited;
    `written`: seconds of the thread; `size`: bytes; `name`: of the checkpoint; `synced`: as in SaveJob; `left`: why
    older ones were not removed, or ""."""

    step: int
    problem: str = ""
    copied: float = 0.0
    written: float = 0.0
    size: int = 0
    name: str = ""
    synced: int = 0
    left: str = ""


class SaveClock:
    """Decides at which items a rank saves. `folder`: of all ranks on this host; `board`: of all ranks; `items`,
    `steps`: taken and done so far; `number`: of the next save; `stops`: the run ends after it."""

    def __init__(self, plan: CheckpointPlan, rank: int, ranks: int, folder: Path, board: Board) -> None:
        self.plan = plan
        self.rank = rank
        self.ranks = ranks
        self.folder = folder
        self.board = board
        self.items = 0
        self.steps = 0
        self.number = 1
        self.stops = False
        self._wanted = False
        self._asked = ""
        self._is_due = False
        self._wait = self._first_wait = FIRST_WAIT + (READ * ranks if plan.exchange else 0.0)
        self._due_since: float | None = None
        self._target: int | None = None
        self._saved = time.monotonic(), 0
        self._unstepped = 0

    def want(self) -> None:
        """Save at once, and end the run: called by a signal's handler."""
        self._wanted = True

    def due(self, steps: int, stepped: bool, busy: bool) -> bool:
        """An item was taken: whether this rank saves now. `steps`: since the item before; `stepped`: none is half done;
        `busy`: the save before is not written yet. Waits for the other ranks when it is time."""
        self.items += 1
        self.steps += steps
        self._is_due = self._is_due or (self._target is None and self._is_time(busy))
        if self._is_due and self._is_between(stepped):
            self._target = self.items if self.ranks == 1 else self._agreed()
            self._is_due = self._due_since is not None
        if self._target is None or self.items < self._target:
            return False
        self._target = None
        self._asked = _text(self._path(NOW))
        self._saved = time.monotonic(), self.steps
        self._unstepped = 0
        return True

    def begin(self) -> None:
        """The time between saves begins."""
        self._saved = time.monotonic(), self.steps
        if self.rank == 0:
            _write_text(self._path(_BEGUN), "")

    def _is_time(self, busy: bool) -> bool:
        if self._wanted or self._path(STOP).exists():
            self.stops = True
            return True
        if (asked := _text(self._path(NOW))) != self._asked:
            self._asked = asked
            return True
        if busy and self.ranks == 1:
            return False
        since, before = self._saved
        if self.plan.steps is not None:
            return self.steps - before >= self.plan.steps
        return time.monotonic() - since >= (self.plan.seconds or 0)

    def _is_between(self, stepped: bool) -> bool:
        """Not between a loss and its optimizer's step, unless there is no such step at all."""
        self._unstepped = 0 if stepped else self._unstepped + 1
        return stepped or self._unstepped >= MOST_UNSTEPPED

    def _agreed(self) -> int | None:
        """The item at which all ranks save: the furthest that one of them has reached. None: not now.

        Each waits here for the others, between two items. If one does not come, it may be inside of its next item and
        wait for this one there: then this one goes on by an item, and waits again."""
        self._due_since = self._due_since or time.monotonic()
        late, found = time.monotonic() - self._due_since > PATIENCE, None
        with contextlib.suppress(Exception):  # the network's, of any type: the training goes on
            found = self._met()
        if found is None and not late:
            return None
        self._due_since, self._wait = None, self._first_wait
        target, stops = found or NEVER
        if target >= self.items:
            self.stops = self.stops or stops
            return target
        self._saved = time.monotonic(), self.steps
        self.number += found is not None  # that one is without this rank, or of no rank
        return None

    def _met(self) -> tuple[int, bool] | None:
        """What rank 0 has decided. A rank that goes on says so first, and looks once more: rank 0 may have counted on
        it. None: it goes on."""
        if self._wanted:
            _write_text(self._path(STOP), "")
        for note in (f"{self.items} {self.stops:d}", ""):
            self.board.write(f"at-{self.number}-{self.rank}", note)
            until = time.monotonic() + self._wait
            while (found := self._decision()) is None and time.monotonic() < until:
                time.sleep(REMOTE_POLL if self.plan.exchange else _POLL)
            if found is not None:
                return found
        self._wait *= 2
        return None

    def _decision(self) -> tuple[int, bool] | None:
        """The item at which all ranks save, and whether the run ends there. Rank 0 decides, once, when all are between
        two items; NEVER if one has ended."""
        if self.rank:
            note = self.board.read(f"target-{self.number}")
            ended = note is None and self.board.read("ended-0") is not None
            return NEVER if ended else _parsed(note)
        found = []
        for rank in range(self.ranks):
            at = _parsed(self.board.read(f"at-{self.number}-{rank}"))
            if at is None and self.board.read(f"ended-{rank}") is None:
                return None
            found.append(at)
        there = [one for one in found if one is not None]
        decided = NEVER if None in found else (max(item for item, _ in there), any(stops for _, stops in there))
        self.board.write(f"target-{self.number}", f"{decided[0]} {decided[1]:d}")
        return decided

    def end(self) -> None:
        """This rank's loops have ended: no other waits for it."""
        if self.ranks > 1:
            with contextlib.suppress(Exception):  # as in `_agreed`
                self.board.write(f"ended-{self.rank}", "")

    def _path(self, name: str) -> Path:
        return self.folder / f"save-{name}"


def ask(scratch: Path, how: str) -> None:
    """In the notebook's process: the ranks of a run save at their next item. `how`: NOW, or STOP and end then."""
    with contextlib.suppress(OSError):  # the run has ended
        _write_text(scratch / f"save-{how}", secrets.token_hex(8))  # another text each time


def can_save(scratch: Path) -> bool:
    """In the notebook's process: whether the first training loop of a run has begun."""
    return (scratch / f"save-{_BEGUN}").exists()


def ends(scratch: Path) -> bool:
    """Whether ranks of a run were asked to save and end."""
    return (scratch / f"save-{STOP}").exists()


def _parsed(note: str | None) -> tuple[int, bool] | None:
    item, _, stops = (note or "").partition(" ")
    return (int(item), stops == "1") if item else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _write_text(path: Path, text: str) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text)
    temporary.replace(path)


def board_of(plan: CheckpointPlan, scratch: Path) -> Board:
    """Where the ranks of a run agree: in the scratch folder of their host, or on several in the place."""
    return open_place(plan.place).board(plan.exchange) if plan.exchange else FolderBoard(scratch)


def files_of(plan: CheckpointPlan | None, scratch: Path | None) -> CheckpointPlan | None:
    """The plan, with the files to go on from on this host: on several, the first of its workers fetches them."""
    if plan is None or plan.resume is None or scratch is None or not plan.exchange:
        return plan
    files, done = scratch / "resume", scratch / "resume-is-there"
    try:
        files.mkdir()
    except FileExistsError:
        until = time.monotonic() + FETCHES
        while not done.exists():
            if time.monotonic() > until:
                raise OSError(f"another worker has not fetched the checkpoint in {FETCHES:.0f} s") from None
            time.sleep(REMOTE_POLL)
    else:
        CheckpointStore(open_place(plan.place)).opened(plan.about["resumed"]["name"]).fetch(files)
        done.touch()
    return replace(plan, resume=files)


class SaveThread:
    """Writes what a rank has copied. `store`: how tensors are written (backends/torch/checkpoints.py); `tell`: called
    in the thread with each report, of rank 0 only."""

    def __init__(self, clock: SaveClock, store: StateStore, tell: Callable[[SaveReport], None]) -> None:
        self.clock = clock
        self.store = store
        self.tell = tell
        self._jobs: queue.SimpleQueue[SaveJob | None] = queue.SimpleQueue()
        self._current: SaveJob | None = None
        self._thread: threading.Thread | None = None
        self._place: CheckpointStore | None = None
        self._where = ""  # the disk or store that is written to

    @property
    def busy(self) -> bool:
        """Whether a save is not written yet."""
        return self._current is not None and not self._current.done.is_set()

    def add(self, job: SaveJob) -> None:
        """Write it, after those before."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tpu_magics-save", daemon=True)
            self._thread.start()
        self._current = job
        self._jobs.put(job)

    def finish(self, seconds: float | None = None) -> None:
        """Wait until all is written, for so long at most."""
        if self._current is not None:
            self._current.done.wait(seconds)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            began = time.monotonic()
            try:
                report = self._write(job, began)
            except Exception as error:  # the training goes on
                report = SaveReport(job.step, _reason(error, self._where))
                self._say_failed(job, report.problem)
            job.tensors = {}
            if self.clock.rank == 0:
                self.tell(report)
            job.done.set()

    def _say_failed(self, job: SaveJob, problem: str) -> None:
        try:
            self.clock.board.write(f"failed-{job.number}", problem)
        except OSError:
            pass  # rank 0 waits in vain, and says so

    def _write(self, job: SaveJob, began: float) -> SaveReport:
        rank = self.clock.rank
        folder = self.clock.folder / f"checkpoint-{job.number}"
        folder.mkdir(exist_ok=True)
        state = folder / STATE.format(rank)
        self._where = str(folder)
        try:
            written = self.store.write(state.with_suffix(""), job.tensors)
            records = folder / RECORDS.format(rank)
            records.write_bytes(job.records)
            _write_text(state, json.dumps(job.data))
            if rank:
                self._hand_over(job, [*written, records, state])
                return SaveReport(job.step)
            self._wait_for_others(job, folder)
            files = {path.name: path for path in sorted(folder.iterdir()) if path.suffix != ".tmp"}
            size = sum(path.stat().st_size for path in files.values())
            self._where = self.clock.plan.place
            saved = self._opened().save(job.step, files, {**self.clock.plan.about, "synced": job.synced})
            left = self._remove_older()
        finally:
            if not rank or self.clock.plan.exchange:
                shutil.rmtree(folder if not rank else state, ignore_errors=True)
        return SaveReport(job.step, "", job.copied, time.monotonic() - began, size, saved.name, job.synced, left)

    def _remove_older(self) -> str:
        """Returns why that was not possible, or "". The one that was saved is there all the same."""
        try:
            self._opened().keep(self.clock.plan.keep)
        except Exception as error:  # the network's, of any type
            return _reason(error, self._where)
        return ""

    def _hand_over(self, job: SaveJob, files: Sequence[Path]) -> None:
        """To rank 0, which may be on another host; then it finds the note."""
        if self.clock.plan.exchange:
            for path in files:
                self.clock.board.put(f"part-{job.number}-{path.name}", path)
        names = json.dumps([path.name for path in files])
        self.clock.board.write(f"done-{job.number}-{self.clock.rank}", names)

    def _wait_for_others(self, job: SaveJob, folder: Path) -> None:
        """Until the files of all ranks are in this folder."""
        until = time.monotonic() + PATIENCE
        for rank in range(1, self.clock.ranks):
            while (names := self.clock.board.read(f"done-{job.number}-{rank}")) is None:
                if (problem := self.clock.board.read(f"failed-{job.number}")) is not None:
                    raise OSError(problem)
                if time.monotonic() > until:
                    raise OSError(f"rank {rank} has not written its state in {PATIENCE:.0f} s")
                time.sleep(REMOTE_POLL if self.clock.plan.exchange else 0.05)
            for name in json.loads(names) if self.clock.plan.exchange else ():
                self.clock.board.take(f"part-{job.number}-{name}", folder / Path(name).name)

    def _opened(self) -> CheckpointStore:
        if self._place is None:
            self._place = CheckpointStore(open_place(self.clock.plan.place), self.clock.plan.token)
        return self._place


def _reason(error: Exception, place: str) -> str:
    """With where it happened: the disk of a run's folder may be full, or that of its checkpoints."""
    if isinstance(error, TpuMagicsError):
        return error.what.rstrip(".")
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    where = str(getattr(error, "filename2", None) or getattr(error, "filename", None) or place)
    return text if isinstance(error, PlaceLost) else f"{text} ({where})"
