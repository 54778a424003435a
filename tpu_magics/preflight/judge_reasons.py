"""What speaks for a TPU, and what against it.

What lives here: one small function for each reason. What does not: what they come to (judge.py), what a reason is
(judge_case.py), and from where on (thresholds.py).

The list is Google's own ("When to use TPUs", https://cloud.google.com/tpu/docs/intro-to-tpu): models dominated by
matrix computations, without custom operations inside the main training loop, that train for weeks or months, with large
effective batch sizes. How long a person trains is not in a program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tpu_magics.backends.lowered import Place
from tpu_magics.preflight.facts import Padding
from tpu_magics.preflight.judge_case import ELSEWHERE, MEND, Case, Reason
from tpu_magics.preflight.roofline import COMPUTE, bf16_share, waste
from tpu_magics.preflight.thresholds import ROWS, SETTLES, THRESHOLDS

_LITTLE = 0.01
_SAME = "Shapes, Python numbers and branches have to stay the same."


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
    syncs, many = case.traced.syncs, len(case.traced.graphs)
    if case.traced.settled:
        yield Reason("graphs", True, "Successive steps have one graph: it compiles once for all of them")
    elif syncs < SETTLES:
        seen = "1 step was" if syncs == 1 else f"{syncs} steps were"
        text = f"Only {seen} seen, so whether later ones have the same graph is not known"
        yield Reason("graphs", None, text, todo=f"Let the function take {SETTLES} steps or more.")
    elif many >= syncs:
        text = f"Each of the {syncs} steps that were seen has a graph of its own, so each compiles"
        yield Reason("graphs", False, text, todo=_SAME, decides=MEND)
    else:
        text = f"{many} graphs in {syncs} syncs, and no two successive steps have the same; each compiles once"
        yield Reason("graphs", None, text, todo=_SAME)


def reads(case: Case) -> Iterator[Reason]:
    """Only what is read in each step."""
    for read in case.traced.reads:
        if case.traced.syncs > 1 and read.count >= case.traced.syncs:
            text = f"Each step waits for the host to read {read.what}{_at(read.place)}"
            yield Reason("reads", False, text, todo="Read it every 50 steps or so.")


# -- what it does ----------------------------------------------------------------------------------------------------


def matmul(case: Case) -> Iterator[Reason]:
    share = case.roofline.matmul_share
    if share is None:
        text = "How much of it is matrix multiplication is not known"
        yield Reason("matmul", None, text, case.roofline.reasons.get("matmul_share", ""))
    elif share >= THRESHOLDS["matmul"].good:
        yield Reason("matmul", True, "Most of its FLOPs are matrix multiplications and convolutions", _percent(share))
    else:
        text = "Less than half of its FLOPs are matrix multiplications and convolutions"
        yield Reason("matmul", False, text, _percent(share), "Wider layers, fewer element-wise ops.", ELSEWHERE)


def step(case: Case) -> Iterator[Reason]:
    """A lower bound can show that there is much work; that there is little only where both times are known."""
    seconds = case.roofline.seconds
    if seconds is None:
        return
    least = f"{'at least' if case.roofline.least else 'about'} {_time(seconds)}"
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
    text = "By the estimate the memory binds, so the matrix units can work only a part of the time"
    number = _percent(share) if share < _LITTLE else f"at most {_percent(share)}"
    todo = "A larger batch." if (bf16_share(case.steady) or 0) >= THRESHOLDS["bf16"].good else "A larger batch; bf16."
    if share < THRESHOLDS["busy"].bad:
        yield Reason("busy", False, text, number, todo, ELSEWHERE)
    else:
        yield Reason("busy", True if share >= THRESHOLDS["busy"].good else None, text, number, todo)


def batch(case: Case) -> Iterator[Reason]:
    """Under SPMD the batch is that of all devices, and each has its part of it if they all split it."""
    rows, unit = case.traced.batch, ROWS * case.devices
    if rows is None:
        yield Reason("batch", None, "The batch is not known: no input has rows that could be counted")
        return
    what = f"The batch of {rows:,} {_split(rows, case)}"
    if rows < THRESHOLDS["batch"].good * case.devices:
        text = f"{what} is small: a tile alone has {ROWS} rows"
        yield Reason("batch", False, text, todo="The largest batch that fits: --fit NAME.")
    elif rows % unit:
        low = rows // unit * unit
        yield Reason("batch", None, f"{what} is no multiple of {_rows(case)}", todo=f"{low:,} or {low + unit:,}.")
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
        text = (
            "Only a part of the multiplications has bf16 operands" if share else "No multiplication has bf16 operands"
        )
        number = f"{_percent(share)} of their FLOPs" if share else ""
        yield Reason("bf16", None, text, number, "--precision bf16 needs less memory.")


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
