"""Wraps functions of torch, torch_xla and accelerate in the worker, so that the observer sees them.

A wrapper calls the original and returns its result; errors of the observer cannot reach the user's code (`guarded` in
backends/observe/observer.py). All ways to end a step (torch_xla.sync, xm.mark_step, xm.optimizer_step(barrier=True),
the loaders, torch_xla.step, torch_xla.compile) call one function of torch_xla's C++ module, `_xla_step_marker` (2.9.0).
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.torch.hooks import accelerate_tracker, all_of, host_loaders, passes, reads, replace
from tpu_magics.backends.torch.post_import import PostImport
from tpu_magics.backends.torch_xla.observe import counters, index_bounds, xla_dumps
from tpu_magics.backends.torch_xla.rehearse import graph

if TYPE_CHECKING:
    from tpu_magics.backends.torch_xla.observe.observer import TorchObserver


@contextmanager
def installed(observer: TorchObserver) -> Iterator[None]:
    """Install the hooks until the block ends. Only for workers."""
    undo = [install(observer) for install in _HOOKS]
    tensors = [_once(install(observer)) for install in _TENSOR_HOOKS]
    undo += [*tensors, before_dynamo(all_of(tensors))]
    try:
        yield
    finally:
        for take_off in reversed(undo):
            take_off()


def _once(undo: Callable[[], None]) -> Callable[[], None]:
    left = [undo]
    return lambda: left.pop()() if left else None


def before_dynamo(take_off: Callable[[], None]) -> Callable[[], None]:
    """torch.compile traces through a tensor's methods, and our wrappers: they are removed before it begins (torch 2.9:
    torch/_dynamo/callback.py). Afterwards reads are only known by the graphs they run."""
    waiting = PostImport()
    undo = [waiting.remove]

    def imported(module: Any) -> None:
        def start(*args: Any) -> None:
            trigger = getattr(args[0], "callback_trigger", None) if args else None
            if (
                getattr(trigger, "name", "DYNAMO") == "DYNAMO"
            ):  # not: a backward pass that torch_xla's scan (GRU) compiles
                take_off()

        handler = module.callback_handler
        handler.register_start_callback(start)
        undo.append(lambda: handler.remove_start_callback(start))

    waiting.when_imported("torch._dynamo.callback", imported)
    return all_of(undo)


# -- steps ----------------------------------------------------------------------------------------------------------


_BRIDGE = "/_dynamo/dynamo_bridge.py"  # torch_xla 2.9: runs what torch.compile(backend="openxla") has compiled


def _syncs(observer: TorchObserver) -> Callable[[], None]:
    import torch_xla

    settled = xla_dumps.settled

    def marker(original: Any) -> Any:
        @functools.wraps(original)
        def step_marker(*args: Any, **kwargs: Any) -> Any:
            if observer.ran():  # triggered by something else, e.g. a shape that depends on values
                observer.on_run(sys._getframe(1), "library")
            result = original(*args, **kwargs) if settled else xla_dumps.run(original, *args, **kwargs)
            observer.after_sync(sys._getframe(1))
            return result

        return step_marker

    def part(original: Any) -> Any:
        @functools.wraps(original)
        def sync_part(*args: Any, **kwargs: Any) -> Any:
            cut = graph.cutting()
            frame = sys._getframe(1)
            if not observer.by_dynamo and frame.f_code.co_filename.endswith(_BRIDGE):
                observer.by_dynamo = True
            if cut:
                observer.on_run(sys._getframe(1), "library", "before a collective")
            result = xla_dumps.run(original, *args, **kwargs)
            if not cut:
                observer.on_run(sys._getframe(1), "library")
            return result

        return sync_part

    def switch(original: Any) -> Any:
        @functools.wraps(original)
        def set_eager(*args: Any, **kwargs: Any) -> Any:
            observer.on_run(sys._getframe(1), "library")  # what ran so far ran in the previous mode
            result = original(*args, **kwargs)
            observer.eager = counters.eager()
            return result

        return set_eager

    extension = torch_xla._XLAC
    parts = ("_xla_sync_multi", "_xla_sync_live_tensors", "_xla_warm_up_cache", "_run_cached_graph")
    undo = [replace(extension, name, part) for name in parts if hasattr(extension, name)]
    undo.append(replace(extension, "_set_use_eager_mode", switch))
    undo.append(graph.listen(observer.on_collective_run, observer.on_collective_result))
    return all_of([replace(extension, "_xla_step_marker", marker), *undo])


def _closures(observer: TorchObserver) -> Callable[[], None]:
    """What xm.add_step_closure was given runs after the step's sync: a read there splits no step."""
    from torch_xla.core import xla_model

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def run_step_closures(*args: Any, **kwargs: Any) -> Any:
            observer.in_closures = True
            try:
                return original(*args, **kwargs)
            finally:
                observer.in_closures = False

        return run_step_closures

    return replace(xla_model, "_run_step_closures", make)  # torch_xla 2.9: called by mark_step and torch_xla.sync


