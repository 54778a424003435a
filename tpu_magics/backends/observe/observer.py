"""The core of every framework's observer: counts steps, records compiles, holds the limits. Errors in it end the
monitoring, never the training."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from tpu_magics.backends.base import ObserverConfig, RecompileLimit, StepLimit, StopRequested
from tpu_magics.backends.observe.compiles import CompileCause, CompileEvidence, History
from tpu_magics.backends.observe.measurements import LoggedValues, PeriodicSampler, PrecisionWatch
from tpu_magics.backends.observe.progress import TrainingProgress
from tpu_magics.backends.observe.sites import Sites
from tpu_magics.runs import events, meter
from tpu_magics.runs.meter import StepMeter
from tpu_magics.runs.writer import EventWriter

C = TypeVar("C", bound=CompileEvidence)
F = TypeVar("F", bound=Callable[..., Any])


def guarded(method: F) -> F:
    """For methods of an `Observer`: errors stop the monitoring; StepLimit and RecompileLimit pass through. Methods that
    come with every step do so themselves: one more call costs microseconds there."""

    @functools.wraps(method)
    def call(self: Observer[Any], *args: Any, **kwargs: Any) -> Any:
        if self.stopped or self.closed:
            return None
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            self.failed(error)
            return None

    return cast(F, call)


class Observer(Generic[C]):
    """The observer of one rank; create it in the thread that runs the user's code. Hooks of the framework call it.

    `libraries`: folders of libraries outside the usual places; `stopped`: the error that stopped the monitoring, or "";
    `closed`: monitoring has ended. An adapter sets `sampler`.
    """

    sampler: PeriodicSampler

    def __init__(
        self,
        writer: EventWriter,
        config: ObserverConfig,
        history: History[C],
        values: LoggedValues,
        precision: PrecisionWatch,
        libraries: tuple[str, ...] = (),
    ) -> None:
        self.writer = writer
        self.config = config
        self.history = history
        self.values = values
        self.precision = precision
        self.sites = Sites(config.cell_names, config.cell_ids, libraries)
        self.steps = StepMeter(writer, total=config.steps_before)
        self.progress = TrainingProgress(writer, self.steps, self.sites, config.steps)
        self.progress.stopped = config.steps_before > 0  # what the run before knew of the total is in the records
        self.thread = threading.get_ident()
        self.compiled_in_step = False
        self.closed = False
        self.stopped = ""
        self.after_steps: Callable[[], None] = lambda: None

    # -- the figures of the run -------------------------------------------------------------------------------------
    @property
    def total_steps(self) -> int:
        """Steps so far."""
        return self.steps.total

    @property
    def uncounted(self) -> bool:
        """Whether the number of compiles is unknown."""
        return bool(self.stopped)

    @property
    def compiles(self) -> int | None:
        """Compiles so far; None if unknown."""
        return None if self.uncounted else self.history.total

    @property
    def recompiles(self) -> int | None:
        """Recompiles so far; None if unknown."""
        return None if self.uncounted else self.history.recompiles

    # -- what adapters call -----------------------------------------------------------------------------------------
    def mine(self) -> bool:
        """Whether this is the observed thread, and monitoring is on."""
        return not (self.closed or self.stopped) and threading.get_ident() == self.thread

    def warn(self, code: str, text: str) -> None:
        """Record a warning."""
        self.writer.record(events.Warned, code=code, text=text)

    def failed(self, error: Exception) -> None:
        """A hook raised an error: a limit ends the training, anything else only the monitoring."""
        if isinstance(error, (StepLimit, RecompileLimit)):
            raise error
        self.stop(error)

    def stop(self, error: Exception) -> None:
        """Monitoring failed: record that once, and let the training continue."""
        self.stopped = f"{type(error).__name__}: {error}"
        text = f"Monitoring stopped ({self.stopped}{_line_of(error)})."
        self.warn("observing-stopped", f"{text} Training continues, but compiles are no longer explained.")

    def count_steps(self, count: int = 1) -> None:
        """Count finished steps. Raises StepLimit or StopRequested."""
        compiled, self.compiled_in_step = self.compiled_in_step, False
        self.steps.step(compiled=compiled)
        for _ in range(count - 1):
            self.steps.step()
        self.after_steps()
        if time.monotonic() >= self.sampler.due:
            self.sample()
        limit = self.config.steps
        if limit is not None and self.steps.total >= limit:
            raise StepLimit
        if self.config.stop_requested():
            raise StopRequested

    @guarded
    def sample(self) -> None:
        """A sample of the runtime's statistics is due."""
        self.sampler.next_sample()
        self.progress.check()

    def record_compile(self, compile_: C, first: CompileCause | None) -> None:
        """Find the cause of a compile and record it. `first`: a note for a first compile of its site."""
        self.history.add(compile_, first)
        if compile_.report.graph is not None:
            self.precision.graph_compiled(compile_.report.graph, compile_.report.name)

    def check_recompile_limit(self) -> None:
        """Raises RecompileLimit. Recompiles that every correct program has are not counted."""
        limit = self.config.max_recompiles
        counted = self.history.recompiles - self.history.expected
        if limit is not None and counted > limit:
            raise RecompileLimit(counted, limit)

    # -- values, the end --------------------------------------------------------------------------------------------
    def log(self, values: Mapping[str, Any]) -> None:
        """Record numbers at once; keep tensors on the device until after the step."""
        self.values.log(values, self.steps.total)

    def go_on_from(self, steps: int) -> None:
        """A checkpoint was loaded, of a run that had done so many steps."""
        self.steps.go_on_from(steps)

    def write_all(self) -> None:
        """Write what is held back, between two steps: also the tensors that were logged."""
        if not self.closed:
            self.values.write_all()
            self.steps.flush()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Within it, `tpu_magics.log` comes here; at its end the observer is closed."""
        try:
            with meter.recorded_by(self.log), self.steps.written_while_waiting():
                yield
        finally:
            self.closed = True

    def close(self, read: bool = True) -> None:
        """Write the rest. `read`: also the tensors logged last; only after a last step."""
        self.closed = True
        self.values.close(read)
        self.steps.flush()
        self.precision.close()


def _line_of(error: BaseException) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f" in {Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace is not None else ""
