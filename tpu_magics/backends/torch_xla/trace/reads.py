"""Values that the host asks for while nothing is run.

What lives here: what is answered, and the note of who asked. What does not: syncs (tracer.py).

All ways from the device to the host meet in few operations of torch's dispatcher (read in torch 2.9.0 and torch_xla
2.9.0): `_to_copy` (tensor.cpu()), `copy_` into a tensor of the host, and `_to_cpu`, with which torch_xla fetches the
operands of each operation that XLA has no kernel for; it runs that on the host then. `.item()` and whatever has a shape
that depends on values goes that way. Here these operations have a kernel that answers with zeros. Everything else is
left to torch_xla's own kernels, so that the graph is the one that is trained.

What is known all the same (truth.py) is answered truly. It is a read where something had to be computed for it.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from tpu_magics.backends.lowered import Place, Read, Refused
from tpu_magics.backends.torch_xla.trace.live import is_pending
from tpu_magics.backends.torch_xla.trace.truth import Truth
from tpu_magics.backends.torch_xla.trace.uploads import placeholder
from tpu_magics.errors import TpuMagicsError

HOST = "XLA has no kernel for it: the host runs it, and the step's graph is cut in two there."
VALUE, TENSOR, EQUAL = "a value", "a tensor", "whether tensors are equal"
CHOSEN = "all elements were taken as chosen, the most there can be"
DISTINCT = "all elements were taken as distinct, the most there can be"
TRUE = "it follows from the inputs alone, and was computed"
FITTED = "as many values were taken as places were chosen"

TOO_OFTEN = 10_000  # reads at one place, and no sync

Fill = Callable[[Any, int], Any]  # a tensor, its place among the operands -> the one that stands for it on the host


def _zeros(tensor: Any, _place: int) -> Any:
    import torch

    return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")


def _ones(tensor: Any, _place: int) -> Any:
    import torch

    return torch.ones(tensor.shape, dtype=tensor.dtype, device="cpu")


def _counted(tensor: Any, _place: int) -> Any:
    import torch

    return torch.arange(tensor.numel(), device="cpu").reshape(tensor.shape).to(tensor.dtype)


def _unequal(tensor: Any, place: int) -> Any:
    return _ones(tensor, place) if place else _zeros(tensor, place)


# What XLA does not do because the host wants to know something: what it gets, and what it asked for.
_ASKING: Mapping[str, tuple[Fill, str]] = {
    "aten::_local_scalar_dense": (_zeros, VALUE),
    "aten::equal": (_unequal, EQUAL),
    "aten::nonzero": (_ones, f"the shape of nonzero or x[mask]: {CHOSEN}"),
    "aten::masked_select": (_ones, f"the shape of masked_select: {CHOSEN}"),
    "aten::repeat_interleave.Tensor": (_ones, "the shape of repeat_interleave: each element was taken once"),
    "aten::bincount": (_counted, f"the shape of bincount: {DISTINCT}"),
    "aten::_unique": (_counted, f"the shape of unique: {DISTINCT}"),
    "aten::_unique2": (_counted, f"the shape of unique: {DISTINCT}"),
    "aten::unique_dim": (_counted, f"the shape of unique: {DISTINCT}"),
    "aten::unique_consecutive": (_counted, f"the shape of unique_consecutive: {DISTINCT}"),
}


class Reads:
    """Answers for one process. `place`: the person's line of a frame; `world`: ranks that it is told of."""

    def __init__(self, place: Callable[[FrameType], Place | None], world: int) -> None:
        self.place = place
        self.found: dict[tuple[Place | None, str], int] = {}
        self.on_host: dict[tuple[Place | None, str], int] = {}
        self.thread = threading.get_ident()
        self.truth = Truth(world)
        self.moving: Callable[[], bool] = lambda: False  # whether a model is on its way to the device
        self.changed: Callable[[], None] = lambda: None  # told when something is read for the first time
        self.since_sync: dict[tuple[Place | None, str], int] = {}
        self._silent = 0
        self._fallbacks = _Fallbacks()
        self._original: dict[str, Any] = {}
        self._library: Any = None

    def told(self) -> tuple[Read, ...]:
        return tuple(Read(place, what, count) for (place, what), count in self.found.items())

    def zeros(self) -> tuple[Read, ...]:
        """Those that were answered with what is not true."""
        return tuple(one for one in self.told() if not one.what.endswith(TRUE))

    def refused(self) -> tuple[Refused, ...]:
        return tuple(Refused(op, HOST, "host", place, count) for (place, op), count in self.on_host.items())

    @contextmanager
    def off(self) -> Iterator[None]:
        """Our own doing is none of the person's."""
        self._silent += 1
        try:
            yield
        finally:
            self._silent -= 1

    def install(self) -> None:
        """From now on, in all threads of this process. For good."""
        import torch
        import torch_xla

        if not hasattr(torch.library, "get_kernel"):
            raise TpuMagicsError(
                f"A function cannot be traced with torch {torch.__version__}.",
                "Its values are held back by kernels that call torch_xla's own, and torch gives those out since 2.9.",
                "Use torch 2.9.0 with torch_xla 2.9.0: pip install 'tpu-magics[torch]'",
            )
        self._library = torch.library.Library("aten", "IMPL")
        kernels = {"_to_copy": self._to_copy, "copy_": self._copy_, "_to_cpu": self._to_cpu}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that a kernel is replaced is what we want
            for name, kernel in {**kernels, "index_put_": self._index_put_}.items():
                self._original[name] = torch.library.get_kernel(f"aten::{name}", "XLA")
                self._library.impl(name, kernel, "XLA", with_keyset=True)
        torch_xla._XLAC._xla_get_cpu_tensors = self._cpu_tensors
        for name in ("_to_dlpack", "_unsafe_buffer_pointer"):
            setattr(torch_xla._XLAC, name, _no_memory)

    # -- who asked --------------------------------------------------------------------------------------------------
    def part(self, frame: FrameType) -> None:
        """A part of the step was run by itself, which is done to fetch it."""
        self._note(self.found, TENSOR, self.place(frame))

    def _note(self, into: dict[tuple[Place | None, str], int], what: str, place: Place | None = None) -> None:
        if self._silent:
            return
        key = (place or self._asker(), what)
        into[key] = into.get(key, 0) + 1
        if into[key] == 1:
            self.changed()
        self.since_sync[key] = self.since_sync.get(key, 0) + 1
        if self.since_sync[key] > TOO_OFTEN:
            raise _endless(*key)

    def _asker(self) -> Place | None:
        """Autograd's own threads have none of the person's frames, but where a hook is the person's."""
        found = self.place(sys._getframe(2))
        if found is None and threading.get_ident() != self.thread:
            # Never of this thread itself: a frame that knows itself keeps alive what its callers hold.
            found = self.place(sys._current_frames()[self.thread])
        return found

    # -- kernels: they see inner tensors ------------------------------------------------------------------------------
    def _to_copy(self, keys: Any, tensor: Any, **options: Any) -> Any:
        import torch

        dtype, device = options.get("dtype") or tensor.dtype, options.get("device")
        if tensor.is_xla and device is not None and torch.device(device).type == "cpu" and not self._is_told(tensor):
            return torch.zeros(tensor.shape, dtype=dtype, device="cpu")
        made = placeholder(tensor, dtype) if self.moving() and not tensor.is_xla else None
        return made if made is not None else self._original["_to_copy"].call_boxed(keys, tensor, **options)

    def _copy_(self, keys: Any, into: Any, tensor: Any, non_blocking: bool = False) -> Any:
        if into.is_xla or self._is_told(tensor):
            return self._original["copy_"].call_boxed(keys, into, tensor, non_blocking)
        return into.zero_()

    def _is_told(self, tensor: Any) -> bool:
        """Whether a tensor that is fetched is known; note it where a step would be cut for it."""
        known = self.truth.has(tensor)
        if not known or is_pending(tensor):
            self._note(self.found, f"{TENSOR}: {TRUE}" if known else TENSOR)
        return known

    def _to_cpu(self, keys: Any, tensors: Sequence[Any]) -> list[Any]:
        """The operands of an operation that the host is about to run."""
        name, new = self._fallbacks.newest()
        fill, what = _ASKING.get(name, (_zeros, ""))
        known = [self.truth.has(one) for one in tensors]
        if new and not what:
            self._note(self.on_host, name)
        elif new and not all(known):
            self._note(self.found, what)
        elif new and any(map(is_pending, tensors)):
            self._note(self.found, f"{what.partition(':')[0]}: {TRUE}")
        original = self._original["_to_cpu"]
        return [
            original.call_boxed(keys, [one])[0] if is_so else fill(one, place)
            for place, (one, is_so) in enumerate(zip(tensors, known, strict=True))
        ]

    def _index_put_(self, keys: Any, into: Any, places: Sequence[Any], values: Any, *accumulate: Any) -> Any:
        """x[mask] = values: they were counted before, and all places are chosen now."""
        unknown = any(one is not None and _is_mask(one) and not self.truth.has(one) for one in places)
        if unknown and not _fits(values, into, places):
            self._note(self.found, f"the number of values in x[mask] = values: {FITTED}")
            values = values.new_zeros(())
        return self._original["index_put_"].call_boxed(keys, into, places, values, *accumulate)

    # -- what is no operation -----------------------------------------------------------------------------------------
    def _cpu_tensors(self, tensors: Sequence[Any]) -> list[Any]:
        """In place of torch_xla's own way for many tensors at once (xm.save, xm.mesh_reduce)."""
        return [one.cpu() if one.is_xla else one for one in tensors]


