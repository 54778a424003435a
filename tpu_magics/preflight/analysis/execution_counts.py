"""How often each computation of a program runs, from the entry through calls, loops and branches.

Fusions are calls. Of a conditional the branch that weighs most counts, the others do not (so does XLA's own count). A
loop whose number of rounds the program does not give counts once. Both are guesses: an execution may do less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from tpu_magics.preflight.analysis.hlo_module import Computation, HloModule, Instruction
from tpu_magics.preflight.analysis.trip_counts import trip_count

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
            found += _rounds(program, computation, one)
        elif one.opcode == "conditional":
            found += _branch(one, weights)
        else:
            found += (_Call(name) for name in one.called(_CALLED_BY[one.opcode]))
    return [call for call in found if call.name in program.computations]


def _rounds(program: HloModule, computation: Computation, loop: Instruction) -> list[_Call]:
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