def _exchanges(observer: TorchObserver) -> Callable[[], None]:
    from torch_xla.core import xla_model

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def xla_rendezvous(*args: Any, **kwargs: Any) -> Any:
            with observer.exchange():
                return original(*args, **kwargs)

        return xla_rendezvous

    return replace(xla_model, "xla_rendezvous", make)


def _xla_loaders(observer: TorchObserver) -> Callable[[], None]:
    from torch_xla.distributed import parallel_loader

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def next_batch(loader: Any) -> Any:
            try:
                batch = original(loader)
            except StopIteration:
                observer.on_loader_end()
                raise
            observer.on_device_batch(batch)
            return batch

        return next_batch

    return replace(parallel_loader.PerDeviceLoader, "next", make)


def _passes(observer: TorchObserver) -> Callable[[], None]:
    from torch.utils.data import DataLoader
    from torch_xla.distributed.parallel_loader import MpDeviceLoader, PerDeviceLoader

    return passes(observer, (DataLoader, MpDeviceLoader, PerDeviceLoader))


# -- what a step does -----------------------------------------------------------------------------------------------


def _reads(observer: TorchObserver) -> Callable[[], None]:
    settled = xla_dumps.settled

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def read(*args: Any, **kwargs: Any) -> Any:
            tensor = args[0] if args else kwargs.get("input")
            if observer.reading or not _is_on_device(tensor) or not observer.mine():
                return original(*args, **kwargs)
            observer.reading = True
            started = time.perf_counter()
            try:
                value = original(*args, **kwargs) if settled else xla_dumps.run(original, *args, **kwargs)
            finally:
                observer.reading = False
            observer.on_read(sys._getframe(1), tensor, value, time.perf_counter() - started)
            return value

        return read

    return reads(make)


_WITHOUT_VALUES = ("FakeTensor", "FunctionalTensor")  # of a function that is being traced


def _is_on_device(tensor: Any) -> bool:
    return bool(getattr(tensor, "is_xla", False) and type(tensor).__name__ not in _WITHOUT_VALUES)


