"""Simulated batches of an epoch, for collators that pad each batch by itself: the longest sample of each batch."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tpu_magics.padding.lengths import LengthSource

SEED = 0
SAMPLES = 3_000_000  # maximum; further epochs are not simulated


@dataclass(frozen=True)
class SimulatedBatches:
    """Batches of `epochs` epochs. `full`: number of full batches of each longest length; `short`: the same for batches
    with fewer samples, by (samples, longest)."""

    epochs: int
    full: Counter[int]
    short: Counter[tuple[int, int]]
    batch_size: int

    def padded_to(self, multiple: int) -> PaddedBatches:
        """These batches, each padded to its longest sample rounded up to a multiple."""
        full = [(round_up(longest, multiple), count) for longest, count in self.full.items()]
        short = [(size, round_up(longest, multiple), count) for (size, longest), count in self.short.items()]
        slots = self.batch_size * sum(length * count for length, count in full)
        slots += sum(size * length * count for size, length, count in short)
        lengths = {length for length, _count in full}
        return PaddedBatches(
            tuple(sorted(lengths or {length for _size, length, _count in short})),
            len({(size, length) for size, length, _count in short}),
            slots / self.epochs,
        )


@dataclass(frozen=True)
class PaddedBatches:
    """Lengths of full batches, number of shapes of short ones, and token slots of one epoch."""

    lengths: tuple[int, ...]
    short_shapes: int
    slots: float


def round_up(length: int, multiple: int) -> int:
    """`length` rounded up to a multiple, at least one."""
    return max(1, -(-length // multiple)) * multiple


def simulate(lengths: Sequence[int], source: LengthSource, batch_size: int, epochs: int) -> SimulatedBatches:
    """The batches of the first epochs: a seeded shuffle of all samples, or the order of the source."""
    many = min(epochs, max(1, SAMPLES // len(lengths))) if source.order == "shuffled" else 1
    full: Counter[int] = Counter()
    short: Counter[tuple[int, int]] = Counter()
    for longest, rest in _epochs(lengths, source, batch_size, many):
        full.update(longest)
        short.update(rest)
    return SimulatedBatches(many, full, short, batch_size)


def _epochs(
    lengths: Sequence[int], source: LengthSource, size: int, epochs: int
) -> Iterator[tuple[Iterable[int], list[tuple[int, int]]]]:
    if source.order == "as drawn":
        drawn = [(len(batch), max(lengths[index] for index in batch)) for batch in source.batches if batch]
        yield [longest for count, longest in drawn if count == size], [one for one in drawn if one[0] != size]
        return
    chance = random.Random(SEED)
    order = list(lengths)
    for _ in range(epochs):
        if source.order == "shuffled":
            chance.shuffle(order)
        yield _maxima(order, size)


def _maxima(order: Sequence[int], size: int) -> tuple[Iterable[int], list[tuple[int, int]]]:
    rest = len(order) % size
    each = iter(order)
    full = map(max, zip(*[each] * size, strict=False)) if size > 1 else order
    return full, [(rest, max(order[-rest:]))] if rest else []
