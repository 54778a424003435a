"""The parts of a run's page that are folded: one line each, which unfolds to all that is known."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from tpu_magics.errors import plural
from tpu_magics.panel.by_identity import by_identity
from tpu_magics.panel.formats import (
    NOT_AVAILABLE,
    clock,
    full_place,
    label,
    not_available,
    number,
    percent,
    place,
    rate,
    seconds,
    shape,
    short,
    size,
)
from tpu_magics.panel.page import Fact, Item, Section, SectionRow, Tone
from tpu_magics.panel.page_charts import charted, loss_name, memory_chart, not_finite, step_time_chart
from tpu_magics.panel.page_problems import (
    cause_name,
    fullest_hbm,
    notes,
    several_lines,
    straggler,
    used_memory,
    why,
)
from tpu_magics.panel.run_view import CUT_SHORT, CompileEntry, RankView, RunView
from tpu_magics.runs.events import Compile, Mesh, Metrics, Read, Resumed

CPU = "XLA:CPU"
RANKS, READS, INPUTS, DIFFERENCES, VALUES = 64, 20, 24, 8, 64
TRIGGERS = {
    "sync": "the end of a step",
    "loader": "the data loader, which ends a step with each batch",
    "read": "a device-to-host read",
    "finish": "the end of the function",
    "library": "a library's own sync",
    "call": "a call of a function that torch.compile compiles",
    "backward": "the first backward pass of a compiled function",
}


def sections(view: RunView, compiles: int, points: int) -> tuple[Section, ...]:
    """The sections that have something to say."""
    made = (
        _notes(view),
        _compiles(view, compiles),
        _values(view),
        _checkpoints(view),
        _time(view, points),
        _memory(view, points),
        _precision(view),
        _reads(view),
        _ranks(view),
        _rehearsal(view),
        _run(view),
    )
    return tuple(one for one in made if one is not None)


def _notes(view: RunView) -> Section | None:
    found = notes(view)
    return Section("notes", "Notes", plural(len(found), "note"), problems=found) if found else None


# -- checkpoints -----------------------------------------------------------------------------------------------------


def _checkpoints(view: RunView) -> Section | None:
    """Where they are, what they cost, what the run went on from; none without a place for them."""
    plan = view.plan.get("checkpoints")
    if not isinstance(plan, Mapping):
        return None
    facts = [Fact("Place", (short(plan.get("place"), 300),)), Fact("Saved", (_every(plan),))]
    if view.resumed is not None:
        facts.append(Fact("Resumed", (f"from step {view.resumed.step:,}, {_saved_before(view.resumed)}",)))
    if view.saves:
        newest = view.saves[-1]
        cost = f"{size(newest.size)}, copied in {seconds(newest.copied)}, written in {seconds(newest.written)}"
        facts.append(Fact("Newest", (f"step {newest.step:,}: {cost}",)))
        facts.append(Fact("Cost", (_share_of_saving(view),)))
    if view.session is not None:
        lasted, limit = view.session
        facts.append(Fact("Session", (f"{clock(lasted)} of {clock(limit)}, after which this host ends it",)))
    return Section("checkpoints", "Checkpoints", _checkpoints_summary(view), facts=tuple(facts))


def _checkpoints_summary(view: RunView) -> str:
    """E.g. "3 saved, the newest at step 1,200, 40 s ago"."""
    if not view.saves:
        return "none saved yet" if view.live else "none saved"
    ago = f", {clock(view.saved_ago)} ago" if view.saved_ago is not None else ""
    return f"{view.saved:,} saved, the newest at step {view.saves[-1].step:,}{ago}"


def _every(plan: Mapping[str, object]) -> str:
    steps, time_, keep = plan.get("steps"), plan.get("seconds"), plan.get("keep")
    every = plural(steps, "step") if isinstance(steps, int) else clock(time_) if isinstance(time_, (int, float)) else ""
    kept = f"; the newest {keep} are kept" if isinstance(keep, int) else ""
    return f"every {every}{kept}"


def _share_of_saving(view: RunView) -> str:
    whole = f", {percent(view.saving / view.elapsed)} of the run" if view.elapsed else ""
    return f"the training waited {seconds(view.saving)} in all{whole}"


def _saved_before(resumed: Resumed) -> str:
    return f"saved {clock(max(0.0, resumed.t - resumed.saved))} before this run began"


# -- compiles --------------------------------------------------------------------------------------------------------


def _compiles(view: RunView, most: int) -> Section:
    shown = view.compile_log[:most]
    left = max(len(view.compile_log), view.compiles or 0) - len(shown)
    older = f"{plural(left, 'older compile')} {'is' if left == 1 else 'are'} in the run folder only." if left else ""
    columns = ("compile", "line", "took", "cause", "difference") if shown else ()
    items = tuple(_compile(entry) if entry.rank == view.lead else _compile_elsewhere(entry) for entry in shown)
    told = tuple(note for note in (counted_as(view), older if shown else "") if note)
    return Section("compiles", "Compiles", compiles_summary(view), columns=columns, items=items, notes=told)


def compiles_summary(view: RunView) -> str:
    """E.g. "8 compiles: 5 recompiles, 1 expected"."""
    if view.compiles is None:
        return not_available(view.compiles_missing)
    parts = [plural(view.compiles, "compile")]
    if view.recompiles is None:
        return f"{parts[0]}, recompiles {not_available('no compile was recorded')}"
    unexpected = max(0, view.recompiles - view.expected)
    parts += [f"{'at least ' if view.at_least else ''}{plural(unexpected, 'recompile')}"] if unexpected else []
    parts += [f"{view.expected:,} expected"] if view.expected else []
    return ", ".join(parts)


def counted_as(view: RunView) -> str:
    """How a rehearsal counts compiles; else ""."""
    if not view.rehearsed:
        return ""
    pieces = f"; here host collectives split them into {plural(view.pieces, 'piece')}" if view.pieces else ""
    return f"Graphs are counted as a TPU would compile them{pieces}."


@by_identity
def _compile(entry: CompileEntry) -> Item:
    return _compile_item(entry, "")


@by_identity
def _compile_elsewhere(entry: CompileEntry) -> Item:
    """A compile of another rank than the one whose counts are shown."""
    return _compile_item(entry, f", rank {entry.rank}")


def _compile_item(entry: CompileEntry, rank: str) -> Item:
    graph = entry.compile
    cells = (label(graph), place(graph.site) + rank, compile_seconds(graph), _cause(graph), short_difference(graph))
    tone: Tone = "warning" if graph.recompile and not graph.expected else ""
    return Item(entry.key, cells, tuple(_compile_facts(entry)), tone, graph.site)


def _cause(graph: Compile) -> str:
    return f"expected: {cause_name(graph)}" if graph.expected else cause_name(graph)


def compile_seconds(graph: Compile) -> str:
    return NOT_AVAILABLE if graph.seconds is None else seconds(graph.seconds)


def short_difference(graph: Compile) -> str:
    """What differs, in a few words; of a first compile its part or note."""
    more = len(graph.difference) - 1
    note = graph.part or graph.text
    first = short(graph.difference[0], 100) if graph.difference and not graph.expected else short(note, 100)
    return f"{first} (and {more} more)" if more > 0 and not graph.expected else first


def _compile_facts(entry: CompileEntry) -> Iterator[Fact]:
    graph = entry.compile
    function = f", in {short(graph.site.function, 80)}" if graph.site.function else ""
    yield Fact("Line", (full_place(graph.site) + function,), code=short(graph.site.code, 300))
    if graph.part:
        yield Fact("Part", (short(graph.part, 300),))
    if graph.text or graph.recompile:
        yield Fact("Cause" if graph.recompile else "Note", (short(graph.text or why(graph), 400),))
    if graph.fix and not graph.expected:
        yield Fact("Fix", (short(graph.fix, 400),))
    if graph.difference:
        against = "" if graph.nearest is None else f" from #{graph.nearest}"
        told = several_lines([short(each, 200) for each in graph.difference], DIFFERENCES)
        yield Fact(f"Difference{against}", tuple(told))
    given = several_lines([shape(one) for one in graph.inputs], INPUTS)
    yield Fact("Inputs", tuple(given) or ("none from the host",))
    yield Fact("Program memory", (program_memory(graph.memory),))
    yield Fact("More", (" · ".join(_rest(entry)),))


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
    yield f"after {plural(graph.step, 'step')}"
    if graph.trigger:
        yield f"triggered by {TRIGGERS.get(graph.trigger, short(graph.trigger, 40))}"
    if graph.host_collective:
        before = ", all compiled before" if graph.seconds == 0 else ""
        pieces = f"{plural(graph.pieces, 'piece')}{before}"
        yield f"split by host collectives into {pieces}; a TPU compiles it as one graph"
    if graph.by_rank:
        yield "different on each rank"
    if graph.graph:
        yield f"graph {short(graph.graph, 40)}"


# -- values ----------------------------------------------------------------------------------------------------------


def _values(view: RunView) -> Section | None:
    """What has no curve: logged once, or text."""
    names = {series.name for series in charted(view)}
    others = [series for series in view.values if series.name not in names]
    if not others:
        none = "none logged. Log one with tpu_magics.log(loss=loss)."
        return None if view.values else Section("values", "Values", none)
    rows = tuple(
        SectionRow((short(one.name, 60), number(one.last), f"{one.step:,}", not_finite(one))) for one in others[:VALUES]
    )
    summary = ", ".join(f"{short(one.name, 30)} {short(number(one.last), 30)}" for one in others[:3])
    return Section("values", "Values", summary, columns=("value", "last", "at step", ""), rows=rows)


# -- time ------------------------------------------------------------------------------------------------------------


def _time(view: RunView, points: int) -> Section | None:
    parts = (("Compiling", view.compiling), ("Executing", view.executing), ("Waiting for the device", view.waiting))
    facts = [Fact(name, (seconds(value),)) for name, value in parts if value is not None]
    facts += [Fact("Collectives on the host", (told,))] if (told := _collectives(view)) else []
    charts = step_time_chart(view, points)
    if view.steps_per_second:
        facts.insert(0, Fact("Speed", (f"{rate(view.steps_per_second)} steps/s, compiles included",)))
    if not facts and not charts:
        return None
    share = view.compiling_share
    summary = f"{percent(share)} of the time compiling" if share is not None and view.compiles else ""
    return Section("time", "Time", summary, facts=tuple(facts), charts=charts)


def _collectives(view: RunView) -> str:
    """E.g. "2.2 s (25 calls, 17 % of the training time)"; "" where there can be none."""
    if not view.rehearsed or view.collectives is None:
        return ""
    share = "" if view.collectives_share is None else f", {percent(view.collectives_share)} of the training time"
    return f"{seconds(view.collectives)} ({plural(view.n_collectives, 'call')}{share})"


# -- memory ----------------------------------------------------------------------------------------------------------


def _memory(view: RunView, points: int) -> Section:
    host, hbm = host_memory(view), hbm_memory(view)
    facts = (Fact("Host memory", (host,)), Fact("HBM", (hbm,)))
    summary = f"HBM {hbm}" if fullest_hbm(view) is not None else f"host {host}"
    kinds = "RSS counts shared pages in each process, PSS divides them between the processes."
    return Section("memory", "Memory", summary, facts=facts, charts=memory_chart(view, points), notes=(kinds,))


def host_memory(view: RunView) -> str:
    """The workers' host memory against the machine's."""
    known = [(rank, used) for rank in view.ranks if (used := used_memory(rank, view.live)) is not None]
    if not known:
        return not_available("no sample yet" if view.live else "no sample")
    kind = "PSS" if all(_has_pss(rank, view.live) for rank, _used in known) else "RSS"
    together = sum(used for _rank, used in known)
    most, largest = max(known, key=lambda pair: pair[1])
    when = "" if view.live else ", peak of each worker" if len(known) > 1 else ", peak"
    if len(known) == 1:
        text = f"{size(together)} ({kind}){when}"
    else:
        workers = plural(len(known), "worker")
        text = f"{size(together)} ({kind}) in {workers}, most in rank {most.rank} ({size(largest)}){when}"
    return f"{text}; {_of_machine(view, together)}"


def _has_pss(rank: RankView, live: bool) -> bool:
    return (rank.pss if live else rank.peak_pss) is not None


def _of_machine(view: RunView, used: int) -> str:
    hosts = {rank.host for rank in view.ranks if rank.host}
    if len(hosts) > 1:
        return f"on {len(hosts)} hosts"
    if not view.memory_total:
        return f"total of the machine {not_available('not in run.json')}"
    return f"{percent(used / view.memory_total)} of the machine's {size(view.memory_total)}"


def hbm_memory(view: RunView) -> str:
    """The TPU's own memory: the fullest rank; or why there is no figure."""
    fullest = fullest_hbm(view)
    if fullest is None:
        if view.device.startswith(CPU):
            return f"{NOT_AVAILABLE} on {CPU}"
        return not_available("no sample yet" if view.live else "not reported by the runtime")
    used, total = fullest.hbm_used or 0, fullest.hbm_total
    reported = sum(rank.hbm_used is not None for rank in view.ranks)
    whose = f", rank {fullest.rank}, the fullest of {reported}" if reported > 1 else ""
    if not total:
        return f"{size(used)}{whose}; total {not_available('not reported by the runtime')}"
    return f"{size(used)} of {size(total)} ({percent(used / total)}){whose}"


