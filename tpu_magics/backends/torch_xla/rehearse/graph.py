"""Between the graph and the host: a graph cut in two, tensors fetched and put back.

What lives here: that way, and the note that it is being gone, for the observer. What does not: what is done with the
tensors on the host (group.py, collectives.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_here = threading.local()
_listeners: list[Callable[[], None]] = []


def listen(listener: Callable[[], None]) -> Callable[[], None]:
    """Have `listener` called when a collective may have run a graph, in the collective's thread. Returns how to end
    that."""
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


def _may_have_run() -> None:
    for listener in list(_listeners):
        listener()


def cutting() -> bool:
    """Whether this thread runs a graph because a collective needs its results."""
    return bool(getattr(_here, "cutting", False))


def cut() -> None:
    """Run all that is pending, and wait for it. Everything alive becomes a result of the piece that is run: were it the
    collective's tensors alone, the rest of the step would compute again what leads to them."""
    import torch_xla

    extension: Any = torch_xla._XLAC
    _here.cutting = True
    try:
        extension._xla_sync_live_tensors("", [], True)
    finally:
        _here.cutting = False
    _may_have_run()


def copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies in host memory of what is on the device, after a cut. A view runs a small graph of its own for it."""
    import torch_xla

    extension: Any = torch_xla._XLAC
    found = list(extension._xla_get_cpu_tensors(list(tensors)))
    _may_have_run()
    return found


def put(tensors: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
    """Copies of `tensors` on the devices where `like` are."""
    import torch_xla

    extension: Any = torch_xla._XLAC
    return list(extension._xla_tensors_from_aten(list(tensors), [str(one.device) for one in like]))


def put_into(tensors: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """Give `targets`, on the device, the values of `tensors`; in the graph they become data, no operation is added."""
    import torch

    with torch.no_grad():
        for target, new in zip(targets, put(tensors, targets), strict=True):
            target.copy_(new)
