"""A training step as a framework lowers it: what a backend passes to the preflight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

TRACED = "traced.json"  # in the folder of traced graphs; each graph's module has its own file


@dataclass(frozen=True)
class SourceLine:
    """A line of the user's code. `path`: "In [3]", "cell 3" or a file's path; `line` counts from 1."""

    path: str
    line: int
    code: str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass(frozen=True)
class HostRead:
    """A value that the host read while the step was traced. It got zero, unless the value is `known`: it depends only
    on the step's inputs and was computed. `place`: the user's line; `inside`: the library's line that read it
    ("transformers/masking_utils.py"), None if the user's line itself reads; `count`: how often, in the whole trace."""

    place: SourceLine | None
    what: str
    count: int = 1
    inside: SourceLine | None = None
    known: bool = False


@dataclass(frozen=True)
class UnsupportedOp:
    """An operation that a TPU does not run as part of the program. `op`: its name in the framework or compiler; `text`:
    why, in a sentence; `kind`: "host" (it runs on the host, outside of the program), "custom" (a custom call that this
    TPU does not have) or "compiler" (the compiler rejects it)."""

    op: str
    text: str
    kind: str
    place: SourceLine | None = None
    count: int = 1


@dataclass(frozen=True)
class LoweredGraph:
    """One graph of a training function, as the framework lowers it.

    `module`: StableHLO (bytecode or text) for `form` "stablehlo", a serialized HloModuleProto for "hlo"; `hash`: the
    framework's own; `donors`: numbers of the parameters whose memory outputs may reuse; `replicas`: copies of the
    program that run together, with collectives between them in the graph; `partitions`: devices that one program is
    sharded over (SPMD). `site`: the line of its sync; `nth`: the number of its sync, from 0; `steady`: all later steps
    run this graph; `parameters`: "f32[768,768] encoder.weight", in the graph's order. `places`: number -> the user's
    line; the op name of an instruction ends with "#" and its number, so that the module does not change when a line
    moves.
    """

    module: bytes = field(repr=False)
    form: str
    hash: str
    donors: tuple[int, ...] = field(default=(), repr=False)
    replicas: int = 1
    partitions: int = 1
    site: SourceLine | None = None
    nth: int = 0
    steady: bool = True
    parameters: tuple[str, ...] = field(default=(), repr=False)
    places: Mapping[int, SourceLine] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class TraceResult:
    """The result of tracing a function. `graphs`: the distinct ones in the order of their syncs, the last is steady;
    `syncs`: how many there were; `sequence`: for each sync the index of its graph in `graphs` (empty: unknown);
    `settled`: two consecutive ones were equal; `batch`: rows of the largest input, if known; `rows`: the same for each
    of `graphs`; `changes`: (cause, sentence) of each graph from the third on; `ended`: the function ended before two
    were equal; `ranks_known`: whether `replicas` of the graphs is how many train together (False: each is the program
    of one replica, and their number is unknown)."""

    graphs: tuple[LoweredGraph, ...]
    syncs: int
    settled: bool
    reads: tuple[HostRead, ...] = ()
    refused: tuple[UnsupportedOp, ...] = ()
    seconds: float = 0.0
    batch: int | None = None
    precision: str = ""
    ranks_known: bool = True
    changes: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    sequence: tuple[int, ...] = ()
    rows: tuple[int | None, ...] = ()
    ended: bool = False
