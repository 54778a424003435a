"""The pending graph, and which parameters donate their memory to an output.

C++ functions as in torch_xla 2.9.0. Donation is decided when a step ends (`SetBufferDonors` in xla_graph_executor.cpp):
a parameter whose tensor id is the alias id of one of the computed tensors.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
