"""Splits the pending graph for a collective on the host, and moves tensors to the host and back."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.torch.post_import import PostImport

if TYPE_CHECKING:
    from torch import Tensor

_here = threading.local()
_listeners: list[tuple[Callable[[], None], Callable[[], None]]] = []


def listen(on_run: Callable[[], None], on_result: Callable[[], None]) -> Callable[[], None]:
    """Call `on_run` when a collective may have run a graph, and `on_result` when it has returned a tensor, in the
    collective's thread. Returns how to stop that."""
    listener = on_run, on_result
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


def _may_have_run() -> None:
    for on_run, _on_result in list(_listeners):
        on_run()


_VIEW = (
    "An in-place collective got a view of a tensor (a slice). In a rehearsal the whole tensor changes with it; on a "
    "TPU, torch_xla 2.9 changes only the view. Reduce the whole tensor, or assign the result of "
    "xm.all_reduce(tensor)."
)
_CAPTURED = (
    'A collective inside a torch.compile(backend="openxla") function cannot be rehearsed on XLA:CPU: the function '
    "becomes one graph, and a rehearsal runs collectives on the host, outside of graphs. Move the collective out of "
    "the function (e.g. call xm.optimizer_step after it), or use torch_xla.compile(step)."
)
_COLLECTIVES = ("all_gather", "all_reduce", "all_to_all", "collective_permute", "reduce_scatter")  # of xla_model


def split_compiled() -> None:
    """torch.compile splits its graph at xla_model's collectives, which then run as elsewhere; with fullgraph=True it
    raises."""
    import torch
    from torch_xla.core import xla_model

    for name in _COLLECTIVES:
        setattr(xla_model, name, torch._dynamo.disable(getattr(xla_model, name), reason=_CAPTURED))


def refuse_captured() -> None:
    """In this process, raise for collectives while torch.compile captures the function around them (torch_xla 2.9.0:
    _dynamo/dynamo_bridge.py runs it once with XLA tensors): the graph would keep the first values."""
    PostImport().when_imported("torch_xla._dynamo.dynamo_bridge", _mark_capture)


def _mark_capture(module: Any) -> None:
    original = module.extract_compiled_graph

    @functools.wraps(original)
    def extract_compiled_graph(*args: Any, **kwargs: Any) -> Any:
        _here.captured = True
        try:
            return original(*args, **kwargs)
        finally:
            _here.captured = False

    module.extract_compiled_graph = extract_compiled_graph


def cutting() -> bool:
    """Whether this thread runs a graph because a collective needs its results."""
    return bool(getattr(_here, "cutting", False))


def cut() -> None:
    """Run all pending operations, and wait for them. All live tensors become results of this piece: if only the
    collective's tensors were, the rest of the step would compute again what leads to them."""
    import torch_xla

    if getattr(_here, "captured", False):
        raise RuntimeError(_CAPTURED)
    extension: Any = torch_xla._XLAC
    _here.cutting = True
    try:
        with _execution_allowed():
            extension._xla_sync_live_tensors("", [], True)
    finally:
        _here.cutting = False
    _may_have_run()


@contextmanager
def _execution_allowed() -> Iterator[None]:
    """torch_xla.compile(full_graph=True) forbids running graphs in its function; that is meant for the user's code."""
    import torch_xla

    extension: Any = torch_xla._XLAC
    allowed = extension._get_allow_execution()  # 2.9.0
    extension._set_allow_execution(True)
    try:
        yield
    finally:
        extension._set_allow_execution(allowed)


def copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Copies in host memory of tensors on the device, after a split. A view runs a small graph for it."""
    import torch_xla

    extension: Any = torch_xla._XLAC
    with _execution_allowed():
        found = list(extension._xla_get_cpu_tensors(list(tensors)))
    _may_have_run()
    return found


def put(tensors: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
    """Results of a collective: copies of `tensors` on the devices of `like`."""
    for _on_run, on_result in list(_listeners):
        on_result()
    return _on_device(tensors, like)


def _on_device(tensors: Sequence[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
    import torch_xla

    extension: Any = torch_xla._XLAC
    return list(extension._xla_tensors_from_aten(list(tensors), [str(one.device) for one in like]))


def put_into(tensors: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """Give `targets`, on the device, the values of `tensors`; in the graph they become inputs, no operation is
    added. A target of another shape gets the new one, as with torch_xla, and keeps its type."""
    import torch
    import torch_xla

    for target, new in zip(targets, _on_device(tensors, targets), strict=True):
        if target._is_view():
            warnings.warn(_VIEW, stacklevel=2)
        # As torch_xla does: autograd must not treat its saved tensors as changed.
        saved = nullcontext() if target.is_inference() else torch.autograd._unsafe_preserve_version_counter(target)
        with torch.no_grad(), saved:
            if target.shape == new.shape:
                target.copy_(new)
            else:
                torch_xla._XLAC._replace_xla_tensor(target, new.to(target.dtype))
