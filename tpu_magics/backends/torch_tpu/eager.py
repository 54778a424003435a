"""The operations that run one by one, outside of torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

Listener = Callable[[Any, Sequence[Any], Mapping[str, Any], Any], None]
_WITHOUT_KERNEL = frozenset({"prim", "prims", "profiler", "c10d", "_c10d_functional"})  # namespaces


class EagerOperations(TorchDispatchMode):
    """Within it, `listener(operation, args, kwargs, result)` is called after each operation of this thread, and of
    autograd's threads for it. torch.compile works as without it, and its programs' own operations are not heard."""

    supports_higher_order_operators = True  # they come here as well; without it torch refuses them

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self.listener = listener

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Asked by torch (2.15.0): otherwise torch.compile would compile nothing within it (see can_listen)."""
        return True

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        has_kernel = isinstance(operation, torch._ops.OpOverload) and not operation.is_view
        if has_kernel and operation.namespace not in _WITHOUT_KERNEL:
            self.listener(operation, args, kwargs or {}, result)
        return result


def can_listen() -> bool:
    """Whether this torch compiles within such a mode."""
    return hasattr(TorchDispatchMode, "ignore_compile_internals")


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """The tensors on "tpu" in the arguments or the result of an operation."""
    if isinstance(value, torch.Tensor):
        if value.device.type == "tpu":
            yield value
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from tensors(one)
    elif isinstance(value, Mapping):
        yield from tensors(list(value.values()))
