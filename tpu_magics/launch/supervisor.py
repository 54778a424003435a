"""Watches the workers of a run until all have ended (exits, memory, output, time limit, interrupts) and compares them.

Only workers that this run forked and their process groups are signaled, and never after they were reaped: the exit is
read without reaping (WNOWAIT), the group is killed, and then the worker is reaped.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tpu_magics.host.memory import host_memory
from tpu_magics.launch import descendants, process
from tpu_magics.launch.notebook import NullObserver, RunObserver
from tpu_magics.launch.resume import saving
from tpu_magics.launch.streams import Relay, bound_log
from tpu_magics.runs.events import Compile, Digest, Divergence, End, Event, Phase, Start, Warned
from tpu_magics.runs.files import RunFiles
from tpu_magics.runs.meter import MemoryMeter
from tpu_magics.runs.reader import Tail
from tpu_magics.runs.temporary_folders import remove_scratch, scratch_of
from tpu_magics.runs.writer import EventWriter

TICK = 0.03  # seconds between checks
MEMORY_EVERY = 0.5  # seconds between measurements of memory
GATHER = 1.0  # seconds to wait for other failures of the same cause
GRACE = 1.5  # seconds between TERM and KILL
STACKS = 2.0  # seconds that workers have to write their stacks
KEEPS = 8.0  # seconds that rank 0 has to finish its step, with --keep-partial
SAVES = 25.0  # seconds that all ranks have to finish their step and save a checkpoint
ENDS = 20.0  # seconds between KILL and giving up: only a process within a system call that never returns lives on
WRITES = 600.0  # seconds that it has to write its results


@dataclass
class WorkerProcess:
    """One worker as its parent knows it. `rank` is its index until the runtime assigns one; `address_space`: its
    RLIMIT_AS at its end, in bytes (None: no limit); `ended`: in unix seconds, by its host's clock; `noticed`: then, by
    this process's; `continued`: it was found stopped, which has been said."""

    index: int
    pid: int
    rank: int
    exit_code: int | None = None
    signal: int | None = None
    ended: float | None = None
    noticed: float = 0.0
    stopped_by_us: bool = False
    continued: bool = False
    end: End | None = None
    meter: MemoryMeter | None = None
    address_space: int | None = None

    @property
    def alive(self) -> bool:
        return self.ended is None

    def note_end(self, at: float | None = None) -> None:
        """It has ended: at that time, or now."""
        self.ended = time.time() if at is None else at
        self.noticed = time.monotonic()

    @property
    def good(self) -> bool:
        """Whether it succeeded. A worker without a last record has failed, whatever its exit code."""
        return self.exit_code == 0 and self.end is not None and self.end.status != "failed"


