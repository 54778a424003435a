"""Watches the hosts of a run: writes what they send to the run folder, stops them, and fetches their results."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tpu_magics.launch import process, supervisor
from tpu_magics.launch.pods.host_actor import CHUNK_BYTES, FileChunk
from tpu_magics.launch.pods.host_start import SILENCE_SECONDS, close_actors, error_text, get_result, ray_call, submit
from tpu_magics.launch.pods.pod import LOG, REFUSED, RESULTS, Pod, PodHost, is_result_file, is_streamed_file
from tpu_magics.launch.resume import saving
from tpu_magics.launch.supervisor import GATHER, Supervisor, WorkerProcess
from tpu_magics.runs.events import Event, Start

POLL_SECONDS = 0.25  # an actor without news answers after this time
STOP_SECONDS = 12.0  # in which a host must stop
CLOSE_SECONDS = 10.0  # in which the actors must clean up
PARALLEL_FETCHES = 4  # parts of a file that are requested at the same time
LOST_CLOSE_SECONDS = 1.0  # the same for lost hosts, most of which never answer


@dataclass
class Link:
    """A host as the notebook follows it. `actor`: Ray's handle of the HostActor; `lost`: why the host is lost, "" if it
    is not; `pending`: the call that is not answered yet, sent at `sent_at`; `answered`: when the latest answered call
    was sent."""

    host: PodHost
    actor: Any
    workers: list[WorkerProcess]
    offsets: dict[str, int] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    pending: Any = None
    sent_at: float = 0.0
    answered: float = 0.0
    stopped: bool = False
    lost: str = ""

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(worker.rank for worker in self.workers)

    @property
    def finished(self) -> bool:
        """Whether the host has sent everything, or is lost."""
        return bool(self.lost) or (self.state.get("exit") is not None and not self.pending)

    @property
    def refused(self) -> dict[str, str] | None:
        """The error that stopped its process before it forked workers: what, why, todo."""
        error: dict[str, str] | None = self.state.get("refused")
        return error


def make_links(pod: Pod, actors: Sequence[Any]) -> list[Link]:
    links = []
    for host, actor in zip(pod.hosts, actors, strict=True):
        first = host.index * pod.workers
        workers = [WorkerProcess(first + local, 0, first + local) for local in range(pod.workers)]
        links.append(Link(host, actor, workers))
    return links


@dataclass
class RemoteSupervisor(Supervisor):
    """Watches the workers of all hosts. `reason` may also be "host": a host was lost or could not start; or "collect":
    the notebook could not write what the hosts sent, because of `unwritten`."""

    links: Sequence[Link] = ()
    fetched: bool = False
    unwritten: OSError | None = None
    released: bool = False
    _told_all: bool = False

    @property
    def lost(self) -> list[Link]:
        return [link for link in self.links if link.lost]

    @property
    def refused(self) -> list[Link]:
        return [link for link in self.links if link.refused]

    # -- the loop -------------------------------------------------------------------------------------------------
    def look(self) -> bool:
        self._exchange()
        self._read_events()
        self.relay.pump()
        if not self._told_all and any(link.state.get("saves_and_ends") for link in self.links):
            self._told_all = True  # a worker got a SIGTERM, and its host's ranks end after a save
            self.ask_to_save(saving.STOP)
        return self._go_on()

    def _exchange(self) -> None:
        """Poll every host without a pending call, and read the answers."""
        for link in self.links:
            if link.pending is None and not link.finished:
                self._poll(link)
        pending = {link.pending: link for link in self.links if link.pending is not None}
        if not pending:
            return
        try:
            with ray_call() as ray:
                ready, _ = ray.wait(list(pending), num_returns=len(pending), timeout=supervisor.TICK)
        except ConnectionError as error:
            for link in pending.values():
                self._lose(link, error_text(error))
            return
        for call in ready:
            self._read_answer(pending[call], call)
        for link in pending.values():
            if link.pending is not None and time.monotonic() - link.sent_at > SILENCE_SECONDS:
                self._lose(link, f"it did not answer for {SILENCE_SECONDS:.0f} s")

    def _poll(self, link: Link) -> None:
        link.sent_at = time.monotonic()
        try:
            link.pending = submit(link.actor.poll, dict(link.offsets), POLL_SECONDS)
        except Exception as error:  # Ray may raise any type; the host cannot be reached
            self._lose(link, error_text(error))

    def _read_answer(self, link: Link, call: Any) -> None:
        link.pending = None
        try:
            news, state = get_result(call, None)  # it is ready
        except Exception as error:
            self._lose(link, error_text(error))
            return
        link.answered, link.state = link.sent_at, state
        for one in news:
            self._receive(link, one)
        if link.lost:
            return
        if news and state["exit"] is not None:
            self._poll(link)  # until it has sent everything
        self._note_workers(link)

    def _receive(self, link: Link, chunk: FileChunk) -> None:
        """Record how much of a file a host has sent, and write it. If writing fails the run ends, and nothing more is
        written."""
        name, start, data = chunk
        if not is_streamed_file(name):
            self._lose(link, f"it sent {name!r}, which is not a file of a run")
            return
        emptied = start < link.offsets.get(name, 0)
        link.offsets[name] = start + len(data)
        if self.unwritten is None:
            try:
                local = f"host-{link.host.index}.log" if name == LOG else name
                self._write_chunk(self.files.path / local, chunk, emptied)
            except OSError as error:
                self.unwritten = error

    def _write_chunk(self, path: Path, chunk: FileChunk, emptied: bool) -> None:
        """Write to the run folder what a host sent. `emptied`: the host has emptied the file. Records and output are
        appended, because hosts may share a file: on a TPU, that of a rank which a worker had before the runtime
        assigned its own."""
        name, start, data = chunk
        if name.endswith((".jsonl", ".log")) and not emptied:
            with path.open("ab") as file:
                file.write(data)
            return
        with path.open("r+b" if path.exists() else "wb") as file:
            file.seek(start)
            file.truncate()
            file.write(data)

    # -- workers ----------------------------------------------------------------------------------------------------
    def _note_workers(self, link: Link) -> None:
        for worker, row in zip(link.workers, link.state.get("workers", ()), strict=False):
            worker.pid, worker.rank, worker.stopped_by_us = row["pid"], row["rank"], row["stopped_by_us"]
            if row["ended"] is None or not worker.alive:
                continue
            worker.exit_code, worker.signal = row["exit"], row["signal"]
            worker.note_end(row["ended"])
            if worker.meter is not None:
                worker.meter.peak_rss, worker.meter.peak_pss = row["peak_rss"] or 0, row["peak_pss"]
            worker.address_space = row["address_space"]
            if not row["good"]:  # its records may still arrive
                self._note_failure(worker)
        low = link.state.get("memory_low")
        if low:
            self.memory_low = min(self.memory_low, low)
        if link.state.get("exit") is not None and any(worker.alive for worker in link.workers):
            self._note_gone(link)

    def _note_failure(self, worker: WorkerProcess) -> None:
        stopping = self.reason in ("interrupt", "timeout")
        if not worker.stopped_by_us and self._first_failure is None and not stopping:
            self.reason, self._first_failure = "worker", worker.noticed

    def _note_gone(self, link: Link) -> None:
        """The host's process has ended without an end of some workers: it died, or it could not start."""
        if link.state.get("phase") != REFUSED and not link.lost:
            code = link.state["exit"]
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            self._lose(link, f"the process that runs its workers {how}")
        self._end_workers(link)

    def _end_workers(self, link: Link) -> None:
        for worker in link.workers:
            if worker.alive:
                worker.note_end()
                worker.stopped_by_us = True

    def _lose(self, link: Link, why: str) -> None:
        link.pending, link.lost = None, link.lost or why
        self._end_workers(link)

    def _take(self, event: Event) -> None:
        if isinstance(event, Start):  # hosts report ranks in their state: two hosts may have the same pid
            self._claim(event)
        else:
            super()._take(event)

    def _go_on(self) -> bool:
        if self.unwritten is not None:
            self.reason = "collect"
            self._stop_all(stacks=True)
        elif self.lost or self.refused:
            self.reason = "host"
            self._stop_all(stacks=True)
        elif self._first_failure is not None and not self._stop and not self._all_answered():
            return True  # a lost host breaks the others' collectives: wait until it is known which one
        return super()._go_on() or any(not link.finished for link in self.links)

    def _all_answered(self) -> bool:
        """Whether every host has answered since the first failure, and other ranks had time to fail too."""
        assert self._first_failure is not None
        since = min(time.monotonic(), self._first_failure + GATHER / 2)
        return all(link.finished or link.answered >= since for link in self.links)

    # -- the end ----------------------------------------------------------------------------------------------------
    def can_save(self) -> bool:
        whole = not (self.lost or self.refused or self.unwritten)
        return whole and any(link.state.get("can_save") for link in self.links)

    def ask_to_save(self, how: str) -> None:
        for link in self.links:
            if not link.finished:
                with contextlib.suppress(Exception):
                    submit(link.actor.save, how)

    def _note_exits(self) -> None:
        self._exchange()

    def _stop_all(self, stacks: bool = False) -> None:
        """Have every host stop its workers and wait for its answer; a host that does not stop is lost. Each host
        collects its own stacks."""
        if stacks:
            self._let_save(self._alive())
        for link in self.links:
            if not link.finished and not link.stopped:
                link.stopped = True
                with contextlib.suppress(Exception):
                    submit(link.actor.stop)
        until = time.monotonic() + STOP_SECONDS
        while any(not link.finished for link in self.links) and time.monotonic() < until:
            self._exchange()
        for link in self.links:
            if not link.finished:
                self._lose(link, f"it did not stop within {STOP_SECONDS:.0f} s")

    def end(self) -> None:
        try:
            super().end()
        finally:  # stop the hosts, whatever cannot be written here
            self._release()

    def _finish(self) -> None:
        if not self.released:
            self._read_events()
            self._fetch_results()
        super()._finish()

    def _fetch_results(self) -> None:
        if self.fetched or self.reason != "done" or not all(worker.good for worker in self.workers):
            return
        self.fetched = True
        for link in self.links:
            try:
                for name, size in get_result(submit(link.actor.results)):
                    fetch_file(link.actor, name, size, self.files.path)
            except Exception as error:
                self._drop_results()
                if isinstance(error, OSError) and error.errno is not None:  # Ray's timeout is an OSError without errno
                    self.reason, self.unwritten = "collect", error
                    return
                self.reason = "host"
                self._lose(link, error_text(error))

    def _drop_results(self) -> None:
        """Remove incomplete results."""
        for path in self.files.path.glob(RESULTS):
            with contextlib.suppress(OSError):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()

    def _release(self) -> None:
        """End all actors and remove their files; lost hosts get less time."""
        if self.released:
            return
        self.released = True
        with process.interrupts_held():
            close_actors([link.actor for link in self.links if not link.lost], CLOSE_SECONDS)
            close_actors([link.actor for link in self.lost], LOST_CLOSE_SECONDS)

    def table(self) -> list[dict[str, Any]]:
        hosts = {id(worker): link.host.index for link in self.links for worker in link.workers}
        return [{**row, "host": hosts[id(one)]} for row, one in zip(super().table(), self.workers, strict=True)]


def fetch_file(actor: Any, name: str, size: int, folder: Path) -> None:
    """Fetch a result file into a folder, in parts."""
    if not is_result_file(name):
        raise ValueError(f"it sent {name!r}, which is not a result file of a run")
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = [(at, min(CHUNK_BYTES, size - at)) for at in range(0, size, CHUNK_BYTES)]
    calls = [submit(actor.fetch, name, *part) for part in parts[:PARALLEL_FETCHES]]
    with path.open("wb") as file:
        for number in range(len(parts)):
            if number + PARALLEL_FETCHES < len(parts):
                calls.append(submit(actor.fetch, name, *parts[number + PARALLEL_FETCHES]))
            file.write(get_result(calls[number]))
            calls[number] = None
