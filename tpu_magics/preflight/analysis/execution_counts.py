"""How often each computation of a program runs, from the entry through calls, loops and branches.

Fusions are calls. Of a conditional the branch that weighs most counts, the others do not (so does XLA's own count). A
loop whose number of iterations the program does not give counts once. Both are guesses: an execution may do less.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tpu_magics.backends.hlo.text import Computation, HloModule, Instruction

# -- trip counts of loops ---------------------------------------------------------------------------------------------

# Either the compiler notes a known trip count, or it follows from the loop's counter: its start, what the body adds to
# it, and what the condition compares it with. Seen with libtpu 0.0.21.1 and 0.0.52: a scan's loop has no note; its
# condition is `compare(get-tuple-element, constant), direction=LT`, sometimes with copies between them, sometimes in a
# fusion.
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
    return _trips(program, inside, loop, body, compared) if compared else None


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


def _trips(
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
    return _iterations(start, end, step, direction)


def _iterations(start: int, end: int, step: int, direction: str) -> int | None:
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


# -- executions of computations ---------------------------------------------------------------------------------------

_CALLED_BY = {"fusion": "calls", "call": "to_apply", "async-start": "calls", "custom-call": "called_computations"}
_CALLING = (*_CALLED_BY, "while", "conditional")


@dataclass
class ExecutionCounts:
    """`times`: of each computation, how often in one execution (fused ones too); `loops`: the computations that a loop
    runs; `unknown`: those of them whose loop has no known number of rounds; `chosen`: the branches that count."""

    times: Counter[str] = field(default_factory=Counter)
    loops: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    chosen: set[str] = field(default_factory=set)

    @property
    def guessed(self) -> bool:
        """Whether an execution may do less than is counted."""
        return bool(self.unknown or self.chosen)


@dataclass(frozen=True)
class _Call:
    name: str
    times: int = 1
    looped: bool = False
    unknown: bool = False
    chosen: bool = False


def count_executions(program: HloModule, weigh: Callable[[Computation], float]) -> ExecutionCounts:
    """The counts. `weigh`: what one run of a computation weighs by itself, to choose the branch of a conditional."""
    weights: dict[str, float] = {}
    calls: dict[str, list[_Call]] = {}
    for computation in program:  # what is called stands before what calls it
        found = calls[computation.name] = _calls(program, computation, weights)
        weights[computation.name] = weigh(computation) + sum(one.times * weights.get(one.name, 0.0) for one in found)
    counts = ExecutionCounts(Counter({program.entry: 1}))
    for name in reversed(calls):
        for call in calls[name] if counts.times[name] else ():
            _count(counts, name, call)
    return counts


def _count(counts: ExecutionCounts, caller: str, call: _Call) -> None:
    counts.times[call.name] += counts.times[caller] * call.times
    if call.looped or caller in counts.loops:
        counts.loops.add(call.name)
    if call.unknown or caller in counts.unknown:
        counts.unknown.add(call.name)
    if call.chosen:
        counts.chosen.add(call.name)


def _calls(program: HloModule, computation: Computation, weights: dict[str, float]) -> list[_Call]:
    found: list[_Call] = []
    for one in computation.of(*_CALLING):
        if one.opcode == "while":
            found += _loop_calls(program, computation, one)
        elif one.opcode == "conditional":
            found += _branch(one, weights)
        else:
            found += (_Call(name) for name in one.called(_CALLED_BY[one.opcode]))
    return [call for call in found if call.name in program.computations]


def _loop_calls(program: HloModule, computation: Computation, loop: Instruction) -> list[_Call]:
    known = trip_count(program, computation, loop)
    times = 1 if known is None else known
    bodies = (*loop.called("body"), *loop.called("condition"))
    return [_Call(name, times, looped=True, unknown=known is None) for name in bodies]


def _branch(one: Instruction, weights: dict[str, float]) -> list[_Call]:
    branches = one.called("branch_computations") or (
        *one.called("true_computation"),
        *one.called("false_computation"),
    )
    return [_Call(max(branches, key=lambda name: weights.get(name, 0.0)), chosen=True)] if branches else []