def _moves(observer: TorchObserver) -> Callable[[], None]:
    """`tensor.to(device)`, in both directions, `tensor.type(torch.FloatTensor)` and `host.copy_(tensor)`; moving a
    module is not an input of a step."""
    import torch

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def to(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if observer.reading or not observer.mine() or type(tensor).__name__ in _WITHOUT_VALUES:
                return original(tensor, *args, **kwargs)
            there = tensor.is_xla
            started = time.perf_counter() if there else 0.0
            result = original(tensor, *args, **kwargs)
            if getattr(result, "is_xla", there) != there:  # type() returns a name
                if there:
                    observer.on_read(sys._getframe(1), tensor, None, time.perf_counter() - started)
                else:
                    observer.on_upload(result)
            return result

        return to

    def copy_make(original: Any) -> Any:
        @functools.wraps(original)
        def copy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            source = args[0] if args else kwargs.get("other")
            if tensor.is_xla or not getattr(source, "is_xla", False) or observer.reading or not observer.mine():
                return original(tensor, *args, **kwargs)
            started = time.perf_counter()
            result = original(tensor, *args, **kwargs)
            observer.on_read(sys._getframe(1), source, None, time.perf_counter() - started)
            return result

        return copy

    def module_make(original: Any) -> Any:
        @functools.wraps(original)
        def apply(module: Any, *args: Any, **kwargs: Any) -> Any:
            with observer.moving_module():
                return original(module, *args, **kwargs)

        return apply

    tensors = [
        *(replace(torch.Tensor, name, make) for name in ("to", "type")),
        replace(torch.Tensor, "copy_", copy_make),
    ]
    return all_of([*tensors, replace(torch.nn.Module, "_apply", module_make)])


def _indices(observer: TorchObserver) -> Callable[[], None]:
    """Labels and ids. While a step is traced for a TPU, all values are zeros."""
    return index_bounds.installed() if observer.config.tracing is None else lambda: None


def _training(observer: TorchObserver) -> Callable[[], None]:
    """Backward passes, optimizer steps, autocast, copies of weights."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    def backward(original: Any) -> Any:
        @functools.wraps(original)
        def noted(*args: Any, **kwargs: Any) -> Any:
            tensors = args[0] if args else kwargs.get("tensors")
            observer.before_backward(tensors)
            observer.batches.on_backward()
            if observer.ran():
                observer.on_run(sys._getframe(1), "library", "before backward")
            result = original(*args, **kwargs)
            if observer.ran():
                observer.on_run(sys._getframe(1), "library", "after backward")
            if not observer.backward_on_device:
                observer.after_backward(sys._getframe(1), tensors)
            return result

        return noted

    def enter(original: Any) -> Any:
        @functools.wraps(original)
        def entered(context: Any) -> Any:
            observer.on_autocast(context)
            return original(context)

        return entered

    def clear(original: Any) -> Any:
        @functools.wraps(original)
        def zero_grad(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("set_to_none", args[1] if len(args) > 1 else True):
                observer.events.gradients_left = False
            return original(*args, **kwargs)

        return zero_grad

    def update(original: Any) -> Any:
        @functools.wraps(original)
        def update_parameters(*args: Any, **kwargs: Any) -> Any:
            observer.events.averaged = True
            return original(*args, **kwargs)

        return update_parameters

    def load(original: Any) -> Any:
        @functools.wraps(original)
        def load_state_dict(module: Any, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(module, state_dict, *args, **kwargs)
            observer.on_load(module, state_dict)
            return result

        return load_state_dict

    before = register_optimizer_step_pre_hook(observer.before_optimizer_step)
    after = register_optimizer_step_post_hook(observer.after_optimizer_step)
    return all_of(
        [
            *(before.remove, after.remove),
            replace(torch.autograd, "backward", backward),
            *(replace(owner, "zero_grad", clear) for owner in (torch.optim.Optimizer, torch.nn.Module)),
            replace(torch.amp.autocast_mode.autocast, "__enter__", enter),
            replace(torch.optim.swa_utils.AveragedModel, "update_parameters", update),
            replace(torch.nn.Module, "load_state_dict", load),
        ]
    )


def _gathers(observer: TorchObserver) -> Callable[[], None]:
    """xm.all_gather with a pinned layout pads by the rank (torch_xla 2.9): another graph for each rank."""
    from torch_xla.core import xla_model

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def gather(*args: Any, **kwargs: Any) -> Any:
            observer.events.by_rank = observer.config.ranks > 1 and not observer.config.rehearsed
            return original(*args, **kwargs)

        return gather

    return replace(xla_model, "_all_gather_using_all_reduce", make)


_HOOKS = (_syncs, _closures, _exchanges, _passes, _xla_loaders, _training, host_loaders, _gathers, accelerate_tracker)
_TENSOR_HOOKS = (_indices, _reads, _moves)
