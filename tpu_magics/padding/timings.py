"""Seconds per compile and per token, measured by earlier runs; None, with the reason, where nothing was measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from tpu_magics.errors import TpuMagicsError, plural
from tpu_magics.runs.events import Compile, Event, Input, Steps, only
from tpu_magics.runs.reader import Run, Tail, find_run, own_runs_first

NEWEST = 20  # number of runs to read
FEWEST_STEPS = 5  # fewer steady steps give no step time
_SHAPE_CAUSES = ("input-shape", "last-batch")
MEASURE = "Train once with %%tpu_train"
_MISSING = (("compiles", "--compile-seconds"), ("training", "--tokens-per-second"))


@dataclass(frozen=True)
class Timings:
    """Seconds of one compile and of one token on one rank; None: n/a. `compile_text` and `token_text`: where each comes
    from, or why there is none, as a sentence. `device`: "CPU", "TPU", or "" for given numbers."""

    compile: float | None = None
    token: float | None = None
    compile_text: str = ""
    token_text: str = ""
    device: str = ""


@dataclass(frozen=True)
class _Record:
    """Measurements of one run. `shapes`: of the token ids of its steps; `step`: seconds of a steady step."""

    name: str
    device: str
    recompiles: tuple[float, ...]
    compiles: tuple[float, ...]
    shapes: frozenset[tuple[int, ...]]
    step: float | None
    steady: int
    foreign: str

    @property
    def source(self) -> tuple[str, str, str]:
        """Records of one source are combined."""
        return self.name, self.device, self.foreign


def seconds(name: str | None = None, one: float | None = None, rate: float | None = None) -> Timings:
    """The seconds for predictions.

    Args:
        name: use the runs of this name instead of the newest run's.
        one: seconds of one compile, given by the user.
        rate: tokens per second of one rank, given by the user.
    """
    found = _measure(name)
    if one is not None:
        found = replace(found, compile=one, compile_text=f"One compile: {one:g} s, as given.")
    if rate is not None:
        found = replace(found, token=1 / rate, token_text=f"Tokens: {rate:,.0f} per second, as given.")
    return replace(found, device="") if one is not None and rate is not None else found


def without_times() -> Timings:
    """For a text that must be the same in every run."""
    return Timings()


def _measure(name: str | None) -> Timings:
    first, then = _runs_of(name)
    records = _records(first) or _records(then)
    if not records:
        there = len(first) + len(then)
        why = f"None of the {there} earlier runs" if there else "No earlier run"
        text = f"n/a. {why} here measured them. {MEASURE}, or pass"
        return Timings(None, None, *(f"Seconds of {what}: {text} {option}." for what, option in _MISSING))
    mine = [each for each in records if each.source == records[0].source]
    one, compile_text = _one_compile(mine)
    token, token_text = _one_token(mine)
    return Timings(one, token, compile_text, token_text, records[0].device)


def _runs_of(name: str | None) -> tuple[list[Run], list[Run]]:
    """This notebook's runs and others; for a named run, those of its owner first."""
    if name is None:
        return own_runs_first()
    wanted = find_run(name)
    own, others = own_runs_first(wanted.name)
    return (others, own) if wanted.foreign else (own, others)


def _records(runs: Sequence[Run]) -> list[_Record]:
    """Records of the newest runs; those of a TPU, and those with shapes, are preferred."""
    records = [record for record in map(_read, runs[:NEWEST]) if record is not None]
    records = [each for each in records if each.device == "TPU"] or records
    return [each for each in records if each.shapes] or records


def _one_compile(records: Sequence[_Record]) -> tuple[float, str]:
    """The median of compiles for another input shape, or of all compiles of the busiest line."""
    again = [each for record in records for each in record.recompiles]
    every = again or [each for record in records for each in record.compiles]
    kind, cause = ("recompile", " for another input shape") if again else ("compile", "")
    middle, whose = median(every), "the median" if len(every) > 1 else "that"
    many = f"{whose} of {plural(len(every), kind, '')}{cause}"
    return middle, f"One compile: {_short(middle)}, {many} in {_runs(records)}."


