"""Runs as tables, for %tpu_runs and the text summary. What was not measured is n/a with the reason, never zero."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from tpu_magics.panel.sections_rehearsal import rehearsal
from tpu_magics.panel.sections_words import NOT_AVAILABLE, short, size
from tpu_magics.panel.table import Row, Table
from tpu_magics.runs.files import LIVE
from tpu_magics.runs.reader import Run
from tpu_magics.runs.summary import RunSummary

_MAX_TEXT = 40
_NOT_LOGGED = "not logged"

Value = float | int | str
Fact = Callable[[RunSummary], str]


def runs_table(runs: Sequence[Run], there: int | None = None) -> Table:
    """One row for each run, in the order given. `there`: how many runs there are, of which these are the newest."""
    summaries = [run.summary() for run in runs]
    columns = ("when", "name", "status", "steps", "seconds", "ranks", "last value")
    rows = tuple(Row(_run_cells(summary)) for summary in summaries)
    return Table("Runs", columns, rows, (*more_runs(len(runs), there), *_runs_notes(summaries)))


def more_runs(shown: int, there: int | None) -> Iterator[str]:
    """How many there are, where not all are shown."""
    if there is not None and there > shown:
        yield f"The newest {shown:,} of {there:,} runs. --all shows all, -n N the newest N."


def compare_table(runs: Sequence[Run]) -> Table:
    """Runs side by side; what differs is marked."""
    summaries = [run.summary() for run in runs]
    names = [summary.name for summary in summaries]
    headings = names if len(set(names)) == len(names) else [summary.id for summary in summaries]
    rows = tuple(Row((label, *cells, "≠" if len(set(cells)) > 1 else "")) for label, cells in _compared(summaries))
    notes = ("≠ marks differences. Steps, compiles and values are those of rank 0.",)
    return Table("Runs side by side", ("", *headings, ""), rows, notes)


def summary_table(run: Run) -> Table:
    """One run, in two columns; failure and warnings last."""
    summary = run.summary()
    rows = (
        *_summary_rows(summary, _kind(run)),
        *_failure_rows(summary),
        *(Row(("warning", w), "warning") for w in summary.warnings),
    )
    return Table(f"Run {summary.name}: {summary.status}", None, rows, (f"Its records are in {run.path}.",))


def plain_summary(run: Run) -> str:
    """What is equal in two runs of the same notebook: no times, ids, paths or measured sizes."""
    summary = run.summary()
    cut_short = "" if summary.complete else f"{NOT_AVAILABLE} (rank 0 did not finish)"
    lines = (
        ("status", summary.status),
        ("ranks", " ".join([str(len(summary.ranks)), *_kind(run)])),
        ("steps", cut_short or _steps(summary)),
        ("compiles", cut_short or _compiles(summary)),
        ("recompiles", cut_short or _recompiles(summary)),
        ("values", ", ".join(sorted(summary.values)) or "none"),
        ("models", ", ".join(sorted(summary.models)) or "none"),
    )
    return "\n".join(f"{name}: {text}" for name, text in lines)


def _kind(run: Run) -> list[str]:
    """Whether the ranks were rehearsed, in a word."""
    kind = rehearsal(run.info)
    return [f"({kind})"] if kind else []


# -- many runs ----------------------------------------------------------------------------------------------------


def _run_cells(summary: RunSummary) -> tuple[str, ...]:
    return (
        _when(summary),
        summary.name,
        summary.status,
        NOT_AVAILABLE if summary.steps is None else f"{summary.steps:,}",
        NOT_AVAILABLE if summary.seconds is None else f"{summary.seconds:,.1f}",
        str(len(summary.ranks)),
        _last_value(summary),
    )


def _runs_notes(summaries: Sequence[RunSummary]) -> Iterator[str]:
    if not summaries:
        yield "No runs here yet. %%tpu_train starts one."
        return
    if any(summary.steps is None for summary in summaries):
        yield f"Steps are {NOT_AVAILABLE} where rank 0 recorded none."
    if any(summary.seconds is None for summary in summaries):
        yield f"Seconds are {NOT_AVAILABLE} where run.json is missing or incomplete."
    if any(summary.status == "lost" for summary in summaries):
        yield "lost: the kernel of this run has ended, and the run with it."


def _last_value(summary: RunSummary) -> str:
    """The loss where one was logged, else what was logged under the newest name."""
    names = list(summary.values)
    losses = [name for name in names if name == "loss"] or [name for name in names if "loss" in name.lower()]
    shown = (losses or names)[-1:]
    return "".join(f"{_short(name)} {_value(summary.values[name])}" for name in shown) or _NOT_LOGGED


# -- side by side -------------------------------------------------------------------------------------------------


def _compared(summaries: Sequence[RunSummary]) -> Iterator[tuple[str, list[str]]]:
    for label, fact in _FACTS:
        yield label, [fact(summary) for summary in summaries]
    for rank in sorted({rank for summary in summaries for rank in (*summary.ranks, *summary.peak_memory)}):
        yield f"peak memory, rank {rank}", [_peak(summary, rank) for summary in summaries]
    for name in dict.fromkeys(name for summary in summaries for name in summary.values):
        yield f"last {_short(name)}", _distinct([summary.values.get(name) for summary in summaries])
    yield "updated in the notebook", [", ".join(summary.models) or "none" for summary in summaries]
    if any(summary.failure for summary in summaries):
        yield "failure", [_failure(summary, "what") or "none" for summary in summaries]


def _distinct(values: Sequence[Value | None]) -> list[str]:
    """Values, as short as possible while different ones stay different."""
    cells = [_NOT_LOGGED if value is None else _value(value) for value in values]
    if len(set(cells)) == len(set(values)):
        return cells
    return [_NOT_LOGGED if value is None else str(value) for value in values]


# -- one run ------------------------------------------------------------------------------------------------------


def _summary_rows(summary: RunSummary, kind: Sequence[str]) -> Iterator[Row]:
    yield Row(("started", _when(summary)))
    for label, fact in _FACTS[1:]:  # the status stands in the title
        more = kind if fact is _ranks else ()
        yield Row((label, " ".join([fact(summary), *more])))
    yield Row(("peak memory", _peaks(summary)))
    for name, value in summary.values.items():
        yield Row((f"last {_short(name)}", _value(value)))
    if summary.models:
        yield Row(("updated in the notebook", ", ".join(summary.models)))


def _failure_rows(summary: RunSummary) -> Iterator[Row]:
    for label, key in (("what happened", "what"), ("why", "why"), ("what to do", "todo")):
        text = _failure(summary, key)
        if text:
            yield Row((label, text), "broken" if key == "what" else "")


# -- facts in words -----------------------------------------------------------------------------------------------


def _when(summary: RunSummary) -> str:
    """In local time."""
    if summary.created is None:
        return f"{NOT_AVAILABLE} (run.json is missing or incomplete)"
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(summary.created))
    except (ValueError, OverflowError, OSError):
        return f"{NOT_AVAILABLE} (not a time: {summary.created})"


def _status(summary: RunSummary) -> str:
    return summary.status


def _seconds(summary: RunSummary) -> str:
    if summary.seconds is None:
        return f"{NOT_AVAILABLE} (run.json is missing or incomplete)"
    return f"{summary.seconds:,.1f}{' so far' if summary.status in LIVE else ''}"


def _ranks(summary: RunSummary) -> str:
    return str(len(summary.ranks))


def _steps(summary: RunSummary) -> str:
    if summary.steps is None:
        return f"{NOT_AVAILABLE} (rank 0 recorded none)"
    return f"{summary.steps:,}"


def _rate(summary: RunSummary) -> str:
    if summary.steps_per_second is None:
        return f"{NOT_AVAILABLE} (no step was recorded)"
    return f"{summary.steps_per_second:,.3g}" if summary.steps_per_second < 1000 else f"{summary.steps_per_second:,.0f}"


def _compiles(summary: RunSummary) -> str:
    if summary.compiles is not None:
        return f"{summary.compiles:,}"
    return f"{NOT_AVAILABLE} ({_why_no_compiles(summary)})"


def _recompiles(summary: RunSummary) -> str:
    if summary.recompiles is None:
        return f"{NOT_AVAILABLE} (not observed to the end)" if summary.compiles is not None else _compiles(summary)
    causes = ", ".join(f"{cause} {count}" for cause, count in summary.causes.items())
    return f"{summary.recompiles:,}{f' ({causes})' if causes else ''}"


def _compiling(summary: RunSummary) -> str:
    return f"{NOT_AVAILABLE} (no time was recorded)" if summary.compiling is None else f"{summary.compiling:,.1f}"


def _why_no_compiles(summary: RunSummary) -> str:
    if summary.complete:
        return "not reported by the runtime"
    return "counted when rank 0 ends" if summary.status in LIVE else "rank 0 did not finish"


def _peak(summary: RunSummary, rank: int) -> str:
    if rank in summary.peak_memory:
        return size(summary.peak_memory[rank])
    return f"{NOT_AVAILABLE} (no sample)" if rank in summary.ranks else "no such rank"


def _peaks(summary: RunSummary) -> str:
    ranks = sorted({*summary.ranks, *summary.peak_memory})
    return "\n".join(f"rank {rank}: {_peak(summary, rank)}" for rank in ranks) or f"{NOT_AVAILABLE} (no worker started)"


def _failure(summary: RunSummary, key: str) -> str:
    return str((summary.failure or {}).get(key) or "")


def _value(value: Value) -> str:
    return f"{value:.6g}" if isinstance(value, float) else _short(str(value))


def _short(text: str) -> str:
    """Logged names and texts may be of any kind."""
    return short(text, _MAX_TEXT)


_FACTS: tuple[tuple[str, Fact], ...] = (
    ("status", _status),
    ("seconds", _seconds),
    ("ranks", _ranks),
    ("steps", _steps),
    ("steps per second, compiles included", _rate),
    ("compiles", _compiles),
    ("recompiles", _recompiles),
    ("seconds of compiling", _compiling),
)
