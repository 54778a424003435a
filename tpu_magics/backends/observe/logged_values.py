"""Values that the user logs; tensors on a device are read after the step, when that splits no graph."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from tpu_magics.runs.meter import ValueMeter
from tpu_magics.runs.writer import EventWriter

READ_EVERY = 0.25  # seconds between reads of logged tensors: each waits for the device
READ_AT_MOST = 256  # tensors kept alive until the next read


class LoggedValues:
    """The logged values of one rank."""

    def __init__(self, writer: EventWriter) -> None:
        self.meter = ValueMeter(writer)
        self.pending: list[tuple[str, Any, int]] = []
        self.ready: list[tuple[str, Any, int]] = []
        self.last_read = time.monotonic()

    def waits(self, value: Any) -> bool:
        """Whether reading `value` now would wait for a device, or run something."""
        raise NotImplementedError

    def fetch(self, value: Any) -> Any:
        """The value on the host."""
        raise NotImplementedError

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Record numbers at once; keep a device's tensor until after the step."""
        for name, value in values.items():
            if self.waits(value):
                self.pending.append((str(name), value, step))
            else:
                self.meter.log(str(name), plain(value), step)

    def step_done(self) -> None:
        """A step has run: the values logged in it can be read."""
        if self.pending:
            self.ready += self.pending
            self.pending = []
        if self.ready and (len(self.ready) >= READ_AT_MOST or time.monotonic() - self.last_read >= READ_EVERY):
            self.read()

    def read(self) -> None:
        """Read the pending values."""
        for name, value, step in self.ready:
            self.meter.log(name, plain(self.fetch(value)), step)
        self.ready = []
        self.last_read = time.monotonic()

    def close(self, read: bool) -> None:
        """Write the rest; `read`: also the tensors logged last, only after a last step."""
        if read:
            self.ready += self.pending
            self.pending = []
            self.read()
        self.meter.flush()


def plain(value: Any) -> Any:
    """A number from a tensor or NumPy value of one element; other values as they are, or as text."""
    if isinstance(value, (bool, int, float, str)):
        return value
    if getattr(value, "numel", None) is not None and callable(value.numel):
        return value.item() if value.numel() == 1 else f"tensor of shape {list(value.shape)}"
    if getattr(value, "size", None) == 1 and hasattr(value, "item"):
        return value.item()
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)
