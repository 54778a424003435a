"""The topics folded below the figures of a preflight: cost, memory, buffers, padding, graphs, trace, versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from tpu_magics.backends.lowered import HostRead
from tpu_magics.errors import plural
from tpu_magics.panel import preflight_words as words
from tpu_magics.panel.formats import NOT_AVAILABLE, cut, not_available, percent, seconds, short, size
from tpu_magics.panel.preflight_figures import compile_time, step
from tpu_magics.panel.preflight_profile import kinds_table, summary
from tpu_magics.panel.table import Row, Table
from tpu_magics.preflight.compile_result import Buffer, CompileResult, PaddedDimension
from tpu_magics.preflight.report import Preflight, TargetResult
from tpu_magics.preflight.roofline import LOOPS, ONE_PASS, Roofline, is_made


@dataclass(frozen=True)
class Topic:
    """`summary`: the answer in a line, shown while the table is folded away."""

    title: str
    summary: str
    table: Table


def by_target(
    found: Preflight, columns: Sequence[str], rows: Callable[[TargetResult], Iterable[Sequence[str]]]
) -> tuple[tuple[str, ...], tuple[Row, ...]]:
    """Columns and rows of all targets; their names lead where there are several."""
    several = len(found.results) > 1
    made = tuple(Row((*((one.name,) if several else ()), *cells)) for one in found.results for cells in rows(one))
    return (*(("target",) if several else ()), *columns), made


def across(found: Preflight, rows: Iterable[tuple[str, Callable[[TargetResult], str]]]) -> tuple[Row, ...]:
    """A line for each label, with a column for each target."""
    return tuple(Row((label, *(tell(one) for one in found.results))) for label, tell in rows)


def heads(found: Preflight) -> tuple[str, ...]:
    return ("", *(one.name for one in found.results))


# -- cost -------------------------------------------------------------------------------------------------------------

LEAST = (
    "The time is an estimate, a lower bound: no chip runs at its peak all the time, and transfers between chips and "
    "the work of the host are not included."
)
FLOOR = "Bytes: each argument and output moved once. Other traffic of the program could not be read."
GUESSED = (
    "The time is an estimate, not a bound: the amount of work depends on values at run time. Of branches, the one with "
    "the most matmul work is counted; a loop with an unknown trip count is counted once."
)
MOVED = "Bytes: what the optimized program reads from and writes to HBM, without copies within the chip."
TURN = "time of a full cycle"
TURNS = "Where graphs alternate, FLOPs, bytes and their times are those of the last one; Graphs lists each."
ACCESSED = "XLA's own count of bytes includes copies within the chip, some several times: it gives no bound."
HASTE = (
    "The time does not include dispatching a step from Python. Measured without a TPU, torch_xla 2.9 took 1.2 ms of "
    "one core for a step of 2 linear layers with SGD, and more for larger ones; on a TPU host it was not measured."
)
PROFILE = "The profile by module and line, and the largest operations: %tpu_preflight ... --profile."
_MOSTLY = 0.9  # bf16: what is left does not matter


def cost(found: Preflight) -> Iterator[Topic]:
    known = [one for one in found.results if one.roofline.seconds is not None]
    if not known:
        return
    lead = known[0].roofline
    whose = f" ({known[0].name})" if len(found.results) > 1 else ""
    shown = [words.flops(lead.flops)] if lead.flops is not None else []
    shown += [f"{words.traffic(lead.bytes)} of HBM"] if lead.bytes is not None else []
    turns = any(len(one.turn) > 1 for one in found.results)
    rows = [(label, tell) for label, tell in _ROWS.items() if turns or label != TURN]
    table = Table("", heads(found), across(found, rows), tuple(_cost_notes(known)))
    yield Topic("Cost of a step", f"{', '.join(shown)} on a device{whose}", table)


def _told(name: str, tell: Callable[[Roofline], str | None]) -> Callable[[TargetResult], str]:
    """`name`: of the field whose reason says why it is not known."""

    def told(result: TargetResult) -> str:
        return tell(result.roofline) or not_available(result.roofline.reasons.get(name, "") or words.no_cost(result))

    return told


def _of(intensity: float, ridge: float | None) -> str:
    return f"{intensity:.3g}" + (f" (memory-bound below {ridge:.3g})" if ridge is not None else "")


def _share(one: Roofline) -> str | None:
    return None if one.matmul_share is None else percent(one.matmul_share)


def _accessed(result: TargetResult) -> str:
    value = result.steady.bytes_accessed
    return NOT_AVAILABLE if value is None else words.traffic(value)


def _chip(one: TargetResult) -> str:
    return not_available(one.no_rate) if one.rate is None else _samples(one, one.rate.chip)


def _every(one: TargetResult) -> str:
    if one.rate is None:
        return not_available(one.no_rate)
    if one.rate.every is None or one.rate.batch is None:
        return not_available(words.ONE_REPLICA)
    what = "batch" if len(one.turn) == 1 or one.graph.name else "in a cycle"
    return f"{_samples(one, one.rate.every)} ({what} {one.rate.batch:,})"


def _samples(one: TargetResult, value: float) -> str:
    slower = ", without the dispatch of steps" if one.roofline.hasty else ""
    return f"{words.at_most(one.roofline, words.most(value))}{slower}"


def _turn(one: TargetResult) -> str:
    """The figures of the graphs that take turns, all together."""
    if len(one.turn) < 2:
        return words.NOTHING
    return step(one).value + f" ({one.cost.syncs} {'graphs' if one.graph.name else 'syncs'})"


_ROWS: dict[str, Callable[[TargetResult], str]] = {
    "FLOPs, as compiled": _told("flops", lambda one: None if one.flops is None else words.flops(one.flops)),
    "of which matmuls and convolutions": _told("matmul_share", _share),
    "bytes of HBM moved": _told("bytes", lambda one: None if one.bytes is None else words.traffic(one.bytes)),
    "bytes by XLA's own count": _accessed,
    "FLOPs per byte": _told("memory", lambda one: None if one.intensity is None else _of(one.intensity, one.ridge)),
    "time by FLOPs": _told(
        "compute", lambda one: None if one.compute is None else words.at_least(one, seconds(one.compute))
    ),
    "time by bytes": _told(
        "memory", lambda one: None if one.memory is None else words.at_least(one, seconds(one.memory))
    ),
    TURN: _turn,
    "samples/s per chip": _chip,
    "samples/s in total": _every,
}


def _cost_notes(known: Sequence[TargetResult]) -> Iterator[str]:
    yield from dict.fromkeys(LEAST if one.roofline.least else GUESSED for one in known)
    if any(one.steady.loops for one in known):
        yield LOOPS
    if any(one.bf16_share is not None and one.bf16_share < _MOSTLY for one in known):
        yield ONE_PASS
    floor = any(one.roofline.counted == "arguments" for one in known)
    if any(len(one.turn) > 1 for one in known):
        yield TURNS
    yield FLOOR if floor else MOVED
    if any(one.steady.bytes_accessed is not None for one in known):
        yield ACCESSED
    if any(one.roofline.hasty for one in known):
        yield HASTE


def _by_kind(found: Preflight) -> Iterator[Topic]:
    """The profile in short: of the first target that has one."""
    lead = next((one for one in found.results if one.profile.ops), None)
    if lead is not None and not found.profiled:
        whose = f"{lead.name}: " if len(found.results) > 1 else ""
        table = kinds_table(lead.profile)
        yield Topic("Time by kind", f"{whose}{summary(lead)}", Table("", table.columns, table.rows, (PROFILE,)))


# -- padding ----------------------------------------------------------------------------------------------------------

DIMENSIONS = 6
TILES = (
    "In memory the innermost dimension is padded to a multiple of 128, and the next one to one of 8 (bf16: 16). The "
    "compiler chooses which dimension is innermost."
)


@dataclass(frozen=True)
class _Lost:
    dimension: str
    wasted: int
    buffers: str = ""
    example: str = ""


def padding(found: Preflight) -> Iterator[Topic]:
    columns, rows = by_target(
        found, ("dimension", "wasted", "of the HBM in use", "buffers", "for example"), _dimensions
    )
    if not rows:
        return
    lead = next(one for one in found.results if _lost(one))
    worst, all_ = _lost(lead)[0], sum(one.wasted for one in _lost(lead))
    whose = f" ({lead.name})" if len(found.results) > 1 else ""
    share = percent(_part(worst.wasted, lead))
    text = f"{size(all_)}, largest part {worst.dimension}: {share} of the HBM in use{whose}"
    yield Topic("Padding of tiles", text, Table("", columns, rows, (TILES,)))


def _lost(result: TargetResult) -> list[_Lost]:
    """What the padding adds up to: the dimensions that waste most, and the rest in one."""
    found = result.steady.padding
    if found is None or not is_made(result.steady) or found.padded <= found.plain:
        return []
    most = sorted(found.dimensions, key=lambda one: -one.wasted)[:DIMENSIONS]
    told = [_Lost(_dimension(one), one.wasted, f"{one.buffers:,}", short(one.example, 60)) for one in most]
    rest = found.padded - found.plain - sum(one.wasted for one in most)
    return [*told, *((_Lost("others", rest),) if rest > 0 else ())]


def _dimensions(result: TargetResult) -> Iterator[tuple[str, ...]]:
    for one in _lost(result):
        yield one.dimension, size(one.wasted), percent(_part(one.wasted, result)), one.buffers, one.example


def _dimension(one: PaddedDimension) -> str:
    """ "hidden 100 -> 128"."""
    name = f"{short(one.name, 40)} " if one.name else ""
    return f"{name}{one.size:,} → {one.padded:,}"


def _part(wasted: int, result: TargetResult) -> float:
    """How much of the HBM in use at the program's fullest point is padding, from 0 to 1."""
    found = result.steady.padding
    return wasted / found.padded if found and found.padded else 0.0


