"""The text of an HLO module: computations and their instructions; and the names of element types.

The format is that of torch_xla 2.9.0, TensorFlow 2.21, and libtpu 0.0.21.1 and 0.0.52: one instruction per line, `%name
= type opcode(operands), attributes`; a computation begins and ends in the first column; the tables of source locations,
where there are any, stand between the first line and the first computation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
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
