"""Reasons of the verdict about whether the step runs at all, and the list of all reasons.

The list follows Google's "When to use TPUs" (https://cloud.google.com/tpu/docs/intro-to-tpu): models dominated by
matrix computations, without custom operations inside the main training loop, that train for weeks or months, with large
effective batch sizes. How long the user trains is not in a program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tpu_magics.backends.lowered import Read
from tpu_magics.preflight.thresholds import SETTLES, THRESHOLDS
from tpu_magics.preflight.turns import turn
from tpu_magics.preflight.verdict_case import FIX, Case, Reason, at, percent
from tpu_magics.preflight.verdict_work import WORK

_SAME = "Keep shapes, Python numbers and branches the same."


# -- whether it runs at all ------------------------------------------------------------------------------------------


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
    different = len(set(turns))
    if different == 1:
        return "Successive steps have one graph: it compiles once for all of them"
    if different:
        return f"{different} graphs take turns, over {len(turns)} syncs: each compiles once"
    return "The graphs of later steps repeat: each compiles once"


def reads(case: Case) -> Iterator[Reason]:
    """Only reads in each step. A read after a sync does not occur after the last sync that was seen."""
    for read in case.traced.reads:
        if read.count >= max(2, case.traced.syncs - 1):
            yield _read(read)


def _read(read: Read) -> Reason:
    what = f"{read.what.partition(':')[0]}{at(read.place)}"
    if read.inside is None:
        text = f"In each step that was seen, the host reads {what} and waits for the device"
        return Reason("reads", False, text, todo="Keep it on the device, and read it every 50 steps or so.")
    library = read.inside.path.partition("/")[0]
    text = f"In each step that was seen, {library} itself reads {what} on the host ({read.inside}) and waits for it"
    return Reason("reads", False, text)


REASONS: tuple[Callable[[Case], Iterator[Reason]], ...] = (*(memory, ops, graphs), *WORK, reads)
