"""Stands for a Hugging Face dataset, which is not among what the tests install.

Made of the documented interface of datasets 4 (huggingface.co/docs/datasets: Dataset.column_names, .format,
.with_format(type, columns), len, a row by its number as a dict, a slice as a dict of columns; NumPy's format gives
arrays, and an array of objects for rows that differ in length).
"""

from __future__ import annotations

from typing import Any

import numpy as np


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
