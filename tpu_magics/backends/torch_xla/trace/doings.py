"""What a step has done since the last sync, as far as it tells what kind of step it is.

What lives here: backward passes, steps of optimizers, and whether there is an optimizer. What does not: what that means
(settling.py).
"""

from __future__ import annotations

import functools
import gc
from typing import Any


class Doings:
    """The notes of one process."""

    def __init__(self) -> None:
        self._backward = False
        self._stepped: set[int] = set()
        self._optimizer = False
        self._known: dict[int, Any] = {}

    def install(self) -> None:
        """Begin to listen. For good."""
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
        self._optimizer = True
        self._known[id(optimizer)] = optimizer  # kept: its id is not given anew
        self._stepped.add(id(optimizer))

    def since_last(self) -> tuple[bool, frozenset[int], bool]:
        """Whether there was a backward pass, which optimizers made a step, and whether there is any optimizer."""
        self._optimizer = self._optimizer or _any_optimizer()
        found = self._backward, frozenset(self._stepped), self._optimizer
        self._backward, self._stepped = False, set()
        return found


def _any_optimizer() -> bool:
    """What was made in this process. One of the notebook's own trains here only inside of accelerate's."""
    import torch

    return any(issubclass(type(one), torch.optim.Optimizer) for one in gc.get_objects())