# -- precision -------------------------------------------------------------------------------------------------------


def _precision(view: RunView) -> Section:
    found = view.precision
    if found is None:
        reason = "no compiled step yet" if view.live else "no compiled step was examined"
        if view.steps and view.compiles == 0 and not view.live:
            reason = "no step was compiled in this run"
        asked = short(view.asked, 40) or "default"
        return Section("precision", "Precision", f"requested: {asked}; actual: {not_available(reason)}")
    source = f" ({short(found.source, 60)})" if found.source else ""
    asked = f"{short(found.asked, 40) or 'default'}{source}"
    facts = [Fact("Requested", (asked,)), Fact("Actual", (_actual(view),))]
    if found.parameters:
        types = ", ".join(f"{short(n, 12)} {short(name, 20)}" for name, n in list(found.parameters.items())[:8])
        facts.append(Fact("Parameters", (types,)))
    note = "As the graph has it before XLA optimizes it; convolutions count as matmuls."
    return Section("precision", "Precision", f"requested: {asked}; {_actual(view)}", facts=tuple(facts), notes=(note,))


def _actual(view: RunView) -> str:
    found = view.precision
    assert found is not None
    if found.share is None or not math.isfinite(found.share):
        return not_available("not reported by the runtime" if found.ops else "the graph has no matmul or convolution")
    bf16 = found.share * found.ops
    many = f"{round(bf16):,}" if math.isfinite(bf16) else percent(found.share)
    return f"{many} of {plural(found.ops, 'matmul')} in bf16"


