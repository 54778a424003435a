"""Logged values that are on an XLA device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tpu_magics.backends.observing import logged_values
from tpu_magics.runs.writer import EventWriter


class TorchLoggedValues(logged_values.LoggedValues):
    """The logged values of one rank. `on_type`: called with the dtype of each logged tensor."""

    def __init__(self, writer: EventWriter, on_type: Callable[[str], None]) -> None:
        super().__init__(writer)
        self.on_type = on_type

    def waits(self, value: Any) -> bool:
        """Whether it is on a device."""
        device = getattr(value, "device", None)
        found = device is not None and getattr(device, "type", "cpu") not in ("cpu", "meta")
        if found:
            self.on_type(str(value.dtype).removeprefix("torch."))
        return found

    def fetched(self, value: Any) -> Any:
        """The value in host memory. After the sync, reading it splits no graph."""
        return value.detach().cpu()