@dataclass
class Supervisor:
    """Watches a run. `reason`: why it ended: "done", "worker", "ranks" (two workers have the same), "timeout" or
    "interrupt"; `ranks`: those that may write
    here (default: those of `workers`); `whole`: `workers` are all workers of the run, so that they can be compared;
    `keep`: with --keep-partial, rank 0 may write its weights before it is stopped; `saves`: the ranks may save a
    checkpoint before."""

    files: RunFiles
    workers: list[WorkerProcess]
    relay: Relay
    timeout: float | None = None
    observer: RunObserver = field(default_factory=NullObserver)
    ranks: Sequence[int] = ()
    whole: bool = True
    keep: bool = False
    saves: bool = False
    began: float = field(default_factory=time.monotonic)
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
        self.digests: dict[int, Digest] = {}
        self.claims: defaultdict[int, set[tuple[int, float]]] = defaultdict(set)
        for worker in self.workers:
            worker.meter = MemoryMeter(self.writer, worker.rank)
        self.memory_low = available_memory()

    # -- the loop -------------------------------------------------------------------------------------------------
    def run(self) -> None:
        """Watch until all workers have ended; none is left running in any case. An interrupt stops the run: it is noted
        and not raised within the loop."""
        with process.interrupts_held() as interrupts:
            self._interrupts = interrupts
            guard = descendants.Guard(self.files.path)
            try:
                while self.look():
                    if interrupts:
                        self.stop("interrupt")
                    self.observer.look()
                    time.sleep(TICK)
            finally:
                try:
                    self.end()
                finally:
                    guard.close()
                if interrupts and self._first_failure is None:
                    self.reason = "interrupt"
                interrupts.clear()

    def end(self) -> None:
        """Stop all workers and close all files (idempotent)."""
        with process.interrupts_held():
            self._stop_all()
            self._finish()

    def stop(self, reason: str) -> None:
        """Stop all workers; may be called from another thread."""
        self._stop = reason

    def look(self) -> bool:
        """Check everything once. False if all workers have ended."""
        self._read_events()
        self.relay.pump()
        self._note_exits()
        self._measure()
        return self._go_on()

    def _go_on(self) -> bool:
        now = time.monotonic()
        if self._stop:
            self.reason = self._stop if self._first_failure is None else self.reason
            self._stop_all(stacks=True)
        elif self.timeout is not None and now - self.began > self.timeout and self._alive():
            self.reason = "timeout"
            self._stop_all(stacks=True)
        elif self._first_failure is not None and now - self._first_failure > GATHER:
            self._stop_all(stacks=True)
        return bool(self._alive())

    def _alive(self) -> list[WorkerProcess]:
        return [worker for worker in self.workers if worker.alive]

    def _note_exits(self) -> None:
        for worker in self._alive():
            self._note_exit(worker)

    def _note_exit(self, worker: WorkerProcess) -> None:
        """Check whether a worker has ended or is stopped, without reaping it: its pid must stay valid until its group
        is killed."""
        try:
            status = os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            self._note_lost(worker)
            return
        if status is None:
            return
        if status.si_code == os.CLD_STOPPED:
            self._continue(worker, status.si_status)
            return
        worker.note_end()
        if status.si_code == os.CLD_EXITED:
            worker.exit_code = status.si_status
        else:
            worker.signal = status.si_status
        worker.address_space = process.address_space(worker.pid)
        stop_group(worker.pid, signal.SIGKILL)
        os.waitpid(worker.pid, 0)
        descendants.end_marked(descendants.mark_of(self.files.path, worker.pid))
        self._read_events()
        self._note_failure(worker)

    def _continue(self, worker: WorkerProcess, number: int) -> None:
        """A signal stopped it, and only SIGCONT ends that. The stops of a debugger are not reported to a parent."""
        stop_group(worker.pid, signal.SIGCONT)
        if worker.continued:
            return
        worker.continued = True
        text = f"Rank {worker.rank} was stopped by a signal ({signal.Signals(number).name}) and was continued"
        if number in (signal.SIGTTIN, signal.SIGTTOU):
            text = (
                f"{text}: it, or a program that it started, used the terminal, which a worker cannot read. Give such a "
                "program what it asks for in its options"
            )
        self._warn("continued", f"{text}.")

    def _warn(self, code: str, text: str) -> None:
        self._write(Warned(time.time(), 0, code=code, text=text))
        self.relay.screen.text(f"tpu_magics: {text}\n")

    def _note_lost(self, worker: WorkerProcess) -> None:
        """The notebook reaped the worker itself (SIGCHLD ignored, os.wait()): use its last record. Its pid may belong
        to another process by now, so nothing is signaled."""
        worker.note_end()
        self._read_events()
        if worker.end is not None:
            worker.exit_code = int(worker.end.status == "failed")
        self._note_failure(worker)

    def _note_failure(self, worker: WorkerProcess) -> None:
        if not worker.good and not worker.stopped_by_us and self._first_failure is None:
            self.reason = "worker"
            self._first_failure = worker.noticed

    # -- events of workers ------------------------------------------------------------------------------------------
    def _read_events(self) -> None:
        """Read ranks and ends. A worker writes under its index until it knows its rank."""
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
            self._claim(event)
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
            self.digests[event.rank] = event

    def _claim(self, event: Start) -> None:
        """Each worker begins once, as a rank of its own."""
        self.claims[event.rank].add((event.pid, event.t))
        if len(self.claims[event.rank]) > 1 and self.reason in ("done", "worker"):
            self.reason, self._first_failure = "ranks", self._first_failure or time.monotonic()

    def _write(self, event: Event | None) -> None:
        if event is not None:
            self.writer.write(event)

    # -- memory -----------------------------------------------------------------------------------------------------
    def _measure(self) -> None:
        now = time.monotonic()
        if now < self._next_memory:
            return
        self._next_memory = now + MEMORY_EVERY
        self.memory_low = min(self.memory_low, available_memory())
        self.relay.bound_log()
        for worker in self._alive():
            if worker.rank:
                bound_log(self.files.log_path(worker.rank))
            measured = process_memory(worker.pid)
            if measured is not None and worker.meter is not None:
                worker.meter.sample(*measured)

    # -- the end ----------------------------------------------------------------------------------------------------
    def _stop_all(self, stacks: bool = False) -> None:
        """Stop all live workers: request stacks, then TERM, then KILL, and reap them."""
        for worker in self._alive():
            self._note_exit(worker)  # a worker that has already ended was not stopped by us
        alive = self._alive()
        if not alive:
            return
        for worker in alive:
            worker.stopped_by_us = True
        if stacks:
            self._let_save(alive)
            self._let_keep(self._alive())
            self._ask_for_stacks(self._alive())
        self._signal(self._alive(), signal.SIGTERM)
        self._wait(alive, GRACE)
        self._signal(self._alive(), signal.SIGKILL)
        self._wait(alive, ENDS)
        for worker in self._alive():
            self._give_up(worker)

    def _give_up(self, worker: WorkerProcess) -> None:
        """It did not end by SIGKILL: the run ends without it."""
        worker.note_end()
        text = (
            f"Rank {worker.rank} (process {worker.pid}) did not end when it was killed: it waits in the operating "
            "system, for a device or a network disk. It keeps its memory and its device until it has ended: see "
            f"`ps -o pid,stat,wchan {worker.pid}`."
        )
        self._warn("not-ended", text)

    def _ask_for_stacks(self, workers: Sequence[WorkerProcess]) -> None:
        """Signal handlers of the workers write them: on a busy machine that takes a while."""
        sizes = before = [self._stacks_size(worker) for worker in workers]
        self._signal(workers, process.STACK_SIGNAL, only_leader=True)
        until = time.monotonic() + STACKS
        while workers and time.monotonic() < until:
            time.sleep(0.1)
            last, sizes = sizes, [self._stacks_size(worker) for worker in workers]
            for worker in workers:
                if worker.alive:
                    self._note_exit(worker)
            silent = [one for one, size, old in zip(workers, sizes, before, strict=True) if one.alive and size == old]
            if sizes == last and not silent:
                break

    def _stacks_size(self, worker: WorkerProcess) -> int:
        path = self.files.stacks_path(worker.index)
        return path.stat().st_size if path.exists() else 0

    def _let_save(self, alive: Sequence[WorkerProcess]) -> None:
        """Let all ranks save a checkpoint at their next item; another interrupt ends the wait."""
        if self.saves and self._first_failure is None and self.can_save():
            self.relay.screen.text(f"tpu_magics: {saving.LAST_SAVE}\n")
            self.ask_to_save(saving.STOP)
            self._wait_watching(alive, SAVES)

    def can_save(self) -> bool:
        """Whether the first training loop has begun."""
        return saving.can_save(scratch_of(self.files))

    def ask_to_save(self, how: str) -> None:
        """All ranks save at their next item; may be called from another thread. `how`: as in `saving.ask`."""
        saving.ask(scratch_of(self.files), how)

    def _let_keep(self, alive: Sequence[WorkerProcess]) -> None:
        """Let rank 0 finish its step and write its weights; another interrupt ends the wait. Its stack is in its last
        record: faulthandler reads stacks of running threads and may crash."""
        lead = next((worker for worker in alive if worker.rank == 0), None)
        if lead is None or not self.keep:
            return
        self._ask_for_stacks([worker for worker in alive if worker is not lead])
        self._signal([lead], process.STOP_SIGNAL, only_leader=True)
        self._wait_watching([lead], KEEPS)

    def _wait_watching(self, workers: Sequence[WorkerProcess], seconds: float) -> None:
        """Until these have ended, for so long at most, and longer while results are written."""
        began, interrupts = time.monotonic(), len(self._interrupts)
        while any(worker.alive for worker in workers) and len(self._interrupts) == interrupts:
            if time.monotonic() - began > (WRITES if self._collecting else seconds):
                break
            self._read_events()
            self.relay.pump()
            self.observer.look()
            self._note_exits()
            time.sleep(TICK)

    def _signal(self, workers: Sequence[WorkerProcess], number: signal.Signals, only_leader: bool = False) -> None:
        for worker in workers:
            self._note_exit(worker)
            if worker.alive and only_leader:
                os.kill(worker.pid, number)
            elif worker.alive:
                stop_group(worker.pid, number)

    def _wait(self, workers: Sequence[WorkerProcess], seconds: float) -> None:
        until = time.monotonic() + seconds
        while any(worker.alive for worker in workers) and time.monotonic() < until:
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
    """Signal a worker and its process group. `pid` must not have been reaped. The worker itself may have left the group
    (os.setpgid), and is signaled once in any case."""
    try:
        os.killpg(pid, number)
        if os.getpgid(pid) == pid:
            return
    except (ProcessLookupError, PermissionError):
        pass  # nobody is left in its group
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def available_memory() -> int:
    """Free host memory in bytes; a huge number if not available."""
    available = host_memory(Path("/")).available
    return sys.maxsize if available is None else available


