"""The verdict: does this training step suit a TPU? The reasons, one small function each, and the conclusion.

The list follows Google's "When to use TPUs" (https://cloud.google.com/tpu/docs/intro-to-tpu): models dominated by
matrix computations, without custom operations inside the main training loop, that train for weeks or months, with large
effective batch sizes. How long the user trains is not in a program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tpu_magics.backends.lowered import HostRead, SourceLine, TraceResult
from tpu_magics.errors import plural
from tpu_magics.preflight.compile_result import IRREGULAR, CompileResult, TilePadding
from tpu_magics.preflight.profile import Profile
from tpu_magics.preflight.roofline import COMPUTE, ROWS, SETTLES, THRESHOLDS, Roofline, bf16_share, turn, waste

__all__ = ["AS_WELL", "ELSEWHERE", "FIX", "SMALL", "SPEAKS", "UNKNOWN", "Case", "Reason", "TpuVerdict", "judge"]


SPEAKS, FIX, ELSEWHERE, SMALL, AS_WELL = "", "fix", "elsewhere", "small", "as well"


@dataclass(frozen=True)
class Reason:
    """One finding. `about`: "memory", "ops", "graphs", "matmul", "step", "busy", "batch", "bf16", "padding" or "reads";
    `good`: it speaks for a TPU (True), against it (False), or for neither (None); `text`: without a full stop, and
    without `number`, which is of one target; `todo`: what would change it; `decides`: ELSEWHERE (better on a GPU),
    FIX (this must be fixed first), SMALL (there is too little to do), AS_WELL (a GPU is as good) or SPEAKS (alone
    it decides nothing)."""

    about: str
    good: bool | None
    text: str
    number: str = ""
    todo: str = ""
    decides: str = SPEAKS

    @property
    def sentence(self) -> str:
        return f"{self.text}: {self.number}." if self.number else f"{self.text}."


@dataclass(frozen=True)
class Case:
    """The input of a verdict: a step, and its compile results for one target. `device`: "v5e chip"; `steady`: the graph
    of all later steps; `worst`: the one that does not fit or has no answer, else the one that needs most HBM;
    `devices`: that share one batch (SPMD); `profile`: of the step."""

    device: str
    traced: TraceResult
    steady: CompileResult
    worst: CompileResult
    roofline: Roofline
    devices: int = 1
    profile: Profile = field(default_factory=Profile)


# -- formats ---------------------------------------------------------------------------------------------------------


def at(place: SourceLine | None) -> str:
    """ " (In [3]:27)"; for a file only its name."""
    return f" ({place.path.rpartition('/')[2]}:{place.line})" if place else ""


def percent(share: float) -> str:
    if 0 < share < 0.01:
        return "less than 1 %"
    return "more than 99 %" if 0.995 <= share < 1 else f"{100 * share:.0f} %"


def time(seconds: float) -> str:
    units = ((1.0, "s"), (1e3, "ms"), (1e6, "µs"))
    factor, unit = next((one for one in units if seconds * one[0] >= 1), units[-1])
    return f"{seconds * factor:.3g} {unit}"


# -- reasons: the work of a step --------------------------------------------------------------------------------------

_LITTLE = 0.01


def matmul(case: Case) -> Iterator[Reason]:
    share = case.roofline.matmul_share
    if share is None:
        text = "The share of matrix multiplications is unknown"
        yield Reason("matmul", None, text, case.roofline.reasons.get("matmul_share", ""))
    elif share >= THRESHOLDS["matmul"].good:
        yield Reason("matmul", True, "Most of its FLOPs are matrix multiplications and convolutions", percent(share))
    else:
        text = "Less than half of its FLOPs are matrix multiplications and convolutions"
        yield Reason("matmul", False, text, percent(share), "Wider layers, fewer element-wise ops.", ELSEWHERE)


def irregular(case: Case) -> Iterator[Reason]:
    """Gathers, scatters and sorts, whose time nobody says: what they make, at the bandwidth of HBM, against the time of
    the rest."""
    found = [one for one in case.profile.ops if one.cost.kind in IRREGULAR]
    share = case.profile.irregular
    if not found or share < THRESHOLDS["irregular"].good:
        return
    counts = Counter(one.cost.kind for one in found)
    names = ", ".join(plural(many, kind, "") for kind, many in counts.most_common())
    largest = max(found, key=lambda one: one.cost.padded)
    made = f"{largest.cost.shape.partition('{')[0]}{at(largest.cost.place)}"
    text = (
        f"The time of {names} is not known: the compiler does not estimate them, and a TPU does them row by row. The "
        f"largest makes {made}. Their part of the time, if they were as fast as a copy"
    )
    good = False if share >= THRESHOLDS["irregular"].bad else None
    yield Reason("irregular", good, text, percent(share))


def busy(case: Case) -> Iterator[Reason]:
    """A GPU waits for its memory too, so this alone is no reason to use one."""
    share = case.roofline.busy
    if share is None:
        return
    if case.roofline.bound == COMPUTE:
        yield Reason("busy", True, "Bound by the matrix units, not by memory (estimate)")
        return
    low = share < THRESHOLDS["busy"].bad
    if low and _is_small(case):
        yield _small(case, share)
    elif low and 0 < _weight(case, _moved) <= 1:
        yield _bound(share)
    else:
        text = "Bound by memory, so the matrix units are busy only a part of the time (estimate)"
        good = False if low else True if share >= THRESHOLDS["busy"].good else None
        yield Reason("busy", good, text, _at_most(share), _larger(case))


def _bound(share: float) -> Reason:
    text = (
        "Bound by memory, and not because of its parameters: a GPU with equally fast memory is as good. Part of the "
        "time that the matrix units are busy (estimate)"
    )
    return Reason("busy", False, text, _at_most(share), "Fewer, larger operations.", AS_WELL)


def _small(case: Case, share: float) -> Reason:
    rows, todo = case.traced.batch, _larger(case)
    if rows is None:
        text = (
            "A step has few FLOPs for the parameters and the state that it moves. Part of the time that the matrix "
            "units are busy"
        )
        return Reason("busy", False, text, _at_most(share), todo, SMALL)
    text = (
        f"The batch is too small for a TPU: {rows:,} rows {_split(rows, case)}. Rows needed to keep the "
        "matrix units busy (estimate, at least)"
    )
    return Reason("busy", False, text, f"about {float(f'{rows * _weight(case, _state):.2g}'):,.0f}", todo, SMALL)


def _is_small(case: Case) -> bool:
    """Whether the batch is too small: parameters and state, which do not grow with the batch, alone take longer
    than all FLOPs."""
    return _weight(case, _state) > 1


def _weight(case: Case, count: Callable[[int, int], int]) -> float:
    """How many times as long as the FLOPs the bytes take that are counted of arguments and outputs. Where they are
    those that do not grow with the batch, then from so many times the batch on the FLOPs take longer, or later: what
    else is moved grows too. 0: not known."""
    memory, found = case.steady.memory, case.roofline
    if memory is None or memory.arguments is None or memory.outputs is None:
        return 0.0
    if not found.compute or not found.memory or not found.bytes:
        return 0.0
    return count(memory.arguments, memory.outputs) / found.bytes * found.memory / found.compute


def _state(arguments: int, outputs: int) -> int:
    """Bytes that are both read and written (the state): data are only read, results only written."""
    return 2 * min(arguments, outputs)


def _moved(arguments: int, outputs: int) -> int:
    """Bytes that are at least read or written."""
    return arguments + outputs


def _larger(case: Case) -> str:
    return "A larger batch." if (bf16_share(case.steady) or 0) >= THRESHOLDS["bf16"].good else "A larger batch; bf16."


def _at_most(share: float) -> str:
    return percent(share) if share < _LITTLE else f"at most {percent(share)}"


def step(case: Case) -> Iterator[Reason]:
    """A lower bound can show much work; it shows little work only if both times are known."""
    seconds = case.roofline.seconds
    if seconds is None:
        return
    least = f"{'at least' if case.roofline.least else 'about'} {time(seconds)}"
    if seconds >= THRESHOLDS["step"].good:
        yield Reason("step", True, "A step is enough work for a device", least)
    elif seconds >= THRESHOLDS["step"].bad or not case.roofline.bound:
        yield Reason("step", None, "A step may take no longer than starting it from Python, about 1 ms", least)
    else:
        text = "A step is very little work for a device, and starting it from Python takes longer"
        todo = "A larger model or batch, or many steps in one program."
        yield Reason("step", False, text, f"{time(seconds)} at its peak", todo, SMALL)


def batch(case: Case) -> Iterator[Reason]:
    """Under SPMD the batch is that of all devices, and each has a part of it."""
    rows, unit = case.traced.batch, ROWS * case.devices
    if rows is None:
        yield Reason("batch", None, "The batch size is unknown: no input has rows that can be counted")
        return
    what = f"The batch of {rows:,} {_split(rows, case)}"
    share = case.roofline.busy
    if rows % unit == 0 and share is not None and share < THRESHOLDS["busy"].bad and _is_small(case):
        return
    if rows < THRESHOLDS["batch"].good * case.devices:
        text = f"{what} is small: one tile has {ROWS} rows"
        yield Reason("batch", False, text, todo="The largest batch that fits: --fit NAME.")
    elif rows % unit:
        low = rows // unit * unit
        yield Reason("batch", None, f"{what} is not a multiple of {_rows(case)}", todo=f"{low:,} or {low + unit:,}.")
    else:
        yield Reason("batch", True, f"{what} is a multiple of {_rows(case)}")


def _rows(case: Case) -> str:
    return f"{ROWS}, the rows of a tile" if case.devices == 1 else f"{ROWS} on each, the rows of a tile"


def _split(rows: int, case: Case) -> str:
    if case.devices > 1:
        each = rows / case.devices
        return (
            f"over {case.devices} devices ({each:,.0f} on each)"
            if each == int(each)
            else f"over {case.devices} devices"
        )
    return "on a rank" if case.traced.ranks_known else "as compiled"


def padding(case: Case) -> Iterator[Reason]:
    lost, found = waste(case.steady), case.steady.padding
    if lost is None or found is None:
        return
    number = f"{percent(lost)} of the HBM in use"
    if lost < THRESHOLDS["padding"].good:
        yield Reason("padding", True, "Little HBM is lost to tile padding", number)
        return
    good = False if lost > THRESHOLDS["padding"].bad else None
    todo = "Use sizes that are multiples of 128, or at least of 8."
    yield Reason("padding", good, f"Tile padding takes HBM{_largest(found)}", number, todo)


def _largest(found: TilePadding) -> str:
    most = max(found.dimensions, key=lambda one: one.wasted, default=None)
    return f", most of it from {most.size:,} to {most.padded:,}" if most else ""


def bf16(case: Case) -> Iterator[Reason]:
    share = bf16_share(case.steady)
    if share is None:
        return
    if share >= THRESHOLDS["bf16"].good:
        yield Reason("bf16", True, "The multiplications have bf16 operands", f"{percent(share)} of their FLOPs")
    else:
        text = "Only some multiplications have bf16 operands" if share else "No multiplication has bf16 operands"
        number = f"{percent(share)} of their FLOPs" if share else ""
        yield Reason("bf16", None, text, number, "--precision bf16 needs less memory.")


WORK: tuple[Callable[[Case], Iterator[Reason]], ...] = (*(matmul, irregular, busy), *(step, batch, bf16, padding))


# -- reasons: whether it runs at all ----------------------------------------------------------------------------------

_SAME = "Keep shapes, Python numbers and branches the same."


def memory(case: Case) -> Iterator[Reason]:
    by_status = {"refused": _refused, "too-large": _too_large, "fits": _room}
    if case.worst.status in by_status:
        yield by_status[case.worst.status](case)
    else:
        yield Reason("memory", None, "The compiler gave no answer, so memory and cost are unknown")


def _refused(case: Case) -> Reason:
    which = ", ".join(f"{one.op}{at(one.place)}" for one in case.worst.refused[:1])
    return Reason("memory", False, "The compiler refuses the program", which, "Use other ops.", FIX)


def _too_large(case: Case) -> Reason:
    found = case.worst.memory
    times = f"{found.needed / found.available:.3g} times" if found is not None and found.available else "more than"
    todo = "--fit NAME finds the largest batch that fits; bf16 and gradient checkpointing need less memory."
    return Reason("memory", False, "It does not fit into the HBM", f"{times} what is available", todo, FIX)


def _room(case: Case) -> Reason:
    found = case.worst.memory
    free = 1 - found.needed / found.available if found is not None and found.available else 0.0
    if free < THRESHOLDS["room"].good:
        return Reason("memory", True, "It fits into the HBM")
    text, todo = "It fits into the HBM, with room for a larger batch", "--fit NAME finds the largest batch that fits."
    return Reason("memory", True, text, f"{percent(free)} free", todo)


def ops(case: Case) -> Iterator[Reason]:
    kinds = {"host": "runs on the host", "custom": "is a custom op that a TPU does not support"}
    refused = (*case.traced.refused, *case.steady.refused)
    found = {(one.op, one.kind): one for one in refused if one.kind in kinds}
    for one in found.values():
        text = f"{one.op}{at(one.place)} {kinds[one.kind]}, so each step stops there"
        todo = "Use ops that XLA supports, or move it out of the step."
        yield Reason("ops", False, text, todo=todo, decides=FIX)
    if not found:
        yield Reason("ops", True, "The TPU supports all ops of the step, and none ran on the host")


def graphs(case: Case) -> Iterator[Reason]:
    syncs, many = case.traced.syncs, len(case.traced.graphs)
    if case.traced.settled:
        yield Reason("graphs", True, _settled(case))
    elif syncs < SETTLES:
        seen = "1 step was" if syncs == 1 else f"{syncs} steps were"
        text = f"Only {seen} seen, so it is unknown whether later ones have the same graph"
        yield Reason("graphs", None, text, todo=f"Let the function make {SETTLES} steps or more.")
    elif many >= syncs:
        text = f"Each of the {syncs} steps that were seen has a new graph, so each compiles"
        yield Reason("graphs", False, text, todo=_SAME, decides=FIX)
    else:
        text = f"{many} graphs in {syncs} syncs, and no two successive steps have the same; each compiles once"
        yield Reason("graphs", None, text, todo=_SAME)


def _settled(case: Case) -> str:
    turns = turn(case.traced)
    if case.traced.graphs[-1].operations is not None:
        return "Successive steps run the same operations: each compiles once"
    different = len(set(turns))
    if different == 1:
        return "Successive steps have one graph: it compiles once for all of them"
    if different and any(graph.name for graph in case.traced.graphs):
        return f"Successive steps have the same {different} graphs: each compiles once"
    if different:
        return f"{different} graphs take turns, over {len(turns)} syncs: each compiles once"
    return "The graphs of later steps repeat: each compiles once"


def reads(case: Case) -> Iterator[Reason]:
    """Only reads in each step. A read after a sync does not occur after the last sync that was seen."""
    for read in case.traced.reads:
        if read.count >= max(2, case.traced.syncs - 1):
            yield _read(read)


def _read(read: HostRead) -> Reason:
    what = f"{read.what.partition(':')[0]}{at(read.place)}"
    if read.inside is None:
        text = f"In each step that was seen, the host reads {what} and waits for the device"
        return Reason("reads", False, text, todo="Keep it on the device, and read it every 50 steps or so.")
    library = read.inside.path.partition("/")[0]
    text = f"In each step that was seen, {library} itself reads {what} on the host ({read.inside}) and waits for it"
    return Reason("reads", False, text)


REASONS: tuple[Callable[[Case], Iterator[Reason]], ...] = (*(memory, ops, graphs), *WORK, reads)


# -- the conclusion ---------------------------------------------------------------------------------------------------

UNKNOWN = (
    "how long you train (a TPU is worth it for long trainings, where minutes of compiling do not matter)",
    "whether the host is fast enough (reading data, tracing and starting each step are not in the program)",
    "what an hour of either costs",
)
_NAMES = {
    "busy": "few FLOPs per byte",
    "batch": "the batch",
    "padding": "padding",
    "reads": "device-to-host reads",
    "irregular": "gathers and scatters",
}
_WORDS = {
    ELSEWHERE: "better on a GPU",
    FIX: "needs changes",
    SMALL: "too little work",
    AS_WELL: "a GPU is as good",
}
_ORDER = {name: place for place, name in enumerate((*_WORDS, SPEAKS))}
_WORTH = {False: 0, None: 1, True: 2}


@dataclass(frozen=True)
class TpuVerdict:
    """`suits`: True, False, or None where too little is known. `word`: "suits a TPU", "needs changes", "too little
    work", "better on a GPU", ...; `because`: a sentence or two; `reasons`: all of them, what decides first, then
    against, neither, for; `unknown`: what a program does not show."""

    suits: bool | None
    word: str
    because: str
    reasons: tuple[Reason, ...]
    unknown: tuple[str, ...] = UNKNOWN

    @property
    def deciding(self) -> Reason | None:
        """The reason that alone decides, if one does."""
        return next((one for one in self.reasons if one.decides != SPEAKS), None)

    @property
    def text(self) -> str:
        return f"{self.word[0].upper()}{self.word[1:]}. {self.because}"


def judge(case: Case) -> TpuVerdict:
    """The verdict for one target."""
    found = [reason for find in REASONS for reason in find(case)]
    reasons = tuple(sorted(found, key=lambda one: (_ORDER[one.decides], _WORTH[one.good])))
    return TpuVerdict(*_conclusion(reasons), reasons)


def _conclusion(reasons: Sequence[Reason]) -> tuple[bool | None, str, str]:
    """The first reason that decides alone, else the share of matrix multiplications."""
    if reasons[0].decides != SPEAKS:
        return False, _WORDS[reasons[0].decides], reasons[0].sentence
    if not any(one.about == "matmul" and one.good for one in reasons):
        open_ = [one for one in reasons if one.good is None]
        missing = next((one for one in open_ if one.about in ("memory", "matmul")), open_[0])
        return None, "unknown", f"{missing.text}."
    if uncertain := next((one for one in reasons if one.about == "irregular" and one.good is False), None):
        return None, "unknown", f"Most of its FLOPs are matrix multiplications. But {_lower(uncertain.sentence)}"
    against = dict.fromkeys(_NAMES[one.about] for one in reasons if one.good is False)
    but = f" To improve: {', '.join(against)}." if against else ""
    return True, "suits a TPU", f"Most of its FLOPs are matrix multiplications.{but}"


def _lower(sentence: str) -> str:
    return sentence[0].lower() + sentence[1:]
