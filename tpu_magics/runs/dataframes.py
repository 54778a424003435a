"""Steps, logged values and compiles of a run as pandas DataFrames. pandas is imported when they are asked for."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tpu_magics.errors import TpuMagicsError
from tpu_magics.runs.events import MOST_NAMES, Compile, Event, Steps, Value, as_number, only

_STEPS = ("rank", "step", "time", "n", "seconds", "step_seconds", "compiled")
_COMPILES = (
    *("rank", "step", "time", "seconds", "recompile", "expected", "cause", "path", "line", "function", "code"),
    *("difference", "text", "fix", "inputs", "graph"),
)


class RunFrames(NamedTuple):
    """The DataFrames of a run; `steps, values, compiles = result.to_pandas()` takes them apart.

    `steps`: index `step` (steps so far), a row for each record, with its end (`time`), the `n` steps in it, their
    `seconds`, `step_seconds` (of one of them that compiled nothing) and how many `compiled`. `values`: index `step`,
    a column for each logged name; of several values of a name at one step, and of those that one record stands for,
    the last one. `compiles`: a row for each compile. Of several ranks the index begins with `rank`, and `compiles`
    has a column of that name. `time` is in UTC.
    """

    steps: Any
    values: Any
    compiles: Any

    def _repr_html_(self) -> str:
        """The ends of each frame, as a notebook shows them."""
        parts = zip(self._fields, self, strict=True)
        return "".join(f"<p><b>{name}</b></p>{frame.to_html(max_rows=6, max_cols=12)}" for name, frame in parts)


def to_frames(events: Mapping[int, Sequence[Event]], one_rank: bool, notes: Iterable[str] = ()) -> RunFrames:
    """The events of each rank as frames. `one_rank`: without the rank in index and columns; `notes`: what was not read,
    as warnings. Raises TpuMagicsError where there is no pandas."""
    try:
        import pandas
    except ImportError as error:
        raise TpuMagicsError(
            "to_pandas() needs pandas, which is not installed here.",
            f"{error}.",
            "Install it with: %pip install pandas. Without it, %tpu_runs --csv FILE writes a table of runs.",
        ) from None
    named = {rank: _with_known_names(rank, only(found, Value)) for rank, found in events.items()}
    dropped = [note for _values, note in named.values() if note]
    for note in (*notes, *dropped):
        warnings.warn(note, stacklevel=3)
    every = [event for found in events.values() for event in found]
    return RunFrames(
        _indexed(_frame(pandas, _STEPS, map(_steps_row, only(every, Steps))), one_rank),
        _values_frame(pandas, [value for values, _note in named.values() for value in values], one_rank),
        _without_rank(_frame(pandas, _COMPILES, map(_compile_row, only(every, Compile))), one_rank),
    )


def _frame(pandas: Any, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> Any:
    frame = pandas.DataFrame.from_records(list(rows), columns=columns)
    times = pandas.to_datetime(frame["time"], unit="s", utc=True, errors="coerce")
    frame["time"] = times.dt.round("ms")
    return frame


def _indexed(frame: Any, one_rank: bool) -> Any:
    return _without_rank(frame, one_rank).set_index("step" if one_rank else ["rank", "step"])


def _without_rank(frame: Any, one_rank: bool) -> Any:
    return frame.drop(columns="rank") if one_rank else frame


def _steps_row(event: Steps) -> tuple[Any, ...]:
    clean, seconds = event.clean
    one = seconds / clean if clean else math.nan
    return event.rank, event.total, event.t, event.n, event.seconds, one, int(event.compiled)


def _compile_row(event: Compile) -> tuple[Any, ...]:
    site, inputs = event.site, [f"{one.name} {one.dtype}{list(one.shape)}" for one in event.inputs]
    return (
        *(event.rank, event.step, event.t, event.seconds, event.recompile, event.expected, event.cause),
        *(site.path, site.line, site.function, site.code, "\n".join(map(str, event.difference)), event.text, event.fix),
        *(", ".join(inputs), event.graph),
    )


# -- values -----------------------------------------------------------------------------------------------------------


def _with_known_names(rank: int, logged: Sequence[Value]) -> tuple[list[Value], str]:
    """The values of the first names, and that there were more, or ""."""
    names = dict.fromkeys(value.name for value in logged)
    kept = set(list(names)[:MOST_NAMES])
    more = len(names) - len(kept)
    note = f"Rank {rank} logged {more:,} more names, which are left out." if more else ""
    return [value for value in logged if value.name in kept], note


def _values_frame(pandas: Any, logged: Sequence[Value], one_rank: bool) -> Any:
    rows: dict[tuple[int, int], dict[str, Any]] = {}
    for value in logged:
        rows.setdefault((value.rank, value.step), {})[value.name] = _number(value.value)
    columns = list(dict.fromkeys(value.name for value in logged))
    index = pandas.MultiIndex.from_tuples(list(rows), names=["rank", "step"])
    frame = pandas.DataFrame(list(rows.values()), index=index, columns=columns)
    return frame.droplevel("rank") if one_rank else frame


def _number(value: float | int | str) -> float | int | str:
    """A number as it was before JSON, which has no nan and no inf."""
    found = as_number(value) if isinstance(value, str) else None
    return value if found is None else found
