"""Loads checked weights into the notebook's models: all of them, or none."""

from __future__ import annotations

import contextlib
import mmap
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import torch

from tpu_magics.backends.torch import weights_files
from tpu_magics.backends.torch.tensor_transfer import has_own_memory, memory_of, tensor_bytes
from tpu_magics.backends.torch.tied_weights import same_bits
from tpu_magics.backends.torch.weights_check import StagedWeights, WeightUpdate, layout_of
from tpu_magics.backends.torch.weights_files import PLAIN, Region, read_regions
from tpu_magics.errors import TpuMagicsError

_UNDO = "result-undo.tmp"
_ALIGNED = 64
# Memory that must stay free besides the old values; otherwise they are kept on disk.
_SPARE_BYTES = 256 * 2**20


def load_weights(staged: StagedWeights, free_bytes: int | None = None) -> list[str]:
    """In the notebook: copy the checked weights into the models, in place. After a failure they are byte for byte as
    before.

    Tensors keep their identity, strides and `requires_grad`. The old values are swapped with the new ones in the file,
    which is removed at the end; `free_bytes`: host memory for the old values of tensors that have another form in the
    file (None: what the machine has available). If it is too small, they are kept in the run folder. Returns the names
    of the models that have other values now.

    Raises:
        TpuMagicsError: something failed, and everything was restored; or there is no room for the old values.
    """
    with deferred_interrupts(), one_thread(), torch.no_grad():
        exchange = Exchange(staged.folder, staged.puts)
        try:
            puts = [_owned(put) for put in staged.puts if _changes(put)]
            with exchange:
                copied = [put for put in puts if put.how == "copy" and not exchange.takes(put)]
                with _old_values(copied, staged.folder, free_bytes) as keep:
                    _put_all(puts, exchange, keep)
        except Exception as error:
            raise _not_loaded(staged, error, exchange.kept) from error
    changed = {id(put.slot.module) for put in puts}
    return [name for name, modules in staged.models.items() if modules & changed]


class _Damaged(Exception):
    """A change could not be undone."""


def _put_all(puts: Sequence[WeightUpdate], exchange: Exchange, keep: Callable[[Any], Any]) -> None:
    undo: list[tuple[WeightUpdate, Callable[[], None]]] = []
    try:
        for put in puts:
            change, back = exchange.prepare(put) if exchange.takes(put) else _METHODS[put.how](put, keep)
            undo.append((put, back))
            change()
    except BaseException as error:
        if damaged := [put.slot.name for put, back in reversed(undo) if not _undone(back)]:
            exchange.kept = False
            raise _Damaged(
                f"{error}; then {', '.join(f'`{name}`' for name in damaged)} could not be restored"
            ) from error
        raise


def _undone(back: Callable[[], None]) -> bool:
    """Undo one change; if this fails, the others must still be undone."""
    try:
        back()
    except Exception:
        return False
    return True


def _not_loaded(staged: StagedWeights, error: Exception, kept: bool) -> TpuMagicsError:
    recipe = weights_files.recipe(staged.folder, tuple(staged.models))
    kept_text = f"They are kept. To load them yourself: {recipe}" if kept else "They are lost. Train again."
    if isinstance(error, _Damaged):
        return TpuMagicsError(
            "The trained weights could not be loaded into the notebook's models, and not all old weights could be "
            "restored.",
            str(error),
            f"Create the models again: run the cells that create them. The trained weights: {kept_text}",
        )
    return TpuMagicsError(
        "The trained weights could not be loaded into the notebook's models. The models were not changed.",
        f"{type(error).__name__}: {error}",
        f"The trained weights: {kept_text}",
    )


def _changes(put: WeightUpdate) -> bool:
    """False if the values are the same, as in frozen layers; then nothing must be kept for them."""
    return (
        put.how not in ("copy", "rebind") or put.target.dtype != put.value.dtype or not same_bits(put.target, put.value)
    )


def _owned(put: WeightUpdate) -> WeightUpdate:
    """Values in their own memory, not that of the mapped file, if the model keeps them."""
    if put.how in ("copy", "materialise") or put.value is None:
        return put
    same_shape = put.target is not None and put.target.shape == put.value.shape
    if put.how == "rebind" and layout_of(put.target) == "strided" and same_shape:  # with the notebook's strides
        return WeightUpdate(put.how, put.slot, torch.empty_like(put.target, dtype=put.value.dtype).copy_(put.value))
    return WeightUpdate(put.how, put.slot, put.value.clone())


# -- ways to change a model. Each returns the change and what undoes it, also half-way --------------------------------
def _copy(put: WeightUpdate, keep: Callable[[Any], Any]) -> tuple[Callable[[], None], Callable[[], None]]:
    target, old = put.target, keep(put.target)
    # An inference tensor may be written in inference mode only.
    mode = torch.inference_mode if target.is_inference() else contextlib.nullcontext

    def write(value: Any) -> None:
        with mode():
            target.copy_(value)

    return lambda: write(put.value), lambda: write(old)


