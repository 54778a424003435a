"""A serialized HloModuleProto, read and written without its source line metadata. Standard library only: neither
torch_xla nor jaxlib has these messages in Python.

Wire format: https://protobuf.dev/programming-guides/encoding. Field numbers: openxla's hlo.proto and xla_data.proto
(2025-08, as in torch_xla 2.9.0 and jaxlib 0.7.2); they are stable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

# HloModuleProto, HloComputationProto, HloInstructionProto, OpMetadata
_COMPUTATIONS, _STACK_FRAME_INDEX = 3, 17
_INSTRUCTIONS = 2
_OPCODE, _METADATA = 2, 7
_OP_TYPE, _OP_NAME, _SOURCE_FILE, _SOURCE_LINE, _STACK_FRAME_ID = 1, 2, 3, 4, 15

_T = TypeVar("_T")
_VARINT, _BYTES = 0, 2  # wire types
_FIXED = {1: 8, 5: 4}  # wire type -> bytes
_MORE = 128  # bit of a varint's byte: more bytes follow


class HloFrame(NamedTuple):
    """A line of Python that created an instruction."""

    function: str
    path: str
    line: int


@dataclass(frozen=True)
class NumberedModule:
    """`module`: each instruction's op name ends with "#" and a number, and it has no other source line metadata;
    `frames`: number -> the Python frames that created it, innermost first; `names`: number -> the op's name before,
    with its scopes."""

    module: bytes
    frames: Mapping[int, tuple[HloFrame, ...]]
    names: Mapping[int, str]


_Ops = list[tuple[str, tuple[HloFrame, ...]]]  # by their numbers


def number_ops(module: bytes, by_type: bool = False) -> NumberedModule:
    """Remove the source lines from a module, and number its instructions. `by_type`: name ops only by their type, for
    frameworks whose op names are numbered differently in each step. Raises ValueError if it is not a message."""
    fields = _fields(module)
    index = _Index(next((module[at:end] for number, _, _, at, end in fields if number == _STACK_FRAME_INDEX), b""))
    ops: _Ops = []
    found: list[bytes] = []
    for number, _, start, at, end in fields:
        if number == _COMPUTATIONS:
            found.append(message_field(number, _computation(module[at:end], index, ops, by_type)))
        elif number != _STACK_FRAME_INDEX:
            found.append(module[start:end])
    return NumberedModule(
        module=b"".join(found),
        frames={number: frames for number, (_, frames) in enumerate(ops)},
        names={number: name for number, (name, _) in enumerate(ops)},
    )


def _computation(data: bytes, index: _Index, ops: _Ops, by_type: bool) -> bytes:
    return b"".join(
        message_field(number, _instruction(data[at:end], index, ops, by_type))
        if number == _INSTRUCTIONS
        else data[start:end]
        for number, _, start, at, end in _fields(data)
    )


def _instruction(data: bytes, index: _Index, ops: _Ops, by_type: bool) -> bytes:
    opcode, found, rest = b"", {}, []
    for number, _, start, at, end in _fields(data):
        if number == _METADATA:
            found = {name: data[at + a : at + b] for name, _, _, a, b in _fields(data[at:end])}
            continue
        rest.append(data[start:end])
        if number == _OPCODE:
            opcode = data[at:end]
    keys = (_OP_TYPE,) if by_type else (_OP_NAME, _OP_TYPE)
    name = next((found[key] for key in keys if found.get(key)), opcode)
    kept = {_OP_TYPE: found.get(_OP_TYPE, b""), _OP_NAME: name + b"#%d" % len(ops)}
    before = found.get(_OP_NAME) or name
    ops.append((before.decode("utf-8", "replace"), index.frames(found)))
    rest.append(message_field(_METADATA, b"".join(message_field(key, value) for key, value in kept.items() if value)))
    return b"".join(rest)


class _Index:
    """A StackFrameIndexProto: ids count from 1, 0 is none."""

    def __init__(self, data: bytes) -> None:
        parts: dict[int, list[bytes]] = {1: [], 2: [], 3: [], 4: []}
        for number, _, _, at, end in _fields(data):
            parts.setdefault(number, []).append(data[at:end])
        self.files = [one.decode("utf-8", "replace") for one in parts[1]]
        self.functions = [one.decode("utf-8", "replace") for one in parts[2]]
        self.locations = [_numbers(one) for one in parts[3]]  # 1: file, 2: function, 3: line
        self.stack = [_numbers(one) for one in parts[4]]  # 1: location, 2: parent
        self.known: dict[int, tuple[HloFrame, ...]] = {0: ()}

    def frames(self, metadata: Mapping[int, bytes]) -> tuple[HloFrame, ...]:
        """The stack frames in an instruction's metadata, innermost first."""
        number = _number(metadata.get(_STACK_FRAME_ID, b""))
        if number:
            return self._chain(number)
        path = metadata.get(_SOURCE_FILE, b"").decode("utf-8", "replace")
        return (HloFrame("", path, _number(metadata.get(_SOURCE_LINE, b""))),) if path else ()

    def _chain(self, number: int) -> tuple[HloFrame, ...]:
        if number not in self.known:
            found: list[HloFrame] = []
            left = number
            while 0 < left <= len(self.stack) and len(found) < len(self.stack):
                location = _at(self.locations, self.stack[left - 1].get(1, 0), {})
                names = _at(self.functions, location.get(2, 0), ""), _at(self.files, location.get(1, 0), "")
                found.append(HloFrame(*names, location.get(3, 0)))
                parent = self.stack[left - 1].get(2, 0)
                left = 0 if parent == left else parent
            self.known[number] = tuple(found)
        return self.known[number]


