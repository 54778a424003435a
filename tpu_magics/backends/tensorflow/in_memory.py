"""A tf.data pipeline over arrays in memory."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tpu_magics.backends.tensorflow.columns import LONGEST, Columns, Pad
from tpu_magics.backends.tensorflow.rows import Rows, count_of, cut, filled, leaves, rows_of
from tpu_magics.errors import TpuMagicsError


def in_memory(
    dataset: Any,
    batch_size: int | None = None,
    *,
    limit: int | None = None,
    drop_remainder: bool = True,
    shuffle: bool | int | None = None,
    pad: Pad = None,
    fill: Any = 0,
    available: int | None = None,
) -> Any:
    """See tpu_magics.tf.in_memory; `available`: bytes of memory that may be used (None: unknown)."""
    _check(batch_size, limit, pad)
    rows = rows_of(dataset)
    if rows.endless and limit is None:
        raise TpuMagicsError(
            "The dataset is infinite.",
            "It repeats, or reports an infinite size.",
            "Move repeat() after in_memory, or set limit=ROWS.",
        )
    shape, columns = _gathered(rows, limit, available)
    count = columns.rows
    size = batch_size if batch_size is not None else rows.batch_size
    _check_batches(count, size, drop_remainder)
    found = tf.data.Dataset.from_tensor_slices(filled(shape, columns.gathered(pad, fill)))
    if shuffle is not None and shuffle is not False:
        seed = None if shuffle is True else int(shuffle)
        found = found.shuffle(count, seed=seed, reshuffle_each_iteration=True)
    if size is not None:
        found = found.batch(size, drop_remainder=drop_remainder)
    return found.prefetch(tf.data.AUTOTUNE)


def _gathered(rows: Rows, limit: int | None, available: int | None) -> tuple[Any, Columns]:
    """(one row's structure, the columns)."""
    count = min((one for one in (rows.count, limit) if one is not None), default=None)
    columns = Columns(available, count, *(() if rows.copied else (1,)))
    shape = None
    for piece in rows.pieces:
        values = piece.values
        if piece.many:
            room = count_of(values) if limit is None else min(count_of(values), limit - columns.rows)
            columns.add(leaves(cut(values, room)), room)
        else:
            columns.add(leaves(values))
        shape = values if shape is None else shape
        if columns.rows == limit:
            break
    if shape is None or not columns.rows:
        raise TpuMagicsError("The dataset is empty.", "It returned no rows.", "Use a dataset with rows.")
    return shape, columns


def _check(batch_size: int | None, limit: int | None, pad: Pad) -> None:
    for name, value in (("batch_size", batch_size), ("limit", limit), ("pad", pad)):
        if name == "pad" and value == LONGEST:
            continue
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
            also = f', or "{LONGEST}"' if name == "pad" else ""
            raise TpuMagicsError(f"{name} is {value!r}.", f"It must be a positive integer{also}.", "Correct it.")


def _check_batches(count: int, size: int | None, drop_remainder: bool) -> None:
    if size is not None and drop_remainder and count < size:
        raise TpuMagicsError(
            f"{count:,} rows are fewer than one batch of {size:,}.",
            "With drop_remainder=True an incomplete batch is dropped, so nothing would remain.",
            f"Use a batch_size of {count:,} or less, or drop_remainder=False.",
        )