def _rebind(put: WeightUpdate, _keep: Callable[[Any], Any]) -> tuple[Callable[[], None], Callable[[], None]]:
    target, old, grad = put.target, put.target.data, put.target.grad

    def point(data: Any, new_grad: Any) -> None:
        target.grad = None  # a gradient must have the dtype of its tensor
        target.data = data
        target.grad = new_grad

    fitting = None if grad is None or grad.shape != put.value.shape else grad.to(put.value.dtype)
    return lambda: point(put.value, fitting), lambda: point(old, grad)


def _materialise(put: WeightUpdate, _keep: Callable[[Any], Any]) -> tuple[Callable[[], None], Callable[[], None]]:
    target, lazy = put.target, type(put.target)
    empty = target.data

    def change() -> None:
        target.materialize(put.value.shape, dtype=put.value.dtype)
        target.data.copy_(put.value)

    def back() -> None:
        target.data = empty
        target.__class__ = lazy

    return change, back


def _swap(put: WeightUpdate, _keep: Callable[[Any], Any]) -> tuple[Callable[[], None], Callable[[], None]]:
    target, fresh = put.target, put.value
    if put.slot.kind == "parameter":
        fresh = torch.nn.Parameter(fresh, requires_grad=target.requires_grad)
    swapped: list[bool] = []

    def change() -> None:
        torch.utils.swap_tensors(target, fresh)
        swapped.append(True)

    def back() -> None:
        if swapped:
            torch.utils.swap_tensors(target, fresh)

    return change, back


def _replace(put: WeightUpdate, _keep: Callable[[Any], Any]) -> tuple[Callable[[], None], Callable[[], None]]:
    table, key, old = put.slot.table, put.slot.key, put.target
    return lambda: table.update({key: put.value}), lambda: table.update({key: old})


_METHODS = {"copy": _copy, "rebind": _rebind, "materialise": _materialise, "swap": _swap, "replace": _replace}


# -- where the old values are kept meanwhile --------------------------------------------------------------------------
@contextlib.contextmanager
def _old_values(puts: Sequence[WeightUpdate], folder: Path, free_bytes: int | None) -> Iterator[Callable[[Any], Any]]:
    """Reserve room for a copy of everything that is overwritten, before the first copy; yields a function that copies
    there."""
    needed = sum(_room(put.target) for put in puts)
    free = _free_memory() if free_bytes is None else free_bytes
    if needed + _SPARE_BYTES <= free:
        yield _Arena(torch.frombuffer(_memory(needed), dtype=torch.uint8)).keep
        return
    path = folder / _UNDO
    try:
        _reserve(path, needed, free)
        yield _Arena(torch.from_file(str(path), shared=True, size=needed, dtype=torch.uint8)).keep
    finally:
        path.unlink(missing_ok=True)


def _memory(size: int) -> mmap.mmap:
    """New memory, in huge pages if the kernel has them: allocating small ones takes longer than the copy."""
    memory = mmap.mmap(-1, max(size, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _reserve(path: Path, size: int, free: int) -> None:
    """Create a file of `size` bytes with real disk blocks: a full disk must fail now, not as a SIGBUS later."""
    try:
        with open(path, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(size, 1))
    except OSError as error:
        raise OSError(
            f"the old values need {size / 1e6:.1f} MB while the new ones are copied, but {free / 1e6:.1f} MB of "
            f"memory are free, and the disk has no space either ({error})"
        ) from error


class _Arena:
    """A block of memory for copies."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self._used = 0

    def keep(self, tensor: Any) -> Any:
        """A copy of a dense tensor, in this memory."""
        size = tensor_bytes(tensor)
        block = self._memory[self._used : self._used + size]
        self._used += _room(tensor)
        copy = block.view(tensor.dtype).view(tensor.shape) if size else tensor.detach().clone()
        return copy.copy_(tensor)


def _room(tensor: Any) -> int:
    return -(-tensor_bytes(tensor) // _ALIGNED) * _ALIGNED


def _free_memory() -> int:
    import psutil

    return int(psutil.virtual_memory().available)


# -- meanwhile: interrupts and threads --------------------------------------------------------------------------------


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Torch computes on one thread. A copy is limited by memory bandwidth, and OpenMP's threads wait for each other in
    busy loops: on a busy machine, copies with all threads took ten times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def deferred_interrupts() -> Iterator[None]:
    """SIGINT takes effect when the block ends.

    Blocking it in this thread is not enough: any thread that does not block it may receive a signal to the process, and
    Python then raises KeyboardInterrupt in the main thread. So in the main thread the handler is replaced as well.
    """
    arrived: list[int] = []

    def remember(number: int, _frame: FrameType | None) -> None:
        arrived.append(number)

    handler = signal.getsignal(signal.SIGINT)
    # A handler that was not installed from Python is None and could not be restored.
    replaced = threading.current_thread() is threading.main_thread() and handler is not None
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        if replaced:
            signal.signal(signal.SIGINT, remember)
        yield
    finally:
        if replaced:
            signal.signal(signal.SIGINT, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if arrived:
            signal.raise_signal(signal.SIGINT)


# -- exchange ---------------------------------------------------------------------------------------------------------


# Keeping the old values in fresh memory needs as much memory again as the model, and allocating that took up to twenty
# times as long as the copy itself. The pages of the file exist already. After a failure, the same exchange restores
# both.

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
            self._regions = read_regions(self._file)
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
