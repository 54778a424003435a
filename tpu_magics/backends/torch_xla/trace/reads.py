"""Values that the host asks for while nothing is run.

What lives here: zeros in their place, and in place of what an operation gives that the host would run. What does not:
syncs (tracer.py).

A mode of torch (`TorchDispatchMode`, torch 2.9) sees every operation, those of the backward pass as well. Where the
shape of a result depends on values, the largest possible one is taken: all elements are chosen.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from tpu_magics.backends.lowered import Place, Read, Refused

_COMPOSITE = ("CompositeExplicitAutograd", "CompositeImplicitAutograd", "CompositeExplicitAutogradNonFunctional")
HOST = "XLA has no kernel for it: the host runs it, and the step's graph is cut in two there."
_CHOSEN = "all elements were taken as chosen, the most there can be"


class Reads(TorchDispatchMode):
    """The mode of one thread. `place`: the person's line of a frame."""

    def __init__(self, place: Callable[[FrameType], Place | None]) -> None:
        super().__init__()
        self.place = place
        self.found: dict[tuple[Place | None, str], int] = {}
        self.on_host: dict[tuple[Place | None, str], int] = {}
        self._off = 0

    @contextmanager
    def off(self) -> Iterator[None]:
        """Our own doing is none of the person's."""
        self._off += 1
        try:
            yield
        finally:
            self._off -= 1

    def told(self) -> tuple[Read, ...]:
        return tuple(Read(place, what, count) for (place, what), count in self.found.items())

    def refused(self) -> tuple[Refused, ...]:
        return tuple(Refused(op, HOST, "host", place, count) for (place, op), count in self.on_host.items())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if not self._off:
            answer = _ANSWERS.get(func.name().partition(".")[0])
            with self.off():
                if answer is not None and _any_xla(args, kwargs):
                    found, what = answer(func, args, kwargs)
                    if what:
                        self._note(self.found, what)
                        return found
                elif _runs_on_host(func) and _any_xla(args, kwargs):
                    self._note(self.on_host, func.name().partition(".")[0])
                    return _with_zeros(func, args, kwargs)
        return func(*args, **kwargs)

    def _note(self, notes: dict[tuple[Place | None, str], int], what: str) -> None:
        key = (self.place(sys._getframe(2)), what)
        notes[key] = notes.get(key, 0) + 1


def _tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    import torch
    from torch.utils._pytree import tree_leaves

    return (one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor))


