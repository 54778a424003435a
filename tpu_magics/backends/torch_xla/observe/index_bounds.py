"""Labels and ids outside of their range are an IndexError, as on the CPU; labels that are fractions are an error too.

XLA checks no index: a label of 10 for 10 classes has a loss of 0, an id behind the end of an embedding reads its last
row, and other labels are rounded. The values are compared on the host, so only those are known that are used as they
were sent.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from tpu_magics.backends.torch.hooks import all_of, as_original, replace

MOST = 2**20  # numbers of a tensor
_NONE = -100  # torch's default for the label that is left out


class _Sent:
    """The tensors of whole numbers on the device that came from the host, with those: what was written to either since
    then is no longer known."""

    def __init__(self) -> None:
        import torch
        from torch.utils.weak import WeakIdKeyDictionary

        self._hosts: Any = WeakIdKeyDictionary()
        self._types = torch.int64, torch.int32

    def remember(self, host: Any, there: Any) -> None:
        if host.dtype in self._types and there.dtype == host.dtype and host.numel() <= MOST:
            with suppress(RuntimeError):  # of inference_mode: its versions are not counted
                self._hosts[there] = host, host._version, there._version

    def outside(self, there: Any, size: int, left_out: int | None = None) -> int | None:
        """One of its values that is not below `size`, or negative; None for none, or where that is not known."""
        host, version, own = self._hosts.get(there, (None, 0, 0))
        if host is None or (host._version, there._version) != (version, own):
            return None
        bad = (host < 0) | (host >= size)
        if left_out is not None:
            bad &= host != left_out
        return int(host[bad].flatten()[0]) if bad.any() else None


def installed() -> Callable[[], None]:
    """Watch what is sent to the device, and where it is used as an index. Returns how to undo that."""
    import torch
    import torch_xla

    sent = _Sent()

    def to(original: Any) -> Any:
        @functools.wraps(original)
        def moved(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(tensor, *args, **kwargs)
            if result.is_xla and not tensor.is_xla:
                sent.remember(tensor, result)
            return result

        return moved

    def from_host(original: Any) -> Any:  # of loaders
        def tensors_from_host(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            found = original(tensors, *args, **kwargs)
            for host, there in zip(tensors, found, strict=False):
                sent.remember(host, there)
            return found

        return tensors_from_host

    def embedding(original: Any) -> Any:
        @functools.wraps(original)
        def of_ids(input: Any, weight: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002 - torch's name
            if (bad := sent.outside(input, weight.shape[0])) is not None:
                raise IndexError(f"index out of range in self: {bad} for an embedding of {weight.shape[0]} rows")
            return original(input, weight, *args, **kwargs)

        return as_original(of_ids, original)

    def loss(original: Any) -> Any:
        @functools.wraps(original)
        def of_labels(input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002 - torch's name
            left_out = kwargs.get("ignore_index", args[2] if len(args) > 2 else _NONE)  # after weight and size_average
            if target.is_floating_point() and target.shape != input.shape:  # of the same shape: probabilities
                kind = target.type().rpartition(".")[2].removesuffix("Tensor")  # torch's words on the CPU
                raise RuntimeError(f"expected scalar type Long but found {kind}: class numbers are target.long()")
            classes = input.shape[min(1, input.dim() - 1)] if input.dim() else 0
            if classes and (bad := sent.outside(target, classes, left_out)) is not None:
                raise IndexError(f"Target {bad} is out of bounds: there are {classes} classes")
            return original(input, target, *args, **kwargs)

        return as_original(of_labels, original)

    functions = torch.nn.functional
    return all_of(
        [
            replace(torch.Tensor, "to", to),
            replace(torch_xla._XLAC, "_xla_tensors_from_aten", from_host),
            replace(functions, "embedding", embedding),
            replace(functions, "cross_entropy", loss),
            replace(functions, "nll_loss", loss),
        ]
    )
