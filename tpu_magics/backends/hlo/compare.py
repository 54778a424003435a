"""The difference of two graphs, as evidence for a recompile."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

from tpu_magics.backends.hlo.text import Graph, Op, Tensor
from tpu_magics.errors import plural

AT_MOST = 32  # distinct differences of one kind to keep
RUN = 6  # consecutive instructions that must occur once in both graphs to match them
# The weight of a different instruction, relative to a different type.
OTHER_OP = 10_000

# A number in an attribute; not the digits of dim_labels=bf01_oi01->bf01.
_NUMBER = re.compile(r"(?<![a-wyzA-Z\d.])-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
_START = re.compile(r"\[(\d+):")  # of slice={[0:8], [3:4]}

P = TypeVar("P")
Numbers = tuple[str, str]
Parameter = tuple[int, "Tensor | None", "Tensor | None"]


@dataclass(frozen=True)
class GraphChange:
    """The difference of a graph from an earlier one; pairs are (old, new), each different pair once.

    `same_ops`: the same instructions in the same order, and `same_wiring`: with the same operands. `constants`:
    literals (also numbers with a fraction in attributes); `dims`: integers in shapes and attributes (the limits of a
    slice, ...), `sizes`: those that are not only limits of a slice that keeps its size, `starts`: where such a slice
    starts, if it moved; `attributes`: others that changed; `parameters`: number, old, new (None: does not exist).
    `added` and `removed`: how many instructions more and fewer there are of each opcode.
    """

    same_ops: bool
    same_wiring: bool = True
    constants: tuple[Numbers, ...] = ()
    dims: tuple[tuple[int, int], ...] = ()
    sizes: tuple[tuple[int, int], ...] = ()
    starts: tuple[tuple[int, int], ...] = ()
    attributes: tuple[Numbers, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    outputs_before: int = 0
    outputs_after: int = 0
    added: tuple[tuple[str, int], ...] = ()
    removed: tuple[tuple[str, int], ...] = ()

    @property
    def numbers(self) -> tuple[Numbers, ...]:
        """The constants whose change does not follow from a changed dimension (a mean divides by the count)."""
        return tuple(pair for pair in self.constants if not _follows(pair, self.dims))

    def lines(self) -> tuple[str, ...]:
        """At most six sentences of evidence."""
        return tuple(
            chain(
                _parameter_lines(self.parameters),
                _constant_lines(self.numbers),
                _dims_lines(self.sizes, self.starts, self.parameters),
                _attribute_lines(self.attributes),
                _output_lines(self.outputs_before, self.outputs_after),
                _op_lines(self),
            )
        )[:6]


def compare(new: Graph, old: Graph) -> GraphChange:
    """The differences in `new`. If the instructions differ, only the parts that both graphs have are compared."""
    new_ops, old_ops = new.ops, old.ops
    same = len(new_ops) == len(old_ops) and all(a.opcode == b.opcode for a, b in zip(new_ops, old_ops, strict=False))
    pairs = list(zip(new_ops, old_ops, strict=False) if same else _aligned(new_ops, old_ops))
    found = _Differences()
    for now, before in pairs:
        if now != before:
            found.add(now, before)
    return GraphChange(
        same_ops=same,
        same_wiring=same and all(now.operands == before.operands for now, before in pairs),
        constants=_first(found.constants),
        dims=_first(found.dims),
        sizes=_first({pair: None for pair in found.dims if pair in found.sizes}),
        starts=_first(found.starts),
        attributes=_first(found.attributes),
        parameters=tuple(_parameters(new.parameters, old.parameters)),
        outputs_before=len(old.outputs),
        outputs_after=len(new.outputs),
        added=tuple((new.counts - old.counts).most_common()),
        removed=tuple((old.counts - new.counts).most_common()),
    )


def distance(new: Graph, old: Graph) -> int:
    """0 for the same graph, small for other shapes and constants, large for other instructions."""
    if new.digest == old.digest:
        return 0
    return 1 + min(_apart(new.signature, old.signature), OTHER_OP - 2) + OTHER_OP * _apart(new.counts, old.counts)


def _apart(a: Mapping[P, int], b: Mapping[P, int]) -> int:
    return sum(abs(a.get(key, 0) - b.get(key, 0)) for key in a.keys() | b.keys())


# -- parts that share nothing -----------------------------------------------------------------------------------
Part = frozenset[tuple[Op, int]]


def parts(graph: Graph) -> Counter[Part]:
    """The parts of a graph that share no tensor, each as its instructions and how often it has them. A number that goes
    in or is a constant connects nothing (a learning rate). A part that takes in no tensor is left out."""
    ops = graph.ops
    group = list(range(len(ops)))

    def first(at: int) -> int:
        while group[at] != at:
            group[at] = at = group[group[at]]
        return at

    for at, op in enumerate(ops):
        if op.opcode == "tuple" and at == len(ops) - 1:
            continue  # what goes out
        for back in op.operands:
            if back and not _is_number(ops[at - back]):
                group[first(at)] = first(at - back)
    found: dict[int, Counter[Op]] = {}
    for at, op in enumerate(ops):
        value = op.value if op.opcode == "constant" else ""
        found.setdefault(first(at), Counter())[op._replace(operands=(), value=value)] += 1
    return Counter(frozenset(part.items()) for part in found.values() if any(map(_goes_in, part)))


def _is_number(op: Op) -> bool:
    """Whether it goes in, or is a constant, and is one number; or all that goes in (on a TPU, as one tuple)."""
    return op.opcode in ("parameter", "constant") and (len(op.results) != 1 or not op.result.shape)


def _goes_in(op: Op) -> bool:
    return op.opcode in ("parameter", "get-tuple-element") and len(op.results) == 1 and bool(op.result.shape)


# -- what two instructions have that is not the same ------------------------------------------------------------
class _Differences:
    """Pairs (old, new) in the order of their first appearance."""

    def __init__(self) -> None:
        self.constants: dict[Numbers, None] = {}
        self.dims: dict[tuple[int, int], None] = {}
        self.sizes: set[tuple[int, int]] = set()
        self.starts: dict[tuple[int, int], None] = {}
        self.attributes: dict[Numbers, None] = {}

    def add(self, now: Op, before: Op) -> None:
        if now.opcode == "constant" and now.value != before.value:
            self.constants[before.value, now.value] = None
        for one, other in zip(now.results, before.results, strict=False):
            self._shape(one, other)
        if now.attributes != before.attributes:
            moved = now.opcode == before.opcode == "slice" and now.results == before.results
            if moved:
                starts = zip(_START.findall(before.attributes), _START.findall(now.attributes), strict=False)
                self.starts.update({(int(b), int(a)): None for b, a in starts if a != b})
            self._attributes(now.attributes, before.attributes, moved)

    def _shape(self, now: Tensor, before: Tensor) -> None:
        if now.shape != before.shape and len(now.shape) == len(before.shape):
            pairs = [(b, a) for a, b in zip(now.shape, before.shape, strict=False) if a != b]
            self.dims.update(dict.fromkeys(pairs))
            self.sizes.update(pairs)

    def _attributes(self, now: str, before: str, moved: bool) -> None:
        if _NUMBER.sub("#", now) != _NUMBER.sub("#", before):
            self.attributes[before, now] = None
            return
        for a, b in zip(_NUMBER.findall(now), _NUMBER.findall(before), strict=False):
            if a != b and _is_whole(a) and _is_whole(b):
                self.dims[int(b), int(a)] = None
                if not moved:
                    self.sizes.add((int(b), int(a)))
            elif a != b:
                self.constants[b, a] = None


def _is_whole(number: str) -> bool:
    return number.lstrip("-").isdigit()


def _first(pairs: dict[P, None]) -> tuple[P, ...]:
    return tuple(pairs)[:AT_MOST]


def _follows(pair: Numbers, dims: Sequence[tuple[int, int]]) -> bool:
    """Whether a literal changed as a dimension did: by the same factor, its inverse, or by the same number."""
    try:
        old, new = float(pair[0]), float(pair[1])
    except ValueError:
        return False
    return any(_close(new * a, old * b) or _close(new * b, old * a) or new - old == b - a for a, b in dims)


def _close(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-5 * max(abs(a), abs(b))


# -- which instructions belong together -------------------------------------------------------------------------
def _aligned(new: Sequence[Op], old: Sequence[Op]) -> Iterator[tuple[Op, Op]]:
    """Matching instructions of both graphs, in time linear in their length: runs of opcodes that are unique in each
    graph are matched, and extended in both directions while the opcodes are equal."""
    a, b = [op.opcode for op in new], [op.opcode for op in old]
    done_a = done_b = 0
    for at_a, at_b in _ties(a, b):
        if at_a < done_a or at_b < done_b:
            continue
        while at_a > done_a and at_b > done_b and a[at_a - 1] == b[at_b - 1]:
            at_a, at_b = at_a - 1, at_b - 1
        while at_a < len(a) and at_b < len(b) and a[at_a] == b[at_b]:
            yield new[at_a], old[at_b]
            at_a, at_b = at_a + 1, at_b + 1
        done_a, done_b = at_a, at_b


def _ties(a: Sequence[str], b: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Positions of runs that occur once in each graph, in increasing order of both."""
    places_a, places_b = _lone_runs(a), _lone_runs(b)
    common = sorted((places_a[run], places_b[run]) for run in places_a.keys() & places_b.keys())
    return _growing(common)