def _any_xla(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return any(one.is_xla for one in _tensors(args, kwargs))


# -- what the host runs ---------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def _runs_on_host(func: Any) -> bool:
    """Whether neither torch_xla nor torch itself has a kernel of it for XLA: its fallback then runs it on the host."""
    import torch

    has = torch._C._dispatch_has_kernel_for_dispatch_key
    names = {func.name(), _functional(func.name())}
    return not any(_known(name) and has(name, key) for name in names for key in ("XLA", *_COMPOSITE))


def _functional(name: str) -> str:
    """ "aten::add_.Tensor" -> "aten::add.Tensor": functionalization runs that one."""
    base, dot, overload = name.partition(".")
    return f"{base.removesuffix('_')}{dot}{overload}"


def _known(name: str) -> bool:
    import torch

    base, _, overload = name.partition(".")
    return bool(torch._C._dispatch_has_kernel(name)) if overload or base else False


def _with_zeros(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What the operation gives for zeros in host memory, on the device."""
    import torch
    import torch_xla
    from torch.utils._pytree import tree_map_only

    device = torch_xla.device()
    there: list[tuple[Any, Any]] = []

    def at_home(tensor: Any) -> Any:
        if not tensor.is_xla:
            return tensor
        there.append((tensor, torch.zeros(tensor.shape, dtype=tensor.dtype)))
        return there[-1][1]

    found = func(*tree_map_only(torch.Tensor, at_home, args), **tree_map_only(torch.Tensor, at_home, kwargs))
    given = {id(zeros): tensor for tensor, zeros in there}

    def back(tensor: Any) -> Any:
        return given.get(id(tensor), tensor.to(device) if tensor.device.type == "cpu" else tensor)

    if func._schema.is_mutable:
        for tensor, zeros in there:
            tensor.copy_(zeros)
    return tree_map_only(torch.Tensor, back, found)


# -- what is answered -------------------------------------------------------------------------------------------------
# Each gives (value, what was asked for); ("" for what: nothing was, the operation runs as it is).

Answer = tuple[Any, str]


def _scalar(_func: Any, args: Sequence[Any], _kwargs: Mapping[str, Any]) -> Answer:
    kinds = {True: 0j, False: 0.0} if args[0].is_complex() or args[0].is_floating_point() else None
    if kinds is not None:
        return kinds[args[0].is_complex()], "a value"
    import torch

    return (False if args[0].dtype == torch.bool else 0), "a value"


def _to_copy(_func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Answer:
    import torch

    device = kwargs.get("device")
    if not args[0].is_xla or device is None or torch.device(device).type != "cpu":
        return None, ""
    dtype = kwargs.get("dtype") or args[0].dtype
    return torch.zeros(args[0].shape, dtype=dtype), "a tensor"


def _copy_(_func: Any, args: Sequence[Any], _kwargs: Mapping[str, Any]) -> Answer:
    into, tensor = args[0], args[1]
    if into.is_xla or not tensor.is_xla:
        return None, ""
    return into.zero_(), "a tensor"


def _equal(_func: Any, _args: Sequence[Any], _kwargs: Mapping[str, Any]) -> Answer:
    return False, "whether tensors are equal"


def _shape_of_values(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Answer:
    """With ones in the place of the values: then everything is chosen."""
    import torch
    from torch.utils._pytree import tree_map_only

    device = next(one.device for one in _tensors(args, kwargs) if one.is_xla)
    ones = functools.partial(tree_map_only, torch.Tensor, lambda one: torch.ones(one.shape, dtype=one.dtype))
    found = func(*ones(args), **ones(kwargs))
    name = func.name().partition(".")[0].removeprefix("aten::")
    return tree_map_only(torch.Tensor, lambda one: one.to(device), found), f"the shape of {name}: {_CHOSEN}"


def _distinct(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Answer:
    """With distinct values in the place of the values."""
    import torch
    from torch.utils._pytree import tree_map_only

    device = args[0].device
    own = tree_map_only(torch.Tensor, lambda one: torch.arange(one.numel()).reshape(one.shape).to(one.dtype), args)
    found = func(*own, **kwargs)
    name = func.name().partition(".")[0].removeprefix("aten::").strip("_")
    return tree_map_only(torch.Tensor, lambda one: one.to(device), found), f"the shape of {name}: {_CHOSEN}"


def _index(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Answer:
    """`x[mask]`: the places of all elements in the place of the mask."""
    import torch

    indices = list(args[1])
    masks = (torch.bool, torch.uint8)
    if not any(one is not None and one.is_xla and one.dtype in masks for one in indices):
        return None, ""
    places: list[Any] = []
    for one in indices:
        if one is not None and one.dtype in masks:
            whole = torch.ones(one.shape, dtype=torch.bool).nonzero(as_tuple=True)
            places.extend(part.to(args[0].device) for part in whole)
        else:
            places.append(one)
    rest = list(args[2:])
    if rest:  # index_put: as many values as places
        rest[0] = torch.zeros((), dtype=rest[0].dtype).to(args[0].device)
    return func(args[0], places, *rest, **kwargs), f"the shape of x[mask]: {_CHOSEN}"


_ANSWERS: dict[str, Callable[[Any, Sequence[Any], Mapping[str, Any]], Answer]] = {
    "aten::_local_scalar_dense": _scalar,
    "aten::_to_copy": _to_copy,
    "aten::copy_": _copy_,
    "aten::equal": _equal,
    "aten::nonzero": _shape_of_values,
    "aten::masked_select": _shape_of_values,
    "aten::repeat_interleave": _shape_of_values,
    "aten::bincount": _distinct,
    "aten::_unique": _distinct,
    "aten::_unique2": _distinct,
    "aten::unique_dim": _distinct,
    "aten::unique_consecutive": _distinct,
    "aten::index": _index,
    "aten::index_put": _index,
    "aten::index_put_": _index,
    "aten::_index_put_impl_": _index,
}
