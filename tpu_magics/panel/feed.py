"""A run as it was sent to the front ends, and the messages that bring them up to date.

Messages are numbered, so that a front end notices when it has missed one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from tpu_magics.panel.messages import HeartbeatMessage, RunMessage, UpdateMessage
from tpu_magics.panel.patch import diff
from tpu_magics.panel.run_json import COMM, RecordSize, record
from tpu_magics.panel.run_view import RunView

HEARTBEAT_EVERY = 2.0  # seconds between heartbeats of an active run
A_MINUTE = 200_000  # bytes that the updates of a run may take in any minute
BURST = 10_000  # of these, bytes that may be sent at once; an update may take as many more
LONGEST = 5.0  # seconds between updates, whatever they take: what waits does not become less


class TokenBucket:
    """Bytes that may be sent now. It may be overdrawn by one update, and then the next has to wait. `minute`: bytes of
    all updates in a minute."""

    def __init__(self, minute: int = A_MINUTE, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left = float(BURST)
        self._at = self._sent = clock()
        self.allow(minute)

    def allow(self, minute: int) -> None:
        """So many bytes in a minute, from now on."""
        self._rate = (minute - 2 * BURST) / 60

    @property
    def left(self) -> float:
        now = self._clock()
        self._left = min(float(BURST), self._left + (now - self._at) * self._rate)
        self._at = now
        return self._left

    @property
    def open(self) -> bool:
        """Whether an update may be sent."""
        return self.left > 0 or self._clock() - self._sent >= LONGEST

    def take(self, size: int) -> None:
        """So many bytes were sent."""
        self._left, self._sent = max(self.left - size, -float(A_MINUTE)), self._clock()


class Feed:
    """One run, as it was sent to front ends. Thread-safe. `clock`: in seconds."""

    def __init__(self, run: str, clock: Callable[[], float] = time.monotonic, size: RecordSize = COMM) -> None:
        self.run = run
        self.seq = 0
        self._clock, self._size = clock, size
        self._lock = threading.RLock()
        self._record: dict[str, Any] = {}
        self._next_heartbeat = 0.0

    def begin(self, view: RunView) -> RunMessage:
        """The whole run as it is now, for all."""
        with self._lock:
            self.seq += 1
            self._record = record(view, self._size)
            self._next_heartbeat = self._clock() + HEARTBEAT_EVERY
            return RunMessage(self.seq, self._record, None)

    def whole(self, request: str | None) -> RunMessage | None:
        """The whole run after the last update, as an answer; None where nothing was sent yet."""
        with self._lock:
            return RunMessage(self.seq, self._record, request) if self.seq else None

    def update(self, view: RunView) -> RunMessage | UpdateMessage | None:
        """What has changed; the whole run the first time; None: nothing."""
        with self._lock:
            if not self.seq:
                return self.begin(view)
            new = record(view, self._size)
            patch = diff(self._record, new)
            if patch is None:
                return None
            self._record = new
            self.seq += 1
            return UpdateMessage(self.run, self.seq, self.seq - 1, patch)

    def heartbeat(self) -> HeartbeatMessage | None:
        """A heartbeat, if it is time for one."""
        with self._lock:
            if not self.seq or self._clock() < self._next_heartbeat:
                return None
            self._next_heartbeat = self._clock() + HEARTBEAT_EVERY
            return HeartbeatMessage(self.run, self.seq)
