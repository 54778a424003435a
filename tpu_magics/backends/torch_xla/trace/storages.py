"""The base tensor in the storage of a functional tensor, for which torch has no Python function.

A view and its base share a storage, and the Python object of the base may be gone: a weight's gradient is the transpose
of a product that only the storage holds. torch_xla still computes it, as a separate result. `FunctionalStorageImpl`
(aten/src/ATen/FunctionalStorageImpl.h, torch 2.9.0) has it as `base_`; its offset is found with a new tensor whose
`base_` is known.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

_WRAP = "_Z16THPVariable_WrapRKN2at10TensorBaseE"  # torch/csrc/autograd/python_variable.h, 2.9.0
_WORDS = 24  # of the object, which has 200 bytes in 2.9.0
_WORD = ctypes.sizeof(ctypes.c_void_p)


def base(tensor: Any) -> Any:
    """The inner tensor in the storage of a functional tensor; None if there is none, or it cannot be fetched."""
    place = _place()
    if place is None:
        return None
    address = tensor.untyped_storage()._cdata + place
    return _wrap()(ctypes.c_void_p(address)) if ctypes.c_void_p.from_address(address).value else None


@functools.lru_cache(maxsize=1)
def _place() -> int | None:
    """The offset of `base_` in a storage, in bytes."""
    import torch
    import torch_xla

    tensor = torch.empty((), device=torch_xla.device())
    if not torch._is_functional_tensor(tensor) or _wrap() is None:
        return None
    inner = torch._from_functional_tensor(tensor)
    words = (ctypes.c_size_t * _WORDS).from_address(tensor.untyped_storage()._cdata)
    found = [number * _WORD for number, word in enumerate(words) if word == inner._cdata]
    return found[0] if len(found) == 1 else None


@functools.lru_cache(maxsize=1)
def _wrap() -> Any:
    """A function that wraps a C++ tensor as a Python object; None if torch does not have it."""
    import torch

    library = ctypes.PyDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_python.so"))
    function = getattr(library, _WRAP, None)
    if function is not None:
        function.restype = ctypes.py_object
        function.argtypes = [ctypes.c_void_p]
    return function
