"""A training step as a framework lowers it: what a backend passes to the preflight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

TRACED = "traced.json"  # in the folder of graphs that a worker traced; a graph's module has a file of its own


@dataclass(frozen=True)
class SourceLine:
    """A line of the user's. `path`: "In [3]", "cell 3" or a file's path; `line` counts from 1."""

    path: str
    line: int
    code: str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass(frozen=True)
class HostRead:
    """A value that the host read while the step was traced. It got zero, but where it is `known`: it follows from what
    the host gave the step, and was computed. `place`: the user's line; `inside`: that of a library where it was read,
    by the package's name ("transformers/masking_utils.py"), None where the user's line itself reads; `count`: how
    often, in the whole trace."""

    place: SourceLine | None
    what: str
    count: int = 1
    inside: SourceLine | None = None
    known: bool = False


@dataclass(frozen=True)
class UnsupportedOp:
    """What a TPU does not run as part of the program. `op`: as the framework or the compiler names it; `text`: why, in
    a sentence; `kind`: "host" (the op runs on the host, outside of the program), "custom" (a custom call that this TPU
    does not know) or "compiler" (the compiler's refusal)."""

    op: str
    text: str
    kind: str
    place: SourceLine | None = None
    count: int = 1


@dataclass(frozen=True)
class LoweredGraph:
    """One graph of a training function, as the framework lowers it.

    `module`: StableHLO (bytecode or text) for `form` "stablehlo", a serialized HloModuleProto for "hlo"; `hash`: the
    framework's own of it; `donors`: numbers of the parameters whose memory the outputs may take; `replicas`: copies of
    the program that run together, with the collectives between them in the graph; `partitions`: devices that one
    program is split over (SPMD). `site`: where its sync stands; `nth`: which sync of the function, from 0; `steady`:
    the graph that all later steps run; `parameters`: "f32[768,768] encoder.weight", in the graph's order.
    `places`: number -> line of the user's; the name of an instruction's op ends with "#" and its number, so that the
    module itself does not change when a line moves.
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
    """What tracing a function gave. `graphs`: the distinct ones in the order of their syncs, the last is steady;
    `syncs`: how many were seen; `sequence`: for each of them the place of its graph in `graphs` (empty: not known);
    `settled`: two successive ones were equal; `batch`: rows of the largest input, where they are known; `rows`: the
    same of each of `graphs`; `changes`: (cause, sentence) of each graph from the third on; `ended`: the function
    ended by itself before two were equal; `ranks_known`: whether `replicas` of the graphs is how many train together
    (False: each is the program of one, of how many it does not say)."""

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
