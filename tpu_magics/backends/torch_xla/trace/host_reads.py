"""Host reads during a trace: the kernels that answer them, and their log with the lines of the user and of the
library."""

from __future__ import annotations

import functools
import linecache
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import takewhile
from types import FrameType
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.lowered import HostRead, SourceLine, UnsupportedOp
from tpu_magics.backends.observe.sites import outwards
from tpu_magics.backends.torch_xla.trace.live_tensors import is_pending
from tpu_magics.backends.torch_xla.trace.placeholders import (
    FITTED,
    HOST,
    READING_OPS,
    TENSOR,
    TRUE,
    Fallbacks,
    KnownValues,
    Uploads,
    fits,
    is_mask,
    zeros,
)
from tpu_magics.errors import TpuMagicsError
from tpu_magics.runs.origin import package_of

if TYPE_CHECKING:
    from tpu_magics.backends.observe.sites import Sites

# -- source lines -----------------------------------------------------------------------------------------------------


# Packages with a tensor's own methods, which every library calls.
_OWN = ("torch_xla", "tpu_magics", "Python", "")
_TORCH = "torch"


class SourceLineFinder:
    """Finds lines as soon as it has the `sites` of an observer."""

    def __init__(self) -> None:
        self.sites: Sites | None = None

    def place(self, frame: FrameType) -> SourceLine | None:
        """The innermost line of the user's code."""
        if self.sites is None or self.sites.user_frame(frame) is None:
            return None
        site = self.sites.of_frame(frame)
        return SourceLine(site.path, site.line, site.code)

    def inside(self, frame: FrameType) -> SourceLine | None:
        """The innermost line of a library that the user's line called; None if there is none. Code of tensors
        themselves does not count."""
        if self.sites is None:
            return None
        is_user_code = self.sites.is_user_code
        between = takewhile(lambda one: not is_user_code(one.f_code.co_filename, one.f_code.co_name), outwards(frame))
        found = next((one for one in between if _is_library(one.f_code.co_filename)), None)
        return None if found is None else _of(found)

    def users(self, frames: Sequence[tuple[str, str, int]]) -> SourceLine | None:
        """The user's line among (function, path, line), innermost first."""
        site = self.sites.of_stack(frames) if self.sites is not None else None
        return SourceLine(site.path, site.line, site.code) if site is not None else None


def _is_library(path: str) -> bool:
    package = package_of(path)
    if package != _TORCH:
        return package not in _OWN
    parts = _within(path).split("/")
    return len(parts) > 2 and not parts[1].startswith(("_", "utils"))


def _within(path: str) -> str:
    """The path from its package on: "transformers/masking_utils.py"."""
    return path.replace("\\", "/").rpartition("-packages/")[2]


def _of(frame: FrameType) -> SourceLine:
    path, line = frame.f_code.co_filename, frame.f_lineno
    return SourceLine(_within(path), line, linecache.getline(path, line).strip())


# -- log --------------------------------------------------------------------------------------------------------------


TOO_OFTEN = 10_000  # reads at one line without a sync


class HostReadLog:
    """The reads of one process; create it in the thread that runs the function."""

    def __init__(self, lines: SourceLineFinder) -> None:
        self.lines = lines
        self.thread = threading.get_ident()
        self.changed: Callable[[], None] = lambda: None  # called when something is read for the first time
        self._reads: Counter[HostRead] = Counter()
        self._on_host: Counter[UnsupportedOp] = Counter()
        self._since_sync: Counter[HostRead | UnsupportedOp] = Counter()
        self._silent = 0

    def reads(self) -> tuple[HostRead, ...]:
        return tuple(replace(one, count=count) for one, count in self._reads.items())

    def zeros(self) -> tuple[HostRead, ...]:
        """The reads that returned a placeholder."""
        return tuple(one for one in self.reads() if not one.known)

    def refused(self) -> tuple[UnsupportedOp, ...]:
        return tuple(replace(one, count=count) for one, count in self._on_host.items())

    @contextmanager
    def off(self) -> Iterator[None]:
        """Do not log our own reads."""
        self._silent += 1
        try:
            yield
        finally:
            self._silent -= 1

    def synced(self) -> None:
        """A step has ended."""
        self._since_sync.clear()

    def read(self, what: str, known: bool = False, frame: FrameType | None = None) -> None:
        """Log that a value was fetched. `frame`: of the caller that fetched it, if that is not the caller of this."""
        if not self._silent:
            found = frame or self._caller(sys._getframe(1))
            text = f"{what.partition(':')[0]}: {TRUE}" if known else what
            place = self.lines.place(found)
            inside = self.lines.inside(found) if place is not None else None
            self._note(self._reads, HostRead(place, text, inside=inside, known=known), text)

    def ran_on_host(self, op: str) -> None:
        """Log an operation without an XLA kernel."""
        if not self._silent:
            place = self.lines.place(self._caller(sys._getframe(1)))
            self._note(self._on_host, UnsupportedOp(op, HOST, "host", place), op)

    def part(self, frame: FrameType) -> None:
        """Log that a part of the step ran separately, which is done to fetch it."""
        self.read(TENSOR, frame=frame)

    def _note(self, into: Counter[HostRead] | Counter[UnsupportedOp], one: HostRead | UnsupportedOp, what: str) -> None:
        into[one] += 1  # type: ignore[index]
        if into[one] == 1:  # type: ignore[index]
            self.changed()
        self._since_sync[one] += 1
        if self._since_sync[one] > TOO_OFTEN:
            raise _endless(one.place, what)

    def _caller(self, frame: FrameType) -> FrameType:
        """Autograd's own threads have no frames of the user, except in the user's hooks."""
        if threading.get_ident() == self.thread or self.lines.place(frame) is not None:
            return frame
        # Never of this thread itself: a frame that refers to itself keeps its callers' objects alive.
        return sys._current_frames()[self.thread]