def process_memory(pid: int) -> tuple[int, int | None] | None:
    """RSS and PSS of a process in bytes; PSS is None if not available."""
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


# -- ranks that differ -------------------------------------------------------------------------------------------------


class GraphSequences:
    """The graphs that each rank compiled, in order."""

    def __init__(self) -> None:
        self.graphs: defaultdict[int, list[str]] = defaultdict(list)
        self.reported = False

    def add(self, event: Compile) -> Divergence | None:
        """Add a compile. Only the first divergence is returned: later ones follow from it."""
        own = self.graphs[event.rank]
        own.append("" if event.by_rank else event.graph)
        return self._divergence_at(len(own) - 1)

    def ended(self, ranks: list[int]) -> Divergence | None:
        """All these ranks have ended: a rank that compiled fewer graphs than the others also diverges."""
        most = max((len(self.graphs[rank]) for rank in ranks), default=0)
        return self._divergence_at(most - 1, ranks) if most else None

    def _divergence_at(self, nth: int, ranks: list[int] | None = None) -> Divergence | None:
        graphs = {rank: self._graph(rank, nth) for rank in sorted(ranks if ranks is not None else self.graphs)}
        known = {rank: graph for rank, graph in graphs.items() if graph is not None or ranks is not None}
        if self.reported or len(set(known.values())) < 2 or "" in known.values():
            return None  # a graph without a name cannot be compared
        self.reported = True
        first = min(known)
        others = tuple(rank for rank in known if known[rank] != known[first])
        named = {str(rank): graph or "" for rank, graph in known.items()}
        return Divergence(round(time.time(), 3), others[0], others, nth, named, _divergence_text(others, first, nth))

    def _graph(self, rank: int, nth: int) -> str | None:
        graphs = self.graphs[rank]
        return graphs[nth] if nth < len(graphs) else None


