"""The result of compiling one graph for one target, and its way to JSON and back.

All sizes are bytes, all times seconds, all rates per second. What is not known is None, and `notes` says why.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

from tpu_magics.backends.lowered import HostRead, LoweredGraph, OpScope, SourceLine, TraceResult, UnsupportedOp

__all__ = [
    "Buffer",
    "CollectiveTransfer",
    "CompileResult",
    "HbmUsage",
    "HeldMemory",
    "HostRead",
    "LoweredGraph",
    "Multiplications",
    "OpCost",
    "OpScope",
    "PaddedDimension",
    "SourceLine",
    "TilePadding",
    "TraceResult",
    "UnsupportedOp",
    "from_json",
    "to_json",
]

T = TypeVar("T")
# Kinds of operations, as OpCost has them.
MATMUL, KERNEL, COLLECTIVE, SCATTER, GATHER, SORT = "matmul", "kernel", "collective", "scatter", "gather", "sort"
RANDOM, REDUCE, COPY, PREFETCH, ELEMENTWISE = "random", "reduce", "copy", "prefetch", "elementwise"
IRREGULAR = frozenset({GATHER, SCATTER, SORT})  # a TPU does them row by row


# -- what comes out -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HbmUsage:
    """HBM of one device as the compiler lays it out. `needed` = arguments + outputs - aliased + temporaries + code, or
    what the compiler's refusal says, + `beside`: the bytes of other tensors there, as LoweredGraph has them;
    `available`: what the compiler allows a program on this TPU."""

    needed: int
    available: int | None
    arguments: int | None = None
    outputs: int | None = None
    aliased: int | None = None
    temporaries: int | None = None
    code: int | None = None
    beside: int = 0


@dataclass(frozen=True)
class Buffer:
    """One of the largest buffers in HBM. `shape`: "f32[32,12,128,128]"; `layout`: "{3,2,1,0:T(8,128)}"; `size`: with
    padding; `plain`: without padding; `kind`: "argument", "output", "temporary", "constant"; `op`: what makes it."""

    size: int
    plain: int
    shape: str
    layout: str
    kind: str
    op: str = ""
    place: SourceLine | None = None


@dataclass(frozen=True)
class PaddedDimension:
    """A dimension that a tiled layout makes larger: `size` -> `padded`. `wasted`: bytes over all buffers that have it;
    `buffers`: how many; `example`: one of them, "f32[30522,100]"; `name`: of a parameter that has it, where known."""

    size: int
    padded: int
    wasted: int
    buffers: int
    example: str
    name: str = ""


@dataclass(frozen=True)
class TilePadding:
    """HBM of arguments, outputs and temporaries: `padded` bytes as laid out, against `plain` bytes of the elements."""

    padded: int
    plain: int
    dimensions: tuple[PaddedDimension, ...] = ()


@dataclass(frozen=True)
class Multiplications:
    """FLOPs of matrix multiplications and convolutions in the optimised program, by the element type of their operands
    ("bf16", "f32", ...; of two types the wider one). `count`: how many, by the same names; `kernels`: FLOPs of them in
    kernels (custom calls), which XLA's own count of FLOPs leaves out."""

    flops: Mapping[str, float] = field(default_factory=dict)
    count: Mapping[str, int] = field(default_factory=dict)
    kernels: float = 0.0


@dataclass(frozen=True)
class CollectiveTransfer:
    """What a collective sends. `group`: how many devices take part; `stride`: between their numbers (0: they are not
    evenly apart); `bytes`: that each device sends to others, in all runs; `hidden`: cycles, by the compiler's estimate,
    of the other operations that run meanwhile (0.0: none, all devices wait)."""

    group: int
    stride: int
    bytes: float
    hidden: float = 0.0


