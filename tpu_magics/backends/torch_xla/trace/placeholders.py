"""Placeholders for values that were not computed and for large uploads, and which values are known although no step is
run.

If a shape depends on values, the largest possible one is used: then the program is at least as large as in training.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tpu_magics.backends.torch_xla.trace.live_tensors import (
    alias,
    graph_hash,
    inner,
    is_pending,
    is_placeholder,
    outer_tensors,
)

HOST = "XLA has no kernel for it, so it runs on the host and splits the step's graph."
VALUE, TENSOR, EQUAL = "a value", "a tensor", "whether tensors are equal"
CHOSEN = "assumed that all elements are selected, the maximum"
DISTINCT = "assumed that all elements are distinct, the maximum"
TRUE = "computed, because it depends only on the inputs"
FITTED = "assumed that it equals the number of selected elements"

Fill = Callable[[Any, int], Any]  # a tensor, its index among the operands -> its placeholder on the host


def zeros(tensor: Any, _place: int) -> Any:
    import torch

    return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")


def _ones(tensor: Any, _place: int) -> Any:
    import torch

    return torch.ones(tensor.shape, dtype=tensor.dtype, device="cpu")


def _counted(tensor: Any, _place: int) -> Any:
    import torch

    return torch.arange(tensor.numel(), device="cpu").reshape(tensor.shape).to(tensor.dtype)


def _unequal(tensor: Any, place: int) -> Any:
    return _ones(tensor, place) if place else zeros(tensor, place)


# Operations that read a value on the host: the placeholder, and the text for the log.
READING_OPS: Mapping[str, tuple[Fill, str]] = {
    "aten::_local_scalar_dense": (zeros, VALUE),
    "aten::equal": (_unequal, EQUAL),
    "aten::nonzero": (_ones, f"the shape of nonzero or x[mask]: {CHOSEN}"),
    "aten::masked_select": (_ones, f"the shape of masked_select: {CHOSEN}"),
    "aten::repeat_interleave.Tensor": (_ones, "the shape of repeat_interleave: assumed that each element repeats once"),
    "aten::bincount": (_counted, f"the shape of bincount: {DISTINCT}"),
    "aten::_unique": (_counted, f"the shape of unique: {DISTINCT}"),
    "aten::_unique2": (_counted, f"the shape of unique: {DISTINCT}"),
    "aten::unique_dim": (_counted, f"the shape of unique: {DISTINCT}"),
    "aten::unique_consecutive": (_counted, f"the shape of unique_consecutive: {DISTINCT}"),
}


def is_mask(tensor: Any) -> bool:
    import torch

    return tensor.dtype in (torch.bool, torch.uint8)


def fits(values: Any, into: Any, places: Sequence[Any]) -> bool:
    """Whether there is a value for each position, if a mask selects all of them."""
    import torch

    chosen: list[Any] = []
    for one in places:
        mask = one is not None and is_mask(one)
        shape = (one.numel(),) if mask else () if one is None else one.shape
        chosen += [None if one is None else torch.empty(shape, dtype=torch.long, device="meta")] * (
            one.dim() if mask else 1
        )
    target = torch.ops.aten.index(torch.empty(into.shape, device="meta"), chosen).shape
    try:
        return bool(torch.broadcast_shapes(values.shape, target) == target)
    except RuntimeError:
        return False


class Fallbacks:
    """The operations that run on the host: torch_xla counts each by name before it fetches the operands."""

    def __init__(self) -> None:
        self.counts = self._read()
        self.last = "an operation"

    def newest(self) -> tuple[str, bool]:
        """The name of the operation that runs now, and whether it has just started."""
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


# -- uploads ----------------------------------------------------------------------------------------------------------


# Large parameters of models, and batches too large to compute anything from (below).

LARGE = 1 << 20  # bytes of a parameter
_TYPE = re.compile(r"^XLA Shape: (\w+)\[", re.MULTILINE)


class Uploads:
    """The uploads of one process. `moving`: whether a model is being moved now."""

    def __init__(self, moving: Callable[[], bool]) -> None:
        self.moving = moving

    def install(self) -> None:
        """Also intercept torch_xla's loaders, which use no operation; until the process ends."""
        import torch_xla

        extension = torch_xla._XLAC
        extension._xla_tensors_from_aten = functools.partial(self._sent, extension._xla_tensors_from_aten)

    def _sent(self, original: Any, tensors: Sequence[Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Several tensors at once."""
        shardings = args[1] if len(args) > 1 else kwargs.get("shardings")
        made = [None if shardings else self.placeholder(one, one.dtype) for one in tensors]
        if not any(one is not None for one in made):
            return list(original(tensors, *args, **kwargs))
        devices, *rest = args
        pairs = zip(tensors, made, devices, strict=True)
        return [one if one is not None else original([old], [device], *rest, **kwargs)[0] for old, one, device in pairs]

    def placeholder(self, tensor: Any, dtype: Any) -> Any:
        """A tensor on the device without memory, as the host tensor would become there; None if it is small, or no such
        placeholder can be made."""
        if tensor.is_xla or not self._is_large(tensor, dtype):
            return None
        import torch_xla
        from torch_xla.core import xla_builder

        type_ = _on_device(dtype)
        if not type_:
            return None
        shape = xla_builder.mkshape(type_, tuple(tensor.shape)).shape
        made = torch_xla._XLAC._xla_create_placeholder_tensor(shape)  # 2.9.0
        return made if made.dtype == dtype else None

    def _is_large(self, tensor: Any, dtype: Any) -> bool:
        if self.moving():
            return bool(dtype.is_floating_point and tensor.numel() * tensor.element_size() >= LARGE)
        return bool(tensor.numel() > ELEMENTS)


@functools.lru_cache(maxsize=16)
def _on_device(dtype: Any) -> str:
    """How the device holds torch's type: with XLA_USE_BF16, a float32 is a "bf16"."""
    import torch
    import torch_xla

    one = torch.zeros(1, dtype=dtype, device="cpu").to(torch_xla.device())
    found = _TYPE.search(torch_xla._XLAC._get_xla_tensor_debug_info(one))
    return found[1] if found else ""


# -- known values -----------------------------------------------------------------------------------------------------


# For example, whether a mask from the batch masks anything decides which program is trained; zero would give another
# program. Values that depend on model parameters count as unknown, even in the first step: in later steps they are. So
# do values that take long to compute.

OPERATIONS = 256
ELEMENTS = 1 << 22  # of the largest tensor on the way
_LINE = re.compile(r"^  %\d+ = (.*?) [\w:]+\(", re.MULTILINE)
_TOGETHER = re.compile(r"cross_replica|all_gather|all_reduce|all_to_all|reduce_scatter|collective|xla::(?:send|recv)")
_OF_LIBTPU = re.compile(r"xla::custom_call|upsample_(?:nearest|bilinear)2d")
_SHAPE = re.compile(r"\[([\d,<=]*)\]")


class KnownValues:
    """The known values of one process; `world`: number of ranks."""

    def __init__(self, world: int) -> None:
        self._alone = world > 1
        self._simple: dict[str, bool] = {}

    def has(self, tensor: Any) -> bool:
        """Whether the true values of this inner tensor are available: computed already, or quick to compute."""
        if not is_pending(tensor):
            return not is_placeholder(tensor)
        ids, data = _leaves(tensor)
        if any(is_placeholder(one) for one in data):
            return False
        key = graph_hash([tensor])
        if key not in self._simple:
            self._simple[key] = _is_small(tensor, self._alone) and not set(ids) & _parameters()
        return self._simple[key]


def _leaves(tensor: Any) -> tuple[list[int], list[Any]]:
    """The inputs on the device that lead to it: ids, tensors."""
    import torch_xla

    ids, data = torch_xla._XLAC._get_tensors_xla_device_data_node([tensor])  # 2.9.0
    return list(ids), list(data)


def _is_small(tensor: Any, alone: bool) -> bool:
    import torch_xla

    text = torch_xla._XLAC._get_xla_tensors_text([tensor])
    # Nothing here runs a custom call of a TPU, and the other ranks are not there.
    if _OF_LIBTPU.search(text) or (alone and _TOGETHER.search(text)):
        return False
    types = _LINE.findall(text)
    shapes = [shape for type_ in types for shape in _SHAPE.findall(type_)]
    return len(types) <= OPERATIONS and all(_elements(shape) <= ELEMENTS for shape in shapes)


def _elements(shape: str) -> int:
    return math.prod(int(size.strip("<=") or 1) for size in shape.split(","))


def _parameters() -> set[int]:
    """The ids of everything that is trained or belongs to a model."""
    import torch

    kind = torch.nn.Parameter
    return {alias(inner(one)) for one in outer_tensors() if one.is_leaf and (one.requires_grad or type(one) is kind)}
