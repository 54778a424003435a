"""The topics below the figures of a preflight, in their order, with the tables of memory, buffers and trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from tpu_magics.backends.lowered import Read
from tpu_magics.panel import preflight_words as words
from tpu_magics.panel.preflight_cost import cost
from tpu_magics.panel.preflight_figures import compile_time
from tpu_magics.panel.preflight_graphs import graphs
from tpu_magics.panel.preflight_padding import padding
from tpu_magics.panel.preflight_topic import Topic, across, by_target, heads
from tpu_magics.panel.sections_words import (
    NOT_AVAILABLE,
    count,
    cut,
    not_available,
    short,
    size,
)
from tpu_magics.panel.table import Row, Table
from tpu_magics.preflight.facts import Buffer, Compiled
from tpu_magics.preflight.report import Preflight, TargetResult

BUFFERS, FEWEST = 8, 3


def topics(found: Preflight, plain: bool = False) -> tuple[Topic, ...]:
    """All that have something to show. `plain`: without what differs from run to run."""
    made = (one for make in _TOPICS for one in make(found))
    return (*made, *(() if plain else _versions(found)))


# -- memory ----------------------------------------------------------------------------------------------------------

_KINDS = {
    "arguments": "arguments (parameters, optimizer, data)",
    "temporaries": "temporaries (activations, gradients)",
    "outputs": "outputs",
    "aliased": "outputs that reuse the memory of arguments",
    "code": "code",
}


def kinds(one: Compiled) -> dict[str, int]:
    """Bytes by kind, as they add up to what is needed: outputs without those that lie in the memory of arguments."""
    memory = one.memory
    if memory is None:
        return {}
    outputs = None if memory.outputs is None else memory.outputs - (memory.aliased or 0)
    found = {
        "arguments": memory.arguments,
        "temporaries": memory.temporaries,
        "outputs": outputs,
        "code": memory.code,
    }
    return {name: value for name, value in found.items() if value is not None and value > 0}


def _memory(found: Preflight) -> Iterator[Topic]:
    told = [one for one in found.results if kinds(one.worst)]
    if not told:
        return
    most = sorted(kinds(told[0].worst).items(), key=lambda item: -item[1])
    labels = ((label, _kind(name)) for name, label in _KINDS.items() if any(_has(one, name) for one in told))
    rows = across(found, labels)
    rows += across(found, (("needed", lambda one: words.needed(one.worst.memory) if one.worst.memory else ""),))
    rows += across(found, (("allowed by the compiler", _allowed),))
    summary = ", ".join(f"{name} {size(value)}" for name, value in most[:3])
    yield Topic("HBM by kind", summary, Table("", heads(found), rows))


def _has(one: TargetResult, name: str) -> bool:
    return one.worst.memory is not None and bool(getattr(one.worst.memory, name))


def _kind(name: str) -> Callable[[TargetResult], str]:
    def tell(one: TargetResult) -> str:
        value = None if one.worst.memory is None else getattr(one.worst.memory, name)
        if value is None:
            return not_available(words.why_none(one.worst))
        return f"-{size(value)}" if name == "aliased" else size(value)

    return tell


def _allowed(one: TargetResult) -> str:
    memory = one.worst.memory
    return words.limit(memory.available) if memory is not None and memory.available else NOT_AVAILABLE


def _buffers(found: Preflight) -> Iterator[Topic]:
    shown = max(FEWEST, BUFFERS // len(found.results))
    columns, rows = by_target(found, ("size", "shape", "kind", "op", "line"), partial(_largest, shown))
    if not rows:
        return
    lead = next(one for one in found.results if one.worst.buffers).worst.buffers[0]
    where = f", {words.place_text(lead.place)}" if lead.place else ""
    yield Topic("Largest buffers", f"{lead.shape} {size(lead.size)}{where}", Table("", columns, rows))


def _largest(shown: int, result: TargetResult) -> Iterator[tuple[str, ...]]:
    for one in result.worst.buffers[:shown]:
        line = words.place_and_code(one.place)
        yield size(one.size), _shape(one), one.kind, short(one.op, 60), line


def _shape(one: Buffer) -> str:
    padded = f"\n{size(one.size - one.plain)} padding" if one.size > 1.02 * one.plain else ""
    return f"{short(one.shape, 60)}{padded}"


# -- trace, notes, versions ------------------------------------------------------------------------------------------


def _trace(found: Preflight) -> Iterator[Topic]:
    traced = found.results[0].traced
    rows = [
        Row((f"read {count(one.count, 'time')}", _what(one), words.place_and_code(one.place))) for one in traced.reads
    ]
    rows += [
        Row((one.kind, f"{short(one.op, 60)}: {short(one.text, 200)}", words.place_and_code(one.place)))
        for one in traced.refused
    ]
    rows += [Row(("graph changed", f"{cause}: {short(text, 300)}", "")) for cause, text in traced.changes]
    if rows:
        parts = [count(len(traced.reads), "device-to-host read")] if traced.reads else []
        parts += [count(len(traced.refused), "op") + " outside the program"] if traced.refused else []
        parts += [count(len(traced.changes), "change") + " of the graph"] if traced.changes else []
        note = words.READ if any(not one.known for one in traced.reads) else ""
        yield Topic("Trace", ", ".join(parts), Table("", ("", "what", "line"), tuple(rows), (note,) if note else ()))


def _what(one: Read) -> str:
    return f"{short(one.what, 80)}{f', in {one.inside}' if one.inside else ''}"


def _notes(found: Preflight) -> Iterator[Topic]:
    whose: dict[str, dict[str, None]] = {}
    for one in found.results:
        for note in _notes_of(one, len(found.results) > 1):
            whose.setdefault(cut(note, 600), {})[one.name] = None
    every = [_with_names(note, names, len(found.results)) for note, names in whose.items()]
    if every:
        summary = short(every[0], 80) if len(every) == 1 else count(len(every), "note")
        yield Topic("Notes", summary, Table("", None, tuple(Row((note,)) for note in every)))


def _with_names(note: str, names: Iterable[str], results: int) -> str:
    """Of which targets that is, where it is not of all."""
    told = tuple(names)
    return note if len(told) == results else f"{', '.join(told)}: {note}"


def _notes_of(one: TargetResult, several: bool) -> Iterator[str]:
    yield from one.traced.notes
    for each in one.compiled:
        yield from each.notes
    if one.target.chip.note:
        yield one.target.chip.note if several else f"{one.target.generation}: {one.target.chip.note}"


def _versions(found: Preflight) -> Iterator[Topic]:
    lead = found.results[0]
    versions = ", ".join(f"{name} {version}" for name, version in lead.steady.versions.items())
    rows = [Row(("compiler", versions or NOT_AVAILABLE)), Row(("trace", words.took(lead.traced.seconds)))]
    for one in found.results:
        peaks = [each.peak for each in one.compiled if each.peak is not None]
        held = f", at most {size(max(peaks))} of host memory" if peaks else ""
        rows.append(Row((f"compile for {one.name}", f"{compile_time(one).text.replace(chr(10), ', ')}{held}")))
    yield Topic("Versions and times", versions or NOT_AVAILABLE, Table("", None, tuple(rows)))


_TOPICS: tuple[Callable[[Preflight], Iterator[Topic]], ...] = (
    *(cost, _memory, _buffers, padding),
    *(graphs, _trace, _notes),
)
