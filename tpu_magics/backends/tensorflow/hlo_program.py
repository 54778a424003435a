"""The HLO of a step, made reproducible: equal steps give equal bytes."""

# Instructions and messages were read in TensorFlow 2.21 (xla/service/hlo.proto).

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensorflow.compiler.xla import xla_data_pb2
from tensorflow.compiler.xla.service import hlo_pb2

from tpu_magics.backends.hlo.proto import number_ops
from tpu_magics.backends.lowered import SourceLine


@dataclass(frozen=True)
class ProgramInput:
    """A possible parameter of the program: an argument or a captured value. `dtype`: "f32"."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}] {self.name}".strip()


@dataclass(frozen=True)
class HloProgram:
    """`hash`: of the module without names and numbers of ops; `places`: op number -> source line; `dynamic`: op types
    whose result shape depends on values, with their lines."""

    module: bytes
    hash: str
    donors: tuple[int, ...]
    parameters: tuple[str, ...]
    places: Mapping[int, SourceLine]
    dynamic: tuple[tuple[str, SourceLine | None], ...]


def program_of(
    serialized: bytes, name: str, lines: Mapping[str, SourceLine], values: Sequence[ProgramInput]
) -> HloProgram:
    """Args: a serialized HloModuleProto; the step's name; op name -> source line; possible parameters."""
    module = hlo_pb2.HloModuleProto.FromString(serialized)
    _normalise_names(module, name)
    _replace_copies(module)
    donors = {one.parameter_number for one in module.input_output_alias.entries}
    dynamic = tuple(dict.fromkeys(_dynamic(module, lines)))
    hash_ = _hash(module)
    module.ClearField("input_output_alias")  # the compiler refuses a module with both donors (see Graph) and this
    made = number_ops(module.SerializeToString(deterministic=True))
    return HloProgram(
        module=made.module,
        hash=hash_,
        donors=tuple(sorted(donors)),
        parameters=_parameters(module, values),
        places={number: lines[name] for number, name in made.names.items() if name in lines},
        dynamic=dynamic,
    )


def _instructions(module: Any) -> Iterator[Any]:
    return (instruction for computation in module.computations for instruction in computation.instructions)


def _normalise_names(module: Any, name: str) -> None:
    """Replace names that contain TensorFlow's running function numbers, which differ in each trace."""
    module.name, module.id = name, 0
    for number, computation in enumerate(module.computations):
        if computation.name == module.entry_computation_name:
            computation.name = module.entry_computation_name = name
        else:
            computation.name = f"computation.{number}"
    for number, instruction in enumerate(_instructions(module)):
        instruction.name = f"{instruction.opcode}.{number}"


def _replace_copies(module: Any) -> None:
    """TensorFlow puts a copy before each updated variable. StableHLO has none, and jaxlib's conversion fails on it
    (seen in 0.10.2); a reshape to the same shape is equivalent."""
    for instruction in _instructions(module):
        if instruction.opcode == "copy":
            instruction.opcode = "reshape"


def _hash(module: Any) -> str:
    bare = hlo_pb2.HloModuleProto()
    bare.CopyFrom(module)
    bare.name = bare.entry_computation_name = ""
    for computation in bare.computations:
        computation.name = ""
    for instruction in _instructions(bare):
        instruction.ClearField("metadata")
    return hashlib.sha256(bare.SerializeToString(deterministic=True)).hexdigest()


def _dynamic(module: Any, lines: Mapping[str, SourceLine]) -> Iterator[tuple[str, SourceLine | None]]:
    for instruction in _instructions(module):
        if instruction.opcode == "set-dimension-size":
            yield instruction.metadata.op_type, lines.get(instruction.metadata.op_name)


def _parameters(module: Any, values: Sequence[ProgramInput]) -> tuple[str, ...]:
    """The program's parameters are in the order of the values, without those that became constants."""
    left = list(values)
    found = []
    for shape in module.host_program_shape.parameters:
        dtype = xla_data_pb2.PrimitiveType.Name(shape.element_type).lower()
        value = ProgramInput("", dtype, tuple(shape.dimensions))
        place = next((n for n, one in enumerate(left) if (one.dtype, one.shape) == (value.dtype, value.shape)), None)
        if place is not None:
            value = left[place]
            del left[: place + 1]
        found.append(str(value))
    return tuple(found)
