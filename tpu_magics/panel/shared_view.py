"""One view of a run for all its observers, so that the run folder is read once."""

from __future__ import annotations

import threading
import time

from tpu_magics.panel.model import RunModel
from tpu_magics.panel.model_view import RunView
from tpu_magics.runs.files import RunFiles

SHARED = 0.25  # seconds in which those who look get the same view


class SharedView:
    """A run's view, from any thread. `keep`: seconds in which it is not made anew."""

    def __init__(self, files: RunFiles, keep: float = 0.0) -> None:
        self.files = files
        self._keep = keep
        self._model = RunModel(files)
        self._lock = threading.Lock()
        self._view: RunView | None = None
        self._at = 0.0

    def view(self) -> RunView:
        """As it is now, or was a moment ago."""
        with self._lock:
            if self._view is None or not self._keep or time.monotonic() - self._at >= self._keep:
                return self._read()
            return self._view

    def anew(self) -> RunView:
        """As it is now."""
        with self._lock:
            return self._read()

    def _read(self) -> RunView:
        self._model.refresh()
        self._view, self._at = self._model.view(), time.monotonic()
        return self._view
