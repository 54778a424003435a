"""Replaces torch_xla's kernels by Python functions that can still call the original.

Since torch 2.9 a kernel can be fetched (`torch.library.get_kernel`) and replaced directly. Before, a replaced kernel
cannot be called any more, so ours is registered where the dispatcher goes before the device kernels, at
`BackendSelect`: each operation passes it, in each thread, below Python's modes and the functional tensors (torch 2.8.0:
c10/core/DispatchKey.h). Host tensors pass it too and are forwarded.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

_BEFORE_DEVICES = "BackendSelect"
Kernel = Callable[..., Any]


class KernelOverrides:
    """The overrides of one process; they stay as long as this object."""

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