def _endless(place: SourceLine | None, what: str) -> TpuMagicsError:
    where = f" at {place} ({place.code})" if place is not None else ""
    return TpuMagicsError(
        f"The function read {what}{where} {TOO_OFTEN:,} times without a sync.",
        "A preflight runs no step, and every value that the function reads is zero. A loop that waits for a value may "
        "never end.",
        "Use a fixed number of steps in the loop for the preflight.",
    )


# -- kernels ----------------------------------------------------------------------------------------------------------


# All ways from the device to the host use a few operations of torch's dispatcher (torch 2.9.0 and torch_xla 2.9.0; the
# same tests pass with 2.8.0): `_to_copy` (tensor.cpu()), `copy_` into a host tensor, and `_to_cpu`, with which
# torch_xla fetches the operands of an operation without an XLA kernel, to run it on the host (`.item()` and operations
# whose shape depends on values too). Here these operations return zeros, or the true value if it is known
# (placeholders.py). All other operations keep torch_xla's kernels, so the graph is the one that is trained.

_BEFORE_DEVICES = "BackendSelect"
Kernel = Callable[..., Any]


class ReadKernels:
    """The kernels of one process. `log`: the log of reads; `world`: number of ranks; `uploads`: placeholders for
    large tensors (None: all are moved to the device)."""

    def __init__(self, log: HostReadLog, world: int, uploads: Uploads | None) -> None:
        self.log = log
        self.known = KnownValues(world)
        self.uploads = uploads
        self._fallbacks = Fallbacks()
        self._kernels = KernelOverrides()
        self._original: dict[str, Callable[..., Any]] = {}

    def install(self) -> None:
        """From now on, in all threads of this process, until it ends."""
        import torch_xla

        own: dict[str, Callable[..., Any]]
        own = {"_to_copy": self._to_copy, "copy_": self._copy_, "_to_cpu": self._to_cpu, "index_put_": self._index_put_}
        self._original = {name: self._kernels.replace(name, kernel) for name, kernel in own.items()}
        torch_xla._XLAC._xla_get_cpu_tensors = self._cpu_tensors
        for name in ("_to_dlpack", "_unsafe_buffer_pointer"):
            setattr(torch_xla._XLAC, name, _no_memory)

    # -- kernels: they see inner tensors ------------------------------------------------------------------------------
    def _to_copy(self, keys: Any, tensor: Any, **options: Any) -> Any:
        import torch

        dtype, device = options.get("dtype") or tensor.dtype, options.get("device")
        if tensor.is_xla and device is not None and torch.device(device).type == "cpu" and not self._is_known(tensor):
            return torch.zeros(tensor.shape, dtype=dtype, device="cpu")
        made = self.uploads.placeholder(tensor, dtype) if self.uploads is not None and not tensor.is_xla else None
        return made if made is not None else self._original["_to_copy"](keys, tensor, **options)

    def _copy_(self, keys: Any, into: Any, tensor: Any, non_blocking: bool = False) -> Any:
        if into.is_xla or self._is_known(tensor):
            return self._original["copy_"](keys, into, tensor, non_blocking)
        return into.zero_()

    def _is_known(self, tensor: Any) -> bool:
        """Whether the values of a fetched tensor are known; log it if the read would split a step."""
        known = self.known.has(tensor)
        if not known or is_pending(tensor):
            self.log.read(TENSOR, known)
        return known

    def _to_cpu(self, keys: Any, tensors: Sequence[Any]) -> list[Any]:
        """The operands of an operation that is about to run on the host."""
        name, new = self._fallbacks.newest()
        fill, what = READING_OPS.get(name, (zeros, ""))
        known = [not one.is_xla or self.known.has(one) for one in tensors]
        if new and not what:
            self.log.ran_on_host(name)
        elif new and (not all(known) or any(one.is_xla and is_pending(one) for one in tensors)):
            self.log.read(what, all(known))
        original = self._original["_to_cpu"]
        return [
            one if not one.is_xla else original(keys, [one])[0] if is_so else fill(one, place)
            for place, (one, is_so) in enumerate(zip(tensors, known, strict=True))
        ]

    def _index_put_(self, keys: Any, into: Any, places: Sequence[Any], values: Any, *accumulate: Any) -> Any:
        """x[mask] = values: the number of values is fixed, but here the mask selects all positions."""
        unknown = any(one is not None and is_mask(one) and not self.known.has(one) for one in places)
        if unknown and not fits(values, into, places):
            self.log.read(f"the number of values in x[mask] = values: {FITTED}")
            values = values.new_zeros(())
        return self._original["index_put_"](keys, into, places, values, *accumulate)

    # -- what is no operation -----------------------------------------------------------------------------------------
    def _cpu_tensors(self, tensors: Sequence[Any]) -> list[Any]:
        """Replaces torch_xla's function for many tensors at once (xm.save, xm.mesh_reduce)."""
        return [one.cpu() if one.is_xla else one for one in tensors]


