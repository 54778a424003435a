"""The problems of a preflight: a program that does not fit, is refused or changes in each step; reads of zero."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tpu_magics.backends.lowered import HostRead, TraceResult
from tpu_magics.errors import plural
from tpu_magics.panel import preflight_words as words
from tpu_magics.panel.formats import cut, short, size
from tpu_magics.panel.page import Fact
from tpu_magics.preflight.report import Preflight, TargetResult, retained_gradients
from tpu_magics.preflight.roofline import SETTLES

SHOWN = 5  # lines of one kind
_TEXT = 800  # characters of what the compiler says


def problems(found: Preflight) -> tuple[Fact, ...]:
    """What stops a training comes first."""
    return (*_targets(found.results), *_traces(found.results), *_kept(found.results))


# -- a target's ------------------------------------------------------------------------------------------------------


def _targets(results: Sequence[TargetResult]) -> Iterator[Fact]:
    told = {"too-large": _too_large, "refused": _refused, "failed": _failed}
    for one in results:
        if one.status in told:
            yield told[one.status](one)


def _too_large(one: TargetResult) -> Fact:
    memory = one.worst.memory
    lines = [f"It does not fit into the HBM of a {one.device}."]
    if memory is not None and memory.available:
        lines = [
            f"It needs {words.needed(memory)}, and a program on a {one.device} has {words.limit(memory.available)}."
        ]
    if one.worst is not one.steady and one.steady.status == "fits":
        lines.append(f"This is the graph of {words.sync(one, one.worst)}; that of {words.sync(one, one.steady)} fits.")
    lines += [_large(one)] if one.worst.buffers else []
    lines.append(f"What to do: {_less(one)}")
    return Fact(one.name, tuple(lines), "broken", "does not fit")


def _large(one: TargetResult) -> str:
    found = one.worst.buffers[0]
    where = f" ({words.place_text(found.place)})" if found.place else ""
    return f"The largest buffer: {found.shape}, {size(found.size)}{where}."


def _less(one: TargetResult) -> str:
    """The fixes that are left."""
    bf16 = [] if (one.bf16_share and one.bf16_share > 0.9) or "bf16" in one.traced.precision else ["--precision bf16"]
    ways = ["a smaller batch (--fit NAME finds the largest)", *bf16, "gradient checkpointing", "shorter sequences"]
    return f"{', '.join(ways[:-1])} or {ways[-1]}."


def _refused(one: TargetResult) -> Fact:
    places = [f"{refused.op}{_at(words.place_text(refused.place))}: {refused.text}" for refused in one.worst.refused]
    lines = [cut(text, _TEXT) for text in places[:SHOWN]] or ["The compiler refused the program."]
    if one.worst.error:
        lines.append(f"The compiler says: {cut(' '.join(one.worst.error.split()), _TEXT)}")
    return Fact(one.name, tuple(lines), "broken", "refused")


def _failed(one: TargetResult) -> Fact:
    lines = [cut(" ".join(one.worst.error.split()), _TEXT) or "The compile process ended without a result."]
    lines += [cut(note, _TEXT) for note in one.worst.notes[:SHOWN]]
    return Fact(one.name, tuple(lines), "warning", "no result")


def _kept(results: Sequence[TargetResult]) -> Iterator[Fact]:
    """Gradients that are kept until the next step, shown once, by the first target that has them."""
    kept = next((bytes_ for one in results if (bytes_ := retained_gradients(one.graph, one.steady))), None)
    if kept is not None:
        text = (
            f"Outputs of {size(kept)} have the shapes of parameters and reuse no argument's memory: gradients kept "
            "until the next step, unless the function keeps other copies."
        )
        todo = "What to do: call zero_grad(set_to_none=True) right after optimizer.step() to free them."
        yield Fact("Gradients", (text, todo), "warning", "kept")


# -- the trace's -----------------------------------------------------------------------------------------------------


def _traces(results: Sequence[TargetResult]) -> Iterator[Fact]:
    """Each once: targets with as many ranks have one trace."""
    facts = (fact for one in results for fact in _trace(one.traced))
    yield from dict.fromkeys(facts)


def _trace(traced: TraceResult) -> Iterator[Fact]:
    if not traced.settled:
        yield _unsettled(traced)
    host = [one for one in traced.refused if one.kind in ("host", "custom")]
    if host:
        lines = [f"{one.op}{_at(words.place_text(one.place))}: {one.text}" for one in host[:SHOWN]]
        todo = "What to do: write it with ops that XLA supports, or move it out of the step."
        yield Fact(
            "Ops", (*(cut(line, _TEXT) for line in lines), *_more(len(host)), todo), "broken", "not in the program"
        )
    if traced.reads:
        yield _reads(traced)


def _unsettled(traced: TraceResult) -> Fact:
    """Too few steps to tell, a new graph in each step, or some graphs that come again."""
    many, steps = len(traced.graphs), plural(traced.syncs, "step")
    if traced.syncs < SETTLES:
        seen = f"Only {steps} traced: it is unknown whether later steps have the same graph."
        todo = f"What to do: let the function run at least {SETTLES} steps."
        return Fact("Graph", (seen, todo), "warning", f"{steps} only")
    if many >= traced.syncs:
        text = f"Each of {steps} had a different graph: on a TPU each step compiles."
        return Fact("Graph", (text, *_changes(traced)), "broken", "changes in each step")
    text = (
        f"{plural(many, 'graph')} in {plural(traced.syncs, 'sync')}, and no two consecutive steps had the same one: "
        "each graph compiles once, and later steps may add more."
    )
    return Fact("Graph", (text, *_changes(traced)), "warning", "changes")


def _changes(traced: TraceResult) -> tuple[str, ...]:
    """What changed, each once."""
    changes = dict.fromkeys(f"{cause}: {text}" for cause, text in traced.changes)
    return (*(cut(text, _TEXT) for text in list(changes)[:SHOWN]), *_more(len(changes)))


def _reads(traced: TraceResult) -> Fact:
    """What was read is not always zero: some values are known all the same."""
    lines = [_read(one) for one in traced.reads[:SHOWN]]
    zero = any(not one.known for one in traced.reads)
    why = (words.READ,) if zero else ("Each value follows from the step's inputs, so its true value was used.",)
    mark = "read zero" if zero else "read"
    return Fact("Reads", (*lines, *_more(len(traced.reads)), *why), "warning", mark)


def _read(one: HostRead) -> str:
    """The person's line; of a read inside of a library that is only where it is called from."""
    code = one.place.code if one.place and one.place.code else one.what
    true = ", true value" if one.known else ""
    times = f"{plural(one.count, 'time')}{true}"
    if one.inside is None:
        return f"{short(code, 100)}{_at(words.place_text(one.place))}, {times}"
    library = one.inside.path.partition("/")[0]
    return f"inside {library} ({one.inside}), called from {short(code, 100)}{_at(words.place_text(one.place))}, {times}"


def _more(many: int) -> tuple[str, ...]:
    return (f"{many - SHOWN:,} more are listed below.",) if many > SHOWN else ()


def _at(place: str) -> str:
    return f" ({place})" if place else ""