# -- reads -----------------------------------------------------------------------------------------------------------


def _reads(view: RunView) -> Section | None:
    """Reads after a step: the host waits, and the graph is whole."""
    if not view.reads:
        return None
    rows = tuple(map(_read, view.reads[:READS]))
    left = len(view.reads) - READS
    told = ["After a step a read only makes the host wait. Read rarely, or log with tpu_magics.log(loss=loss)."]
    told += [f"{plural(left, 'more line')} not shown."] if left > 0 else []
    reads = sum(one.count for one in view.reads)
    summary = f"{plural(reads, 'read')} after steps, at {plural(len(view.reads), 'line')}"
    columns = ("reads", "line", "took", "code")
    return Section("reads", "Device-to-host reads", summary, columns=columns, rows=rows, notes=tuple(told))


def _read(one: Read) -> SectionRow:
    spent = seconds(one.seconds) if one.seconds > 0 else ""
    return SectionRow((f"{one.count:,}", place(one.site), spent, short(one.code or one.site.code, 120)), site=one.site)


# -- ranks -----------------------------------------------------------------------------------------------------------


def _ranks(view: RunView) -> Section | None:
    """A table where there are several; a column that no rank fills is left out."""
    if len(view.ranks) < 2:
        return None
    columns = [one for one in _COLUMNS if any(one[2](view, rank) for rank in view.ranks)]
    shown = [*view.ranks[:RANKS]]
    rows = tuple(_rank(view, rank, [cell for _name, cell, _has in columns]) for rank in shown)
    names = tuple(name if name != "loss" else short(loss_name(view), 20) for name, _cell, _has in columns)
    left = len(view.ranks) - RANKS
    more = (f"{plural(left, 'more rank')} not shown.",) if left > 0 else ()
    return Section("ranks", "Ranks", _ranks_summary(view), columns=names, rows=rows, notes=more)


