"""Placeholder values for reads of values that were not computed.

If a shape depends on values, the largest possible one is used: then the program is at least as large as in training.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

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
