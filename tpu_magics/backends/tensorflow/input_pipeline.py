"""Sizes and batches of an input pipeline, read from a tf.data.Dataset without iterating it."""

# A dataset is walked by the Python objects that it was made of. Their attributes (`_batch_size`, `_count`,
# `_input_dataset`, ...) are those of TensorFlow 2.21 (data/ops/*.py); what is missing in another version is not found,
# and nothing is reported.

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

INFINITE, UNKNOWN = -1, -2  # as tf.data has them
_ENDS_BATCHES = ("Unbatch", "FlatMap", "Interleave", "Window", "Group", "Rebatch")


@dataclass(frozen=True)
class Batches:
    """Batches of a pipeline whose last one may be short. `rows`: number of batched rows, or UNKNOWN."""

    size: int
    rows: int

    @property
    def rest(self) -> int | None:
        """Rows of a short last batch; 0 if no batch is short; None if unknown."""
        return None if self.rows == UNKNOWN else self.rows % self.size


def size_of(dataset: Any) -> int:
    """Elements per pass, INFINITE or UNKNOWN."""
    cardinality = getattr(dataset, "cardinality", UNKNOWN)
    size = int(cardinality() if callable(cardinality) else cardinality)
    return size if size >= INFINITE else UNKNOWN


def outermost_batches(dataset: Any) -> Batches | None:
    """The batches that the elements of `dataset` are; None if they are single rows or if it is unknown.

    Its `rows` are those that are batched; drop_remainder and take() are ignored.
    """
    found = _batch_behind(dataset)
    size = found and _number(found[0]._batch_size)
    return Batches(size, size_of(found[0]._input_dataset)) if found and size else None


def short_batches(dataset: Any) -> Batches | None:
    """The outermost batches, if the last one may be shorter and is not the only one."""
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
    """The dataset that makes the batches, and how many of them take() keeps; None if a later step unbatches or regroups
    them."""
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
    """A tensor or Python number as int."""
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def values_of(part: Any) -> Iterator[Any]:
    """Attributes of a dataset object, with lists and mappings unpacked."""
    for value in vars(part).values():
        if isinstance(value, (list, tuple)):
            yield from value
        elif isinstance(value, Mapping):
            yield from value.values()
        else:
            yield value
