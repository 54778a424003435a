"""How often the body of a loop runs, where the program gives it.

Either the compiler notes a known trip count, or it follows from the loop's counter: its start, what the body adds to
it, and what the condition compares it with. Seen with libtpu 0.0.21.1 and 0.0.52: a scan's loop has no note; its
condition is `compare(get-tuple-element, constant), direction=LT`, sometimes with copies between them, sometimes in a
fusion.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tpu_magics.preflight.analysis.hlo_module import Computation, HloModule, Instruction

_KNOWN = re.compile(r'"?known_trip_count"?:\s*\{"?n"?:\s*"?(\d+)')
_SAME = frozenset({"copy", "bitcast", "reshape", "convert", "copy-done", "broadcast", "optimization-barrier"})
_FLIPPED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE", "EQ": "EQ"}
_DEEPEST = 64


@dataclass(frozen=True)
class _Scalar:
    """`offset`, or element `index` of the loop's tuple plus `offset`."""

    index: int | None
    offset: int


def trip_count(program: HloModule, inside: Computation, loop: Instruction) -> int | None:
    """How often the body of the `while` runs each time; None where the program does not say."""
    noted = _KNOWN.search(loop.tail)
    if noted:
        return int(noted[1])
    body, condition = (_called(program, loop, name) for name in ("body", "condition"))
    if body is None or condition is None:
        return None
    compared = _compared(program, condition)
    return _count(program, inside, loop, body, compared) if compared else None


def _called(program: HloModule, one: Instruction, name: str) -> Computation | None:
    found = one.called(name)
    return program.computations.get(found[0]) if found else None


def _compared(program: HloModule, condition: Computation) -> tuple[_Scalar, str, _Scalar] | None:
    """The counter, the direction and the limit of a condition."""
    where, root, bound = condition, condition.instructions.get(condition.root), None
    if root is not None and root.opcode == "fusion":
        called = _called(program, root, "calls")
        bound = [_scalar(program, condition, name) for name in root.operands]
        where, root = (called, called.instructions.get(called.root)) if called else (condition, None)
    if root is None or root.opcode != "compare":
        return None
    sides = [_scalar(program, where, name, bound) for name in root.operands]
    if len(sides) != 2 or None in sides:
        return None
    left, right, direction = sides[0], sides[1], root.attribute("direction")
    assert left is not None and right is not None
    return (left, direction, right) if left.index is not None else (right, _FLIPPED.get(direction, ""), left)


def _count(
    program: HloModule,
    inside: Computation,
    loop: Instruction,
    body: Computation,
    compared: tuple[_Scalar, str, _Scalar],
) -> int | None:
    counter, direction, limit = compared
    start, end = _initial(program, inside, loop, counter), _initial(program, inside, loop, limit)
    step = _step(program, body, counter)
    if start is None or end is None or not step or (limit.index is not None and _step(program, body, limit) != 0):
        return None
    return _rounds(start, end, step, direction)


def _rounds(start: int, end: int, step: int, direction: str) -> int | None:
    if direction in ("LE", "GE"):
        end, direction = (end + 1, "LT") if direction == "LE" else (end - 1, "GT")
    way = {"LT": step > 0, "GT": step < 0, "NE": (end - start) % step == 0 and (end - start) // step >= 0}
    return max(0, -(-(end - start) // step)) if way.get(direction) else None


def _initial(program: HloModule, inside: Computation, loop: Instruction, value: _Scalar) -> int | None:
    """The value before the first round."""
    if value.index is None:
        return value.offset
    handed = inside.instructions.get(loop.operands[0]) if loop.operands else None
    if handed is None or handed.opcode != "tuple" or value.index >= len(handed.operands):
        return None
    found = _scalar(program, inside, handed.operands[value.index])
    return found.offset + value.offset if found is not None and found.index is None else None


def _step(program: HloModule, body: Computation, value: _Scalar) -> int | None:
    """What one round adds to that element of the loop's tuple."""
    root = body.instructions.get(body.root)
    if root is None or root.opcode != "tuple" or value.index is None or value.index >= len(root.operands):
        return None
    found = _scalar(program, body, root.operands[value.index])
    return found.offset if found is not None and found.index == value.index else None


def _scalar(
    program: HloModule, where: Computation, name: str, bound: list[_Scalar | None] | None = None, depth: int = 0
) -> _Scalar | None:
    """The value of that instruction. `bound`: the values of the computation's parameters, where it is a fusion's."""
    one = where.instructions.get(name)
    if one is None or depth > _DEEPEST:
        return None

    def of(operand: str) -> _Scalar | None:
        return _scalar(program, where, operand, bound, depth + 1)

    if one.opcode == "constant":
        return _Scalar(None, int(one.value)) if re.fullmatch(r"-?\d+", one.value) else None
    if one.opcode == "parameter":
        return bound[int(one.value)] if bound and one.value.isdigit() and int(one.value) < len(bound) else None
    if one.opcode == "get-tuple-element":
        source = where.instructions.get(one.operands[0]) if one.operands else None
        index = one.attribute("index")
        return _Scalar(int(index), 0) if source and source.opcode == "parameter" and index.isdigit() else None
    if one.opcode in _SAME or one.opcode == "copy-start":
        return of(one.operands[0]) if one.operands else None
    if one.opcode in ("add", "subtract") and len(one.operands) == 2:
        return _sum(of(one.operands[0]), of(one.operands[1]), 1 if one.opcode == "add" else -1)
    called = _called(program, one, "calls") if one.opcode == "fusion" else None
    return (
        _scalar(program, called, called.root, [of(operand) for operand in one.operands], depth + 1) if called else None
    )


def _sum(left: _Scalar | None, right: _Scalar | None, sign: int) -> _Scalar | None:
    if left is None or right is None or (right.index is not None and (left.index is not None or sign < 0)):
        return None
    return _Scalar(left.index if right.index is None else right.index, left.offset + sign * right.offset)