def _no_memory(*_args: Any, **_kwargs: Any) -> Any:
    raise TpuMagicsError(
        "A function that reads the memory address of a tensor cannot be traced.",
        "A preflight runs no step, so the tensors have no memory.",
        "Do not use DLPack or buffer pointers in the preflight.",
    )


# -- replacing kernels ------------------------------------------------------------------------------------------------


class KernelOverrides:
    """Python functions in place of torch_xla's kernels, in one process, as long as this object.

    Since torch 2.9 a kernel can be fetched (`torch.library.get_kernel`) and replaced directly. Before, a replaced
    kernel cannot be called any more, so ours is registered where the dispatcher goes before the device kernels, at
    `BackendSelect`: each operation passes it, in each thread, below Python's modes and the functional tensors (torch
    2.8.0: c10/core/DispatchKey.h). Host tensors pass it too and are forwarded.
    """

    def __init__(self) -> None:
        self._library: Any = None

    def replace(self, name: str, kernel: Kernel) -> Kernel:
        """Run `kernel` for aten's operation `name` ("scatter.value"; without a point its first overload) on XLA.
        Returns the original. Both take the dispatcher's keys, then the operation's arguments."""
        import torch

        if self._library is None:
            self._library = torch.library.Library("aten", "IMPL")
        base, _, overload = name.partition(".")
        operation = getattr(getattr(torch.ops.aten, base), overload or "default")
        original: Kernel
        if hasattr(torch.library, "get_kernel"):
            original = torch.library.get_kernel(f"aten::{name}", "XLA").call_boxed
            self._register(name, _with_tensors(operation, kernel), "XLA")
        else:
            original = functools.partial(_go_on, operation)
            chooser = functools.partial(_choose, kernel, original)
            self._register(name, _with_tensors(operation, chooser), _BEFORE_DEVICES)
        return original

    def _register(self, name: str, kernel: Kernel, key: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about the replaced kernel
            self._library.impl(name, kernel, key, with_keyset=True)


def _choose(kernel: Kernel, original: Kernel, keys: Any, *args: Any, **options: Any) -> Any:
    import torch

    on_xla = _after(keys, options).highestPriorityTypeId() == torch._C.DispatchKey.XLA
    return (kernel if on_xla else original)(keys, *args, **options)


def _go_on(operation: Any, keys: Any, *args: Any, **options: Any) -> Any:
    return operation.redispatch(_after(keys, options), *args, **options)


def _after(keys: Any, options: dict[str, Any]) -> Any:
    """The remaining keys: those of the tensors, and that of the requested device (as torch's own kernels at
    BackendSelect do; torch 2.8.0, torchgen/gen.py: ComputeBackendSelect)."""
    import torch

    own = torch._C
    left = keys & own._dispatch_keyset_full_after(own.DispatchKey.BackendSelect)
    device = options.get("device")
    if device is None:
        return left
    return left | own.DispatchKeySet(getattr(own.DispatchKey, own._dispatch_key_for_device(torch.device(device).type)))


def _with_tensors(operation: Any, kernel: Kernel) -> Kernel:
    """torch passes a tensor that stands for a Python number (`x.sum() + 32`) as that number, but does not accept it
    back, so it is made a tensor again."""
    kinds = [str(one.type).replace("Optional[Tensor]", "Tensor") for one in operation._schema.arguments]

    def taking(keys: Any, *args: Any, **options: Any) -> Any:
        given = [_as(kind, value) for kind, value in zip(kinds, args, strict=False)]
        return kernel(keys, *given, **options)

    return taking


def _as(kind: str, value: Any) -> Any:
    if kind == "List[Tensor]":
        return [_as("Tensor", one) for one in value]
    return _tensor(value) if kind == "Tensor" and isinstance(value, (bool, int, float, complex)) else value


def _tensor(number: complex) -> Any:
    """A number as a tensor, like torch's C++ code makes it (c10/core/ScalarType.h: the widest type of its kind)."""
    import torch

    types = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
    return torch.scalar_tensor(number, dtype=types[type(number)], device="cpu")
