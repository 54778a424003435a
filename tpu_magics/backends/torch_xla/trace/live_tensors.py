"""The live tensors on the device, those that are not computed yet, and their pending graph.

torch_xla's tensors are functional (torch's "Note [Functionalization Pass]"): the Python object wraps an inner tensor,
and an in-place assignment gives the wrapper another one. These functions look at the inner tensors: asking torch_xla
about a wrapper would update a view, which adds an operation to the step's graph. C++ functions as in torch_xla 2.9.0
and torch 2.9.0.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tpu_magics.backends.instances import instances
from tpu_magics.backends.torch import tensor_transfer


def tensors() -> list[Any]:
    """The inner tensors of this process, each once, in the order of their creation: torch_xla orders the results of a
    step like that.

    They are found among all live objects, except those from before the fork (launch/process.py freezes them): of those,
    only tensors that moved, and stayed the same objects, are on the device.
    """
    outer = outer_tensors()
    outer += _gradients(outer)
    found = _by_id(map(inner, outer))
    if len(found) != alive():
        found |= _by_id(_in_storages(outer))
    for more in (_saved, _left_to_cpp):
        if len(found) != alive():
            others = list(more(outer))
            found |= _by_id([*map(inner, others), *_in_storages(others)])
    return [found[number] for number in sorted(found)]


_hooked: list[bool] = []


def watch_hooks() -> None:
    """Know of hooks of saved tensors (checkpoint's compute a layer again): they run where a tensor is only looked at,
    so none is from then on. torch 2.9."""
    from torch.autograd.graph import saved_tensors_hooks

    original = saved_tensors_hooks.__enter__

    @functools.wraps(original)
    def enter(hooks: Any) -> Any:
        _hooked[:] = [True]
        return original(hooks)

    saved_tensors_hooks.__enter__ = enter


def outer_tensors() -> list[Any]:
    """All tensors on the device that something in Python refers to."""
    import torch

    return [one for one in (*instances(torch.Tensor, _owned), *tensor_transfer.moved_tensors()) if one.is_xla]


def inner(tensor: Any) -> Any:
    """The tensor on the device that a tensor currently wraps."""
    import torch

    return torch._from_functional_tensor(tensor) if torch._is_functional_tensor(tensor) else tensor


def number(tensor: Any) -> int | None:
    """torch_xla's id of an inner tensor."""
    import torch_xla

    try:
        return int(torch_xla._XLAC._xla_get_tensor_id(tensor))
    except RuntimeError:  # "Expected XLA tensor. Got: ...": a wrapper of torch's own without a tensor in it
        return None


def alive() -> int:
    """The number of inner tensors as torch_xla counts them, including those that Python does not know of. Wrong if its
    counters were reset, and under SPMD."""
    import torch_xla

    count = torch_xla._XLAC._xla_counter_value
    return (count("CreateXlaTensor") or 0) - (count("DestroyXlaTensor") or 0)


def ordered(found: Iterable[Any]) -> list[Any]:
    """The inner tensors of these, each once, in the order of their creation."""
    by_id = _by_id(map(inner, found))
    return [by_id[one] for one in sorted(by_id)]


def pending(found: Iterable[Any]) -> list[Any]:
    """The inner tensors whose values are not computed yet."""
    import torch_xla

    found = list(found)
    needs = torch_xla._XLAC._check_tensor_need_materialization(found)
    return [one for one, needed in zip(found, needs, strict=True) if needed]


def is_pending(tensor: Any) -> bool:
    import torch_xla

    return bool(torch_xla._XLAC._check_tensor_need_materialization([tensor])[0])


def is_placeholder(tensor: Any) -> bool:
    """Whether a tensor that is not pending has no values, because the step that computes them was not run."""
    import torch_xla

    return bool(torch_xla._XLAC._is_placecholder(tensor))


def give_placeholders() -> None:
    """Treat everything pending as computed. The values have no memory and do not exist."""
    import torch_xla

    torch_xla._XLAC._clear_pending_irs(str(torch_xla.device()))


def give_zeros(found: Iterable[Any]) -> None:
    """Set these inner tensors to zero, on the device."""
    import torch

    with torch.no_grad():
        for one in found:
            one.zero_()


# -- where they are -------------------------------------------------------------------------------------------------


def _by_id(found: Iterable[Any]) -> dict[int, Any]:
    numbered = ((number(one), one) for one in found)
    return {key: one for key, one in numbered if key is not None}


# torch keeps the Python object of a tensor that only C++ still refers to: one that autograd saved, or the inner tensor
# of a wrapper after somebody looked at it. C++ ends such a tensor without the GIL, also in another thread (a loader's
# that drops a batch), and whoever then uses the object that was found in a list ends the tensor a second time.
# `THPVariable` (torch/csrc/autograd/python_variable.h, torch 2.9.0) starts, after what every Python object has, with a
# `c10::MaybeOwned` of the tensor, and that with whether it is only borrowed from C++.
_BORROWED = object.__basicsize__


def _borrowed(tensors: Iterator[Any]) -> Iterator[Any]:
    return map(ctypes.c_bool.from_address, map(_BORROWED.__add__, map(id, tensors)))


def _owned(tensors: Iterator[Any]) -> Iterator[bool]:
    return map(operator.not_, _borrowed(tensors))


def _left_to_cpp(_: object) -> Iterator[Any]:
    """Tensors that nothing in Python refers to and that are not about to end. From here on Python keeps them."""
    import torch

    for one in instances(torch.Tensor, _borrowed):
        if one._use_count():
            one._fix_weakref()
            if one.is_xla:
                yield one


def _gradients(found: Iterable[Any]) -> Iterator[Any]:
    """Python may not know of a gradient that C++ holds."""
    return (one.grad for one in found if one.requires_grad and _keeps_grad(one) and _has_grad(one))


def _keeps_grad(tensor: Any) -> bool:
    try:
        return bool(tensor.is_leaf or tensor.retains_grad)
    except RuntimeError:  # as in _grad_fn
        return False


def _has_grad(tensor: Any) -> bool:
    return tensor.grad is not None and tensor.grad.is_xla


def _grad_fn(tensor: Any) -> Any:
    """What autograd would run for a tensor; None if nothing, or if it is a view from under no_grad whose base was
    changed in place since (torch.compile's programs have them): asking for it is an error then."""
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None


def _in_storages(found: Iterable[Any]) -> Iterator[Any]:
    """The base tensors of views."""
    import torch

    bases = (_base(one) for one in found if torch._is_functional_tensor(one))
    return (one for one in bases if one is not None)


def _saved(found: Iterable[Any]) -> Iterator[Any]:
    """What autograd saved for a backward pass that has not run: the graph of a loss that is still referenced. Without
    what functions written in C++ saved (torch_xla's einsum)."""
    nodes = [] if _hooked else list(filter(None, map(_grad_fn, found)))
    seen: set[Any] = set()
    while nodes:
        node = nodes.pop()
        if node is not None and node not in seen:
            seen.add(node)
            yield from _saved_by(node)
            nodes += [following for following, _ in node.next_functions]


def _saved_by(node: Any) -> Iterator[Any]:
    import torch

    names = [name for name in dir(node) if name.startswith("_saved_") or name == "saved_tensors"]
    for name in names:
        try:
            value = getattr(node, name)
        except RuntimeError:  # it has been used up, or changed in place since
            continue
        for one in value if isinstance(value, (tuple, list)) else (value,):
            if issubclass(type(one), torch.Tensor) and one.is_xla:
                yield one


# -- the base tensor of a view ----------------------------------------------------------------------------------------
# A view and its base share a storage, and the Python object of the base may be gone: a weight's gradient is the
# transpose of a product that only the storage holds. torch_xla still computes it, as a separate result.
# `FunctionalStorageImpl` (aten/src/ATen/FunctionalStorageImpl.h, torch 2.9.0) has it as `base_`; torch has no Python
# function for it, so its offset is found with a new tensor whose `base_` is known.
_WRAP = "_Z16THPVariable_WrapRKN2at10TensorBaseE"  # torch/csrc/autograd/python_variable.h, 2.9.0
_WORDS = 24  # of the object, which has 200 bytes in 2.9.0
_WORD = ctypes.sizeof(ctypes.c_void_p)


def _base(tensor: Any) -> Any:
    """The inner tensor in the storage of a functional tensor; None if there is none, or it cannot be fetched."""
    offset = _base_offset()
    if offset is None:
        return None
    address = tensor.untyped_storage()._cdata + offset
    return _wrap()(ctypes.c_void_p(address)) if ctypes.c_void_p.from_address(address).value else None


@functools.lru_cache(maxsize=1)
def _base_offset() -> int | None:
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


# -- the pending graph ------------------------------------------------------------------------------------------------


# C++ functions as in torch_xla 2.9.0. Donation is decided when a step ends (`SetBufferDonors` in
# xla_graph_executor.cpp): a parameter whose tensor id is the alias id of one of the computed tensors.

_ALIAS = re.compile(r"^AliasID: (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class PendingGraph:
    """A pending graph. `module`: serialized HloModuleProto; `text`: the same as text; `ids`: of the tensors that are
    its parameters, in order (-1: a Python number); `donors`: numbers of parameters whose memory outputs may reuse."""

    module: bytes
    text: str
    ids: tuple[int, ...]
    donors: tuple[int, ...]

    @classmethod
    def of(cls, found: Sequence[Any], step: bool = True) -> PendingGraph:
        """The graph of these inner tensors. `step`: all pending tensors; otherwise nothing is donated."""
        import torch_xla

        extension = torch_xla._XLAC
        module = bytes(extension._get_xla_tensors_hlo_proto(list(found)))
        text = str(extension._get_xla_tensors_hlo(list(found)))
        ids, _ = extension._get_tensors_xla_device_data_node(list(found))
        donated = {alias(one) for one in found} if step else set()
        donors = tuple(place for place, number in enumerate(ids) if number in donated)
        return cls(module, text, tuple(ids), donors)


def graph_hash(found: Sequence[Any]) -> str:
    """torch_xla's own hash of the graph of these inner tensors."""
    import torch_xla

    return bytes(torch_xla._XLAC._get_graph_hash(list(found))).hex()


def alias(tensor: Any) -> int:
    """The id of the tensor whose place an inner tensor takes: its own, or that of the tensor it was assigned to."""
    import torch_xla

    found_id = _ALIAS.search(torch_xla._XLAC._get_xla_tensor_debug_info(tensor))
    return int(found_id[1]) if found_id else -1
