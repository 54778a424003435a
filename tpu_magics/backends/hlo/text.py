"""The text of an HLO module: all of it, as computations and their instructions (`HloModule`), or what is small enough
to keep many of (`Graph`).

The format is that of torch_xla 2.9.0, TensorFlow 2.21, and libtpu 0.0.21.1 and 0.0.52: one instruction per line, `%name
= type opcode(operands), attributes`; a computation begins and ends in the first column; the tables of source locations,
where there are any, stand between the first line and the first computation.
"""

from __future__ import annotations

import functools
import hashlib
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from pathlib import Path
from typing import NamedTuple

_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([a-z][\w\-]*)\((.*)$", re.MULTILINE)
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{\s*$")
# Operands end where attributes begin; a layout, "{1,0:T(8,128)}", closes brackets as well.
_OPERANDS_END = re.compile(r"\)(?:, (?=[a-z_\-]+=)|\s*$)")
_OPERAND = re.compile(r"%([\w.\-]+)")
_ATTRIBUTE = re.compile(r"\{([^{}]*)\}|[^, \n]+")


class Instruction(NamedTuple):
    """One line. `type`: as written, with its layout; `tail`: the text after the bracket of the operands."""

    name: str
    type: str
    opcode: str
    tail: str

    @property
    def parts(self) -> tuple[str, str]:
        """The text in the brackets (operands, the number of a parameter, the literal of a constant), and the attributes
        after it."""
        end = _OPERANDS_END.search(self.tail)
        return (self.tail[: end.start()], self.tail[end.end() :]) if end else (self.tail, "")

    @property
    def value(self) -> str:
        """The text in the brackets."""
        return self.parts[0]

    @property
    def operands(self) -> tuple[str, ...]:
        """The names of the operands, in their order."""
        return operand_names(self.value)

    def attribute(self, name: str) -> str:
        """The text of an attribute up to the next comma or space, or the text in its braces; "" without the
        attribute."""
        place = self.tail.find(f" {name}=")
        found = _ATTRIBUTE.match(self.tail, place + len(name) + 2) if place >= 0 else None
        return "" if found is None else found[0] if found[1] is None else found[1]

    def called(self, name: str) -> tuple[str, ...]:
        """The computations that an attribute names: `calls=%x`, `branch_computations={%a, %b}`."""
        return tuple(_OPERAND.findall(self.attribute(name)))


@dataclass
class Computation:
    """`instructions` by name, `opcodes`: the same by opcode, both in the order of the text; `root`: the name of the one
    that it returns."""

    name: str
    instructions: dict[str, Instruction] = field(default_factory=dict)
    opcodes: dict[str, list[Instruction]] = field(default_factory=dict)
    root: str = ""

    def parameter(self, number: int) -> Instruction | None:
        """The parameter of that number."""
        return next((one for one in self.of("parameter") if one.value == str(number)), None)

    def of(self, *opcodes: str) -> Iterator[Instruction]:
        """The instructions of these opcodes."""
        return (one for opcode in opcodes for one in self.opcodes.get(opcode, ()))


@dataclass
class HloModule:
    """One module. `entry`: the name of the computation that runs first, "" where the text has none; `header`: the first
    line; `tables`: the lines of the tables of source places."""

    computations: dict[str, Computation] = field(default_factory=dict)
    entry: str = ""
    header: str = ""
    tables: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Computation]:
        return iter(self.computations.values())

    def instructions(self) -> Iterator[Instruction]:
        """All of them, computation by computation."""
        return (one for computation in self for one in computation.instructions.values())

    def of(self, *opcodes: str) -> Iterator[Instruction]:
        """The instructions of these opcodes."""
        return (one for computation in self for one in computation.of(*opcodes))


def operand_names(value: str) -> tuple[str, ...]:
    """The names in the brackets of an instruction."""
    return tuple(_OPERAND.findall(value))


def instructions(text: str) -> list[Instruction]:
    """All instructions of a text, in its order."""
    return [Instruction(*parts[1:]) for parts in _INSTRUCTION.findall(text)]


def read_module(path: Path) -> HloModule:
    """The module in that file. Lines of an unknown form are left out. Raises OSError where there is no such file."""
    with path.open(encoding="utf-8", errors="replace") as file:
        return parse_module(file)


def parse_module(lines: Iterable[str]) -> HloModule:
    """The module of these lines."""
    program, computation = HloModule(), None
    for line in lines:
        if line.startswith(" "):
            found = _INSTRUCTION.match(line)
            if found and computation is not None:
                _add(computation, *found.groups())
        elif (heading := _COMPUTATION.match(line)) and not line.startswith("HloModule"):
            computation = program.computations.setdefault(heading[2], Computation(heading[2]))
            program.entry = heading[2] if heading[1] else program.entry
        elif computation is None:
            _before(program, line)
    return program


def _add(computation: Computation, root: str | None, name: str, type_: str, opcode: str, tail: str) -> None:
    one = computation.instructions[name] = Instruction(name, type_, opcode, tail)
    computation.opcodes.setdefault(opcode, []).append(one)
    if root:
        computation.root = name


def _before(program: HloModule, line: str) -> None:
    if line.startswith("HloModule"):
        program.header = line.rstrip("\n")
    elif line.strip():
        program.tables.append(line.rstrip("\n"))


# -- element types ----------------------------------------------------------------------------------------------------

_XLA = {"bool": "pred", "bfloat16": "bf16"}
_FRAMEWORK = {xla: name for name, xla in _XLA.items()}
_PREFIXES = (("f", "float"), ("s", "int"), ("u", "uint"), ("c", "complex"))


def xla_name(dtype: str) -> str:
    """XLA's name of a framework's element type: "float32" -> "f32", "int64" -> "s64", "bool" -> "pred"."""
    return _XLA.get(dtype) or next(
        (short + dtype.removeprefix(long) for short, long in _PREFIXES if dtype.startswith(long)), dtype
    )


def framework_name(dtype: str) -> str:
    """A framework's name of XLA's element type: "f32" -> "float32", "s64" -> "int64", "pred" -> "bool"."""
    return _FRAMEWORK.get(dtype) or next(
        (long + dtype[1:] for short, long in _PREFIXES if dtype.startswith(short) and dtype[1:].isdigit()), dtype
    )


# -- graphs -----------------------------------------------------------------------------------------------------------


MULTIPLYING = frozenset({"dot", "convolution", "ragged-dot", "scaled-dot"})
_MULTIPLYING_CALL = re.compile(r'custom_call_target="[^"]*(?:matmul|gemm|conv)[^"]*"', re.IGNORECASE)

_NUMBERED = re.compile(r"(%[A-Za-z_][\w\-]*)(?:\.\d+)+")
_TENSOR = re.compile(r"([a-z]\w*)\[([^\]]*)\]")
_DONATED = re.compile(r"\((\d+), \{")
# With XLA_HLO_DEBUG=1 the dump has source lines, which are not part of the computation.
_METADATA = re.compile(r",? ?metadata=\{[^{}]*\}")
_TABLES = re.compile(r"^(?:FileNames|FunctionNames|FileLocations|StackFrames)\n(?:\d.*\n)*\n?", re.MULTILINE)


class Tensor(NamedTuple):
    """An element type as XLA names it ("f32", "bf16", "s64", "pred") and a shape."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


class Op(NamedTuple):
    """One instruction. `results`: its tensors (more than one for a tuple); `operands`: how many instructions earlier
    each was made (0: not in the text before it); `attributes`: the text after the operands, without the numbers of
    computations; `value`: the literal of a constant, the number of a parameter, else ""."""

    opcode: str
    results: tuple[Tensor, ...]
    operands: tuple[int, ...]
    attributes: str
    value: str

    @property
    def result(self) -> Tensor:
        """The (first) tensor it makes."""
        return self.results[0] if self.results else Tensor("tuple", ())


@dataclass(frozen=True)
class Graph:
    """A parsed module. Two graphs are equal if their digests are.

    `parameters`: of the entry computation, in the order of their numbers; `outputs`: its results; `donated`: the
    numbers of parameters whose memory results may reuse; `digest`: of the text without the module's name. `multiplied`:
    the element types of the operands of each matmul and convolution. `counts`: the number of instructions of each
    opcode; `signature`: of each opcode, result type and constant.
    """

    digest: str
    parameters: tuple[Tensor, ...] = field(compare=False)
    outputs: tuple[Tensor, ...] = field(compare=False)
    donated: frozenset[int] = field(compare=False)
    multiplied: tuple[tuple[str, ...], ...] = field(compare=False, repr=False)
    counts: Counter[str] = field(compare=False, repr=False)
    signature: Counter[str] = field(compare=False, repr=False)
    packed: bytes = field(compare=False, repr=False)

    @property
    def ops(self) -> tuple[Op, ...]:
        """All instructions of all computations. Parsed again from the packed text, so that many graphs can be kept."""
        return _ops(self.packed)


def parse(text: str) -> Graph:
    """Parse one module. Any other text gives a graph without instructions."""
    header, _, body = _without_places(text).partition("\n")
    found = instructions(body)
    types = {one.name: one.type for one in found}
    nameless, entry = _without_name(header, body)
    parameters, outputs = _interface(entry)
    return Graph(
        digest=hashlib.sha256(nameless.encode("utf-8", "surrogatepass")).hexdigest(),
        parameters=parameters,
        outputs=outputs,
        donated=frozenset(int(number) for number in _DONATED.findall(header.partition("entry_computation_layout")[0])),
        multiplied=tuple(_operand_types(one, types) for one in found if _multiplies(one)),
        counts=Counter(one.opcode for one in found),
        signature=_signature(found),
        packed=zlib.compress(body.encode("utf-8", "surrogatepass"), 1),
    )


def read(path: Path) -> Graph | None:
    """The graph in a file that XLA dumped; None if it cannot be read, or has an unknown format."""
    try:
        return parse(path.read_text("utf-8", "replace"))
    except (OSError, ValueError, LookupError):
        return None


def join(graphs: Sequence[Graph]) -> Graph:
    """Concatenate the pieces of one graph, in the order in which they run."""
    starts = list(accumulate((len(one.parameters) for one in graphs), initial=0))
    return Graph(
        digest=hashlib.sha256(" ".join(one.digest for one in graphs).encode()).hexdigest(),
        parameters=tuple(chain.from_iterable(one.parameters for one in graphs)),
        outputs=tuple(chain.from_iterable(one.outputs for one in graphs)),
        donated=frozenset(start + n for start, one in zip(starts, graphs, strict=False) for n in one.donated),
        multiplied=tuple(chain.from_iterable(one.multiplied for one in graphs)),
        counts=sum((one.counts for one in graphs), Counter()),
        signature=sum((one.signature for one in graphs), Counter()),
        packed=zlib.compress(b"\n".join(zlib.decompress(one.packed) for one in graphs), 1),
    )


def _without_places(text: str) -> str:
    """Remove source line metadata, which not every dump has."""
    text = _METADATA.sub("", text) if "metadata={" in text else text
    return _TABLES.sub("", text) if "\nFileNames\n" in text else text


def _without_name(header: str, body: str) -> tuple[str, str]:
    """The text without the module's name (it is in the first line and in that of the entry computation), and the text
    of the entry computation."""
    before, _, entry = body.rpartition("\nENTRY ")
    entry = entry.partition("(")[2]
    return "\n".join((header.partition(",")[2], before, entry)), entry


def _interface(entry: str) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """Parameters and results of the entry computation, whose text starts here: "p0.1: s64[], ...) -> (f32[], ...) {". A
    tuple counts as its elements: on a TPU, torch_xla passes thousands of parameters as one tuple."""
    parameters, _, outputs = entry.partition("\n")[0].rpartition(" -> ")
    return _tensors(parameters), _tensors(outputs)


def _tensors(type_: str) -> tuple[Tensor, ...]:
    """The tensors of a type as HLO writes it: "f32[2,5]{1,0}" or "(u64[2]{0}, /*index=1*/f32[])"."""
    return tuple(
        Tensor(sys.intern(dtype), tuple(int(size.strip("<= ?") or 0) for size in shape.split(",") if size.strip()))
        for dtype, shape in _TENSOR.findall(type_)
    )


def _multiplies(one: Instruction) -> bool:
    called = one.opcode == "custom-call" and _MULTIPLYING_CALL.search(one.parts[1])
    return one.opcode in MULTIPLYING or bool(called)


def _operand_types(one: Instruction, types: dict[str, str]) -> tuple[str, ...]:
    return tuple(types.get(name, "").partition("[")[0] for name in one.operands[:2])


def _signature(found: Iterable[Instruction]) -> Counter[str]:
    counts = Counter((one.opcode, one.type, one.value if one.opcode == "constant" else "") for one in found)
    return Counter({sys.intern(" ".join(key)[:200]): count for key, count in counts.items()})


@functools.lru_cache(maxsize=2)
def _ops(packed: bytes) -> tuple[Op, ...]:
    return tuple(_read_ops(instructions(zlib.decompress(packed).decode("utf-8", "surrogatepass"))))


def _read_ops(found: Iterable[Instruction]) -> Iterator[Op]:
    places: dict[str, int] = {}
    tensors = functools.lru_cache(maxsize=None)(_tensors)  # few types occur in many instructions
    for place, one in enumerate(found):
        value, attributes = one.parts
        literal = one.opcode in ("constant", "parameter", "iota")
        earlier = () if literal else tuple(place - places.get(name, place) for name in operand_names(value))
        places[one.name] = place
        yield Op(
            sys.intern(one.opcode),
            tensors(one.type),
            earlier,
            _NUMBERED.sub(r"\1", attributes) if "%" in attributes else attributes,
            value if literal else "",
        )


# -- counting ---------------------------------------------------------------------------------------------------------


def fingerprint(graph: Graph) -> str:
    """Equal for equal graphs, however they are written: XLA's dumps and torch_xla's text use other numbers and names.
    It covers opcodes, types, constants, attributes, and where each operand comes from."""
    ops = "\n".join(f"{op.opcode} {op.results} {op.operands} {op.attributes} {op.value}" for op in graph.ops)
    return hashlib.sha256(ops.encode("utf-8", "surrogatepass")).hexdigest()


def multiplications(graph: Graph) -> tuple[int, int]:
    """How many matmuls and convolutions of floating-point numbers there are, and how many of them are in bf16. The
    operands decide, because sums may be kept wider."""
    types = multiplied_types(graph)
    return sum(types.values()), types.get("bf16", 0)


def multiplied_types(graph: Graph) -> dict[str, int]:
    """How many of those matmuls and convolutions there are of each element type; of two types, the wider one's name."""
    floating = [types for types in graph.multiplied if all(_is_floating(dtype) for dtype in types)]
    return dict(Counter(next((dtype for dtype in types if dtype != "bf16"), "bf16") for types in floating))


def dtype_counts(graph: Graph) -> dict[str, int]:
    """How many of the graph's parameters have each element type, the most frequent first."""
    return dict(Counter(parameter.dtype for parameter in graph.parameters).most_common())


def _is_floating(dtype: str) -> bool:
    return dtype.startswith(("f", "bf", "c"))
