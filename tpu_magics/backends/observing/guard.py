"""An observer whose errors end the monitoring, never the training."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from tpu_magics.backends.base import RecompileLimit, StepLimit
from tpu_magics.runs import events
from tpu_magics.runs.writer import EventWriter

F = TypeVar("F", bound=Callable[..., Any])


class GuardedObserver:
    """An observer. `stopped`: the error that stopped it, or ""; `closed`: monitoring has ended."""

    def __init__(self, writer: EventWriter) -> None:
        self.writer = writer
        self.closed = False
        self.stopped = ""

    def stop(self, error: Exception) -> None:
        """Monitoring failed: record that once, and let the training continue."""
        self.stopped = f"{type(error).__name__}: {error}"
        place = _innermost(error)
        text = f"Monitoring stopped ({self.stopped}{place}). Training continues, but compiles are no longer explained."
        self.writer.write(events.Warned(time.time(), self.writer.rank, code="observing-stopped", text=text))


def guarded(method: F) -> F:
    """For methods of a `GuardedObserver`: errors stop the monitoring; StepLimit and RecompileLimit pass through."""

    @functools.wraps(method)
    def call(self: GuardedObserver, *args: Any, **kwargs: Any) -> Any:
        if self.stopped or self.closed:
            return None
        try:
            return method(self, *args, **kwargs)
        except (StepLimit, RecompileLimit):
            raise
        except Exception as error:
            self.stop(error)
            return None

    return cast(F, call)


def _innermost(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f" in {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace is not None else ""