# -- graphs -----------------------------------------------------------------------------------------------------------


def graphs(found: Preflight) -> Iterator[Topic]:
    if all(len(one.compiled) < 2 for one in found.results):
        return
    where = "line" if any(one.graph.name for one in found.results) else "sync at"
    columns, rows = by_target(found, ("graph", where, "result", "HBM", "FLOPs", "least time"), _each_graph)
    lead = max(found.results, key=lambda one: len(one.traced.graphs))
    yield Topic("Graphs", _order(lead), Table("", columns, rows))


def _order(result: TargetResult) -> str:
    """ "2 graphs: later steps run that of sync 2"."""
    traced, places = result.traced, _repeated(result)
    many = plural(len(traced.graphs), "graph")
    if not places:
        return f"{many} in {plural(traced.syncs, 'sync')}"
    if any(traced.graphs[place].name for place in places):
        return f"{many}: each later step runs {plural(len(places), 'graph')}"
    syncs = [str(traced.graphs[place].nth + 1) for place in places]
    if len(syncs) == 1:
        return f"{many}: later steps run that of sync {syncs[0]}"
    those = f"those of syncs {', '.join(syncs[:-1])} and {syncs[-1]}"
    if not result.turn:
        return f"{many}: later steps run {those}"
    return f"{many}: {those} alternate, over {len(result.turn)} syncs"


