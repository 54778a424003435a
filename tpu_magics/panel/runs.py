"""Runs as tables, for %tpu_runs and the text summary. What was not measured is n/a with the reason, never zero."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from tpu_magics.panel.charts import sparkline
from tpu_magics.panel.formats import NOT_AVAILABLE, cut, number, seconds, short, size
from tpu_magics.panel.messages import RunLine
from tpu_magics.panel.run_lines import run_line
from tpu_magics.panel.table import Row, Table
from tpu_magics.runs import preflights
from tpu_magics.runs.events import CAUSES
from tpu_magics.runs.files import LIVE
from tpu_magics.runs.reader import Run
from tpu_magics.runs.summary import RunSummary

_MAX_TEXT = 40
_MAX_FAILURE = 2_000
_CURVE = 12  # characters of a small curve
_NOT_LOGGED = "not logged"
_WARNINGS = 20  # of a run that are shown


def runs_table(runs: Sequence[Run], there: int | None = None) -> Table:
    """One row for each run, in the order given. `there`: how many runs there are, of which these are the newest."""
    lines = list(map(run_line, runs))
    columns = ("when", "name", "status", "steps", "seconds", "ranks", "last value", "curve")
    rows = tuple(Row(_run_cells(line, len(run.ranks))) for line, run in zip(lines, runs, strict=True))
    return Table("Runs", columns, rows, (*more_runs(len(runs), there), *_runs_notes(lines)))


def more_runs(shown: int, there: int | None) -> Iterator[str]:
    """How many there are, where not all are shown."""
    if there is not None and there > shown:
        yield f"The newest {shown:,} of {there:,} runs. --all shows all, -n N the newest N."


def summary_table(run: Run) -> Table:
    """One run, in two columns; failure and warnings last."""
    summary = run.summary()
    rows = (
        *_summary_rows(summary, _kind(run)),
        *_preflight_rows(run, summary),
        *_failure_rows(summary),
        *(Row(("warning", cut(text, _MAX_FAILURE)), "warning") for text in summary.warnings[:_WARNINGS]),
    )
    more = len(summary.warnings) - _WARNINGS
    notes = (*([f"And {more:,} more warnings."] if more > 0 else []), f"Its records are in {run.path}.")
    return Table(f"Run {summary.name}: {summary.status}", None, rows, notes)


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


def rehearsal(info: object) -> str:
    """What run.json's plan says of a rehearsal: "rehearsal", "SPMD", or ""."""
    plan = info.get("plan") if isinstance(info, dict) else None
    if not isinstance(plan, dict):
        return ""
    return "rehearsal" if plan.get("rehearsed") is True else "SPMD" if isinstance(plan.get("spmd"), int) else ""


def _kind(run: Run) -> list[str]:
    """Whether the ranks were rehearsed, in a word."""
    kind = rehearsal(run.info)
    return [f"({kind})"] if kind else []


# -- many runs ----------------------------------------------------------------------------------------------------


def _run_cells(line: RunLine, ranks: int) -> tuple[str, ...]:
    return (
        when(line.created),
        short(line.name, _MAX_TEXT),
        short(line.status, _MAX_TEXT),
        NOT_AVAILABLE if line.steps is None else f"{line.steps:,}",
        NOT_AVAILABLE if line.seconds is None else f"{line.seconds:,.1f}",
        f"{ranks:,}",
        line.value or _NOT_LOGGED,
        sparkline(line.curve, _CURVE),
    )


def _runs_notes(lines: Sequence[RunLine]) -> Iterator[str]:
    if not lines:
        yield "No runs here yet. %%tpu_train starts one."
        return
    if any(line.steps is None for line in lines):
        yield f"Steps are {NOT_AVAILABLE} where rank 0 recorded none."
    if any(line.seconds is None for line in lines):
        yield f"Seconds are {NOT_AVAILABLE} where run.json is missing or incomplete."
    if any(line.status == "lost" for line in lines):
        yield "lost: the kernel of this run has ended, and the run with it."


# -- one run ------------------------------------------------------------------------------------------------------


def _summary_rows(summary: RunSummary, kind: Sequence[str]) -> Iterator[Row]:
    yield Row(("started", when(summary.created)))
    for fact in FACTS[1:]:  # the status stands in the title
        more = kind if fact.label == "ranks" else ()
        yield Row((fact.label, " ".join([fact.text(summary), *more])))
    for label, counts in recompile_causes(summary):
        yield Row((label, *counts))
    for name, value in summary.values.items():
        yield Row((f"last {short(name, _MAX_TEXT)}", number(value)))
    if summary.models:
        yield Row(("updated in the notebook", ", ".join(summary.models)))


