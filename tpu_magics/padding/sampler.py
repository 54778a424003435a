"""A batch sampler that sorts samples into buckets, and a collator that pads to the bucket's length."""

from __future__ import annotations

import copy
import random
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

from tpu_magics.errors import TpuMagicsError
from tpu_magics.padding.lengths import length_of
from tpu_magics.padding.sources import read

Batch = list[int]


def bucket_for(length: int, bounds: Sequence[int]) -> int:
    """The smallest bound that holds `length` tokens. `bounds` are in ascending order."""
    at = bisect_left(bounds, length)
    if at == len(bounds):
        raise TpuMagicsError(
            f"A sample has {length:,} tokens, more than the largest bound, {bounds[-1]:,}.",
            "Samples are padded to a bound, never truncated.",
            f"Truncate it in the tokenizer (truncation=True, max_length={bounds[-1]}), or add a bound.",
        )
    return bounds[at]


def buckets(
    lengths: Any, bounds: Sequence[int], batch_size: int, collate: Any, **options: Any
) -> dict[str, BucketBatches | PadTo]:
    """The arguments of a DataLoader whose batches have the lengths `bounds` only:

        DataLoader(dataset, **tpu_magics.padding.buckets(dataset, [64, 128, 256], 32, collate=collator))

    Args:
        lengths: what `%tpu_pad` takes, in the order of the dataset.
        bounds: the lengths to pad to.
        batch_size: samples of one batch on one rank.
        collate: see `PadTo`.
        options: see `BucketBatches`.
    """
    return {
        "batch_sampler": BucketBatches(lengths, bounds, batch_size, **options),
        "collate_fn": PadTo(collate, bounds),
    }


