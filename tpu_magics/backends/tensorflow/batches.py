"""Batch size, number of rows, and whether the last batch is short, read from a tf.data.Dataset without iterating it."""

# `_batch_size`, `_drop_remainder`, `_input_dataset` and `_count` are those of TensorFlow 2.21 (data/ops/*.py). Where
# they are missing, nothing is reported.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

INFINITE, UNKNOWN = -1, -2  # as tf.data has them
_ENDS_BATCHES = ("Unbatch", "FlatMap", "Interleave", "Window", "Group", "Rebatch")


@dataclass(frozen=True)
class Batches:
    """The batches of a pipeline whose last one may be short. `rows`: what is batched, UNKNOWN where not known."""

    size: int
    rows: int

    @property
    def rest(self) -> int | None:
        """Rows of the last batch where it is short; 0 where none is; None where that is not known."""
        return None if self.rows == UNKNOWN else self.rows % self.size


def size_of(dataset: Any) -> int:
    """Elements of one pass; INFINITE or UNKNOWN."""
    told = getattr(dataset, "cardinality", UNKNOWN)
    size = int(told() if callable(told) else told)
    return size if size >= INFINITE else UNKNOWN


def outermost_batches(dataset: Any) -> Batches | None:
    """The batches that the elements of `dataset` are; None where they are rows, or it is not known.

    `rows` of it are those that are batched; drop_remainder and take() are not looked at."""
    found = _batch_behind(dataset)
    size = found and _number(found[0]._batch_size)
    return Batches(size, size_of(found[0]._input_dataset)) if found and size else None


def short_batches(dataset: Any) -> Batches | None:
    """The outermost batches, where the last may have fewer rows and is not the only one."""
    if not any(spec.shape.rank is None or spec.shape.as_list()[:1] == [None] for spec in _specs(dataset)):
        return None
    found, batches = _batch_behind(dataset), outermost_batches(dataset)
    if not found or batches is None or _number(getattr(found[0], "_drop_remainder", None)) or batches.rows == INFINITE:
        return None
    full = batches.rows // batches.size
    if batches.rows != UNKNOWN and (not batches.rest or not full or (found[1] is not None and 0 <= found[1] <= full)):
        return None
    return batches


def _batch_behind(dataset: Any) -> tuple[Any, int | None] | None:
    """The part that makes the batches, and how many of them take() leaves; None where what follows it takes them apart
    or puts them together anew."""
    one, most = getattr(dataset, "_original_dataset", dataset), None
    while one is not None and not any(sign in type(one).__name__ for sign in _ENDS_BATCHES):
        if getattr(one, "_batch_size", None) is not None:
            return one, most
        taken = _number(getattr(one, "_count", None)) if type(one).__name__ == "_TakeDataset" else None
        most = most if taken is None else taken if most is None else min(taken, most)
        one = next((value for value in values_of(one) if isinstance(value, tf.data.Dataset)), None)
    return None


def _specs(dataset: Any) -> list[Any]:
    return [spec for spec in tf.nest.flatten(dataset.element_spec) if hasattr(spec, "shape")]


def _number(value: Any) -> int | None:
    """Of a tensor, or of a Python number."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def values_of(part: Any) -> Iterator[Any]:
    """What a part of a dataset holds, out of its lists and mappings."""
    for value in vars(part).values():
        if isinstance(value, (list, tuple)):
            yield from value
        elif isinstance(value, Mapping):
            yield from value.values()
        else:
            yield value
