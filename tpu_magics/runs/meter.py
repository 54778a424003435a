"""Steps, values of `tpu_magics.log(...)` and memory, aggregated so that records stay small: 100,000 steps with three
logged values each give less than 1 MB per rank.

Call `flush` when the training has ended: the newest part of a long run is buffered (half a second or a five-hundredth
of the run for steps, about a hundredth for values), and a SIGKILL loses that part. In a child of the process that made
the writer nothing is counted.
"""

from __future__ import annotations

import math
import numbers
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from tpu_magics.runs.events import MOST_NAMES, Memory, Steps, Value, Warned, as_number, number_text
from tpu_magics.runs.writer import EventWriter

_recorder: Callable[[Mapping[str, Any]], None] | None = None


@contextmanager
def recorded_by(recorder: Callable[[Mapping[str, Any]], None]) -> Iterator[None]:
    """While the block runs, logged values go to `recorder`."""
    global _recorder
    _recorder = recorder
    try:
        yield
    finally:
        _recorder = None


def log(**values: Any) -> None:
    """Record values of this step, e.g. `tpu_magics.log(loss=loss, lr=0.1)`.

    Numbers, texts and tensors of one element; a tensor on a device is read after the step's sync, so logging never
    splits the graph. Outside a worker it does nothing, so the function also runs without `%%tpu_train`.
    """
    if _recorder is not None:
        _recorder(values)


Number = float | int | str

MAX_TEXT = 200
_LARGEST_INT = 2**53  # above it a browser reads another number


@dataclass
class Series:
    """What is known of one name.

    `count`: values so far; `singles`: those that got a record each; `line`: bytes of the last record. The other
    fields are about the `n` values that are held back: the last of them, and the range of the numbers among them.
    """

    count: int = 0
    singles: int = 0
    line: int = 150
    n: int = 0
    t: float = 0.0
    value: Number = 0.0
    step: int = 0
    low: float = math.inf
    high: float = -math.inf
    nan: bool = False

    def add(self, value: Number, step: int, t: float) -> None:
        self.count += 1
        self.n += 1
        self.t, self.value, self.step = t, value, step
        number = as_number(value)
        if number is not None:
            self.nan = self.nan or math.isnan(number)
            self.low, self.high = _wider(self.low, self.high, number)

    def event(self, name: str, rank: int) -> Value:
        low, high = self._range() if self.n > 1 else (None, None)
        return Value(self.t, rank, name=name, value=self.value, step=self.step, n=self.n, low=low, high=high)

    def _range(self) -> tuple[Number | None, Number | None]:
        empty = self.low > self.high
        low = None if empty else number_text(self.low)
        high = None if empty else number_text(self.high)
        return ("nan" if empty else low, "nan") if self.nan else (low, high)

    def clear(self) -> None:
        self.n, self.low, self.high, self.nan = 0, math.inf, -math.inf, False


def plain_value(value: object) -> Number:
    """The value as a record holds it: a number, one of "nan", "inf", "-inf", or a text of at most 200 characters."""
    try:
        return _plain_number(value)
    except Exception:  # an object's own __float__ may raise anything
        return safe_text(value)


def _plain_number(value: object) -> Number:
    if isinstance(value, numbers.Integral):  # bools and NumPy's integers too
        number = int(value)
        return number if abs(number) <= _LARGEST_INT else float(number)
    if isinstance(value, (str, bytes, bytearray)):
        raise TypeError("a text, even one that reads like a number")
    return number_text(float(value))  # type: ignore[arg-type]


def safe_text(value: object) -> str:
    """The text of any object, at most 200 characters, whatever its own code raises."""
    try:
        return str(value)[:MAX_TEXT]
    except Exception:
        return f"<{type(value).__name__} without a text>"


def _wider(low: float, high: float, number: float) -> tuple[float, float]:
    return (low, high) if math.isnan(number) else (min(low, number), max(high, number))


Clock = Callable[[], float]

_FIRST = 1_000  # so many values of a name are recorded one by one
_FIRST_BYTES = 470_000  # ... as long as all of them together take no more
_LATER_BYTES = 207_000  # what the records of values take from there on until step _HORIZON
_HORIZON = 100_000


class _Pace:
    """When the next record is due: at most once per `shortest` seconds and per `share` of the time since the start."""

    def __init__(self, start: float, shortest: float, share: float) -> None:
        self._start = self.last = start
        self.next = start + shortest
        self._shortest = shortest
        self._share = share

    def due(self, now: float) -> bool:
        """A clock that was set back counts as due, or a run would go silent for as long."""
        return not self.last <= now < self.next

    def done(self, now: float) -> float:
        """A record is written at `now`. Returns the seconds since the last one."""
        seconds = max(0.0, now - self.last)
        self.last = now
        self.next = now + max(self._shortest, (now - self._start) * self._share)
        return seconds


_LOOK_EVERY = 0.5  # seconds between looks whether steps wait to be written


