"""What speaks for a TPU, and what against it.

What lives here: one small function for each reason. What does not: what they come to (judge.py), and from where on
(thresholds.py).

The list is Google's own ("When to use TPUs", https://cloud.google.com/tpu/docs/intro-to-tpu): models dominated by
matrix computations, without custom operations inside the main training loop, that train for weeks or months, with large
effective batch sizes. How long a person trains is not in a program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tpu_magics.backends.lowered import Place, Traced
from tpu_magics.preflight.facts import Compiled, Padding
from tpu_magics.preflight.roofline import COMPUTE, Roofline, bf16_share, waste
from tpu_magics.preflight.thresholds import ROWS, THRESHOLDS

SPEAKS, MEND, ELSEWHERE = "", "mend", "elsewhere"
_LITTLE = 0.01
SETTLES = 3  # steps that a function has to take: the first makes the optimiser's state, and the next two are compared


@dataclass(frozen=True)
class Reason:
    """One finding. `about`: "memory", "ops", "graphs", "matmul", "step", "busy", "batch", "bf16", "padding" or "reads";
    `good`: it speaks for a TPU (True), against it (False), or for neither (None); `text`: without a full stop, and
    without `number`, which is of one target; `todo`: what would change it; `decides`: ELSEWHERE (a GPU serves better),
    MEND (this must be mended first) or SPEAKS (alone it decides nothing)."""

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
    """What is judged: a step, and what the compiler of one target said of it. `device`: "v5e chip"; `steady`: the graph
    of all later steps; `worst`: the one that does not fit or has no answer, else the one that needs most HBM."""

    device: str
    traced: Traced
    steady: Compiled
    worst: Compiled
    roofline: Roofline


# -- whether it runs at all ------------------------------------------------------------------------------------------


def memory(case: Case) -> Iterator[Reason]:
    told = {"refused": _refused, "too-large": _too_large, "fits": _room}
    if case.worst.status in told:
        yield told[case.worst.status](case)
    else:
        yield Reason("memory", None, "The compiler gave no answer, so neither memory nor cost is known")


def _refused(case: Case) -> Reason:
    which = ", ".join(f"{one.op}{_at(one.place)}" for one in case.worst.refused[:1])
    return Reason("memory", False, "The compiler refuses the program", which, "Write it with other ops.", MEND)


def _too_large(case: Case) -> Reason:
    found = case.worst.memory
    times = f"{found.needed / found.available:.3g} times" if found is not None and found.available else "more than"
    todo = "--fit NAME finds the largest batch that fits; bf16 and gradient checkpointing need less."
    return Reason("memory", False, "It does not fit into the HBM", f"{times} what there is", todo, MEND)


def _room(case: Case) -> Reason:
    found = case.worst.memory
    free = 1 - found.needed / found.available if found is not None and found.available else 0.0
    if free < THRESHOLDS["room"].good:
        return Reason("memory", True, "It fits into the HBM")
    text, todo = "It fits into the HBM, with room for a larger batch", "--fit NAME finds the largest batch that fits."
    return Reason("memory", True, text, f"{_percent(free)} free", todo)


def ops(case: Case) -> Iterator[Reason]:
    kinds = {"host": "runs on the host", "custom": "is a custom op that a TPU does not know"}
    refused = (*case.traced.refused, *case.steady.refused)
    found = {(one.op, one.kind): one for one in refused if one.kind in kinds}
    for one in found.values():
        text = f"{one.op}{_at(one.place)} {kinds[one.kind]}, so each step stops there"
        todo = "Write it with ops that XLA has, or move it out of the step."
        yield Reason("ops", False, text, todo=todo, decides=MEND)
    if not found:
        yield Reason("ops", True, "Nothing in the step runs on the host, and no custom op is in it")


def graphs(case: Case) -> Iterator[Reason]:
    syncs = case.traced.syncs
    if case.traced.settled:
        yield Reason("graphs", True, "Successive steps have one graph: it compiles once for all of them")
    elif syncs < SETTLES:
        seen = "1 step was" if syncs == 1 else f"{syncs} steps were"
        text = f"Only {seen} seen, so whether later ones have the same graph is not known"
        yield Reason("graphs", None, text, todo=f"Let the function take {SETTLES} steps or more.")
    else:
        text = f"The graph changes with each of the {syncs} steps that were seen, so each compiles again"
        todo = "Shapes, Python numbers and branches have to stay the same."
        yield Reason("graphs", False, text, todo=todo, decides=MEND)


def reads(case: Case) -> Iterator[Reason]:
    """Only what is read in each step."""
    for read in case.traced.reads:
        if case.traced.syncs > 1 and read.count >= case.traced.syncs:
            text = f"Each step waits for a value that the host reads, {read.what}{_at(read.place)}"
            yield Reason("reads", False, text, todo="Read it every 50 steps or so.")


# -- what it does ----------------------------------------------------------------------------------------------------


def matmul(case: Case) -> Iterator[Reason]:
    share = case.roofline.matmul_share
    if share is None:
        yield Reason("matmul", None, "How much of it is matrix multiplication is not known")
    elif share >= THRESHOLDS["matmul"].good:
        yield Reason("matmul", True, "Most of its FLOPs are matrix multiplications and convolutions", _percent(share))
    else:
        text = "Less than half of its FLOPs are matrix multiplications and convolutions"
        yield Reason("matmul", False, text, _percent(share), "Wider layers, fewer element-wise ops.", ELSEWHERE)


def step(case: Case) -> Iterator[Reason]:
    """A lower bound can show that there is much work; that there is little only where both bounds are known."""
    seconds = case.roofline.seconds
    if seconds is None:
        return
    least = f"at least {_time(seconds)}"
    if seconds >= THRESHOLDS["step"].good:
        yield Reason("step", True, "A step is enough work for a device", least)
    elif seconds >= THRESHOLDS["step"].bad or not case.roofline.bound:
        yield Reason("step", None, "A step may take no longer than starting it from Python, about 1 ms", least)
    else:
        text = "A step is hardly any work for a device, and starting it from Python takes longer"
        todo = "A larger model or batch, or many steps in one program."
        yield Reason("step", False, text, f"{_time(seconds)} at its peak", todo, ELSEWHERE)


def busy(case: Case) -> Iterator[Reason]:
    share = case.roofline.busy
    if share is None:
        return
    if case.roofline.bound == COMPUTE:
        yield Reason("busy", True, "By the estimate the matrix units bind, not the memory")
        return
    text = "By the estimate the memory binds; the part of the time in which the matrix units can work"
    number = _percent(share) if share < _LITTLE else f"at most {_percent(share)}"
    todo = "A larger batch; bf16."
    if share < THRESHOLDS["busy"].bad:
        yield Reason("busy", False, text, number, todo, ELSEWHERE)
    else:
        yield Reason("busy", True if share >= THRESHOLDS["busy"].good else None, text, number, todo)


def batch(case: Case) -> Iterator[Reason]:
    rows = case.traced.batch
    if rows is None:
        yield Reason("batch", None, "The batch is not known: no input has rows that could be counted")
    elif rows < THRESHOLDS["batch"].good:
        text = f"The batch of {rows} on a rank is small: a tile alone has {ROWS} rows"
        yield Reason("batch", False, text, todo="The largest batch that fits: --fit NAME.")
    elif rows % ROWS:
        low = rows // ROWS * ROWS
        text = f"The batch of {rows:,} on a rank is no multiple of {ROWS}, the rows of a tile"
        yield Reason("batch", None, text, todo=f"{low:,} or {low + ROWS:,}.")
    else:
        yield Reason("batch", True, f"The batch of {rows:,} on a rank is a multiple of {ROWS}, the rows of a tile")


def padding(case: Case) -> Iterator[Reason]:
    lost, found = waste(case.steady), case.steady.padding
    if lost is None or found is None:
        return
    number = f"{_percent(lost)} of what is in use"
    if lost < THRESHOLDS["padding"].good:
        yield Reason("padding", True, "Hardly any HBM is padding of tiles", number)
        return
    good = False if lost > THRESHOLDS["padding"].bad else None
    todo = "Sizes that are multiples of 128, or of 8 at the least."
    yield Reason("padding", good, f"Padding of tiles takes HBM{_largest(found)}", number, todo)


def _largest(found: Padding) -> str:
    most = max(found.dimensions, key=lambda one: one.wasted, default=None)
    return f", most of it from {most.size:,} to {most.padded:,}" if most else ""


def bf16(case: Case) -> Iterator[Reason]:
    share = bf16_share(case.steady)
    if share is None:
        return
    if share >= THRESHOLDS["bf16"].good:
        yield Reason("bf16", True, "Multiplications have bf16 operands", f"{_percent(share)} of their FLOPs")
    else:
        todo = "--precision bf16 needs less memory."
        yield Reason(
            "bf16", None, "Not all multiplications have bf16 operands", f"{_percent(share)} of their FLOPs", todo
        )


# -- words -----------------------------------------------------------------------------------------------------------


def _at(place: Place | None) -> str:
    return f" ({place})" if place else ""


def _percent(share: float) -> str:
    if 0 < share < 0.01:
        return "less than 1 %"
    return "more than 99 %" if 0.995 <= share < 1 else f"{100 * share:.0f} %"


def _time(seconds: float) -> str:
    units = ((1.0, "s"), (1e3, "ms"), (1e6, "µs"))
    factor, unit = next((one for one in units if seconds * one[0] >= 1), units[-1])
    return f"{seconds * factor:.3g} {unit}"


REASONS: tuple[Callable[[Case], Iterator[Reason]], ...] = (
    *(memory, ops, graphs, matmul, step),
    *(busy, batch, bf16, padding, reads),
)
