"""The best bounds, compared with all possible ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpu_magics.padding.sampler import BucketBatches
from tpu_magics.padding.strategies import Buckets, best_buckets


def slots_of(bounds: Sequence[int], counts: Mapping[int, int], group: int, ranks: int) -> int | None:
    """Token slots of an epoch, batch by batch; None where these bounds cannot be used."""
    slots = carried = done = 0
    for bound in bounds:
        own = sum(samples for length, samples in counts.items() if length <= bound) - done
        done += own
        groups, carried = divmod(carried + own, group)
        if groups and own < ranks:
            return None
        slots += groups * group * bound
    return slots + carried * bounds[-1] if groups else None


def brute_force(counts: Mapping[int, int], most: int, group: int, ranks: int) -> int | None:
    """The fewest slots of any choice of at most `most` bounds."""
    *others, longest = sorted(counts)
    every = (
        slots_of((*chosen, longest), counts, group, ranks)
        for many in range(most)
        for chosen in combinations(others, min(many, len(others)))
    )
    return min((slots for slots in every if slots is not None), default=None)


COUNTS = st.dictionaries(st.integers(1, 60), st.integers(1, 9), min_size=1, max_size=8)


@given(COUNTS, st.integers(1, 5), st.integers(1, 5), st.integers(1, 3))
def test_no_bounds_pad_less(counts: dict[int, int], most: int, batch: int, ranks: int) -> None:
    found = best_buckets(counts, most, batch * ranks, ranks)
    assert [len(each.bounds) for each in found] == sorted({len(each.bounds) for each in found})
    for number in range(1, most + 1):
        best = brute_force(counts, number, batch * ranks, ranks)
        fitting = [each for each in found if len(each.bounds) <= number]
        assert (fitting[-1].slots if fitting else None) == best
    for each in found:
        assert each.bounds[-1] == max(counts)
        assert slots_of(each.bounds, counts, batch * ranks, ranks) == each.slots


@given(COUNTS, st.integers(2, 4), st.integers(1, 4), st.integers(1, 3))
def test_the_sampler_makes_the_batches_that_were_reckoned_with(
    counts: dict[int, int], most: int, batch: int, ranks: int
) -> None:
    batch = max(batch, 2) if ranks > 1 else batch
    lengths = [length for length, samples in counts.items() for _ in range(samples)]
    for each in best_buckets(counts, most, batch * ranks, ranks):
        batches = BucketBatches(lengths, each.bounds, batch, ranks=ranks)
        left = len(lengths) % (batch * ranks)
        made = sum(bound * many * batch for bound, many in batches.counts.items())
        assert made + left * max(counts) == each.slots
        assert set(batches.counts) == set(each.bounds)


def test_by_hand() -> None:
    assert best_buckets({10: 5, 100: 1}, 3) == [Buckets((100,), 600), Buckets((10, 100), 150)]
    assert best_buckets({7: 4}, 8, 4) == [Buckets((7,), 28)]
    assert best_buckets({7: 3}, 8, 4) == []


def test_large_numbers_are_exact() -> None:
    counts = {10**6 + step: 10**12 + 7 * step for step in range(40)}
    [one, two, *_] = best_buckets(counts, 3)
    total = sum(counts.values())
    assert one.slots == total * max(counts)
    assert two.slots == min(
        sum(samples * (bound if length <= bound else max(counts)) for length, samples in counts.items())
        for bound in counts
    )


@pytest.mark.parametrize("distinct", [3000])
def test_many_lengths_take_little_time(distinct: int) -> None:
    """Quadratic in the lengths it would take minutes."""
    counts = {length: 1 + length % 7 for length in range(1, distinct + 1)}
    found = best_buckets(counts, 8, 32)
    assert [len(each.bounds) for each in found] == list(range(1, 9))
    assert [each.slots for each in found] == sorted((each.slots for each in found), reverse=True)