def _one_token(records: Sequence[_Record]) -> tuple[float | None, str]:
    """From steps whose token ids all had one shape."""
    alike = [each for each in records if len(each.shapes) == 1 and each.step is not None]
    if not alike:
        return None, f"Seconds of training: n/a. {_why_no_token(records[0])}."
    shape = next(iter(alike[0].shapes))
    same = [each for each in alike if each.shapes == alike[0].shapes]
    step = median([each.step for each in same if each.step is not None])
    text = (
        f"One step of {list(shape)} token ids: {_short(step)}, from {sum(each.steady for each in same):,} steady steps."
    )
    return step / math.prod(shape), f"{text} Time is assumed to be proportional to tokens, including padding."


def _why_no_token(record: _Record) -> str:
    if record.step is None:
        return f"Run {record.name!r} has fewer than {FEWEST_STEPS} steps without a compile"
    if not record.shapes:
        return f"Run {record.name!r} recorded no token ids"
    return (
        f"The steps of run {record.name!r} had {len(record.shapes)} shapes, and times per shape are not recorded. "
        "Train once with one shape, or pass --tokens-per-second"
    )


def _runs(records: Sequence[_Record]) -> str:
    device = {"CPU": "XLA:CPU", "": "an unknown device"}.get(records[0].device, records[0].device)
    many = f"run {records[0].name!r}" if len(records) == 1 else f"{len(records)} runs named {records[0].name!r}"
    foreign = f" ({records[0].foreign})" if records[0].foreign else ""
    return f"{many}{foreign} on {device}"


def _short(value: float) -> str:
    return f"{value:.3g} s" if value >= 1 else f"{value * 1000:.3g} ms"


# -- one run -------------------------------------------------------------------------------------------------------


def _read(run: Run) -> _Record | None:
    """Measurements of rank 0; None if it has no compile."""
    events: list[Event] = Tail(run.events_path(0)).read()
    compiled = [each for each in only(events, Compile) if _positive(each.seconds)]
    if not compiled:
        return None
    step, steady = _steady(only(events, Steps))
    return _Record(
        run.name,
        _device(run),
        tuple(each.seconds or 0.0 for each in compiled if each.cause in _SHAPE_CAUSES),
        tuple(_busiest(compiled)),
        frozenset(shape for each in compiled for shape in _tokens(each.inputs)),
        step,
        steady,
        run.foreign,
    )


def _positive(value: float | None) -> bool:
    return value is not None and math.isfinite(value) and value > 0


def _busiest(compiled: Sequence[Compile]) -> list[float]:
    """The compiles of the line that compiled longest: a training step, not a value read."""
    by_site: dict[int, list[float]] = {}
    for each in compiled:
        by_site.setdefault(each.site.id, []).append(each.seconds or 0.0)
    return max(by_site.values(), key=sum)


def _tokens(inputs: Sequence[Input]) -> Iterator[tuple[int, ...]]:
    """The shape of the token ids among the inputs of a step: input_ids, else the first 2-D integers."""
    tables = [each for each in inputs if len(each.shape) == 2 and each.dtype.startswith("int")]
    tables = [each for each in tables if all(isinstance(size, int) and size > 0 for size in each.shape)]
    named = [each for each in tables if "input_ids" in each.name]
    yield from (each.shape for each in (named or tables)[:1])


def _steady(counted: Sequence[Steps]) -> tuple[float | None, int]:
    """Seconds of a step without a compile, and the number of such steps."""
    steady = sum(each.n - each.compiled for each in counted)
    spent = sum(each.seconds - each.compiled_seconds for each in counted)
    return (spent / steady, steady) if steady >= FEWEST_STEPS and _positive(spent) else (None, max(steady, 0))


def _device(run: Run) -> str:
    host = run.info.get("host")
    return str(host.get("device") or "") if isinstance(host, dict) else ""


def check_given(rate: float | None, one: float | None) -> None:
    """Raise TpuMagicsError for an invalid number of the user."""
    for value, option in ((rate, "--tokens-per-second"), (one, "--compile-seconds")):
        if value is not None and not _positive(value):
            raise TpuMagicsError(f"{option} is {value:g}.", "It must be a positive number.", "Omit it, or correct it.")
