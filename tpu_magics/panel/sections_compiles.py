"""The compiles, one row each, their causes together, and the device-to-host reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tpu_magics.panel.model_view import CauseCount, CompileEntry, RunView
from tpu_magics.panel.sections_header import cause_name, why
from tpu_magics.panel.sections_rehearsal import counted_as
from tpu_magics.panel.sections_words import (
    AMBER,
    GREY,
    NOT_AVAILABLE,
    Fact,
    chip,
    code,
    count,
    facts_table,
    full_place,
    label,
    not_available,
    paragraph,
    place,
    say,
    seconds,
    shape,
    short,
    size,
    small,
    table,
    title,
    whole,
)
from tpu_magics.runs.events import Compile, Metrics, Read, Transfer

TRIGGERS = {
    "sync": "the end of a step",
    "loader": "the data loader, which ends a step with each batch",
    "read": "a device-to-host read",
    "finish": "the end of the function",
    "library": "a library's own sync",
}
_CAUSES, _INPUTS, _DIFFERENCES, _READS = 12, 24, 8, 20


# -- all together ----------------------------------------------------------------------------------------------------


def compiles_summary(view: RunView) -> str:
    """One line: how many, and of which causes."""
    if view.compiles is None:
        return f"Compiles: {not_available(view.compiles_missing)}."
    parts = [count(view.compiles, "compile")]
    if view.recompiles is None:
        parts.append(f"recompiles {not_available('no compile was recorded')}")
    else:
        expected = f" ({view.expected:,} expected)" if view.expected else ""
        parts.append(f"{'at least ' if view.at_least else ''}{count(view.recompiles, 'recompile')}{expected}")
    by_cause: dict[str, int] = {}
    for each in view.causes:
        name = each.newest.cause or "unknown"
        by_cause[name] = by_cause.get(name, 0) + each.count
    ordered = sorted(by_cause.items(), key=lambda item: (-item[1], item[0]))
    causes = ", ".join(f"{short(name, 30)} {number:,}" for name, number in ordered[:_CAUSES])
    text = f"{', '.join(parts)}{f': {causes}' if causes else ''}."
    return " ".join(filter(None, [text, counted_as(view)]))


def cause_cells(each: CauseCount) -> tuple[str, ...]:
    """A cause at a line: times, cause, line, fix."""
    newest = each.newest
    spent = f" ({seconds(each.seconds)})" if each.seconds else ""
    advice = short(newest.fix or newest.text or why(newest), 300)
    return (f"{each.count:,}{spent}", short(newest.cause or "unknown", 30), place(newest.site), advice)


CAUSE_COLUMNS = ("recompiles", "cause", "line", "fix")


def compiles_html(view: RunView) -> str:
    """The summary, and the causes together."""
    html = f'{title("Compiles")}<p style="margin:.2em 0">{say(compiles_summary(view))}</p>'
    if not view.causes:
        return html
    rows = ([*map(whole, cells[:-1]), say(cells[-1])] for cells in map(cause_cells, view.causes[:_CAUSES]))
    left = len(view.causes) - _CAUSES
    return html + table(CAUSE_COLUMNS, rows) + (small(f"and {left:,} more causes and lines") if left > 0 else "")


# -- one by one ------------------------------------------------------------------------------------------------------


def compile_row(entry: CompileEntry, lead: int) -> str:
    """One compile, which unfolds."""
    graph = entry.compile
    left = AMBER if graph.recompile and not graph.expected else GREY
    return (
        f'<details style="margin:0;border-left:3px solid {left};padding-left:.6em"><summary style="white-space:nowrap;'
        f'overflow:hidden;text-overflow:ellipsis;cursor:pointer;padding:.1em 0">{_summary(entry, lead)}</summary>'
        f'<div style="margin:.2em 0 .8em 1em">{"".join(_body(entry))}</div></details>'
    )


def _summary(entry: CompileEntry, lead: int) -> str:
    graph = entry.compile
    cause = chip(cause_name(graph), AMBER) if graph.recompile and not graph.expected else say(cause_name(graph))
    rank = f" · rank {entry.rank}" if entry.rank != lead else ""
    parts = (say(place(graph.site) + rank), say(compile_seconds(graph)), cause, say(short_difference(graph)))
    return f"<b>{say(label(graph))}</b> {' · '.join(part for part in parts if part)}"


def compile_seconds(graph: Compile) -> str:
    return f"time {NOT_AVAILABLE}" if graph.seconds is None else seconds(graph.seconds)


def short_difference(graph: Compile) -> str:
    """What differs, in a few words; of a first compile its part or note."""
    more = len(graph.difference) - 1
    note = graph.part or graph.text
    first = short(graph.difference[0], 100) if graph.difference and not graph.expected else short(note, 100)
    return f"{first} (and {more} more)" if more > 0 else first


def _body(entry: CompileEntry) -> Iterator[str]:
    graph = entry.compile
    function = f", in {short(graph.site.function, 80)}" if graph.site.function else ""
    shown = f"<br>{code(short(graph.site.code, 300))}" if graph.site.code else ""
    yield paragraph("Line:", f"{say(full_place(graph.site) + function)}{shown}")
    if graph.part:
        yield paragraph("Part:", say(short(graph.part, 300)))
    if graph.text:
        yield paragraph("Cause:" if graph.recompile else "Note:", say(short(graph.text, 400)))
    elif graph.recompile:
        yield paragraph("Cause:", say(cause_name(graph)))
    if graph.fix:
        yield paragraph("Fix:", say(short(graph.fix, 400)))
    if graph.difference:
        against = "" if graph.nearest is None else f" from #{graph.nearest}"
        yield paragraph(f"Difference{against}:", _list([short(each, 200) for each in graph.difference], _DIFFERENCES))
    yield paragraph("Inputs:", _list([shape(one) for one in graph.inputs], _INPUTS) or say("none from the host"))
    yield paragraph("Program memory:", say(program_memory(graph.memory)))
    yield small(" · ".join(_rest(entry)))


def _list(items: Sequence[str], most: int) -> str:
    more = f"<br>{say(f'and {len(items) - most:,} more')}" if len(items) > most else ""
    return "<br>".join(["", *map(code, items[:most])]) + more if items else ""


def program_memory(memory: Mapping[str, int] | None) -> str:
    """Bytes of the compiled program by use."""
    known = [(str(use), used) for use, used in (memory or {}).items() if isinstance(used, int)]
    if not known:
        return not_available("not reported by the runtime")
    return ", ".join(f"{short(use, 30)} {size(used)}" for use, used in known[:10])


def _rest(entry: CompileEntry) -> Iterator[str]:
    graph = entry.compile
    yield f"rank {entry.rank}"
    yield f"site {graph.site.id}"
    yield f"after {count(graph.step, 'step')}"
    if graph.trigger:
        yield f"triggered by {TRIGGERS.get(graph.trigger, short(graph.trigger, 40))}"
    if graph.host_collective:
        before = ", all compiled before" if graph.seconds == 0 else ""
        pieces = f"{count(graph.pieces, 'piece')}{before}"
        yield f"split by host collectives into {pieces}; a TPU compiles it as one graph"
    if graph.graph:
        yield f"graph {short(graph.graph, 40)}"


# -- what the host read ----------------------------------------------------------------------------------------------


def read_cells(one: Transfer | Read) -> tuple[str, ...]:
    """A line that reads from the device: times, line, code, effect, fix."""
    if isinstance(one, Transfer):
        text, fix = one.text or "splits the step's graph", one.fix
    else:
        text, fix = "device-to-host sync after the step", ""
    spent = f" ({seconds(one.seconds)})" if one.seconds > 0 else ""
    return (
        f"{one.count:,}{spent}",
        place(one.site),
        short(one.code or one.site.code, 120),
        short(text, 300),
        short(fix, 300),
    )


def reads_html(view: RunView) -> str:
    """Reads that split a step's graph first, then the harmless ones, operations on the host, the cache."""
    shown: list[Transfer | Read] = [*view.transfers, *view.reads]
    rows = (_read_row(one) for one in shown[:_READS])
    parts = [title("Device-to-host reads") + table(("reads", "line", ""), rows)] if shown else []
    if len(shown) > _READS:
        parts.append(small(f"and {len(shown) - _READS:,} more lines"))
    facts = list(runtime_facts(view))
    return "".join(parts) + (title("Runtime") + facts_table(facts) if facts else "")


