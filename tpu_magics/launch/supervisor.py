"""Watching the workers of a run until none is left.

What lives here: the loop that notices exits, measures memory, shows output, and stops everyone when it must. What does
not: forking (process.py), explaining a failure (diagnose.py), bringing results home (results.py).

Only process groups of workers that this run forked are signalled, and never after they were reaped: the exit is
looked at without reaping (WNOWAIT), the group is killed, and then the worker is reaped.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tpu_magics.host.memory import host_memory
from tpu_magics.launch import limits, orphans, process
from tpu_magics.launch.divergence import GraphSequences, weight_differences
from tpu_magics.launch.relay import Relay
from tpu_magics.launch.run_observer import NullObserver, RunObserver
from tpu_magics.runs.events import Compile, Digest, End, Event, Phase, Start, Warned
from tpu_magics.runs.files import RunFiles
from tpu_magics.runs.meter import MemoryMeter
from tpu_magics.runs.private import remove_scratch
from tpu_magics.runs.reader import Tail
from tpu_magics.runs.writer import EventWriter

TICK = 0.03  # seconds between looks
MEMORY_EVERY = 0.5  # seconds between measurements of memory
GATHER = 1.0  # seconds in which others may fail of the same cause before anyone is blamed
GRACE = 1.5  # seconds between TERM and KILL
KEEPS = 8.0  # seconds in which rank 0 can come to the end of its step, where what it has learned is kept
WRITES = 600.0  # seconds in which it can write it


@dataclass
class WorkerProcess:
    """One worker as its parent knows it. `rank` is its index until the runtime tells; `address_space`: the limit that
    it ended with, in bytes (None: no limit); `below`: what it has started in sessions of their own."""

    index: int
    pid: int
    rank: int
    exit_code: int | None = None
    signal: int | None = None
    ended: float | None = None
    stopped_by_us: bool = False
    end: End | None = None
    meter: MemoryMeter | None = None
    address_space: int | None = None
    below: set[orphans.Process] = field(default_factory=set)

    @property
    def alive(self) -> bool:
        return self.ended is None

    @property
    def good(self) -> bool:
        """Whether it has done its work: a worker that left no last record has not, whatever its exit code."""
        return self.exit_code == 0 and self.end is not None and self.end.status != "failed"


@dataclass
class Supervisor:
    """The state of a run's supervision. `reason`: why it ended: "done", "worker", "timeout" or "interrupt". `ranks`:
    those that may write here (by default those of `workers`); `whole`: the workers are all of the run's, which can be
    compared; `keep`: before the run is ended, rank 0 may bring home what it has learned."""

    files: RunFiles
    workers: list[WorkerProcess]
    relay: Relay
    timeout: float | None = None
    observer: RunObserver = field(default_factory=NullObserver)
    ranks: Sequence[int] = ()
    whole: bool = True
    keep: bool = False
    started: float = field(default_factory=time.time)
    reason: str = "done"
    memory_low: int = 0
    _next_memory: float = 0.0
    _first_failure: float | None = None
    _stop: str = ""
    _collecting: bool = False
    _interrupts: Sequence[int] = ()

    def __post_init__(self) -> None:
        self.writer = EventWriter(self.files.supervisor_path, 0)
        self._tails: dict[int, Tail] = {}
        self.sequences = GraphSequences()
        self.digests: dict[int, dict[str, str]] = {}
        for worker in self.workers:
            worker.meter = MemoryMeter(self.writer, worker.rank)
        self.memory_low = available_memory()

    # -- the loop -------------------------------------------------------------------------------------------------
    def run(self) -> None:
        """Watch until every worker is gone; on any way out none is left. An interrupt stops the run, and nothing but
        the run: it is noted, and never raised in the middle of a look."""
        with process.interrupts_held() as interrupts:
            self._interrupts = interrupts
            try:
                while self.look():
                    if interrupts:
                        self.stop("interrupt")
                    self.observer.look()
                    time.sleep(TICK)
            finally:
                self.end()
                if interrupts and self._first_failure is None:
                    self.reason = "interrupt"
                interrupts.clear()

    def end(self) -> None:
        """Leave no worker and no open file (idempotent)."""
        with process.interrupts_held():
            self._stop_all()
            self._finish()

    def stop(self, reason: str) -> None:
        """Ask a watch that runs in another thread to stop everyone."""
        self._stop = reason

    def look(self) -> bool:
        """One look at everything. False when nobody is left to watch."""
        self._read_events()
        self.relay.pump()
        for worker in self.workers:
            if worker.alive:
                self._note_exit(worker)
        self._measure()
        return self._go_on()

    def _go_on(self) -> bool:
        now = time.time()
        if self._stop:
            self.reason = self._stop if self._first_failure is None else self.reason
            self._stop_all(stacks=True)
        elif self.timeout is not None and now - self.started > self.timeout and self._alive():
            self.reason = "timeout"
            self._stop_all(stacks=True)
        elif self._first_failure is not None and now - self._first_failure > GATHER:
            self._stop_all(stacks=True)
        return bool(self._alive())

    def _alive(self) -> list[WorkerProcess]:
        return [worker for worker in self.workers if worker.alive]

    def _note_exit(self, worker: WorkerProcess) -> None:
        """See whether a worker has ended, without reaping it: its pid must stay ours while its group is killed."""
        try:
            found = os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            self._note_lost(worker)
            return
        if found is None:
            return
        worker.ended = time.time()
        if found.si_code == os.CLD_EXITED:
            worker.exit_code = found.si_status
        else:
            worker.signal = found.si_status
        worker.address_space = limits.address_space(worker.pid)
        stop_group(worker.pid, signal.SIGKILL)
        os.waitpid(worker.pid, 0)
        orphans.end_orphans(self.files.path, worker.pid, worker.below)
        self._read_events()
        self._note_failure(worker)

    def _note_lost(self, worker: WorkerProcess) -> None:
        """Somebody else reaped it (SIGCHLD ignored, os.wait() in the notebook): its last record must do. Its pid may
        belong to another process by now, so nothing is signalled."""
        worker.ended = time.time()
        self._read_events()
        if worker.end is not None:
            worker.exit_code = int(worker.end.status == "failed")
        self._note_failure(worker)

    def _note_failure(self, worker: WorkerProcess) -> None:
        if not worker.good and not worker.stopped_by_us and self._first_failure is None:
            self.reason = "worker"
            self._first_failure = worker.ended

    # -- what workers tell ------------------------------------------------------------------------------------------
    def _read_events(self) -> None:
        """Learn ranks and ends. A worker writes under its index until it knows its rank."""
        for rank in self.ranks or range(len(self.workers) * 2):
            path = self.files.events_path(rank)
            if rank not in self._tails:
                if not path.exists():
                    continue
                self._tails[rank] = Tail(path)
            for event in self._tails[rank].read():
                self._take(event)

    def _take(self, event: Event) -> None:
        if isinstance(event, Start):
            for worker in self.workers:
                if worker.pid == event.pid and worker.rank != event.rank:
                    worker.rank = event.rank
                    worker.meter = MemoryMeter(self.writer, event.rank)
        elif isinstance(event, End):
            for worker in self.workers:
                if worker.rank == event.rank:
                    worker.end = event
        elif isinstance(event, Compile):
            self._write(self.sequences.add(event) if self.whole else None)
        elif isinstance(event, Phase):
            self._collecting = self._collecting or (event.rank == 0 and event.name == "collecting")
        elif isinstance(event, Digest):
            self.digests[event.rank] = event.models

    def _write(self, found: Event | None) -> None:
        if found is not None:
            self.writer.write(found)

    # -- memory -----------------------------------------------------------------------------------------------------
    def _measure(self) -> None:
        now = time.monotonic()
        if now < self._next_memory:
            return
        self._next_memory = now + MEMORY_EVERY
        self.memory_low = min(self.memory_low, available_memory())
        for worker in self._alive():
            worker.below |= orphans.descendants(worker.pid)
            measured = process_memory(worker.pid)
            if measured is not None and worker.meter is not None:
                worker.meter.sample(*measured)

    # -- the end ----------------------------------------------------------------------------------------------------
    def _stop_all(self, stacks: bool = False) -> None:
        """Stop whoever is alive: first ask for stacks, then TERM, then KILL, and reap them all."""
        for worker in self._alive():
            self._note_exit(worker)  # who has ended by now was not stopped by us
        alive = self._alive()
        if not alive:
            return
        for worker in alive:
            worker.stopped_by_us = True
        if stacks:
            self._let_keep(alive)
            self._ask_for_stacks(self._alive())
        self._signal(self._alive(), signal.SIGTERM)
        self._wait(alive, GRACE)
        self._signal(self._alive(), signal.SIGKILL)
        self._wait(alive, None)

    def _ask_for_stacks(self, workers: Sequence[WorkerProcess]) -> None:
        if workers:
            self._signal(workers, process.STACK_SIGNAL, only_leader=True)
            time.sleep(0.2)

    def _let_keep(self, alive: Sequence[WorkerProcess]) -> None:
        """Have rank 0 end with its step and bring home what it has learned; another interrupt ends the waiting. Where
        it was stands in its last record: faulthandler walks the stacks of threads that run on, and may crash."""
        lead = next((worker for worker in alive if worker.rank == 0), None)
        if lead is None or not self.keep:
            return
        self._ask_for_stacks([worker for worker in alive if worker is not lead])
        self._signal([lead], process.STOP_SIGNAL, only_leader=True)
        began, interrupts = time.monotonic(), len(self._interrupts)
        while lead.alive and len(self._interrupts) == interrupts:
            if time.monotonic() - began > (WRITES if self._collecting else KEEPS):
                break
            self._read_events()
            self.relay.pump()
            self.observer.look()
            for worker in self._alive():
                self._note_exit(worker)
            time.sleep(TICK)

    def _signal(self, workers: Sequence[WorkerProcess], number: signal.Signals, only_leader: bool = False) -> None:
        for worker in workers:
            self._note_exit(worker)
            if worker.alive and only_leader:
                os.kill(worker.pid, number)
            elif worker.alive:
                stop_group(worker.pid, number)

    def _wait(self, workers: Sequence[WorkerProcess], seconds: float | None) -> None:
        until = None if seconds is None else time.monotonic() + seconds
        while any(worker.alive for worker in workers) and (until is None or time.monotonic() < until):
            for worker in workers:
                if worker.alive:
                    self._note_exit(worker)
            time.sleep(0.01)

    def _finish(self) -> None:
        self._read_events()
        ranks = [worker.rank for worker in self.workers if worker.end is not None and worker.end.status == "done"]
        if self.whole and len(ranks) == len(self.workers):
            self._write(self.sequences.ended(ranks))
        differ = weight_differences(self.digests) if self.whole and len(ranks) == len(self.workers) else ""
        if differ:
            self._write(Warned(time.time(), 0, code="ranks-differ", text=differ))
        try:
            self.relay.pump()
            if differ:
                self.relay.screen.text(f"tpu_magics: {differ}\n")
        finally:
            for worker in self.workers:
                if worker.meter is not None:
                    worker.meter.flush()
            self.writer.close()
            remove_scratch(self.files)

    def table(self) -> list[dict[str, int | None]]:
        """The workers for run.json."""
        return [
            {
                "rank": w.rank,
                "pid": w.pid,
                "exit": w.exit_code,
                "signal": w.signal,
                "peak_rss": w.meter.peak_rss if w.meter else None,
                "peak_pss": w.meter.peak_pss if w.meter else None,
            }
            for w in self.workers
        ]


def stop_group(pid: int, number: signal.Signals) -> None:
    """Signal a worker and all that it started. `pid` must not have been reaped."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        pass  # only the worker itself is left of its group, and it has ended


def available_memory() -> int:
    """Free host memory in bytes; where the system does not tell, a number that is never low."""
    found = host_memory(Path("/")).available
    return sys.maxsize if found is None else found


def process_memory(pid: int) -> tuple[int, int | None] | None:
    """Resident and proportional bytes of a process; the latter None where the system does not tell."""
    try:
        fields = _rollup(Path(f"/proc/{pid}/smaps_rollup").read_text())
        return fields["Rss"], fields["Pss"]
    except (OSError, KeyError):
        pass
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE"), None


def _rollup(text: str) -> Mapping[str, int]:
    lines = (line.split() for line in text.splitlines()[1:])
    return {parts[0].rstrip(":"): int(parts[1]) * 1024 for parts in lines if len(parts) >= 3 and parts[2] == "kB"}
