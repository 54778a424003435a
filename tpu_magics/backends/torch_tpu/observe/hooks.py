"""Wraps functions of torch and accelerate in the worker, so that the observer sees steps, reads and batches.

torch.compile traces what it finds: hooks that a compiled function reaches are hidden from it
(torch._dynamo.disable), and reads, which split its graph anyway, are only wrapped where it does not look inside.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.torch.hooks import accelerate_tracker, all_of, host_loaders, passes, reads, replace

if TYPE_CHECKING:
    from tpu_magics.backends.torch_tpu.observe.observer import TpuObserver


@contextmanager
def installed(observer: TpuObserver) -> Iterator[None]:
    """Install the hooks until the block ends. Only for workers."""
    undo = [install(observer) for install in (_steps, _reads, _loaders, accelerate_tracker)]
    undo.append(observer.dynamo.install())
    try:
        yield
    finally:
        all_of(undo)()


def _steps(observer: TpuObserver) -> Callable[[], None]:
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    @torch._dynamo.disable
    def steps(*_: Any) -> None:
        observer.on_next()

    @torch._dynamo.disable
    def stepped(optimizer: Any, *_: Any) -> None:
        observer.after_optimizer_step(optimizer)

    def backward(original: Any) -> Any:
        @functools.wraps(original)
        def noted(*args: Any, **kwargs: Any) -> Any:
            observer.on_next()
            observer.batches.on_backward()
            return original(*args, **kwargs)

        return noted

    before, after = register_optimizer_step_pre_hook(steps), register_optimizer_step_post_hook(stepped)
    return all_of([before.remove, after.remove, replace(torch.autograd, "backward", backward)])


def _reads(observer: TpuObserver) -> Callable[[], None]:
    def make(original: Any) -> Any:
        @functools.wraps(original)
        def read(*args: Any, **kwargs: Any) -> Any:
            tensor = args[0] if args else kwargs.get("input")
            if observer.reading or observer.dynamo.compiling or not observer.reads_of(tensor):
                return original(*args, **kwargs)
            observer.reading = True
            started = time.perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                observer.reading = False
                observer.on_read(sys._getframe(1), time.perf_counter() - started)

        return read

    return reads(make)


def _loaders(observer: TpuObserver) -> Callable[[], None]:
    from torch.utils.data import DataLoader

    return all_of([passes(observer, [DataLoader]), host_loaders(observer, observer.on_next)])