@dataclass(frozen=True)
class OpCost:
    """One operation of the optimised program, in all its runs of one execution on one device.

    `name`: the compiler's ("fusion.12"); `kind`: "matmul", "elementwise", "reduce", "copy", "prefetch" (a copy between
    HBM and the memory on the chip, beside other operations), "collective", "gather", "scatter", "sort", "random",
    "kernel", or "eager" (operations outside of any program, as one); `runs`: how often; `cycles`: as the compiler
    estimates them, None where it does not; `flops`, `dtype`: of multiplications, and the type of their operands;
    `bytes`: of HBM; `shape`: of the result, or of the operands and the result of a multiplication; `plain`, `padded`:
    bytes of the result without and with tile padding; `op`: the framework's name of it; `ops`: names, the likeliest
    first, while it is not known which of them has a place.
    """

    name: str
    kind: str
    runs: float
    cycles: float | None = None
    flops: float = 0.0
    dtype: str = ""
    bytes: float = 0.0
    shape: str = ""
    plain: int = 0
    padded: int = 0
    transfer: CollectiveTransfer | None = None
    op: str = ""
    ops: tuple[str, ...] = ()
    place: SourceLine | None = None
    scope: OpScope = field(default_factory=OpScope)


@dataclass(frozen=True)
class HeldMemory:
    """The buffers that one op holds in HBM at the program's fullest point. `size`: with padding; `kind`, `op`: as those
    of a Buffer."""

    size: int
    buffers: int
    kind: str
    op: str = ""
    place: SourceLine | None = None
    scope: OpScope = field(default_factory=OpScope)


@dataclass(frozen=True)
class CompileResult:
    """The result of compiling one graph for one target.

    `status`: "fits", "too-large" (it needs more HBM than there is), "refused" (the compiler does not take the program),
    "failed" (no answer: the process died, was stopped at its memory bound, ...). `seconds`: of the compile itself, and
    of the first time where the result is cached (`kept`). `flops`, `bytes_accessed`: of one execution on one device as
    XLA counts them (loop bodies once, copies into on-chip memory too); `hbm_bytes`: what the optimised program reads
    from and writes to HBM; `costs`: of its operations, in the order in which they run; `held`: HBM at the peak, as
    `padding` has it; `curve`: HBM over the program's order, as (share of the estimated cycles before, bytes). `loops`:
    a loop has multiplications in its body; `guessed`: how often a part of the program runs is not in it (of branches
    the one that multiplies most counts, a loop of unknown rounds once). `error`: the compiler's text; `versions`:
    {"jaxlib": ..., "libtpu": ...}; `peak`: the most host memory that the compile process used.
    """

    target: str
    graph: str
    status: str
    seconds: float | None = None
    memory: HbmUsage | None = None
    flops: float | None = None
    bytes_accessed: float | None = None
    hbm_bytes: float | None = None
    costs: tuple[OpCost, ...] = field(default=(), repr=False)
    held: tuple[HeldMemory, ...] = field(default=(), repr=False)
    curve: tuple[tuple[float, int], ...] = field(default=(), repr=False)
    multiplications: Multiplications | None = None
    loops: bool = False
    guessed: bool = False
    padding: TilePadding | None = None
    buffers: tuple[Buffer, ...] = ()
    refused: tuple[UnsupportedOp, ...] = ()
    error: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    peak: int | None = None
    kept: bool = False
    notes: tuple[str, ...] = ()


# -- to JSON and back -----------------------------------------------------------------------------------------------


def to_json(value: Any) -> Any:
    """A dataclass of this file as plain JSON data (`Graph.module` is left out: it has a file of its own)."""
    return {name: found for name, found in asdict(value).items() if name != "module"}


def from_json(kind: type[T], data: Mapping[str, Any]) -> T:
    """The dataclass of that data. Raises TypeError or KeyError where it is not of this form."""
    hints = typing.get_type_hints(kind)
    names = [one.name for one in fields(kind) if one.name in data]  # type: ignore[arg-type]
    return kind(**{name: _value(hints[name], data[name]) for name in names})


def _value(hint: Any, data: Any) -> Any:
    if data is None:
        return None
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return _value(next(one for one in inner if one is not type(None)), data)
    if origin is tuple:
        kinds: Sequence[Any] = [inner[0]] * len(data) if inner[-1] is Ellipsis else inner
        return tuple(_value(one, item) for one, item in zip(kinds, data, strict=True))
    if is_dataclass(hint):
        return from_json(hint, data)  # type: ignore[arg-type]
    return dict(data) if isinstance(data, Mapping) else data
