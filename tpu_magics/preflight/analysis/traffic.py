"""Bytes that the optimised program reads from and writes to HBM.

A lower bound: each operand of an instruction is read once, as laid out; an operand of which only slices are read counts
with the slices; a result that overwrites a part of an operand counts with that part, read and written. Bodies of loops
count as often as they run, where the program gives it, like multiplications. XLA's own `bytes accessed` counts copies
into on-chip memory as well.
"""

from __future__ import annotations

from collections.abc import Iterator

from tpu_magics.backends.hlo.text import Computation, HloModule, Instruction
from tpu_magics.preflight.analysis.execution_counts import ExecutionCounts
from tpu_magics.preflight.analysis.instructions import array_shapes

# These make no data move: names for what is there, and the ends of what was started before.
_FREE = frozenset(
    {
        *(
            "parameter",
            "constant",
            "tuple",
            "get-tuple-element",
            "bitcast",
            "while",
            "conditional",
            "call",
            "after-all",
        ),
        *(
            "optimization-barrier",
            "add-dependency",
            "partition-id",
            "replica-id",
            "opt-barrier",
            "domain",
            "send",
            "recv",
        ),
    }
)
_FREE_CALLS = frozenset({"AllocateBuffer", "ConcatBitcast", "AssumeGatherIndicesInBound", "X64Combine"})
_SLICING = frozenset({"dynamic-slice", "slice", "gather"})
_RENAMING = frozenset({"bitcast", "reshape"})
# The operand that says what is written, of those that overwrite a part of their first one.
_OVERWRITING = {"dynamic-update-slice": 1, "scatter": 2}
_DEEPEST = 8


def hbm_bytes(traffic: HbmTraffic, counts: ExecutionCounts) -> float:
    """Bytes of one execution on one device."""
    every = ((counts.times[computation.name], computation, one) for computation, one in traffic.operations())
    return float(sum(times * traffic.of(computation, one) for times, computation, one in every))


def _in_hbm(type_: str) -> int:
    return sum(one.padded for one in array_shapes(type_) if one.space == 0)


class HbmTraffic:
    """What the operations of one program move."""

    def __init__(self, program: HloModule) -> None:
        self._program = program
        self._users: dict[str, dict[str, list[Instruction]]] = {}

    def operations(self) -> Iterator[tuple[Computation, Instruction]]:
        """The instructions that move data, each with its computation. A fusion is one, and counts as a whole."""
        apart = {name for one in self._program.of("fusion", "async-start") for name in one.called("calls")}
        for computation in self._program:
            if computation.name not in apart:
                yield from ((computation, one) for one in computation.instructions.values() if not is_free(one))

    def of(self, computation: Computation, one: Instruction) -> int:
        """Bytes of one run of an instruction."""
        return self._read(computation, one) + self._written(computation, one)

    def _read(self, computation: Computation, one: Instruction) -> int:
        return sum(self._operand(computation, one, nth, name) for nth, name in enumerate(one.operands))

    def _operand(self, computation: Computation, one: Instruction, nth: int, name: str) -> int:
        source = computation.instructions.get(name)
        size = _in_hbm(source.type) if source is not None else 0
        return min(size, self._taken(computation, one, nth, size, 0)) if size else 0

    def _taken(self, computation: Computation, one: Instruction, nth: int, size: int, depth: int) -> int:
        """How much an instruction takes of its operand of that number, which has this size."""
        if nth == 0 and one.opcode in _SLICING:
            return sum(made.padded for made in array_shapes(one.type))
        if nth == 0 and one.opcode in _OVERWRITING:
            return self._update(computation, one) if one.opcode == "scatter" else 0
        called = self._called(one)
        parameter = called.parameter(nth) if called is not None and depth < _DEEPEST else None
        if called is None or parameter is None or parameter.name == called.root:
            return size
        return self._used(called, parameter.name, size, depth + 1)

    def _used(self, computation: Computation, name: str, size: int, depth: int) -> int:
        """How much a computation takes of the value of that name."""
        total = 0
        for user in self.users(computation).get(name, []):
            if user.opcode in _RENAMING and user.name != computation.root and depth < _DEEPEST:
                total += self._used(computation, user.name, size, depth + 1)
            else:
                total += self._taken(computation, user, user.operands.index(name), size, depth)
        return min(size, total)

    def _written(self, computation: Computation, one: Instruction) -> int:
        made = list(array_shapes(one.type))
        if one.opcode.endswith("-start"):  # (operands, results, context); of a copy (result, operand, context)
            sources = (computation.instructions.get(name) for name in one.operands)
            taken = sum(len(array_shapes(source.type)) for source in sources if source is not None)
            made = made[:1] if one.opcode == "copy-start" else made[taken:] or made
        called = self._called(one)
        where, root = (called, called.instructions.get(called.root)) if called is not None else (computation, one)
        parts = self._parts(where, root, len(made)) if root is not None else [None] * len(made)
        return sum(
            one.padded if part is None else part for one, part in zip(made, parts, strict=True) if one.space == 0
        )

    def _parts(self, where: Computation, root: Instruction, count: int) -> list[int | None]:
        """The bytes that are written of each result, where it is not the whole one."""
        roots = [where.instructions.get(name) for name in root.operands] if root.opcode == "tuple" else [root]
        found = [self._part(where, one) if one is not None else None for one in roots]
        return found if len(found) == count else [None] * count

    def _part(self, where: Computation, one: Instruction) -> int | None:
        for _ in range(_DEEPEST):
            if one.opcode in _OVERWRITING:
                return self._update(where, one)
            source = where.instructions.get(one.operands[0]) if one.operands else None
            if one.opcode not in _RENAMING or source is None:
                return None
            one = source
        return None

    def _update(self, where: Computation, one: Instruction) -> int:
        place = _OVERWRITING[one.opcode]
        source = where.instructions.get(one.operands[place]) if place < len(one.operands) else None
        return sum(made.padded for made in array_shapes(source.type)) if source is not None else 0

    def _called(self, one: Instruction) -> Computation | None:
        names = one.called("calls") if one.opcode in ("fusion", "async-start") else ()
        return self._program.computations.get(names[0]) if names else None

    def users(self, computation: Computation) -> dict[str, list[Instruction]]:
        """The instructions of a computation by the names of their operands."""
        if computation.name not in self._users:
            users = self._users[computation.name] = {}
            for one in computation.instructions.values():
                for name in dict.fromkeys(one.operands):
                    users.setdefault(name, []).append(one)
        return self._users[computation.name]


def is_free(one: Instruction) -> bool:
    """Whether it makes no data move."""
    return (
        one.opcode in _FREE
        or one.opcode.endswith(("-done", "-update"))
        or (one.opcode == "custom-call" and one.attribute("custom_call_target").strip('"') in _FREE_CALLS)
    )
