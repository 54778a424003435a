"""What a run records between its compiles: logged values, the runtime's statistics, precision."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tpu_magics.backends import hlo
from tpu_magics.runs import events
from tpu_magics.runs.meter import ValueMeter
from tpu_magics.runs.writer import EventWriter

# -- logged values ----------------------------------------------------------------------------------------------------


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

    def write_all(self) -> None:
        """After a step: write all values so far."""
        self.ready += self.pending
        self.pending = []
        self.read()
        self.meter.flush()

    def close(self, read: bool) -> None:
        """Write the rest; `read`: also the tensors logged last, only after a last step."""
        if read:
            self.write_all()
        else:
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


# -- statistics -------------------------------------------------------------------------------------------------------


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


# -- precision --------------------------------------------------------------------------------------------------------


Facts = dict[str, Any]  # the fields of events.Precision, without `t` and `rank`


class PrecisionWatch:
    """Records the precision of one rank: that of the graph with the most matmuls and convolutions so far, which
    represents the run. A framework overrides `facts`. `option`: as in ObserverConfig; `write` takes a kind of event and
    its fields."""

    def __init__(self, option: str, write: Callable[..., None]) -> None:
        self.option = option
        self.write = write
        self.best: tuple[hlo.Graph, str] | None = None
        self.last: Facts | None = None

    def facts(self, graph: hlo.Graph, digest: str) -> Facts:
        """The fields of the record for a graph. `digest`: its name in the compile record."""
        raise NotImplementedError

    def graph_compiled(self, graph: hlo.Graph, digest: str) -> None:
        """A graph was compiled."""
        if self.best is None or hlo.multiplications(graph)[0] > hlo.multiplications(self.best[0])[0]:
            self.best = graph, digest
            self.record()

    def record(self) -> None:
        """Write the record, if it is new."""
        facts = self.facts(*self.best) if self.best is not None else self.last
        if facts is not None and facts != self.last:
            self.last = facts
            self.write(events.Precision, **facts)

    def close(self) -> None:
        """The user's function has ended."""


def precision_facts(
    request: tuple[str, str], graph: hlo.Graph, digest: str, agrees: bool, reason: str, notes: Iterable[str]
) -> Facts:
    """`request`: the requested precision and its source; `agrees`: whether the graph has it, else `reason`: why it may
    not."""
    precision, source = request
    total, bf16 = hlo.multiplications(graph)
    return {
        "asked": precision,
        "source": source,
        "ops": total,
        "share": bf16 / total if total else None,
        "parameters": hlo.dtype_counts(graph),
        "graph": digest,
        "agrees": agrees,
        "text": _text(*request, graph) + ("" if agrees else reason),
        "notes": tuple(notes),
    }


def _text(precision: str, source: str, graph: hlo.Graph) -> str:
    request = f"{precision} requested by {source}" if precision else "no precision requested"
    types = hlo.multiplied_types(graph)
    total, bf16 = hlo.multiplications(graph)
    if not total:
        return f"{request}: the graph has no matmuls and no convolutions."
    others = ", ".join(f"{count} {dtype}" for dtype, count in types.items() if dtype != "bf16")
    rest = f" (others: {others})" if 0 < bf16 < total else f" ({others})" if others else ""
    return f"{request}: {bf16} of {total} matmuls and convolutions in bf16{rest}, before XLA optimizes the graph."
