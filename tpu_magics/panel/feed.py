"""The changes of a run since the last message to the front ends.

Messages are numbered, so that a front end notices when it has missed one. Long fields (curves, tables of ranks) are
sent less often.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from tpu_magics.panel.messages import HeartbeatMessage, RunMessage, UpdateMessage
from tpu_magics.panel.model_ranks import LEAD_LOG
from tpu_magics.panel.model_view import CompileEntry, RunView
from tpu_magics.panel.run_json import COMM, FIELDS, LOG, SizeBudget, field_json, joined, log_json, record, texts_json

HEARTBEAT_EVERY = 2.0  # seconds between heartbeats of an active run
PATIENT = frozenset({"values", "rates", "memory_curve"})
PATIENCE = 2.0  # seconds between updates of these
MOST_NEW = 100_000  # bytes of new compiles in one update; of more, the whole list is sent


class Feed:
    """One run, as it was sent to front ends. Thread-safe. `patience`: see PATIENCE; `clock`: in seconds."""

    def __init__(
        self,
        run: str,
        clock: Callable[[], float] = time.monotonic,
        patience: float = PATIENCE,
        budget: SizeBudget = COMM,
    ) -> None:
        self.run = run
        self.seq = 0
        self._clock, self._patience, self._budget = clock, patience, budget
        self._lock = threading.RLock()
        self._told: dict[str, Any] = {}  # the fields as they were when they were sent
        self._view: dict[str, Any] = {}  # the same as JSON, without compiles
        self._said: dict[str, Any] = {}
        self._log: tuple[CompileEntry, ...] = ()  # the compiles that were sent, newest first
        self._sent: dict[str, float] = {}
        self._next_heartbeat = 0.0

    # -- messages ----------------------------------------------------------------------------------------------------
    def begin(self, view: RunView) -> RunMessage:
        """The whole run as it is now, for all."""
        with self._lock:
            self.seq += 1
            now = self._clock()
            self._told = {name: getattr(view, name) for name in FIELDS}
            self._sent = dict.fromkeys(PATIENT, now)
            made = record(view, self._budget)
            self._said = made["said"]
            self._view = {name: one for name, one in made["view"].items() if name != LOG}
            self._log = view.compile_log[: len(made["view"][LOG])]
            self._next_heartbeat = now + HEARTBEAT_EVERY
            return RunMessage(self.seq, made, None)

    def whole(self, request: str | None) -> RunMessage | None:
        """The whole run after the last update, as an answer; None where nothing was sent yet."""
        with self._lock:
            return RunMessage(self.seq, self._joined(self._log), request) if self.seq else None

    def update(self, view: RunView) -> RunMessage | UpdateMessage | None:
        """What has changed; the whole run the first time; None: nothing."""
        with self._lock:
            if not self.seq:
                return self.begin(view)
            changed = self._changed(view)
            said = {name: one for name, one in texts_json(view, self._budget).items() if one != self._said.get(name)}
            log = self._new(view.compile_log)
            if log is None:
                whole = self._joined(view.compile_log)
                self._log = view.compile_log[: len(whole["view"][LOG])]
                changed[LOG] = whole["view"][LOG]
            if not (changed or said or log):
                return None
            self._view.update({name: one for name, one in changed.items() if name != LOG})
            self._said.update(said)
            self.seq += 1
            return UpdateMessage(self.run, self.seq, self.seq - 1, changed, said, tuple(log or ()))

    def heartbeat(self) -> HeartbeatMessage | None:
        """A heartbeat, if it is time for one."""
        with self._lock:
            if not self.seq or self._clock() < self._next_heartbeat:
                return None
            self._next_heartbeat = self._clock() + HEARTBEAT_EVERY
            return HeartbeatMessage(self.run, self.seq)

    # -- the rest ----------------------------------------------------------------------------------------------------
    def _joined(self, log: Sequence[CompileEntry]) -> dict[str, Any]:
        return joined(self._view, self._said, log, self._budget)

    def _changed(self, view: RunView) -> dict[str, Any]:
        now = self._clock()
        changed = {}
        for name in FIELDS:
            value = getattr(view, name)
            waits = view.live and name in PATIENT and now - self._sent[name] < self._patience
            if name == LOG or waits or value is self._told[name] or value == self._told[name]:
                continue
            self._told[name], self._sent[name] = value, now
            made = field_json(view, name, self._budget)
            if made != self._view[name]:
                changed[name] = made
        return changed

    # -- compiles ----------------------------------------------------------------------------------------------------
    def _new(self, log: Sequence[CompileEntry]) -> list[Any] | None:
        """The compiles that go before those that were sent; None where they do not simply go before."""
        if not self._log:
            new = len(log)
        else:
            newest = self._log[0].key
            new = next((at for at, entry in enumerate(log) if entry.key == newest), len(log))
        rest = tuple(log[new : new + len(self._log)])
        if rest != self._log[: len(rest)] or (len(rest) < len(self._log) and len(log) < LEAD_LOG):
            return None
        made = log_json(log[:new], self._budget, MOST_NEW)
        if len(made) < new:
            return None
        self._log = (*log[:new], *self._log)[: self._budget.compiles]
        return made