class StepMeter:
    """Counts steps from any thread. Make it when the training begins: the first record's time counts from there.
    `total`: steps of the run that this one goes on from."""

    def __init__(self, writer: EventWriter, clock: Clock = time.time, total: int = 0) -> None:
        self.total = total
        self._writer = writer
        self._clock = clock
        self._pace = _Pace(clock(), 0.5, 1 / 500)
        self._pending = 0
        self._last_step = clock()
        self._compiled = 0
        self._compiled_seconds = 0.0
        self._lock = threading.RLock()

    def step(self, compiled: bool = False) -> int:
        """One step was done; `compiled`: something was compiled in it. Returns the total."""
        if not self._writer.mine:
            return self.total
        now = self._clock()
        with self._lock:
            self.total += 1
            self._pending += 1
            if compiled:
                self._compiled += 1
                self._compiled_seconds += max(0.0, now - self._last_step)
            self._last_step = now
            if not self._pace.last <= now < self._pace.next:  # as `due`, without a call in each step
                self._write()
            return self.total

    def go_on_from(self, total: int) -> None:
        """The run goes on after so many steps; those that it has done before do not count."""
        with self._lock:
            self.total, self._pending = total, 0

    @contextmanager
    def written_while_waiting(self) -> Iterator[None]:
        """Within it, a thread writes what is due while no step comes: a training that waits for its data, evaluates or
        saves has done the steps before."""
        ended = threading.Event()
        thread = threading.Thread(target=self._write_while_waiting, args=(ended,), name="tpu_magics-steps", daemon=True)
        with suppress(RuntimeError):  # no more threads (a limit): the next step writes those before it
            thread.start()
        try:
            yield
        finally:
            ended.set()
            if thread.ident is not None:
                thread.join()

    def _write_while_waiting(self, ended: threading.Event) -> None:
        while not ended.wait(_LOOK_EVERY):
            with self._lock:
                if self._pace.due(self._clock()):
                    self._write()

    def flush(self) -> None:
        """Write what is still held back."""
        if self._writer.mine:
            with self._lock:
                self._write()

    def _write(self) -> None:
        if self._pending:
            seconds = round(self._pace.done(self._last_step), 6)
            t = round(self._last_step, 3)
            slow = {"compiled": self._compiled, "compiled_seconds": round(self._compiled_seconds, 6)}
            self._writer.write(Steps(t, self._writer.rank, self.total, self._pending, seconds, **slow))  # type: ignore[arg-type]
            self._pending = self._compiled = 0
            self._compiled_seconds = 0.0


class MemoryMeter:
    """Thins the memory samples of one rank; each record is the highest since the one before.

    `writer` is the supervisor's, `rank` the rank that the samples are about.
    """

    def __init__(self, writer: EventWriter, rank: int, clock: Clock = time.time) -> None:
        self.peak_rss = 0
        self.peak_pss: int | None = None
        self._writer = writer
        self._rank = rank
        self._clock = clock
        self._pace = _Pace(clock() - 0.5, 0.5, 1 / 100)
        self._rss = 0
        self._pss: int | None = None

    def sample(self, rss: int, pss: int | None = None) -> None:
        """One measurement in bytes; `pss` None where it is not available."""
        self.peak_rss, self.peak_pss = max(self.peak_rss, rss), _highest(self.peak_pss, pss)
        self._rss, self._pss = max(self._rss, rss), _highest(self._pss, pss)
        if self._pace.due(self._clock()):
            self.flush()

    def flush(self) -> None:
        """Write what is still held back."""
        if self._rss:
            now = self._clock()
            self._pace.done(now)
            self._writer.write(Memory(round(now, 3), self._rank, rss=self._rss, pss=self._pss))
            self._rss, self._pss = 0, None


def _highest(left: int | None, right: int | None) -> int | None:
    return max((value for value in (left, right) if value is not None), default=None)


class ValueMeter:
    """Records what the user logs, from any thread.

    The first 1,000 values of a name get a record each, later ones are aggregated in chunks that grow with their
    number (about 1 % of it for three names). With many names or long texts the aggregation begins earlier. Only the
    first 64 names are recorded; then one `Warned` with the code "too-many-values" is.
    """

    def __init__(self, writer: EventWriter, clock: Clock = time.time) -> None:
        self._writer = writer
        self._clock = clock
        self._series: dict[str, Series] = {}
        self._first_bytes = 0
        self._warned = False
        self._lock = threading.RLock()

    def log(self, name: str, value: object, step: int) -> None:
        """Record `value` under `name`. Numbers stay numbers, a bool becomes 0 or 1, anything else its text. Never
        raises; a device tensor must have been read before (see backends/)."""
        if not self._writer.mine:
            return
        plain, t = plain_value(value), round(self._clock(), 3)
        with self._lock:
            name = safe_text(name)
            series = self._find(name, t)
            if series is not None:
                series.add(plain, step, t)
                self._write_if_due(name, series)

    def flush(self) -> None:
        """Write what is still held back."""
        if self._writer.mine:
            with self._lock:
                for name, series in self._series.items():
                    self._write(name, series)

    def _find(self, name: str, t: float) -> Series | None:
        if name not in self._series:
            if len(self._series) >= MOST_NAMES:
                self._warn(t, name)
                return None
            self._series[name] = Series()
        return self._series[name]

    def _warn(self, t: float, name: str) -> None:
        if not self._warned:
            self._warned = True
            text = f"Only the first {MOST_NAMES} names of logged values are recorded; {name!r} and later ones are not."
            self._writer.write(Warned(t, self._writer.rank, code="too-many-values", text=text))

    def _write_if_due(self, name: str, series: Series) -> None:
        if series.count <= _FIRST and self._first_bytes < _FIRST_BYTES:
            self._first_bytes += self._write(name, series)
            series.singles += 1
        elif series.n >= self._chunk(series):
            self._write(name, series)

    def _chunk(self, series: Series) -> float:
        """How many values one record of this name aggregates now.

        The count grows from `singles` to _HORIZON; with chunks of count * c that takes log(_HORIZON / singles) / c
        records, of which this name may have its share of _LATER_BYTES.
        """
        records = _LATER_BYTES / (len(self._series) * series.line)
        return series.count * math.log(_HORIZON / max(1, series.singles)) / records

    def _write(self, name: str, series: Series) -> int:
        if not series.n:
            return 0
        written = self._writer.write(series.event(name, self._writer.rank))
        series.line = written or series.line
        series.clear()
        return written
