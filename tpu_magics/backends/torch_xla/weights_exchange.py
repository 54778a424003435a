"""Swaps tensors with their new values in the safetensors file, block by block, so that the old values need no extra
memory.

Keeping the old values in fresh memory needs as much memory again as the model, and allocating that took up to twenty
times as long as the copy itself. The pages of the file exist already. After a failure, the same exchange restores both.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from tpu_magics.backends.torch_xla.weights_check import WeightUpdate
from tpu_magics.backends.torch_xla.weights_fetch import has_own_memory
from tpu_magics.backends.torch_xla.weights_files import PLAIN
from tpu_magics.backends.torch_xla.weights_format import Region, memory_of, regions

_BLOCK = 2**18  # stays in the CPU cache between reading, writing and copying
# The file's name while it has old and new values, so that it is not used as trained weights.
_MIXED = "result-mixed.tmp"


class Exchange:
    """The open file. Use it in a `with` block: afterwards the file is removed, or, after a failure, restored.

    `kept`: whether the file has the trained weights (False: they could not be written back, and it was removed).
    """

    def __init__(self, folder: Path, puts: Sequence[WeightUpdate]) -> None:
        self._path = folder / PLAIN
        self._mixed = folder / _MIXED
        self._uses = Counter(put.key for put in puts)
        self._file: int | None = None
        self._regions: dict[str, Region] = {}
        self.kept = True

    def __enter__(self) -> Exchange:
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return self  # no such file, or not writable: nothing is exchanged
        try:
            self._regions = regions(self._file)
            self._path.rename(self._mixed)
        except BaseException:
            os.close(self._file)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._file is None:
            return
        os.close(self._file)
        if kind is None or not self.kept:
            with contextlib.suppress(OSError):  # its name says that it cannot be used
                self._mixed.unlink()
        else:
            self._mixed.rename(self._path)

    def takes(self, put: WeightUpdate) -> bool:
        """Whether the tensor has the same bytes in the file and in memory, and is the only one that uses them."""
        target = put.target
        if put.how != "copy" or put.key not in self._regions or self._uses[put.key] > 1:
            return False
        same = target.dtype == put.value.dtype and target.is_contiguous() and has_own_memory(target)
        return bool(same) and self._regions[put.key].size == target.numel() * target.element_size()

    def prepare(self, put: WeightUpdate) -> tuple[Callable[[], None], Callable[[], None]]:
        """The change, and how to undo it, even half-way."""
        assert self._file is not None
        swap = _Swap(self._file, self._regions[put.key].offset, put.target, self)
        return swap.change, swap.back


class _Swap:
    """One tensor and its region of the file."""

    def __init__(self, file: int, offset: int, target: Any, owner: Exchange) -> None:
        self._file = file
        self._offset = offset
        self._target = target
        self._owner = owner
        self._memory = memory_of(target)
        self._done = 0  # bytes that have been exchanged
        self._pending: tuple[int, bytes] = (0, b"")  # where a block begins, and its new values

    def change(self) -> None:
        """Exchange block by block. After a failure the pending block may be in any state."""
        while self._done < len(self._memory):
            here = self._memory[self._done : self._done + _BLOCK]
            new = self._read(self._done, len(here))
            self._pending = self._done, new
            self._write(self._done, here)
            here[:] = new
            self._done += len(here)
        if not self._target.is_inference():
            torch.autograd.graph.increment_version(self._target)

    def back(self) -> None:
        """Restore every old block in memory, and the new ones in the file if possible."""
        start, new = self._pending
        if start == self._done:
            here = self._memory[start : start + len(new)]
            if here == new:  # it was just changed: its old values are in the file
                here[:] = self._read(start, len(here))
            self._restore(start, new)
        for start in range(0, self._done, _BLOCK):
            here = self._memory[start : min(start + _BLOCK, self._done)]
            old, new = self._read(start, len(here)), bytes(here)
            here[:] = old
            self._restore(start, new)

    def _read(self, start: int, count: int) -> bytes:
        block = os.pread(self._file, count, self._offset + start)
        if len(block) != count:
            raise OSError(f"the file ended {count - len(block)} bytes too early")
        return block

    def _write(self, start: int, block: Any) -> None:
        while len(block):
            count = os.pwrite(self._file, block, self._offset + start)
            start, block = start + count, block[count:]

    def _restore(self, start: int, block: bytes) -> None:
        try:
            self._write(start, block)
        except OSError:
            self._owner.kept = False
