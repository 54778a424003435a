"""A serialized HloModuleProto, its notes of source lines taken out.

What lives here: reading and writing protocol buffers as far as that needs (https://protobuf.dev/programming-guides/encoding),
and the numbers of the fields. What does not: what a graph means. Standard library only: neither torch_xla nor jaxlib
has these messages in Python.

The fields were read in openxla's hlo.proto and xla_data.proto (2025-08, as in torch_xla 2.9.0 and jaxlib 0.7.2); they
are part of a stable format, whose numbers are never given anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

# HloModuleProto, HloComputationProto, HloInstructionProto, OpMetadata
_COMPUTATIONS, _STACK_FRAME_INDEX = 3, 17
_INSTRUCTIONS = 2
_OPCODE, _METADATA = 2, 7
_OP_TYPE, _OP_NAME, _SOURCE_FILE, _SOURCE_LINE, _STACK_FRAME_ID = 1, 2, 3, 4, 15

_T = TypeVar("_T")
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Frame(NamedTuple):
    """A line of Python that led to an instruction."""

    function: str
    path: str
    line: int


@dataclass(frozen=True)
class Numbered:
    """`module`: each instruction's op name ends with "#" and a number, and nothing else in it tells of source lines;
    `frames`: number -> the Python frames that led to it, innermost first."""

    module: bytes
    frames: Mapping[int, tuple[Frame, ...]]


def numbered(module: bytes, by_type: bool = False) -> Numbered:
    """Take the source lines out of a module. `by_type`: ops are named by their type alone, where the names themselves
    are counted anew in each step. Raises ValueError where it is no message."""
    fields = list(_fields(module))
    index = _Index(next((value for number, _, value in fields if number == _STACK_FRAME_INDEX), b""))
    frames: dict[int, tuple[Frame, ...]] = {}
    found: list[bytes] = []
    for number, kind, value in fields:
        if number == _STACK_FRAME_INDEX:
            continue
        if number == _COMPUTATIONS:
            value = _computation(value, index, frames, by_type)
        found.append(_field(number, kind, value))
    return Numbered(b"".join(found), frames)


def _computation(data: bytes, index: _Index, frames: dict[int, tuple[Frame, ...]], by_type: bool) -> bytes:
    return b"".join(
        _field(number, kind, _instruction(value, index, frames, by_type) if number == _INSTRUCTIONS else value)
        for number, kind, value in _fields(data)
    )


def _instruction(data: bytes, index: _Index, frames: dict[int, tuple[Frame, ...]], by_type: bool) -> bytes:
    fields = list(_fields(data))
    metadata = next((value for number, _, value in fields if number == _METADATA), b"")
    opcode = next((value for number, _, value in fields if number == _OPCODE), b"")
    found = {number: value for number, _, value in _fields(metadata)}
    number = len(frames)
    frames[number] = index.frames(found)
    keys = (_OP_TYPE,) if by_type else (_OP_NAME, _OP_TYPE)
    name = next((found[key] for key in keys if found.get(key)), opcode)
    kept = {_OP_TYPE: found.get(_OP_TYPE, b""), _OP_NAME: name + f"#{number}".encode()}
    fresh = b"".join(_field(key, _BYTES, value) for key, value in kept.items() if value)
    rest = b"".join(_field(*one) for one in fields if one[0] != _METADATA)
    return rest + _field(_METADATA, _BYTES, fresh)


class _Index:
    """A StackFrameIndexProto: ids count from 1, 0 is none."""

    def __init__(self, data: bytes) -> None:
        parts: dict[int, list[bytes]] = {1: [], 2: [], 3: [], 4: []}
        for number, _, value in _fields(data):
            parts.setdefault(number, []).append(value)
        self.files = [one.decode("utf-8", "replace") for one in parts[1]]
        self.functions = [one.decode("utf-8", "replace") for one in parts[2]]
        self.locations = [_numbers(one) for one in parts[3]]  # 1: file, 2: function, 3: line
        self.stack = [_numbers(one) for one in parts[4]]  # 1: location, 2: parent
        self.known: dict[int, tuple[Frame, ...]] = {0: ()}

    def frames(self, metadata: Mapping[int, bytes]) -> tuple[Frame, ...]:
        """Of an instruction's metadata, innermost first."""
        number = _number(metadata.get(_STACK_FRAME_ID, b""))
        if number:
            return self._chain(number)
        path = metadata.get(_SOURCE_FILE, b"").decode("utf-8", "replace")
        return (Frame("", path, _number(metadata.get(_SOURCE_LINE, b""))),) if path else ()

    def _chain(self, number: int) -> tuple[Frame, ...]:
        if number not in self.known:
            found: list[Frame] = []
            left = number
            while 0 < left <= len(self.stack) and len(found) < len(self.stack):
                location = _at(self.locations, self.stack[left - 1].get(1, 0), {})
                names = _at(self.functions, location.get(2, 0), ""), _at(self.files, location.get(1, 0), "")
                found.append(Frame(*names, location.get(3, 0)))
                parent = self.stack[left - 1].get(2, 0)
                left = 0 if parent == left else parent
            self.known[number] = tuple(found)
        return self.known[number]


def _at(items: Sequence[_T], number: int, default: _T) -> _T:
    return items[number - 1] if 0 < number <= len(items) else default


def donated(module: bytes, parameters: Iterable[int]) -> bytes:
    """The module with these parameters donated (HloModuleProto.buffer_donor), as torch_xla compiles it."""
    entries = b"".join(_field(1, _BYTES, _field(1, _VARINT, _varint(number))) for number in parameters)
    return module + _field(18, _BYTES, entries)


# -- protocol buffers -------------------------------------------------------------------------------------------------


def _fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(number, wire type, content) of each field; a varint's content is its own bytes."""
    place, end = 0, len(data)
    while place < end:
        key, place = _read_varint(data, place)
        kind = key & 7
        if kind == _BYTES:
            size, place = _read_varint(data, place)
        elif kind == _VARINT:
            size = _read_varint(data, place)[1] - place
        elif kind in (_FIXED64, _FIXED32):
            size = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind} at byte {place}")
        if place + size > end:
            raise ValueError(f"a field of {size} bytes at byte {place} of {end}")
        yield key >> 3, kind, data[place : place + size]
        place += size


def _field(number: int, kind: int, content: bytes) -> bytes:
    size = _varint(len(content)) if kind == _BYTES else b""
    return _varint(number << 3 | kind) + size + content


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if place >= len(data):
            raise ValueError("the message ends within a number")
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def _number(content: bytes) -> int:
    return _read_varint(content, 0)[0] if content else 0


def _numbers(data: bytes) -> dict[int, int]:
    return {number: _number(value) for number, kind, value in _fields(data) if kind == _VARINT}