def _ranks_summary(view: RunView) -> str:
    """E.g. "8 ranks: 7 done, 1 failed"."""
    states = Counter(_rank_word(rank) for rank in view.ranks)
    if len(states) == 1:
        return f"{plural(len(view.ranks), 'rank')}: all {next(iter(states))}"
    return f"{plural(len(view.ranks), 'rank')}: {', '.join(f'{n:,} {word}' for word, n in states.most_common(6))}"


def _rank(view: RunView, rank: RankView, cells: Sequence[Callable[[RunView, RankView], str]]) -> SectionRow:
    bad: Tone = "broken" if rank.state == "failed" or rank.exit.startswith("SIG") else ""
    slow = straggler(view) if not bad else None
    tone: Tone = "warning" if slow is not None and slow.rank == rank.rank else bad
    return SectionRow(tuple(cell(view, rank) for cell in cells), tone)


def _rank_word(rank: RankView) -> str:
    return "stopped" if rank.state == CUT_SHORT else short(rank.state, 40)


def _rank_state(_view: RunView, rank: RankView) -> str:
    word = _rank_word(rank)
    return f"{word} ({rank.exit})" if rank.exit not in ("", "exit code 0") else word


def _rank_loss(view: RunView, rank: RankView) -> str:
    name = loss_name(view)
    return number(rank.values[name]) if name in rank.values else "not logged"