def _repeated(result: TargetResult) -> list[int]:
    """The places of the graphs that later steps run, as far as that is known."""
    steady = [place for place, one in enumerate(result.traced.graphs) if one.steady]
    return sorted(set(result.turn)) or (steady if result.traced.settled else [])


def _each_graph(result: TargetResult) -> Iterator[tuple[str, ...]]:
    for place, (graph, one) in enumerate(zip(result.traced.graphs, result.compiled, strict=True)):
        name = f"{graph.label}{_later(result, place)}"
        memory = words.used(one.memory) if one.memory else NOT_AVAILABLE
        known = result.roofline_of(one)
        total = NOT_AVAILABLE if known.flops is None else words.flops(known.flops)
        least = NOT_AVAILABLE if known.seconds is None else words.at_least(known, seconds(known.seconds))
        yield name, words.place_text(graph.site), words.STATES[one.status][0], memory, total, least


def _later(result: TargetResult, place: int) -> str:
    """How often the graph comes in a full turn of later steps."""
    if place not in _repeated(result):
        return ""
    several = len(result.turn) > 1 and not result.traced.graphs[place].name
    return f"\n{result.turn.count(place)} of {len(result.turn)} later syncs" if several else "\nlater steps"


# -- all topics -------------------------------------------------------------------------------------------------------

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
    "beside": "other tensors (optimizer, gradients, activations)",
}


def kinds(one: CompileResult) -> dict[str, int]:
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
        "other tensors": memory.beside,
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
    padded = f"\n{size(one.size - one.plain)} of padding" if one.size > 1.02 * one.plain else ""
    return f"{short(one.shape, 60)}{padded}"


# -- trace, notes, versions ------------------------------------------------------------------------------------------


def _trace(found: Preflight) -> Iterator[Topic]:
    traced = found.results[0].traced
    rows = [
        Row((f"read {plural(one.count, 'time')}", _what(one), words.place_and_code(one.place))) for one in traced.reads
    ]
    rows += [
        Row((one.kind, f"{short(one.op, 60)}: {short(one.text, 200)}", words.place_and_code(one.place)))
        for one in traced.refused
    ]
    rows += [Row(("graph changed", f"{cause}: {short(text, 300)}", "")) for cause, text in traced.changes]
    if rows:
        parts = [plural(len(traced.reads), "device-to-host read")] if traced.reads else []
        parts += [plural(len(traced.refused), "op") + " outside the program"] if traced.refused else []
        parts += [plural(len(traced.changes), "change") + " of the graph"] if traced.changes else []
        note = words.READ if any(not one.known for one in traced.reads) else ""
        yield Topic("Trace", ", ".join(parts), Table("", ("", "what", "line"), tuple(rows), (note,) if note else ()))


def _what(one: HostRead) -> str:
    return f"{short(one.what, 80)}{f', in {one.inside}' if one.inside else ''}"


def _notes(found: Preflight) -> Iterator[Topic]:
    whose: dict[str, dict[str, None]] = {}
    for one in found.results:
        for note in _notes_of(one, len(found.results) > 1):
            whose.setdefault(cut(note, 600), {})[one.name] = None
    every = [_with_names(note, names, len(found.results)) for note, names in whose.items()]
    if every:
        summary = short(every[0], 80) if len(every) == 1 else plural(len(every), "note")
        yield Topic("Notes", summary, Table("", None, tuple(Row((note,)) for note in every)))


def _with_names(note: str, names: Iterable[str], results: int) -> str:
    """The text with the targets that it is about, where it is not about all."""
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
    *(cost, _by_kind, _memory, _buffers, padding),
    *(graphs, _trace, _notes),
)
