"""Periodic sampling of runtime statistics; only changes are recorded."""

from __future__ import annotations

import time
from typing import Any

from tpu_magics.runs import events
from tpu_magics.runs.writer import EventWriter

EVERY = 1.0  # seconds between samples, at least
_SHARE = 1 / 200  # ... and this share of the time so far, so that a long run has few records


class PeriodicSampler:
    """The sampler of one rank. A framework overrides `sample`."""

    def __init__(self, writer: EventWriter) -> None:
        self.writer = writer
        self.started = time.monotonic()
        self.due = self.started + EVERY
        self.last: dict[str, Any] = {}

    def next_sample(self) -> None:
        """After a step, when a sample is `due`."""
        now = time.monotonic()
        self.due = now + max(EVERY, (now - self.started) * _SHARE)
        self.sample()

    def sample(self) -> None:
        """Record what changed."""
        raise NotImplementedError

    def record_if_new(self, name: str, kind: type[events.Event], **fields: Any) -> None:
        """Record an event, unless the last one of this name had the same fields."""
        if self.last.get(name) != fields:
            self.last[name] = fields
            self.writer.record(kind, **fields)
