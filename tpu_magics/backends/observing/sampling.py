"""Periodic sampling of runtime statistics; only changes are recorded."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tpu_magics.runs import events

EVERY = 1.0  # seconds between samples, at least
_SHARE = 1 / 200  # ... and this share of the time so far, so that a long run has few records


class PeriodicSampler:
    """The sampler of one rank. A framework overrides `look`."""

    def __init__(self, write: Callable[[events.Event], object], rank: int) -> None:
        self.write = write
        self.rank = rank
        self.started = time.monotonic()
        self.due = self.started + EVERY
        self.last: dict[str, Any] = {}

    def look_now_and_then(self) -> None:
        """After a step, when a sample is `due`."""
        now = time.monotonic()
        self.due = now + max(EVERY, (now - self.started) * _SHARE)
        self.look()

    def look(self) -> None:
        """Record what changed."""
        raise NotImplementedError

    def _if_new(self, name: str, value: Any, event: events.Event) -> None:
        if self.last.get(name) != value:
            self.last[name] = value
            self.write(event)
