"""Instructions that do not belong in a training step on a TPU: transfers between host and device in the middle of the
step, and custom calls that are not XLA's own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from tpu_magics.backends.hlo.text import HloModule, Instruction
from tpu_magics.preflight.analysis.multiplications import TARGET
from tpu_magics.preflight.analysis.source_locations import op_name, read_frame_tables
from tpu_magics.preflight.compile_result import SourceLine, UnsupportedOp

# Custom calls of the program before optimisation that a TPU runs: kernels in Pallas, linear algebra, notes on sharding
# and layout. Names as torch_xla 2.9, jax 0.7 to 0.10 and TensorFlow 2.21 write them.
_KNOWN = frozenset(
    {
        TARGET,
        *("Cholesky", "Qr", "QrDecompositionBlock", "ProductOfElementaryHouseholderReflectors", "LuDecomposition"),
        *("Eigh", "EighTpu", "TopK", "ApproxTopK", "PartialReduce", "GatherScatterIndicesBitpacked"),
        *("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "ShapeAssertion", "LayoutConstraint"),
        *("annotate_device_placement", "MoveToHost", "MoveToDevice", "Pin", "Unpin", "ResizeNearest"),
        *("ResizeBilinear", "ResizeNearestGrad", "ResizeBilinearGrad", "GetInputs", "inspect_sharding"),
    }
)
_NUMBERED = re.compile(r"#\d+$")
_TRANSFERS = {
    "infeed": "it waits for data from the host in the middle of the step",
    "outfeed": "it sends data to the host in the middle of the step",
    "send": "it sends data to the host in the middle of the step",
    "recv": "it waits for the host in the middle of the step",
}


def refused(program: HloModule, unoptimised: HloModule | None) -> tuple[UnsupportedOp, ...]:
    """One for each op and line, with its count. `unoptimised`: the program before optimisation; custom
    calls that are not in it are the compiler's own. Without it, none is reported."""
    places = read_frame_tables(program)
    wanted = {one.attribute("custom_call_target").strip('"') for one in _custom(unoptimised)} if unoptimised else set()
    counts: Counter[UnsupportedOp] = Counter()
    for one in program.of(*_TRANSFERS):
        if _to_host(one):
            counts[_transfer(one, places.of(one))] += 1
    for one in _custom(program):
        target = one.attribute("custom_call_target").strip('"')
        if target in wanted - _KNOWN:
            counts[_call(target + _number(one), places.of(one))] += 1
    return tuple(UnsupportedOp(one.op, one.text, one.kind, one.place, count) for one, count in counts.items())


def _custom(program: HloModule) -> Iterator[Instruction]:
    return program.of("custom-call")


def _to_host(one: Instruction) -> bool:
    return one.opcode in ("infeed", "outfeed") or one.attribute("is_host_transfer") == "true"


def _transfer(one: Instruction, place: SourceLine | None) -> UnsupportedOp:
    return UnsupportedOp(op_name(one) or one.opcode, f"{one.opcode}: {_TRANSFERS[one.opcode]}", "host", place)


def _number(one: Instruction) -> str:
    """The number that the preflight appends to op names, "#12", to find the line."""
    found = _NUMBERED.search(op_name(one))
    return found[0] if found else ""


def _call(target: str, place: SourceLine | None) -> UnsupportedOp:
    name = _NUMBERED.sub("", target)
    return UnsupportedOp(target, f"a custom call to {name}, which XLA does not provide", "custom", place)
