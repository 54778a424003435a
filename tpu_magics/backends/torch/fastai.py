"""fastai's Learner in a worker: its loaders and its model are on the rank's device while it trains or evaluates, each
batch is one step, and several ranks share the batches and average their gradients.

fastai 2.8 (learner.py, callback/fp16.py, distributed.py): it knows CUDA, MPS and the CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tpu_magics.backends.torch import runtime, trainer
from tpu_magics.backends.torch.post_import import PostImport
from tpu_magics.runs import events

_inside: list[Any] = []  # learners that are on the device


def arrange() -> None:
    """Patch fastai in this process once it is imported. Only for workers."""
    hook = PostImport()
    hook.when_imported("fastai.learner", _change_learner)
    hook.when_imported("fastai.callback.fp16", _use_bf16)


def _change_learner(module: Any) -> None:
    cls = module.Learner
    for name in ("fit", "validate", "get_preds"):
        setattr(cls, name, _on_device(getattr(cls, name), module))
    cls._do_one_batch = _as_step(cls._do_one_batch)
    cls._step = _averaged(cls._step)
    module.load_model = _through_host(module.load_model)


def _on_device(original: Callable[..., Any], module: Any) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(learner: Any, *args: Any, **kwargs: Any) -> Any:
        with _moved(learner, module):
            return original(learner, *args, **kwargs)

    return call


@contextmanager
def _moved(learner: Any, module: Any) -> Iterator[None]:
    """Within it, the learner is on this rank's device; its loaders return to theirs."""
    device = runtime.current()
    if device is None or not runtime.running() or any(one is learner for one in _inside) or not _is_free(module):
        yield
        return
    before = learner.dls.device
    _inside.append(learner)
    _place(learner, device.rank_device())
    loaders = learner.dls.loaders
    learner.dls.loaders = [*_shared(loaders[:1]), *loaders[1:]]
    try:
        yield
    finally:
        learner.dls.loaders = loaders
        learner.dls.to(before)
        _inside.remove(learner)


def _is_free(module: Any) -> bool:
    """Whether the person has not chosen the CPU: `default_device(False)`, after which fastai moves batches there."""
    free = module.defaults.use_cuda is not False
    if not free:
        text = "fastai trains on the host's CPU, because default_device(False) was called. Remove that call."
        trainer.write(events.Warned, code="fastai-cpu", text=text)
    return free


def _place(learner: Any, device: Any) -> None:
    learner.dls.to(device)
    learner.model.to(device)
    _place_state(learner.opt)


def _place_state(optimizer: Any) -> None:
    """fastai's own optimizers do not follow their parameters."""
    for parameter, state in getattr(optimizer, "state", {}).items():
        for name, value in state.items() if isinstance(parameter, torch.Tensor) else ():
            if isinstance(value, torch.Tensor):
                state[name] = value.to(parameter.device)


def _through_host(original: Callable[..., Any]) -> Callable[..., Any]:
    """torch.load has no map_location for the device ("don't know how to restore data location")."""

    @functools.wraps(original)
    def load_model(file: Any, model: Any, opt: Any, with_opt: bool = True, device: Any = None, **kwargs: Any) -> Any:
        place = torch.device(device) if isinstance(device, (str, torch.device)) else None
        there = place is not None and place.type in runtime.DEVICE_TYPES
        result = original(file, model, opt, with_opt=with_opt, device="cpu" if there else device, **kwargs)
        _place_state(opt)
        return result

    return load_model


def _as_step(original: Callable[..., Any]) -> Callable[..., Any]:
    """Its callbacks read the loss of each batch: after the sync that splits no graph."""

    @functools.wraps(original)
    def one_batch(learner: Any) -> None:
        try:
            original(learner)
        finally:
            device = runtime.current()
            if _inside and device is not None:
                device.step()

    return one_batch


# -- several ranks -----------------------------------------------------------------------------------------------------
def _shared(loaders: list[Any]) -> list[Any]:
    """The loaders, each with this rank's part of its items."""
    device = runtime.current()
    ranks, rank = (1, 0) if device is None else device.ranks()
    if ranks == 1:
        return loaders
    from fastai.distributed import DistributedDL

    class RankLoader(DistributedDL):
        """The order of the items is that of the ranks' common seed."""

        def _broadcast(self, items: Any, rank: int) -> Any:
            assert device is not None
            return device.broadcast(list(items), rank)

    return [RankLoader(loader, rank=rank, world_size=ranks) for loader in loaders]


def _averaged(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def step(learner: Any) -> None:
        device = runtime.current()
        if _inside and device is not None and device.ranks()[0] > 1:
            device.average([one.grad for one in learner.model.parameters() if one.grad is not None])
        original(learner)

    return step


# -- precision ---------------------------------------------------------------------------------------------------------
def _use_bf16(module: Any) -> None:
    """`to_fp16()` and `to_bf16()`: autocast of the rank's device, whose half precision is bf16 and needs no scaler."""
    scaler = module.GradScaler

    def autocast(_kind: str, dtype: Any = None) -> Any:
        device = runtime.current()
        if dtype is torch.float16:
            text = "fastai's to_fp16() runs in bf16, the half precision of a TPU. Write to_bf16() to say so."
            trainer.write(events.Warned, code="fastai-bf16", text=text)
        return torch.autocast("cpu" if device is None else device.device_type, dtype=torch.bfloat16)

    module.autocast = autocast
    module.GradScaler = lambda *_args, **_kwargs: scaler("cpu", enabled=False)
