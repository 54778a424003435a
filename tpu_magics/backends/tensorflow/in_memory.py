"""A tf.data pipeline over arrays in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from tpu_magics.backends.tensorflow.rows import ROWS, Rows, count_of, fill_nest, leaves, rows_of, take_rows
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
    shape, columns = _gather(rows, limit, available)
    count = columns.rows
    size = batch_size if batch_size is not None else rows.batch_size
    _check_batches(count, size, drop_remainder)
    found = tf.data.Dataset.from_tensor_slices(fill_nest(shape, columns.to_arrays(pad, fill)))
    if shuffle is not None and shuffle is not False:
        seed = None if shuffle is True else int(shuffle)
        found = found.shuffle(count, seed=seed, reshuffle_each_iteration=True)
    if size is not None:
        found = found.batch(size, drop_remainder=drop_remainder)
    return found.prefetch(tf.data.AUTOTUNE)


def _gather(rows: Rows, limit: int | None, available: int | None) -> tuple[Any, Columns]:
    """(one row's structure, the columns)."""
    count = min((one for one in (rows.count, limit) if one is not None), default=None)
    columns = Columns(available, count, *(() if rows.copied else (1,)))
    shape = None
    for piece in rows.pieces:
        values = piece.values
        if piece.many:
            room = count_of(values) if limit is None else min(count_of(values), limit - columns.rows)
            columns.add(leaves(take_rows(values, room)), room)
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


# -- columns -----------------------------------------------------------------------------------------------------------


Pad = str | int | None  # "longest", a multiple, or None: rows have one shape
LONGEST = "longest"
_BLOCK = 256  # rows stacked at once
_COPIES = 3  # at the peak: the rows, the array of them, and TensorFlow's copy
_SAMPLED = 32  # rows from which the size of all is estimated
_PER_ROW = 120  # bytes of overhead per NumPy array
_GIB = 2**30
_NO_TPU_KINDS = {
    "O": "Python objects (text, None, or rows of different lengths)",
    "U": "text",
    "S": "text (bytes)",
    "M": "dates",
    "m": "time spans",
    "V": "records",
}
_TODO_DTYPE = (
    "Convert it to numbers first (tokens, class indices), or remove it: dataset.remove_columns({name!r}) for a "
    "Hugging Face dataset, dataset.map(lambda row: {{...}}) for a tf.data pipeline."
)


@dataclass
class Column:
    """One component of the rows. `numbers`: its values came as Python numbers, without a dtype."""

    name: str
    numbers: bool = False
    waiting: list[Any] = field(default_factory=list)
    blocks: list[Any] = field(default_factory=list)
    bytes: int = 0

    @property
    def title(self) -> str:
        """The column as the start of a sentence."""
        return "The dataset" if self.name == ROWS else f"The column {self.name}"

    def add(self, value: Any) -> None:
        """Add one row."""
        row = self._array(value)
        self.waiting.append(row)
        self.bytes += row.nbytes
        if len(self.waiting) == _BLOCK:
            self._pack()

    def add_many(self, values: Any) -> None:
        """Add rows, as one array if they have one shape."""
        if getattr(values, "dtype", None) is not None and values.dtype.kind != "O":
            self._pack()
            self.blocks.append(self._array(values))
            self.bytes += self.blocks[-1].nbytes
        else:
            for value in values:
                self.add(value)

    def to_array(self, pad: Pad, fill: Any) -> Any:
        """All rows as one array of shape [rows, ...]. The gathered rows are released."""
        self._pack()
        blocks, self.blocks = self.blocks, []
        shapes = sorted({block.shape[1:] for block in blocks})
        if len(shapes) > 1:
            blocks = self._pad_blocks(blocks, shapes, pad, fill)
        found = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
        return _narrow(found) if self.numbers else found

    def _array(self, value: Any) -> Any:
        typed = hasattr(value, "dtype")
        try:
            row = np.asarray(value)
        except ValueError:  # NumPy 1.24 and newer: lists of different lengths
            row = np.asarray(None)
        if row.dtype.kind in _NO_TPU_KINDS or row.dtype == np.complex128:
            raise self._unsupported(row)
        self.numbers = self.numbers or not typed
        return row

    def _unsupported(self, row: Any) -> TpuMagicsError:
        kind = _NO_TPU_KINDS.get(row.dtype.kind, f"values of dtype {row.dtype}")
        return TpuMagicsError(
            f"{self.title} contains {kind}.",
            "A TPU accepts only numbers and booleans.",
            _TODO_DTYPE.format(name=self.name),
        )

    def _pack(self) -> None:
        """Stack successive rows of one shape into one array."""
        rows, self.waiting = self.waiting, []
        start = 0
        for end in range(1, len(rows) + 1):
            if end == len(rows) or rows[end].shape != rows[start].shape:
                self.blocks.append(np.stack(rows[start:end]))
                start = end

    def _pad_blocks(self, blocks: list[Any], shapes: Sequence[tuple[int, ...]], pad: Pad, fill: Any) -> list[Any]:
        if len({len(shape) for shape in shapes}) > 1:
            raise TpuMagicsError(
                f"{self.title} has rows with different numbers of dimensions: {_words(shapes)}.",
                "They do not fit into one array.",
                "Give each row the same number of dimensions.",
            )
        if pad is None:
            raise self._ragged(shapes)
        target = tuple(_target([shape[axis] for shape in shapes], pad) for axis in range(len(shapes[0])))
        rows = sum(len(block) for block in blocks)
        found = np.full((rows, *target), fill, np.result_type(*(block.dtype for block in blocks)))
        at = 0
        for block in blocks:
            region = (slice(at, at + len(block)), *map(slice, block.shape[1:]))
            found[region] = block
            at += len(block)
        return [found]

    def _ragged(self, shapes: Sequence[tuple[int, ...]]) -> TpuMagicsError:
        return TpuMagicsError(
            f"{self.title} has rows of different shapes: {_words(shapes)}.",
            "A TPU program is compiled for one shape, and an array in memory has one shape.",
            'Pad them: in_memory(..., pad="longest") pads to the longest row, pad=32 to the next multiple of 32 '
            "above it. fill= sets the padding value, e.g. -100 for labels that the loss ignores. %tpu_pad shows "
            "what padding costs.",
        )


@dataclass
class Columns:
    """All columns of the rows. `available`: bytes that may be used (None: unknown); `count`: rows that will come (None:
    unknown); `copies`: of a row, at the peak."""

    available: int | None = None
    count: int | None = None
    copies: int = _COPIES
    rows: int = 0
    columns: dict[str, Column] = field(default_factory=dict)

    def add(self, values: Mapping[str, Any], rows: int | None = None) -> None:
        """Add one row, or `rows` rows of which each value holds as many. Raises TpuMagicsError if the columns differ
        from earlier ones, or if the dataset will not fit."""
        if self.columns and values.keys() != self.columns.keys():
            raise self._others(values)
        for name, value in values.items():
            column = self.columns.setdefault(name, Column(name))
            column.add(value) if rows is None else column.add_many(value)
        self.rows += 1 if rows is None else rows
        self._check()

    def to_arrays(self, pad: Pad, fill: Any) -> dict[str, Any]:
        """name -> array."""
        return {name: column.to_array(pad, _fill_of(fill, name)) for name, column in self.columns.items()}

    def _check(self) -> None:
        held = sum(column.bytes for column in self.columns.values()) + _PER_ROW * self.rows
        rows = self.rows if self.count is None or self.rows < _SAMPLED else max(self.rows, self.count)
        if self.available is not None and held / self.rows * rows * self.copies > self.available:
            raise self._too_large(held / self.rows, rows)

    def _too_large(self, each: float, rows: int) -> TpuMagicsError:
        so_far = f"its {rows:,} rows" if rows == self.count else f"its first {rows:,} rows"
        needed, fit = each * rows * self.copies, int(self.available or 0) // int(each * self.copies)
        return TpuMagicsError(
            f"The dataset does not fit in memory: {so_far} of about {_size(each)} take {_size(needed)}, and "
            f"{_size(self.available or 0)} are available.",
            "While it is loaded, each row is in memory "
            + ("twice: in the array" if self.copies == 1 else "three times: as read, in the array of all rows")
            + " and in TensorFlow's copy.",
            f"Use limit={max(1, fit)} or less, smaller dtypes (int32, float16, uint8), or TFRecord files in a bucket.",
        )

    def _others(self, values: Mapping[str, Any]) -> TpuMagicsError:
        return TpuMagicsError(
            f"Row {self.rows:,} has the columns {', '.join(values)}, but earlier rows have {', '.join(self.columns)}.",
            "Each column becomes one array.",
            "Give each row the same columns.",
        )


def _size(count: float) -> str:
    for unit, size in (("GiB", _GIB), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} bytes"


def _target(sizes: Sequence[int], pad: Pad) -> int:
    """Length of one axis. An axis that all rows share is not padded."""
    multiple = pad if isinstance(pad, int) and len(set(sizes)) > 1 else 1
    return -(-max(sizes) // multiple) * multiple


def _fill_of(fill: Any, name: str) -> Any:
    return fill.get(name, 0) if isinstance(fill, Mapping) else fill


def _words(shapes: Sequence[tuple[int, ...]]) -> str:
    shown = ", ".join(str(list(shape)) for shape in (shapes if len(shapes) <= 4 else (shapes[0], shapes[-1])))
    return shown if len(shapes) <= 4 else f"{len(shapes)} shapes from {shown.replace(', [', ' to [')}"


def _narrow(array: Any) -> Any:
    """Python numbers as TensorFlow takes them: float32, and int32 if they fit."""
    if array.dtype == np.float64:
        return array.astype(np.float32)
    limits = np.iinfo(np.int32)
    fits = array.dtype == np.int64 and (not array.size or (array.min() >= limits.min and array.max() <= limits.max))
    return array.astype(np.int32) if fits else array