def _rank_recompiles(_view: RunView, rank: RankView) -> str:
    """A rank's recompiles that need action."""
    return _count(None if rank.recompiles is None else max(0, rank.recompiles - rank.expected))


def _rank_hbm(_view: RunView, rank: RankView) -> str:
    total = f" of {size(rank.hbm_total)}" if rank.hbm_total else ""
    return NOT_AVAILABLE if rank.hbm_used is None else f"{size(rank.hbm_used)}{total}"


def waited(_view: RunView, rank: RankView) -> str:
    """The time of a rank in collectives."""
    if rank.collectives is None:
        return NOT_AVAILABLE
    share = "" if rank.collectives_share is None else f" ({percent(rank.collectives_share)})"
    return f"{seconds(rank.collectives)}{share}"


def _count(value: int | None) -> str:
    return NOT_AVAILABLE if value is None else f"{value:,}"


def _bytes(now: int | None, peak: int | None, live: bool) -> str:
    value = now if live else peak
    return NOT_AVAILABLE if value is None else size(value)


# A column of the ranks: its heading, its text, and whether a rank fills it.
_COLUMNS: tuple[tuple[str, Callable[[RunView, RankView], str], Callable[[RunView, RankView], object]], ...] = (
    ("rank", lambda _v, rank: str(rank.rank), lambda _v, _r: True),
    ("host", lambda _v, rank: short(rank.host, 60), lambda _v, rank: rank.host),
    ("state", _rank_state, lambda _v, _r: True),
    ("steps", lambda _v, rank: _count(rank.steps), lambda _v, _r: True),
    (
        "steps/s",
        lambda _v, rank: NOT_AVAILABLE if rank.steps_per_second is None else rate(rank.steps_per_second),
        lambda _v, rank: rank.steps_per_second is not None,
    ),
    ("in collectives", waited, lambda view, _r: view.rehearsed),
    ("loss", _rank_loss, lambda view, _r: loss_name(view)),
    ("compiles", lambda _v, rank: _count(rank.compiles), lambda _v, rank: rank.compiles is not None),
    ("recompiles", _rank_recompiles, lambda _v, rank: rank.recompiles is not None),
    (
        "RSS",
        lambda view, rank: _bytes(rank.rss, rank.peak_rss, view.live),
        lambda _v, rank: rank.rss or rank.peak_rss,
    ),
    (
        "PSS",
        lambda view, rank: _bytes(rank.pss, rank.peak_pss, view.live),
        lambda _v, rank: rank.pss or rank.peak_pss,
    ),
    ("HBM", _rank_hbm, lambda _v, rank: rank.hbm_used is not None),
)


# -- a rehearsal -----------------------------------------------------------------------------------------------------

# What a rehearsal has in common with a TPU: in one line, the same, what differs.
RANKS_LIKENESS = (
    "Values, shards and compile counts match a TPU; speed and memory do not.",
    (
        "the data of each rank, and code that depends on the rank",
        "the results of collectives, up to rounding, and so the weights",
        "barriers: no rank continues before all ranks have arrived",
        "the number of compiles and their causes: graphs are counted as a TPU would compile them",
    ),
    (
        "speed and all times: the ranks share this machine's cores",
        "HBM: the data of a rank's device is in host memory",
        "collectives: gloo runs them on the host, outside the graph, and they split the graph",
        "dist.barrier() waits here; torch_xla's does nothing",
        "accelerate synchronizes the random states of the ranks on the host; on a TPU it runs a graph for that",
    ),
)
DEVICES_LIKENESS = (
    "Shards and collectives match a TPU; speed and memory do not.",
    (
        "which shard of a tensor is on which device",
        "collectives: XLA puts them into the graph",
        "the number of compiles and their causes",
    ),
    (
        "speed and all times: the devices are parts of this machine's CPU",
        "HBM: the data of the devices is in host memory",
    ),
)


