"""Values that are known although no step is run, because they depend only on inputs from the host.

For example, whether a mask from the batch masks anything decides which program is trained; zero would give another
program. Values that depend on model parameters count as unknown, even in the first step: in later steps they are. So do
values that take long to compute.
"""

from __future__ import annotations

import math
import re
from typing import Any

from tpu_magics.backends.torch_xla.trace.live_tensors import inner, is_pending, is_placeholder, outer_tensors
from tpu_magics.backends.torch_xla.trace.pending_graph import alias, graph_hash

OPERATIONS = 256
ELEMENTS = 1 << 22  # of the largest tensor on the way
_LINE = re.compile(r"^  %\d+ = (.*?) [\w:]+\(", re.MULTILINE)
_TOGETHER = re.compile(r"cross_replica|all_gather|all_reduce|all_to_all|reduce_scatter|collective|xla::(?:send|recv)")
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
    if alone and _TOGETHER.search(text):  # the other ranks are not there
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
