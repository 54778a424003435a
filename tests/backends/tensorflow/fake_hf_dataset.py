"""Stands for a Hugging Face dataset, which is not among what the tests install.

Made of the documented interface of datasets 4 (huggingface.co/docs/datasets: Dataset.column_names, .format,
.with_format(type, columns), len, a row by its number as a dict, a slice as a dict of columns; NumPy's format gives
arrays, and an array of objects for rows that differ in length; .to_tf_dataset calls a tf.numpy_function out of
datasets/utils/tf_utils.py).
"""

from __future__ import annotations

import sys
import types
from functools import partial
from typing import Any

import numpy as np

# What datasets/utils/tf_utils.py does, in its own file of that name.
_TF_UTILS = """
import tensorflow as tf

def dataset_to_tf(dataset, batch_size, drop_remainder):
    def getter(indices):
        return dataset.with_format("numpy")[indices[0] : indices[-1] + 1]["x"].astype("float32")

    def fetch(indices):
        return tf.ensure_shape(tf.numpy_function(getter, [indices], tf.float32), (None, 2))

    return tf.data.Dataset.range(len(dataset)).batch(batch_size, drop_remainder=drop_remainder).map(fetch)

def to_tf_dataset(dataset, batch_size, drop_remainder=False):
    return dataset_to_tf(dataset, batch_size, drop_remainder)
"""


class FakeHfDataset:
    """`rows` hold the same columns each."""

    def __init__(self, rows: list[dict[str, Any]], kind: str | None = None, columns: list[str] | None = None) -> None:
        self._rows = rows
        self.column_names = list(rows[0])
        self.format = {"type": kind, "columns": columns or self.column_names}
        self.reads: list[int] = []  # rows of each read

    def with_format(self, type: str | None = None, columns: list[str] | None = None) -> FakeHfDataset:  # noqa: A002
        made = FakeHfDataset(self._rows, type, columns)
        made.reads = self.reads
        return made

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, key: int | slice) -> dict[str, Any]:
        if isinstance(key, int):
            return {name: self._rows[key][name] for name in self.format["columns"]}
        rows = self._rows[key]
        self.reads.append(len(rows))
        return {name: self._column([row[name] for row in rows]) for name in self.format["columns"]}

    def _column(self, values: list[Any]) -> Any:
        if self.format["type"] != "numpy":
            return values
        arrays = [np.asarray(value) for value in values]
        if len({array.shape for array in arrays}) == 1:
            return np.stack(arrays)
        found = np.empty(len(arrays), dtype=object)
        found[:] = arrays
        return found

    @property
    def to_tf_dataset(self) -> Any:
        return partial(_library().to_tf_dataset, self)


def _library() -> types.ModuleType:
    assert "datasets" not in sys.modules, "the real one is installed: use it"
    module = types.ModuleType("datasets.utils.tf_utils")
    exec(compile(_TF_UTILS, "/usr/lib/site-packages/datasets/utils/tf_utils.py", "exec"), module.__dict__)
    return module