def likeness(view: RunView) -> tuple[str, tuple[str, ...], tuple[str, ...]] | None:
    """None where nothing is rehearsed."""
    if view.rehearsed:
        return RANKS_LIKENESS
    return DEVICES_LIKENESS if view.spmd and view.mesh is not None and view.mesh.virtual else None


def _rehearsal(view: RunView) -> Section | None:
    found = likeness(view)
    if found is None:
        return None
    brief, same, other = found
    facts = (Fact("Same as on a TPU", same), Fact("Different on a TPU", other))
    return Section("rehearsal", "Rehearsal on CPU", brief, facts=facts)


# -- the rest --------------------------------------------------------------------------------------------------------


def _run(view: RunView) -> Section:
    """Its batch, mesh, compile cache, reports of the runtime, and where its records are."""
    facts = tuple(_run_facts(view))
    summary = ", ".join(f"{fact.label.lower()} {fact.lines[0]}" for fact in facts if fact.label == "Effective batch")
    return Section("run", "Details", summary or "records, caches, versions", facts=facts)


def _run_facts(view: RunView) -> Iterator[Fact]:
    if view.batch is not None:
        yield Fact("Effective batch", (_batch(view),))
    if view.spmd:
        yield Fact("Mesh", (_mesh(view),))
    if view.cache is not None:
        cache = view.cache
        found = f"{plural(cache.hits, 'hit')}, {plural(cache.misses, 'miss')}: {short(cache.path, 200)}"
        text = short(cache.text, 300)
        yield Fact("Compile cache", tuple(line for line in (text, found if cache.path or not text else "") if line))
    if view.metrics is not None:
        yield _report(view.metrics, view.rehearsed)
    yield Fact("Records", (short(view.path, 300),))


def _batch(view: RunView) -> str:
    batch = view.batch
    assert batch is not None
    if batch.per_device is None or batch.accumulation is None:
        unknown = "the batch of a device" if batch.per_device is None else "the number of accumulated batches"
        return not_available(f"{unknown} is not known")
    total = batch.per_device * batch.accumulation * batch.ranks
    if view.spmd:  # one worker's batch is that of all its devices
        return f"{total:,} = {batch.per_device:,} for all devices together x {batch.accumulation:,} accumulated"
    ranks = plural(batch.ranks, "rank")
    return f"{total:,} = {batch.per_device:,} per device x {batch.accumulation:,} accumulated x {ranks}"


def devices(mesh: Mesh) -> str:
    """E.g. "8 virtual devices"."""
    return plural(mesh.devices, "virtual device" if mesh.virtual else "device")


def _mesh(view: RunView) -> str:
    """The devices of an SPMD run, and how the parameters lie on them."""
    mesh = view.mesh
    if mesh is None:
        return not_available("no record yet" if view.live else "no record")
    names = [*mesh.axes, *(f"axis {at}" for at in range(len(mesh.axes), len(mesh.shape)))]
    axes = [f"{short(name, 40)}={short(length, 20)}" for name, length in zip(names, mesh.shape, strict=False)]
    shaped = ", ".join(axes[:8]) if axes else "no global mesh"
    return f"{devices(mesh)}, {shaped}; parameters: {_parameters(mesh)}"


def _parameters(mesh: Mesh) -> str:
    if mesh.sharded is None or mesh.replicated is None:
        return not_available(short(mesh.text, 200) or "not reported")
    if not mesh.sharded and not mesh.replicated:
        return "none on the devices"
    kinds = (("sharded", mesh.sharded, mesh.sharded_bytes), ("replicated", mesh.replicated, mesh.replicated_bytes))
    return ", ".join(f"{number:,} {kind}{f' ({size(bytes_)})' if number else ''}" for kind, number, bytes_ in kinds)


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
    made = plural(metrics.number + 1, "report")
    file = f"{made}, the newest in {short(metrics.file, 200)}" if metrics.file else f"{made}, not saved"
    pieces = ", each piece separately" if rehearsed else ""
    return Fact("Metrics report", (f"{file}: {', '.join(counts)}, counted by the runtime{pieces}.",))