def _preflight_rows(run: Run, summary: RunSummary) -> Iterator[Row]:
    """The measured step of a run on a TPU, and what the newest preflight of that function for that TPU said of it."""
    host = run.info.get("host") if isinstance(run.info, dict) else None
    tpu = host.get("tpu") if isinstance(host, dict) else None
    if not isinstance(tpu, str) or not tpu or summary.step_seconds is None:
        return
    known = preflights.newest(run.path.parent)
    found = next((one for one in known if (one.function, one.target) == (summary.name, tpu)), None)
    if found is not None:
        told = [("at least", found.least), ("compiler's estimate", found.estimate)]
        said = ", ".join(f"{label} {seconds(value)}" for label, value in told if value is not None)
        yield Row(("a step", f"{seconds(summary.step_seconds)} measured; preflight for {tpu}: {said or NOT_AVAILABLE}"))


def _failure_rows(summary: RunSummary) -> Iterator[Row]:
    for label, key in (("what happened", "what"), ("why", "why"), ("what to do", "todo")):
        text = cut(failure_text(summary, key), _MAX_FAILURE)
        if text:
            yield Row((label, text), "broken" if key == "what" else "")


# -- facts in words -----------------------------------------------------------------------------------------------


def when(created: float | None) -> str:
    """In local time."""
    if created is None:
        return f"{NOT_AVAILABLE} (run.json is missing or incomplete)"
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(created))
    except (ValueError, OverflowError, OSError):
        return f"{NOT_AVAILABLE} (not a time: {created})"


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
    expected = sum(summary.causes.values()) - sum(summary.avoidable.values())
    return f"{max(0, summary.recompiles - expected):,}{f' and {expected} expected' if expected else ''}"


def recompile_causes(*summaries: RunSummary) -> Iterator[tuple[str, list[str]]]:
    """A label for each cause of recompiles that is not expected, and how often each run recompiled for it."""
    for cause in dict.fromkeys(name for one in summaries for name in one.avoidable):
        counts = (None if one.recompiles is None else one.avoidable.get(cause, 0) for one in summaries)
        yield (
            f"recompiles: {short(CAUSES.get(cause, cause), _MAX_TEXT)}",
            [NOT_AVAILABLE if each is None else f"{each:,}" for each in counts],
        )


def _compiling(summary: RunSummary) -> str:
    return f"{NOT_AVAILABLE} (no time was recorded)" if summary.compiling is None else f"{summary.compiling:,.1f}"


def _why_no_compiles(summary: RunSummary) -> str:
    if summary.complete:
        return "not reported by the runtime"
    return "counted when rank 0 ends" if summary.status in LIVE else "rank 0 did not finish"


def _peaks(summary: RunSummary) -> str:
    """The highest memory of the ranks: of the least and of the most of them."""
    if not summary.peak_memory:
        return f"{NOT_AVAILABLE} ({'no sample' if summary.ranks else 'no worker started'})"
    ends = [size(each) for each in (min(summary.peak_memory.values()), max(summary.peak_memory.values()))]
    ranks = f" ({len(summary.peak_memory):,} ranks)" if len(summary.peak_memory) > 1 else ""
    return f"{' to '.join(dict.fromkeys(ends))}{ranks}"


def failure_text(summary: RunSummary, key: str) -> str:
    """A part of what is known of a failure; "" where nothing is."""
    return str((summary.failure or {}).get(key) or "")


@dataclass(frozen=True)
class RunFact:
    """A fact of a run. `numbers`: what of it is compared, where that is no text: they are equal where they differ by
    less than `within` of the larger one, or by less than `least`."""

    label: str
    text: Callable[[RunSummary], str]
    numbers: Callable[[RunSummary], Sequence[float | None]] = lambda _summary: ()
    within: float = 0.0
    least: float = 0.0


TIMES, MEMORY = 0.1, 0.05  # shares of a time or of memory by which runs of the same cell may differ
FACTS = (
    RunFact("status", _status),
    RunFact("seconds", _seconds, lambda summary: (summary.seconds,), TIMES, 0.5),
    RunFact("ranks", _ranks),
    RunFact("steps", _steps),
    RunFact("steps per second, compiles included", _rate, lambda summary: (summary.steps_per_second,), TIMES),
    RunFact("compiles", _compiles),
    RunFact("recompiles", _recompiles),
    RunFact("seconds of compiling", _compiling, lambda summary: (summary.compiling,), TIMES, 0.5),
    RunFact("peak memory", _peaks, lambda summary: _extremes(summary.peak_memory.values()), MEMORY),
)


def _extremes(numbers: Collection[float]) -> Sequence[float | None]:
    return (min(numbers), max(numbers)) if numbers else (None, None)