def _lone_runs(opcodes: Sequence[str]) -> dict[tuple[str, ...], int]:
    places: dict[tuple[str, ...], int] = {}
    twice = set()
    padded = ["", *opcodes, ""]  # the start and the end count as context too
    for place, run in enumerate(zip(*(padded[shift:] for shift in range(RUN)), strict=False)):
        if run in places:
            twice.add(run)
        places[run] = max(place - 1, 0)
    return {run: place for run, place in places.items() if run not in twice}


def _growing(pairs: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The longest part of the pairs, sorted by their first numbers, whose second numbers grow too."""
    ends: list[int] = []
    at: list[int] = []
    before: list[int] = []
    for index, (_, place) in enumerate(pairs):
        slot = bisect_left(ends, place)
        before.append(at[slot - 1] if slot else -1)
        ends[slot : slot + 1] = [place]
        at[slot : slot + 1] = [index]
    chosen = []
    index = at[-1] if at else -1
    while index >= 0:
        chosen.append(pairs[index])
        index = before[index]
    return reversed(chosen)


def _parameters(new: Sequence[Tensor], old: Sequence[Tensor]) -> Iterator[Parameter]:
    """The parameters that differ. If their number differs, without the common ones at both ends of the lists."""
    if len(new) == len(old):
        yield from ((n, before, now) for n, (now, before) in enumerate(zip(new, old, strict=False)) if now != before)
        return
    shorter = min(len(new), len(old))
    start = next((n for n in range(shorter) if new[n] != old[n]), shorter)
    end = next((n for n in range(shorter - start) if new[-1 - n] != old[-1 - n]), shorter - start)
    now, before = new[start : len(new) - end], old[start : len(old) - end]
    for n in range(max(len(now), len(before))):
        one = now[n] if n < len(now) else None
        other = before[n] if n < len(before) else None
        if one != other:
            yield start + n, other, one


# -- in words ---------------------------------------------------------------------------------------------------
def _parameter_lines(parameters: Sequence[Parameter]) -> Iterator[str]:
    added = [one for one in parameters if one[1] is None]
    removed = [one for one in parameters if one[2] is None]
    changed = [one for one in parameters if one[1] is not None and one[2] is not None]
    for number, before, now in changed[:2]:
        yield f"parameter {number} is now {now}, before {before}"
    if len(changed) > 2:
        yield f"{plural(len(changed) - 2, 'other parameter', '')} changed too"
    for label, some, place in (("new", added, 2), ("removed", removed, 1)):
        if some:
            which = _some([str(one[place]) for one in some])
            yield f"{plural(len(some), 'parameter', '')} {'is' if len(some) == 1 else 'are'} {label}: {which}"


def _constant_lines(constants: Sequence[Numbers]) -> Iterator[str]:
    for before, now in constants[:2]:
        yield f"a constant is now {_short(now)}, before {_short(before)}"


def _dims_lines(
    sizes: Sequence[tuple[int, int]], starts: Sequence[tuple[int, int]], parameters: Sequence[Parameter]
) -> Iterator[str]:
    for what, pairs in (("sizes inside the graph changed", sizes), ("a slice starts elsewhere", starts)):
        if pairs and not parameters:
            yield f"{what}: " + _some([f"{now}, before {before}" for before, now in pairs], "; ")


def _attribute_lines(attributes: Sequence[Numbers]) -> Iterator[str]:
    for before, now in attributes[:1]:
        yield f"an operation now has {_short(now)}, before {_short(before)}"


def _output_lines(before: int, now: int) -> Iterator[str]:
    if before != now:
        many = plural(abs(now - before), f"{'more' if now > before else 'fewer'} output", "")
        yield f"{many} than before ({now}, before {before})"


def _op_lines(change: GraphChange) -> Iterator[str]:
    for label, ops in (("more", change.added), ("fewer", change.removed)):
        if ops:
            total = sum(count for _, count in ops)
            yield f"{plural(total, 'operation', '')} {label}: {_some([f'{opcode} {count}' for opcode, count in ops])}"
    if change.added or change.removed:
        return
    if not change.same_ops:
        yield "the same operations are in another order"
    elif not change.same_wiring:
        yield "the same operations have other operands"


def _some(texts: Sequence[str], separator: str = ", ") -> str:
    distinct = list(dict.fromkeys(texts))
    return separator.join(distinct[:4]) + (", ..." if len(distinct) > 4 else "")


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
