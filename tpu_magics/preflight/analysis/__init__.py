"""Analysis of the files that XLA's TPU compiler dumps for a program.

A dump is a folder made with `XLA_FLAGS="--xla_dump_to=FOLDER --xla_dump_hlo_as_text"`; the formats are those of libtpu
0.0.21.1 (jaxlib 0.7.2) and 0.0.52 (jaxlib 0.10.2). What is missing, or of an unknown form, gives a note and is None or
empty; a partly written dump raises nothing. Standard library only.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tpu_magics.backends.hlo.text import HloModule, Instruction, read_module
from tpu_magics.preflight.analysis.buffers import (
    Assignment,
    BufferNames,
    hbm_pieces,
    held_memory,
    largest,
    memory_curve,
    padding,
    read_assignment,
)
from tpu_magics.preflight.analysis.instructions import op_name, read_frame_tables
from tpu_magics.preflight.analysis.multiplications import TARGET, multiplications
from tpu_magics.preflight.analysis.op_costs import op_costs, read_estimates
from tpu_magics.preflight.analysis.traffic import HbmTraffic, hbm_bytes
from tpu_magics.preflight.compile_result import (
    Buffer,
    HeldMemory,
    Multiplications,
    OpCost,
    SourceLine,
    TilePadding,
    UnsupportedOp,
)


@dataclass(frozen=True)
class ProgramFacts:
    """One optimised program.

    `multiplications`: FLOPs of one execution by the element types of the operands (multiplications.py says which);
    bodies of loops count as often as they run. `loops`: a loop has multiplications in its body; XLA's own FLOPs count
    it once. `guessed`: branches, or loops of unknown rounds (execution_counts.py). `hbm_bytes`: bytes of one execution
    (traffic.py); `costs`: of each operation (op_costs.py).

    `padding` and `buffers` are of what HBM holds at the point of the program where the temporaries take most: all
    arguments, outputs and constants, and the temporaries alive there. A result that takes over the memory of an
    argument is one buffer, an argument. Tables of addresses of tuples are left out. `buffers`: the largest 20; `held`:
    all of them by op; `curve`: HBM over time.

    `custom_calls`: what does not belong in a training step. `notes`: what could not be read, and why.
    """

    multiplications: Multiplications | None = None
    padding: TilePadding | None = None
    buffers: tuple[Buffer, ...] = ()
    custom_calls: tuple[UnsupportedOp, ...] = ()
    hbm_bytes: float | None = None
    costs: tuple[OpCost, ...] = ()
    held: tuple[HeldMemory, ...] = ()
    curve: tuple[tuple[float, int], ...] = ()
    loops: bool = False
    guessed: bool = False
    notes: tuple[str, ...] = ()


def read(folder: Path, module: str | None = None, parameters: Sequence[str] = ()) -> ProgramFacts:
    """Reads the dump of one program.

    `folder`: of the dump; `module`: the program's name ("jit_step") or the beginning of its files' names, where the
    folder has more than one (without it, the last one is read, with a note); `parameters`: what the framework calls the
    program's parameters, by their numbers ("f32[768,768] encoder.weight"). Takes about a second per 20 MB of text.
    """
    found = find(Path(folder), module)
    if not found:
        return ProgramFacts(notes=("the compiler dumped no optimised program",))
    several = (f"the dump has {len(found)} programs: {found[0].stem} was read",) if len(found) > 1 else ()
    facts = _read(found[0], parameters)
    return ProgramFacts(**{**vars(facts), "notes": (*several, *facts.notes)})


def _read(module: ProgramFiles, parameters: Sequence[str]) -> ProgramFacts:
    program = _program(module.optimised)
    unoptimised = _program(module.unoptimised)
    assignment = _assignment(module)
    if program is None or not program.entry:
        return ProgramFacts(notes=("the text of the optimised program is incomplete or has an unknown format",))
    counted, traffic = multiplications(program, unoptimised), HbmTraffic(program)
    pieces, names = hbm_pieces(assignment), BufferNames(program, parameters)
    costs = op_costs(program, counted, traffic, _estimates(module))
    return ProgramFacts(
        multiplications=counted.multiplications,
        padding=padding(pieces, names) if pieces else None,
        buffers=largest(pieces, names),
        custom_calls=refused(program, unoptimised),
        hbm_bytes=hbm_bytes(traffic, counted.executions),
        costs=costs,
        held=held_memory(pieces, names),
        curve=memory_curve(assignment, {one.name: one.cycles for one in costs if one.cycles}),
        loops=counted.loops,
        guessed=counted.executions.guessed,
        notes=(*counted.notes, *_missing(unoptimised, assignment)),
    )


def _missing(unoptimised: HloModule | None, assignment: Assignment) -> tuple[str, ...]:
    """Notes on what the compiler did not dump."""
    missing = (
        (
            unoptimised is None,
            "no program before optimisation: f32 that the compiler itself turned into bf16 counts as bf16",
        ),
        (not assignment.allocations, "no buffer assignment: padding and the largest buffers are unknown"),
        (
            bool(assignment.allocations) and not assignment.ranges,
            "no live ranges: padding and the largest buffers are for the whole program, not for its memory peak",
        ),
    )
    return tuple(note for there, note in missing if there)


def _program(path: Path) -> HloModule | None:
    try:
        return read_module(path)
    except OSError:
        return None


def _estimates(module: ProgramFiles) -> Mapping[str, int]:
    try:
        return read_estimates(module.generated)
    except OSError:
        return {}


def _assignment(module: ProgramFiles) -> Assignment:
    with ExitStack() as stack:
        files = [stack.enter_context(path.open(encoding="utf-8", errors="replace")) for path in module.memory]
        return read_assignment(*files)


# -- the files of a dump --------------------------------------------------------------------------------------------


# libtpu names them `module_0001.jit_step.cl_799122805.after_optimizations.txt`; files of what it outlines are named
# `module_0001.extracted...` and are no programs; those of other back ends have words before `after_optimizations`.
_PROGRAM = ".after_optimizations.txt"
_NAME = re.compile(r"^module_(\d+)\.(.*)$")


@dataclass(frozen=True)
class ProgramFiles:
    """The files of one program. `stem`: what their names begin with: "module_0001.jit_step.cl_799122805"."""

    folder: Path
    stem: str

    @property
    def optimised(self) -> Path:
        return self._file("after_optimizations.txt")

    @property
    def unoptimised(self) -> Path:
        """The program before optimisation."""
        return self._file("before_optimizations.txt")

    @property
    def generated(self) -> Path:
        """The optimised program with what the compiler noted while it generated code."""
        return self._file("after_codegen.txt")

    @property
    def memory(self) -> tuple[Path, ...]:
        """Buffer assignment and live ranges."""
        names = ("after_optimizations-buffer-assignment.txt", "after_optimizations-live-range.txt")
        return tuple(path for path in map(self._file, names) if path.is_file())

    def _file(self, ending: str) -> Path:
        return self.folder / f"{self.stem}.{ending}"


def find(folder: Path, module: str | None) -> list[ProgramFiles]:
    """The programs in a folder, the last one first; with `module` those of that name ("jit_step") or stem."""
    stems = sorted(_stems(folder), key=_number, reverse=True)
    return [ProgramFiles(folder, stem) for stem in stems if module is None or _called(stem, module)]


def _stems(folder: Path) -> Iterator[str]:
    for path in folder.glob(f"module_*{_PROGRAM}"):
        stem = path.name.removesuffix(_PROGRAM)
        found = _NAME.match(stem)
        if found and not found[2].startswith("extracted"):
            yield stem


def _number(stem: str) -> int:
    found = _NAME.match(stem)
    return int(found[1]) if found else -1


def _called(stem: str, module: str) -> bool:
    found = _NAME.match(stem)
    return stem == module or (found is not None and (found[2] == module or found[2].startswith(f"{module}.")))


# -- what does not belong in a training step --------------------------------------------------------------------------


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
            counts[_call(target + _numbered(one), places.of(one))] += 1
    return tuple(UnsupportedOp(one.op, one.text, one.kind, one.place, count) for one, count in counts.items())


def _custom(program: HloModule) -> Iterator[Instruction]:
    return program.of("custom-call")


def _to_host(one: Instruction) -> bool:
    return one.opcode in ("infeed", "outfeed") or one.attribute("is_host_transfer") == "true"


def _transfer(one: Instruction, place: SourceLine | None) -> UnsupportedOp:
    return UnsupportedOp(op_name(one) or one.opcode, f"{one.opcode}: {_TRANSFERS[one.opcode]}", "host", place)


def _numbered(one: Instruction) -> str:
    """The number that the preflight appends to op names, "#12", to find the line."""
    found = _NUMBERED.search(op_name(one))
    return found[0] if found else ""


def _call(target: str, place: SourceLine | None) -> UnsupportedOp:
    name = _NUMBERED.sub("", target)
    return UnsupportedOp(target, f"a custom call to {name}, which XLA does not provide", "custom", place)
