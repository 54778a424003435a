"""Reasons of the verdict about the work of a step: its FLOPs, its bytes, its batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tpu_magics.preflight.compile_result import TilePadding
from tpu_magics.preflight.roofline import COMPUTE, bf16_share, waste
from tpu_magics.preflight.thresholds import ROWS, THRESHOLDS
from tpu_magics.preflight.verdict_case import AS_WELL, ELSEWHERE, SMALL, Case, Reason, percent, time

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
        f"The batch is too small for a TPU: {rows:,} rows {_split(rows, case)}. The matrix units become the bound at "
        "the earliest from this number of rows (estimate)"
    )
    return Reason("busy", False, text, f"about {float(f'{rows * _weight(case, _state):.2g}'):,.0f}", todo, SMALL)


def _is_small(case: Case) -> bool:
    """Whether it waits for memory for want of a batch: parameters and state alone, which do not grow with it, take
    longer than all of its FLOPs."""
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
    """Bytes that are read and written again: of data and of results there is only one of both."""
    return 2 * min(arguments, outputs)


def _moved(arguments: int, outputs: int) -> int:
    """All that is read or written at least."""
    return arguments + outputs


def _larger(case: Case) -> str:
    return "A larger batch." if (bf16_share(case.steady) or 0) >= THRESHOLDS["bf16"].good else "A larger batch; bf16."


def _at_most(share: float) -> str:
    return percent(share) if share < _LITTLE else f"at most {percent(share)}"


def step(case: Case) -> Iterator[Reason]:
    """A lower bound can show that there is much work; that there is little only where both times are known."""
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
    """Under SPMD the batch is that of all devices, and each has its part of it if they all split it."""
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


WORK: tuple[Callable[[Case], Iterator[Reason]], ...] = (matmul, busy, step, batch, bf16, padding)
