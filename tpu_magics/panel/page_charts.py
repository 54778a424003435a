"""The curves of a run: what was logged, the time of a step, memory."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from tpu_magics.panel.formats import number, seconds, short, size
from tpu_magics.panel.page import Chart
from tpu_magics.panel.run_view import Point, RunView, ValueSeries
from tpu_magics.runs import summary

CHARTS, POINTS = 12, 200
MARKS = 200  # compiles that are marked on charts


def loss_name(view: RunView) -> str:
    """The name of the loss, "" where none was logged."""
    return summary.loss_name(series.name for series in view.values)


def charted(view: RunView) -> list[ValueSeries]:
    """The names that get a curve: the loss first."""
    curves = [series for series in view.values if len(series.points) > 1]
    return sorted(curves, key=lambda series: series.name != loss_name(view))[:CHARTS]


def charts(view: RunView, points: int = POINTS) -> tuple[Chart, ...]:
    """A chart for each value that was logged more than once."""
    saved = tuple(one.synced for one in view.saves)
    return tuple(value_chart(series, points, saved) for series in charted(view))


def value_chart(series: ValueSeries, points: int, saved: tuple[int, ...] = ()) -> Chart:
    """The curve of what was logged under one name. `saved`: steps at which a checkpoint was saved."""
    key = f"value {short(series.name, 60)}"
    kept = _drawn(series.points, points)
    title, warning = short(series.name, 60), not_finite(series)
    return Chart(key, title, caption(series), kept, marked=True, warning=warning, saved=saved)


def _drawn(points: Sequence[Point], most: int) -> tuple[tuple[int, float, float, float], ...]:
    steps, values = [one.step for one in points], [one.value for one in points]
    return tuple(fewer(steps, values, [one.low for one in points], [one.high for one in points], most))


def fewer(
    steps: Sequence[int], values: Sequence[float], lows: Sequence[float], highs: Sequence[float], most: int
) -> Iterator[tuple[int, float, float, float]]:
    """At most so many points, as a chart has them; each stands for its neighbours, with their range."""
    each = max(-(-len(steps) // max(most, 1)), 1)
    for at in range(0, len(steps), each):
        part = slice(at, at + each)
        low = min(filter(math.isfinite, lows[part]), default=math.nan)
        high = max(filter(math.isfinite, highs[part]), default=math.nan)
        yield steps[part][-1], _digits(values[part][-1]), _digits(low), _digits(high)


def _digits(value: float) -> float:
    """Six digits, which is more than a drawing shows."""
    return float(f"{value:.6g}")


def caption(series: ValueSeries) -> str:
    """E.g. "2.316 → 0.125"."""
    first = "" if series.first is None else f"{number(series.first)} → "
    return f"{first}{number(series.last)}"


def not_finite(series: ValueSeries) -> str:
    """That a value was no finite number, or ""."""
    return "" if series.not_finite_at is None else f"not a finite number at step {series.not_finite_at:,}"


def compiled_at(view: RunView) -> tuple[int, ...]:
    """Steps of rank `lead` after which a graph was compiled."""
    steps = {entry.compile.step for entry in view.compile_log if entry.rank == view.lead and entry.compile.step > 0}
    return tuple(sorted(steps)[-MARKS:])


def step_time_chart(view: RunView, points: int = POINTS) -> tuple[Chart, ...]:
    """The time of a step that compiled nothing; none where there are too few."""
    if len(view.step_times) < 2:
        return ()
    steps, times = zip(*view.step_times, strict=True)
    kept = tuple(fewer(steps, times, times, times, points))
    newest = f"{seconds(times[-1])}, steps that compiled nothing"
    return (Chart("step time", "Step time", newest, kept, axis="seconds"),)


def memory_chart(view: RunView, points: int = POINTS) -> tuple[Chart, ...]:
    """The host memory of rank `lead` over time."""
    curve = view.memory_curve
    if len(curve) < 2:
        return ()
    kept = tuple(fewer(range(len(curve)), curve, curve, curve, points))
    title = f"Host memory of rank {view.lead}" if len(view.ranks) > 1 else "Host memory"
    return (Chart("memory", title, size(curve[-1]), kept, axis="bytes", x=""),)