def _is_mask(tensor: Any) -> bool:
    import torch

    return tensor.dtype in (torch.bool, torch.uint8)


def _fits(values: Any, into: Any, places: Sequence[Any]) -> bool:
    """Whether there is a value for each place, where all that a mask can choose are chosen."""
    import torch

    chosen: list[Any] = []
    for one in places:
        mask = one is not None and _is_mask(one)
        shape = (one.numel(),) if mask else () if one is None else one.shape
        chosen += [None if one is None else torch.empty(shape, dtype=torch.long, device="meta")] * (
            one.dim() if mask else 1
        )
    target = torch.ops.aten.index(torch.empty(into.shape, device="meta"), chosen).shape
    try:
        return bool(torch.broadcast_shapes(values.shape, target) == target)
    except RuntimeError:
        return False


class _Fallbacks:
    """Which operation the host runs: torch_xla counts it by its name before it fetches the operands."""

    def __init__(self) -> None:
        self.counts = self._read()
        self.last = "an operation"

    def newest(self) -> tuple[str, bool]:
        """The name of the operation that runs now, and whether it has just begun."""
        counts = self._read()
        begun = [name for name, count in counts.items() if count != self.counts.get(name, 0)]
        self.counts = counts
        self.last = begun[-1] if begun else self.last
        return self.last, bool(begun)

    def _read(self) -> dict[str, int]:
        import torch_xla

        value = torch_xla._XLAC._xla_counter_value
        names = [one for one in torch_xla._XLAC._xla_counter_names() if "::" in one and not one.startswith("xla::")]
        return {name: value(name) or 0 for name in names}


def _no_memory(*_args: Any, **_kwargs: Any) -> Any:
    raise TpuMagicsError(
        "A function that asks for the address of a tensor's memory cannot be traced.",
        "While it is traced, what its steps compute has no memory.",
        "Leave DLPack and buffer pointers out for the preflight.",
    )


def _endless(place: Place | None, what: str) -> TpuMagicsError:
    where = f" at {place} ({place.code})" if place is not None else ""
    return TpuMagicsError(
        f"The function read {what}{where} {TOO_OFTEN:,} times without a sync in between.",
        "While it is traced no step is run, and what it reads is zero: a loop that waits for a value may never end.",
        "Give the loop a fixed number of steps for the preflight.",
    )