def weight_differences(digests: Mapping[int, Digest]) -> str:
    """A warning if ranks ended with other weights than rank 0, else "". `digests`: by rank."""
    models = _differing({rank: one.models for rank, one in digests.items()})
    elsewhere = _differing({rank: one.optimizers for rank, one in digests.items()})
    if not models and not elsewhere:
        return ""
    kept = ", whose weights are kept" if models else ""
    named = [*models, *(f"what {one.replace(' (', ' trained (', 1)}" for one in elsewhere)]
    return (
        f"Some ranks ended with different weights than rank 0{kept}: {', '.join(named)}. The gradients were not "
        "averaged in the last step: use accelerator.backward() and a prepared optimizer, or xm.optimizer_step(). Where "
        "the code averages weights now and then (local SGD), average them once more at the end."
    )


def _differing(checksums: Mapping[int, Mapping[str, str]]) -> list[str]:
    """The names whose checksum differs from rank 0's, with the ranks. `checksums`: rank -> name -> checksum."""
    differing = []
    for name, own in checksums.get(0, {}).items():
        others = [rank for rank, sums in sorted(checksums.items()) if sums.get(name, own) != own]
        if others:
            differing.append(f"`{name}` (rank{'s' * (len(others) > 1)} {', '.join(map(str, others))})")
    return differing


def _divergence_text(others: tuple[int, ...], first: int, nth: int) -> str:
    who = f"Rank {others[0]} compiles" if len(others) == 1 else f"Ranks {', '.join(map(str, others))} compile"
    return (
        f"{who} another graph than rank {first} (compile {nth + 1}): the ranks do not run the same program. On a TPU "
        "the run would hang. Look for code or shapes that depend on the rank."
    )
