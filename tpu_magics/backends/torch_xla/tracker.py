"""An accelerate tracker that writes to the run's records. Import only in workers, after accelerate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from accelerate.tracking import GeneralTracker


class RunTracker(GeneralTracker):
    """Passes the values of `accelerator.log(...)` to the run's records."""

    name = "tpu_magics"
    requires_logging_directory = False

    def __init__(self, record: Callable[[Mapping[str, Any]], None]) -> None:
        super().__init__()
        self._record = record

    @property
    def tracker(self) -> None:
        """accelerate reads the wrapped tracker; there is none."""
        return None

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:  # noqa: ARG002
        """Called by accelerate on the main process."""
        self._record(values)
