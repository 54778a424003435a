"""Kernels that answer host reads while no step is run.

All ways from the device to the host use a few operations of torch's dispatcher (torch 2.9.0 and torch_xla 2.9.0; the
same tests pass with 2.8.0): `_to_copy` (tensor.cpu()), `copy_` into a host tensor, and `_to_cpu`, with which torch_xla
fetches the operands of an operation without an XLA kernel, to run it on the host (`.item()` and operations whose shape
depends on values too). Here these operations return zeros, or the true value if it is known (constness.py). All other
operations keep torch_xla's kernels, so the graph is the one that is trained.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from tpu_magics.backends.torch_xla.trace.constness import KnownValues
from tpu_magics.backends.torch_xla.trace.host_reads import HostReadLog
from tpu_magics.backends.torch_xla.trace.live_tensors import is_pending
from tpu_magics.backends.torch_xla.trace.placeholders import (
    FITTED,
    READING_OPS,
    TENSOR,
    Fallbacks,
    fits,
    is_mask,
    zeros,
)
from tpu_magics.backends.torch_xla.trace.uploads import Uploads
from tpu_magics.errors import TpuMagicsError

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
        """Run `kernel` for aten's operation `name` (its first overload) on XLA; returns the original. Both take the
        dispatcher's keys, then the operation's arguments."""
        import torch

        if self._library is None:
            self._library = torch.library.Library("aten", "IMPL")
        operation = getattr(torch.ops.aten, name).default
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
    """As torch's C++ code does (c10/core/ScalarType.h: the widest type of its kind)."""
    import torch

    types = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
    return torch.scalar_tensor(number, dtype=types[type(number)], device="cpu")
