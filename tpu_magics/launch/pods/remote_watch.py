"""Watching a run's hosts until none of their workers is left.

What lives here: the notebook's half: what carriers answer goes into the run folder, who has failed or is lost, stopping
the others, and fetching results. What does not: starting (ship.py), and the loop and the comparing of ranks, which are
those of one host (launch/supervise.py).
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpu_magics.launch import process, supervise
from tpu_magics.launch.pods.host_actor import FileChunk
from tpu_magics.launch.pods.host_start import close_actors
from tpu_magics.launch.pods.host_task import LOG, REFUSED, RESULTS, is_streamed_file
from tpu_magics.launch.pods.link import SILENCE_SECONDS, Link, error_text, fetch_file, get_result, submit
from tpu_magics.launch.pods.ray_calls import ray_call
from tpu_magics.launch.supervise import GATHER, Watch, Watched
from tpu_magics.runs.events import Event, Start

POLL_SECONDS = 0.25  # seconds that a carrier waits for news before it answers
STOP_SECONDS = 12.0  # seconds in which a host that was told to stop has stopped
CLOSE_SECONDS = 10.0  # seconds in which the carriers have cleared up
LOST_CLOSE_SECONDS = 1.0  # the same for hosts that are lost: most of them never answer


@dataclass
class RemoteWatch(Watch):
    """The supervision of all hosts' workers. `reason` may also be "host": one was lost, or could not begin; or
    "collect": what hosts send could not be kept here, because of `unwritten`."""

    links: Sequence[Link] = ()
    fetched: bool = False
    unwritten: OSError | None = None
    released: bool = False

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
        return self._go_on()

    def _exchange(self) -> None:
        """Ask every host that is not being asked, and take what has been answered."""
        for link in self.links:
            if link.question is None and not link.over:
                self._ask(link)
        asked = {link.question: link for link in self.links if link.question is not None}
        if not asked:
            return
        try:
            with ray_call() as ray:
                ready, _ = ray.wait(list(asked), num_returns=len(asked), timeout=supervise.TICK)
        except ConnectionError as error:
            for link in asked.values():
                self._lose(link, error_text(error))
            return
        for question in ready:
            self._answered(asked[question], question)
        for link in asked.values():
            if link.question is not None and time.monotonic() - link.asked > SILENCE_SECONDS:
                self._lose(link, f"it has not answered for {SILENCE_SECONDS:.0f} s")

    def _ask(self, link: Link) -> None:
        link.asked = time.monotonic()
        try:
            link.question = submit(link.carrier.poll, dict(link.offsets), POLL_SECONDS)
        except Exception as error:  # Ray raises what it likes; whatever it is, this host cannot be asked
            self._lose(link, error_text(error))

    def _answered(self, link: Link, question: Any) -> None:
        link.question = None
        try:
            news, state = get_result(question, None)  # it is there already
        except Exception as error:
            self._lose(link, error_text(error))
            return
        link.answered, link.state = link.asked, state
        for one in news:
            self._take_in(link, one)
        if link.lost:
            return
        if news and state["exit"] is not None:
            self._ask(link)  # until it has told all
        self._note_workers(link)

    def _take_in(self, link: Link, new: FileChunk) -> None:
        """Note how far a host has told. Where it cannot be kept here the run is ended, and no more is kept."""
        name, start, data = new
        if not is_streamed_file(name):
            self._lose(link, f"it sends {name!r}, which is no file of a run")
            return
        again = start < link.offsets.get(name, 0)
        link.offsets[name] = start + len(data)
        link.bytes += len(data)
        if self.unwritten is None:
            try:
                self._keep(self.files.path / (f"host-{link.host.index}.log" if name == LOG else name), new, again)
            except OSError as error:
                self.unwritten = error

    def _keep(self, path: Path, new: FileChunk, again: bool) -> None:
        """Put into the run folder what a host has written. `again`: it has emptied the file. Records and output are
        added at the end: hosts share some of them, on a TPU those of a rank that a worker had before the runtime gave
        it its own."""
        name, start, data = new
        if name.endswith((".jsonl", ".log")) and not again:
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
            worker.exit_code, worker.signal, worker.ended = row["exit"], row["signal"], row["ended"]
            if worker.meter is not None:
                worker.meter.peak_rss, worker.meter.peak_pss = row["peak_rss"] or 0, row["peak_pss"]
            worker.address_space = row["address_space"]
            if not row["good"]:  # its records may be on their way still
                self._note_failure(worker)
        low = link.state.get("memory_low")
        if low:
            self.memory_low = min(self.memory_low, low)
        if link.state.get("exit") is not None and any(worker.alive for worker in link.workers):
            self._note_gone(link)

    def _note_failure(self, worker: Watched) -> None:
        if not worker.stopped_by_us and self._first_failure is None:
            self.reason, self._first_failure = "worker", time.time()  # our clock: theirs may differ

    def _note_gone(self, link: Link) -> None:
        """Its process has ended, and some of its workers were never told of: it died, or it refused to begin."""
        if link.state.get("phase") != REFUSED and not link.lost:
            code = link.state["exit"]
            how = f"of signal {-code}" if code < 0 else f"with exit code {code}"
            self._lose(link, f"the process that runs its workers ended {how}")
        self._end_workers(link)

    def _end_workers(self, link: Link) -> None:
        for worker in link.workers:
            if worker.alive:
                worker.ended, worker.stopped_by_us = time.time(), True

    def _lose(self, link: Link, why: str) -> None:
        link.question, link.lost = None, link.lost or why
        self._end_workers(link)

    def _take(self, event: Event) -> None:
        if not isinstance(event, Start):  # hosts tell of ranks themselves: two of them may have the same pid
            super()._take(event)

    def _go_on(self) -> bool:
        if self.unwritten is not None:
            self.reason = "collect"
            self._stop_all(stacks=True)
        elif self.lost or self.refused:
            self.reason = "host"
            self._stop_all(stacks=True)
        elif self._first_failure is not None and not self._stop and not self._all_heard():
            return True  # a host that is lost breaks the others' collectives: who it was is known first
        return super()._go_on() or any(not link.over for link in self.links)

    def _all_heard(self) -> bool:
        """Whether every host has answered since the first failure was seen and others had time to fail, too."""
        assert self._first_failure is not None
        since = time.monotonic() - max(0.0, time.time() - self._first_failure - GATHER / 2)
        return all(link.over or link.answered >= since for link in self.links)

    # -- the end ----------------------------------------------------------------------------------------------------
    def _stop_all(self, stacks: bool = False) -> None:  # noqa: ARG002 - each host asks its own for stacks
        """Have every host stop its workers, and wait for what they tell; one that does not is lost."""
        for link in self.links:
            if not link.over and not link.stopped:
                link.stopped = True
                with contextlib.suppress(Exception):
                    submit(link.carrier.stop)
        until = time.monotonic() + STOP_SECONDS
        while any(not link.over for link in self.links) and time.monotonic() < until:
            self._exchange()
        for link in self.links:
            if not link.over:
                self._lose(link, f"it has not stopped within {STOP_SECONDS:.0f} s")

    def end(self) -> None:
        try:
            super().end()
        finally:  # whatever cannot be written here: no host goes on
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
                for name, size in get_result(submit(link.carrier.results)):
                    link.bytes += fetch_file(link.carrier, name, size, self.files.path)
            except Exception as error:
                self._drop_results()
                if isinstance(error, OSError) and error.errno is not None:  # Ray's time-out is one without a number
                    self.reason, self.unwritten = "collect", error
                    return
                self.reason = "host"
                self._lose(link, error_text(error))

    def _drop_results(self) -> None:
        """Half of them are of no use."""
        for path in self.files.path.glob(RESULTS):
            with contextlib.suppress(OSError):
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()

    def _release(self) -> None:
        """Leave nothing on any host; those that are lost cost little more."""
        if self.released:
            return
        self.released = True
        with process.interrupts_held():
            close_actors([link.carrier for link in self.links if not link.lost], CLOSE_SECONDS)
            close_actors([link.carrier for link in self.lost], LOST_CLOSE_SECONDS)

    def table(self) -> list[dict[str, Any]]:
        hosts = {id(worker): link.host.index for link in self.links for worker in link.workers}
        return [{**row, "host": hosts[id(one)]} for row, one in zip(super().table(), self.workers, strict=True)]
