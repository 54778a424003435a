"""Seconds of compiling and device memory, sampled now and then."""

from __future__ import annotations

import time
from collections.abc import Callable

from tpu_magics.backends.observing.vitals import NowAndThen
from tpu_magics.runs import events


class DeviceUsage(NowAndThen):
    """Of one rank. `device`: "CPU" or "TPU"; `compiling`: seconds of compiling so far (None: unknown)."""

    def __init__(
        self, write: Callable[[events.Event], object], rank: int, device: str, compiling: Callable[[], float | None]
    ) -> None:
        super().__init__(write, rank)
        self.device = device
        self.compiling = compiling

    def look(self) -> None:
        """Record what is new."""
        now = round(time.time(), 3)
        seconds = self.compiling()
        if seconds is not None:
            self._if_new("times", round(seconds, 3), events.Times(now, self.rank, compiling=round(seconds, 3)))
        used = self._hbm()
        if used is not None:
            self._if_new("hbm", used, events.Memory(now, self.rank, hbm_used=used))

    def _hbm(self) -> int | None:
        """Bytes in use on the first TPU device; TensorFlow has no figure for the total. A CPU has no memory of its
        own."""
        if self.device == "CPU":
            return None
        import tensorflow as tf

        try:
            return int(tf.config.experimental.get_memory_info("TPU:0")["current"])
        except (ValueError, RuntimeError, KeyError, tf.errors.OpError):
            return None
