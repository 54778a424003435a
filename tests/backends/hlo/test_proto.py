"""Op names that get numbers, in a module that is made here byte by byte."""

from __future__ import annotations

import pytest

from tpu_magics.backends.hlo.proto import HloFrame, number_ops


def field(number: int, content: bytes | int) -> bytes:
    """A field with a number below 16 as one byte of key; contents below 128 bytes."""
    key = (number << 3 | (0 if isinstance(content, int) else 2)).to_bytes(1, "little")
    if number > 15:
        key = bytes([(number << 3 & 127) | 128 | (0 if isinstance(content, int) else 2), number >> 4])
    return key + (bytes([content]) if isinstance(content, int) else bytes([len(content)]) + content)


def instruction(opcode: bytes, **metadata: bytes | int) -> bytes:
    numbers = {"op_type": 1, "op_name": 2, "source_file": 3, "source_line": 4, "stack_frame_id": 15}
    told = b"".join(field(numbers[name], value) for name, value in metadata.items())
    return field(2, field(1, opcode + b".1") + field(2, opcode) + (field(7, told) if told else b""))


INDEX = (
    field(1, b"train.py")
    + field(2, b"step")
    + field(2, b"main")
    + field(3, field(1, 1) + field(2, 1) + field(3, 7))
    + field(3, field(1, 1) + field(2, 2) + field(3, 30))
    + field(4, field(1, 2))
    + field(4, field(1, 1) + field(2, 1))
)
MODULE = (
    field(1, b"module")
    + field(
        3,
        field(1, b"entry")
        + instruction(b"dot", op_type=b"aten__mm", op_name=b"aten__mm.5", stack_frame_id=2)
        + instruction(b"add", op_type=b"aten__add", source_file=b"other.py", source_line=3)
        + instruction(b"copy"),
    )
    + field(17, INDEX)
)


def test_every_op_gets_a_number_and_its_frames() -> None:
    found = number_ops(MODULE)
    assert found.names == {0: "aten__mm.5", 1: "aten__add", 2: "copy"}
    assert found.frames == {
        0: (HloFrame("step", "train.py", 7), HloFrame("main", "train.py", 30)),
        1: (HloFrame("", "other.py", 3),),
        2: (),
    }
    assert all(one in found.module for one in (b"aten__mm.5#0", b"aten__add#1", b"copy#2"))


def test_nothing_in_the_module_tells_of_lines() -> None:
    found = number_ops(MODULE).module
    assert not [one for one in (b"train.py", b"other.py", b"step", b"main") if one in found]
    moved = MODULE.replace(field(3, 7), field(3, 8)).replace(field(4, 3), field(4, 9))
    assert moved != MODULE and number_ops(moved).module == found


def test_by_type_the_frameworks_running_numbers_are_left_out() -> None:
    found = number_ops(MODULE, by_type=True)
    assert found.names == {0: "aten__mm.5", 1: "aten__add", 2: "copy"} and b"aten__mm#0" in found.module
    assert found.module == number_ops(MODULE.replace(b"aten__mm.5", b"aten__mm.9"), by_type=True).module


@pytest.mark.parametrize("length", [1, 9, len(MODULE) // 2, len(MODULE) - 1])
def test_what_is_torn_is_no_message(length: int) -> None:
    with pytest.raises(ValueError, match=r"ends within|a field of|wire type"):
        number_ops(MODULE[:length])