class BucketBatches:
    """A batch sampler: batches of samples that fit one bound, in a new random order in each epoch.

    What does not fill a batch (or a group of `ranks` batches) goes into the next larger bucket, so at most one group in
    an epoch is incomplete; it is dropped. Each batch has a sample of its own bucket, so a collator that pads the
    longest up to its bound pads to this bucket's.

    Args:
        lengths: what `%tpu_pad` takes, in the order of the dataset.
        bounds: the lengths to pad to; the largest holds the longest sample.
        batch_size: samples of one batch on one rank.
        shuffle: a new order in each epoch, the same on all ranks.
        seed: of the shuffles.
        drop_last: drop the samples that fill no batch; else they are a last batch of another shape (one rank only).
        ranks: ranks that take a step together. Each group of so many batches has one bound: on a TPU, ranks that run
            different programs in one step hang.
        rank: yield only the batches of this rank; None yields those of all ranks in turn, as accelerate expects.
    """

    def __init__(
        self,
        lengths: Any,
        bounds: Sequence[int],
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = True,
        ranks: int = 1,
        rank: int | None = None,
    ) -> None:
        self.bounds = tuple(sorted(set(map(int, bounds))))
        self.batch_size, self.shuffle, self.seed, self.drop_last = batch_size, shuffle, seed, drop_last
        self.ranks, self.rank = ranks, rank
        self.epoch = 0
        self._check()
        self._members: dict[int, list[int]] = {bound: [] for bound in self.bounds}
        for index, length in enumerate(_of_dataset(lengths)):
            self._members[bucket_for(length, self.bounds)].append(index)
        self._groups = self._count_groups()

    def __len__(self) -> int:
        """Batches of one epoch: of all ranks, or of `rank`."""
        full: int = sum(self._groups.values())
        return full * (self.ranks if self.rank is None else 1) + bool(self._left and not self.drop_last)

    def __iter__(self) -> Iterator[Batch]:
        epoch, self.epoch = self.epoch, self.epoch + 1
        groups, left = self._epoch(random.Random(f"{self.seed}-{epoch}"))
        for group in groups:
            yield from group if self.rank is None else [group[self.rank]]
        if left and not self.drop_last:
            yield left

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch whose order comes next; without it, each epoch takes the next order."""
        self.epoch = epoch

    @property
    def counts(self) -> dict[int, int]:
        """Number of batches of each length in one epoch."""
        return {bound: count * self.ranks for bound, count in self._groups.items() if count}

    def _check(self) -> None:
        wrong = [
            (not self.bounds or self.bounds[0] < 1, f"bounds are {list(self.bounds)}", "Bounds must be 1 or more."),
            (self.batch_size < 1, f"batch_size is {self.batch_size}", "Give 1 or more."),
            (self.ranks < 1, f"ranks is {self.ranks}", "Give 1 or more."),
            (self.rank is not None and not 0 <= self.rank < self.ranks, f"rank is {self.rank}", "Ranks count from 0."),
            (not self.drop_last and self.ranks > 1, "drop_last is False", "With several ranks it must be True."),
        ]
        for is_wrong, what, todo in wrong:
            if is_wrong:
                raise TpuMagicsError(f"BucketBatches cannot make batches: {what}.", "", todo)

    def _count_groups(self) -> dict[int, int]:
        """Number of groups that each bucket makes, the same in every epoch."""
        groups: dict[int, int] = {}
        left, unit = 0, self.batch_size * self.ranks
        for bound, members in self._members.items():
            groups[bound], left = divmod(left + len(members), unit)
            if groups[bound] * self.ranks > len(members):
                raise self._too_few(bound, len(members), groups[bound])
        self._left = left
        longest = max(bound for bound, members in self._members.items() if members)
        if self.drop_last and any(groups.values()) and not groups[longest]:
            raise self._always_dropped(longest)
        if self.drop_last and not any(groups.values()):
            raise TpuMagicsError(
                f"{left:,} samples are fewer than one step needs.",
                f"A step takes {unit:,} samples: batches of {self.batch_size:,} on {self.ranks:,} rank(s).",
                "Use a smaller batch_size.",
            )
        return groups

    def _too_few(self, bound: int, own: int, groups: int) -> TpuMagicsError:
        return TpuMagicsError(
            f"The bucket of {bound:,} tokens has only {own:,} samples of its own for {groups * self.ranks:,} batches.",
            "Each batch needs one of them. Otherwise the ranks of a step would pad to different lengths.",
            f"Remove the next smaller bound, or let %tpu_pad -n {self.ranks} choose the bounds.",
        )

    def _always_dropped(self, bound: int) -> TpuMagicsError:
        many = len(self._members[bound])
        return TpuMagicsError(
            f"The bucket of {bound:,} tokens would never be used: its {many:,} samples are fewer than one step needs.",
            f"A step takes {self.batch_size * self.ranks:,} samples, and incomplete batches are dropped.",
            "Remove the next smaller bound, or truncate the longest samples in the tokenizer.",
        )

    def _epoch(self, chance: random.Random) -> tuple[list[list[Batch]], Batch]:
        """The groups of batches of one epoch, and the samples that fill none."""
        groups: list[list[Batch]] = []
        left: Batch = []
        for bound, members in self._members.items():
            own = list(members)
            if self.shuffle:
                chance.shuffle(own)
            count = self._groups[bound] * self.ranks
            first, rest = own[:count], left + own[count:]
            if self.shuffle:
                chance.shuffle(rest)
            more = self.batch_size - 1
            batches = [[first[at], *rest[at * more : (at + 1) * more]] for at in range(count)]
            groups += [batches[at : at + self.ranks] for at in range(0, count, self.ranks)]
            left = rest[count * more :]
        if self.shuffle:
            chance.shuffle(groups)
        return groups, left


def _of_dataset(lengths: Any) -> list[int]:
    source = read(lengths)
    if not source.indexed:
        raise TpuMagicsError(
            f"Batches cannot be chosen from {source.what}.",
            "A batch sampler selects samples by index, and there is no index here.",
            "Use a dataset with an index (a list, a map-style dataset), or pad to a multiple.",
        )
    return source.lengths


class PadTo:
    """A collate function that pads each batch to the smallest bound that holds its longest sample.

    Args:
        collate: a collator of transformers that has `pad_to_multiple_of` (all that pad have it), or a tokenizer. It is
            copied, not changed.
        bounds: the lengths to pad to.
    """

    def __init__(self, collate: Any, bounds: Sequence[int]) -> None:
        self.bounds = tuple(sorted(set(map(int, bounds))))
        self.collate = collate
        self._pads = _tokenizer if hasattr(collate, "pad") else _collator
        if self._pads is _collator:
            self.collate = _own(collate)

    def __call__(self, features: Sequence[Any]) -> Any:
        bound = bucket_for(max(map(length_of, features)), self.bounds)
        return self._pads(self.collate, features, bound)


def _own(collate: Any) -> Any:
    if not hasattr(collate, "pad_to_multiple_of"):
        raise TpuMagicsError(
            f"{type(collate).__name__} has no setting for the padded length.",
            "It has no pad_to_multiple_of and is not a tokenizer.",
            "Write a collate function that pads to tpu_magics.padding.bucket_for(longest, bounds).",
        )
    own = copy.copy(collate)
    for name, value in (("padding", True), ("max_length", None)):
        if hasattr(own, name):
            setattr(own, name, value)
    return own


def _collator(collate: Any, features: Sequence[Any], bound: int) -> Any:
    """The longest sample is at most the bound, so the next multiple of the bound is the bound itself."""
    collate.pad_to_multiple_of = bound
    return collate(features)


def _tokenizer(tokenizer: Any, features: Sequence[Any], bound: int) -> Any:
    return tokenizer.pad(features, padding="max_length", max_length=bound, return_tensors="pt")
