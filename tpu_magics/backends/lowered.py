"""A training step as a framework lowers it: what a backend passes to the preflight."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any

TRACED = "traced.json"  # in the folder of traced graphs; each graph's module has its own file
READS = "reads.txt"  # beside it
EAGER = "eager"  # LoweredGraph.form of operations that run one by one
FORWARD, BACKWARD, RECOMPUTE, OPTIMIZER = PHASES = "forward", "backward", "recompute", "optimizer"  # of a step


@dataclass(frozen=True)
class SourceLine:
    """A line of the user's code. `path`: "In [3]", "cell 3" or a file's path; `line` counts from 1."""

    path: str
    line: int
    code: str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


@dataclass(frozen=True)
class OpScope:
    """What an operation belongs to. `module`: the path of the torch.nn.Module or Keras layer whose call made it
    ("encoder.layer.3.attention.self"), the class of an optimizer, "" outside of both; `phase`: one of PHASES
    ("recompute": a forward pass again, for gradient checkpointing), or "" where it is not known."""

    module: str = ""
    phase: str = ""


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
class Operations:
    """The operations of a step that run one by one, outside of any program. `moved`: bytes that they read and write;
    `flops`: of their matrix multiplications and convolutions, by the element type ("bf16", "f32")."""

    count: int
    moved: int
    flops: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class LoweredGraph:
    """One graph of a training function, as the framework lowers it.

    `module`: StableHLO (bytecode or text) for `form` "stablehlo", a serialized HloModuleProto for "hlo", nothing for
    "eager", which is no program, but the `operations` beside the programs; `hash`: the framework's own; `donors`:
    numbers of the parameters whose memory outputs may reuse; `replicas`: copies of the program that run together, with
    collectives between them in the graph; `partitions`: devices that one program is sharded over (SPMD). `site`: the
    line of its sync; `nth`: the number of its sync, from 0; `steady`: all later steps run this graph; `parameters`:
    "f32[768,768] encoder.weight", in the graph's order. `places`: number -> the user's line; the op name of an
    instruction ends with "#" and its number, so that the module does not change when a line moves; `scopes`: number ->
    what the instruction belongs to. `beside`: bytes of HBM that other tensors take while it runs; of operations, with
    their own. `name`: what it is of a step that has several ("forward", "backward"); otherwise it is a whole step.
    `mesh`: the axes of the devices that it is sharded over, and their sizes.
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
    scopes: Mapping[int, OpScope] = field(default_factory=dict, repr=False)
    beside: int = 0
    operations: Operations | None = None
    name: str = ""
    mesh: tuple[tuple[str, int], ...] = ()

    @property
    def label(self) -> str:
        """For the screen: its name, or "sync 1", by the sync of the function that ran it first."""
        return self.name or f"sync {self.nth + 1}"


NUMBERED = {"places": SourceLine, "scopes": OpScope}  # fields of LoweredGraph, by the numbers of instructions


@dataclass(frozen=True)
class TraceResult:
    """The result of tracing a function. `graphs`: the distinct ones in the order of their syncs, the last is steady;
    `syncs`: how many there were; `sequence`: for each sync the index of its graph in `graphs`, or of those of a step
    that has several (empty: unknown); `settled`: two consecutive ones were equal; `batch`: rows of the largest input,
    if known; `rows`: the same for each of `graphs`; `changes`: (cause, sentence) of each graph from the third on;
    `ended`: the function ended before two were equal; `ranks_known`: whether `replicas` of the graphs is how many train
    together (False: each is the program of one replica, and their number is unknown); `problem`: why there are no
    graphs: what, why and what to do, as in TpuMagicsError, with NAME for the function's name."""

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
    problem: tuple[str, ...] = ()

    @property
    def later(self) -> TraceResult:
        """With the graphs of later steps alone, if the trace has settled."""
        places = [place for place, one in enumerate(self.graphs) if one.steady]
        if not self.settled or not places:
            return self
        return replace(
            self,
            graphs=tuple(self.graphs[place] for place in places),
            sequence=tuple(places.index(place) for place in self.sequence if place in places),
            rows=tuple(self.rows[place] for place in places) if self.rows else (),
        )


# -- files ------------------------------------------------------------------------------------------------------------


def write_trace(
    folder: Path,
    graphs: Sequence[tuple[LoweredGraph, bool]],
    reads: Sequence[HostRead],
    refused: Sequence[UnsupportedOp],
    **more: Any,
) -> None:
    """Write all of it; `graphs`: with whether each is steady; `more`: other fields of TraceResult."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    records = []
    for nth, (graph, steady) in enumerate(graphs):
        file = f"graph-{nth}.pb"
        (folder / file).write_bytes(graph.module)
        fields = {name: value for name, value in vars(graph).items() if name not in ("module", *NUMBERED)}
        nested = {
            name: asdict(value) for name, value in fields.items() if is_dataclass(value) and not isinstance(value, type)
        }
        numbered = {name: _numbered(getattr(graph, name)) for name in NUMBERED}
        records.append({**fields, **nested, **numbered, "file": file, "steady": steady})
    found = {"graphs": records, "reads": [asdict(one) for one in reads], "refused": [asdict(one) for one in refused]}
    temporary = folder / f"{TRACED}.tmp"
    temporary.write_text(json.dumps({**found, **more}))
    temporary.replace(folder / TRACED)


def _numbered(by_number: Mapping[int, Any]) -> dict[str, Any]:
    """Thousands of instructions come from a few lines, so each line is written once."""
    values = {one: nth for nth, one in enumerate(dict.fromkeys(by_number.values()))}
    return {"values": [asdict(one) for one in values], "of": {n: values[one] for n, one in by_number.items()}}


def write_reads(folder: Path, reads: Sequence[HostRead]) -> None:
    """The reads so far, one per line: if the function fails, they may be the cause."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / READS).write_text("\n".join(dict.fromkeys(map(_line, reads))))


def _line(read: HostRead) -> str:
    if read.place is None:
        return read.what
    inside = f" (inside {read.inside})" if read.inside is not None else ""
    return f"{read.place}: {read.place.code}{inside}"
