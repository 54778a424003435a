"""Events since the last sync that show what kind of step it is: backward passes and optimizer steps."""

from __future__ import annotations

import functools
from typing import Any

from tpu_magics.backends.torch_xla import optimizers
from tpu_magics.backends.torch_xla.trace.steady_state import Sync


class TraceStepEvents:
    """The events of one process."""

    def __init__(self) -> None:
        self._backward = False
        self._stepped: set[int] = set()
        self._known: dict[int, Any] = {}

    def install(self) -> None:
        """Start to record, until the process ends."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        for name in ("backward", "grad"):
            setattr(torch.autograd, name, self._noted(getattr(torch.autograd, name)))
        register_optimizer_step_post_hook(lambda optimizer, _args, _kwargs: self._steps(optimizer))

    def _noted(self, original: Any) -> Any:
        @functools.wraps(original)
        def goes_backward(*args: Any, **kwargs: Any) -> Any:
            self._backward = True
            return original(*args, **kwargs)

        return goes_backward

    def _steps(self, optimizer: Any) -> None:
        self._known[id(optimizer)] = optimizer  # kept alive, so that its id is not reused
        self._stepped.add(id(optimizer))

    def since_last(self, graph: str) -> Sync:
        """The events that ended at a sync."""
        asleep = [one for one in _optimizers() if id(one) not in self._known]
        found = Sync(graph, self._backward, frozenset(self._stepped), bool(self._known or asleep), len(asleep))
        self._backward, self._stepped = False, set()
        return found


def _optimizers() -> list[Any]:
    """The optimizers of this process, and those inside accelerate's wrappers, which have no step of their own."""
    return [getattr(one, "optimizer", one) for one in optimizers.living()]