def _read_row(one: Transfer | Read) -> tuple[str, ...]:
    times, where, line, text, fix = read_cells(one)
    shown = chip(f"! {times}", AMBER) if isinstance(one, Transfer) else say(times)
    advice = f"<br><b>Fix:</b> {say(fix)}" if fix else ""
    return shown, f"{whole(where)}<br>{code(line) if line else ''}", f"{say(text)}{advice}"


def runtime_facts(view: RunView) -> Iterator[Fact]:
    """Operations that ran on the host because XLA does not support them, the persistent cache, metrics reports."""
    if view.fallbacks:
        ops = [f"{short(each.op, 60)} ({each.count:,})" for each in view.fallbacks[:_READS]]
        left = len(view.fallbacks) - _READS
        text = ", ".join(ops) + (f", and {left:,} more" if left > 0 else "")
        yield Fact("Run on the host", (f"{text}: XLA does not support these operations.",), "warning", "slow")
    if view.cache is not None:
        cache = view.cache
        misses = f"{cache.misses:,} miss{'' if cache.misses == 1 else 'es'}"
        found = f"{count(cache.hits, 'hit')}, {misses}: {short(cache.path, 200)}"
        text = short(cache.text, 300)
        yield Fact("Compile cache", tuple(line for line in (text, found if cache.path or not text else "") if line))
    if view.metrics is not None:
        yield _report(view.metrics, view.rehearsed)


def _report(metrics: Metrics, rehearsed: bool) -> Fact:
    """The newest report of the runtime's metrics (debug="tpu_metrics_debug")."""
    counted = (
        ("compiles", metrics.compiles, metrics.compile_seconds),
        ("executions", metrics.executions, metrics.execute_seconds),
    )
    counts = [
        f"{name} {number:,}{f' ({seconds(spent)})' if spent is not None else ''}"
        if number is not None
        else f"{name} {not_available('not measured')}"
        for name, number, spent in counted
    ]
    made = count(metrics.number + 1, "report")
    file = f"{made}, the newest in {short(metrics.file, 200)}" if metrics.file else f"{made}, not saved"
    pieces = ", each piece separately" if rehearsed else ""
    return Fact("Metrics report", (f"{file}: {', '.join(counts)}, counted by the runtime{pieces}.",))