def _at(items: Sequence[_T], number: int, default: _T) -> _T:
    return items[number - 1] if 0 < number <= len(items) else default


# -- protocol buffers -------------------------------------------------------------------------------------------------


def _fields(data: bytes) -> list[tuple[int, int, int, int, int]]:
    """(number, wire type, start of its key, start and end of its content) of each field; a varint's content is its own
    bytes. A graph has hundreds of thousands of fields, nearly all with one-byte keys and sizes."""
    found = []
    place, stop = 0, len(data)
    while place < stop:
        start = place
        key, place = (data[place], place + 1) if data[place] < _MORE else _read_varint(data, place)
        kind = key & 7
        if kind == _BYTES:
            single = place < stop and data[place] < _MORE
            size, place = (data[place], place + 1) if single else _read_varint(data, place)
        elif kind == _VARINT:
            size = _read_varint(data, place)[1] - place
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise ValueError(f"wire type {kind} at byte {place}")
        end = place + size
        if end > stop:
            raise ValueError(f"a field of {size} bytes at byte {place} of {stop}")
        found.append((key >> 3, kind, start, place, end))
        place = end
    return found


def message_field(number: int, content: bytes) -> bytes:
    """A field of bytes: a text, or a message."""
    size = len(content)
    return bytes((number << 3 | _BYTES,)) + (bytes((size,)) if size < _MORE else _varint(size)) + content


def varint_field(number: int, value: int, zero: bool = False) -> bytes:
    """A field with a number from 0 on. `zero`: also 0 is written, as one of several values."""
    return _varint(number << 3 | _VARINT) + _varint(value) if value or zero else b""


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if place >= len(data):
            raise ValueError("the message ends within a number")
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < _MORE:
            return value, place
        shift += 7


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= _MORE:
        found.append(value & 127 | _MORE)
        value >>= 7
    found.append(value)
    return bytes(found)


def _number(content: bytes) -> int:
    return _read_varint(content, 0)[0] if content else 0


def _numbers(data: bytes) -> dict[int, int]:
    return {number: _number(data[at:end]) for number, kind, _, at, end in _fields(data) if kind == _VARINT}
