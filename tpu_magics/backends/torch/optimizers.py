"""Optimizers in a worker: those of the notebook follow a model that moves to a device, and fused ones run without
fusion.

Moving a module to XLA creates new Parameters (tied_weights.py keeps the old objects if possible). An optimizer must
follow: always with its state, and with its parameters if they became new objects. PyTorch's fused optimizers
(`fused=True`, and so Trainer's default, adamw_torch_fused) have no XLA kernel: the first step raises. The non-fused
version is the same algorithm, and XLA fuses it itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from tpu_magics.backends.instances import instances
from tpu_magics.backends.torch import tensor_transfer, trainer
from tpu_magics.backends.torch.runtime import DEVICE_TYPES, on_device
from tpu_magics.errors import TpuMagicsError
from tpu_magics.runs import events

_followed: list[tuple[str, Any]] = []
_stepping: dict[int, list[dict[str, Any]]] = {}  # by optimizer: the groups that run without fusion in this step
_noted: set[str] = set()
_steps = [0]  # of all optimizers
_followers: list[Callable[[], None]] = []  # called after each step
_KEPT = 2  # optimizers: a GAN has two
_stepped: list[Any] = []  # the last that stepped, the newest last, if they are kept


def optimizers_in(items: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """The optimizers among `items`, each once."""
    found = {id(value): (name, value) for name, value in items if issubclass(type(value), torch.optim.Optimizer)}
    return [one for one in found.values() if not _is_wrapper(one[1])]


def _is_wrapper(optimizer: Any) -> bool:
    """Whether it is accelerate's wrapper around an optimizer that is found as well."""
    return isinstance(vars(optimizer).get("optimizer"), torch.optim.Optimizer)


def living() -> list[Any]:
    """All optimizers of this worker: those created here, and the notebook's, which the garbage collector does not list
    (launch/process.py freezes it)."""
    return list({id(one): one for one in (*instances(torch.optim.Optimizer), *(one for _, one in _followed))}.values())


def follow(items: Iterable[tuple[str, Any]]) -> None:
    """In a worker, before the function: these optimizers follow when their parameters move."""
    for name, optimizer in optimizers_in(items):
        _followed.append((name, optimizer))
        optimizer.register_load_state_dict_post_hook(_place_state)


def after_move(successors: Mapping[Any, Any]) -> None:
    """After a module moved. `successors`: the replacements of parameters that could not stay the same objects.
    (Parameters are hashed by identity.)"""
    for _, optimizer in _followed:
        if successors:
            _repoint(optimizer, successors)
        _place_state(optimizer)


@contextmanager
def following_steps(call: Callable[[], None]) -> Iterator[None]:
    """Within it, `call` is called after each step of an optimizer."""
    _followers.append(call)
    try:
        yield
    finally:
        _followers.remove(call)


def steps_done() -> int:
    """Steps of all optimizers of this process so far."""
    return _steps[0]


# -- fused ones --------------------------------------------------------------------------------------------------------
def arrange(keep: bool = False) -> None:
    """Run fused optimizers without fusion if their parameters are on the device, and count steps. Only for workers.
    `keep`: those that stepped last stay alive, for `trained`; on a TPU their parameters would take its memory."""
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    register_optimizer_step_pre_hook(lambda optimizer, _args, _kwargs: _step_plainly(optimizer))
    register_optimizer_step_post_hook(lambda optimizer, _args, _kwargs: _after_step(optimizer, keep))


def _step_plainly(optimizer: Any) -> None:
    _fuse_again(optimizer)  # after a step that failed
    for group in optimizer.param_groups:
        if group.get("fused") and any(on_device(one) for one in group["params"]):
            group["fused"] = False
            _stepping.setdefault(id(optimizer), []).append(group)
            _count_on_cpu(optimizer, group)
            _note_plain_steps(type(optimizer).__name__)


def _after_step(optimizer: Any, keep: bool) -> None:
    _steps[0] += 1
    _fuse_again(optimizer)
    for call in _followers:
        call()
    if keep and not any(optimizer is one for one in _stepped):
        _stepped[:] = [*_stepped, optimizer][-_KEPT:]


def trained() -> Iterator[tuple[str, Any]]:
    """The parameters of the optimizers that stepped last, each with the name of its optimizer's class. Shards are left
    out (torch_xla 2.9's FSDP marks them; a DTensor has a local part)."""
    for optimizer in _stepped:
        for group in optimizer.param_groups:
            for one in group["params"]:
                if not hasattr(one, "_is_sharded") and not hasattr(one, "_local_tensor"):
                    yield type(optimizer).__name__, one


def _fuse_again(optimizer: Any) -> None:
    """Restore the user's setting, for checkpoints and for the notebook."""
    for group in _stepping.pop(id(optimizer), ()):
        group["fused"] = True


def _count_on_cpu(optimizer: Any, group: Mapping[str, Any]) -> None:
    """Move the step counter to the CPU: the fused form loads it to the device."""
    for parameter in group["params"] if not group.get("capturable") else ():
        step = optimizer.state.get(parameter, {}).get("step")
        if isinstance(step, torch.Tensor) and on_device(step):
            optimizer.state[parameter]["step"] = step.cpu()


def _note_plain_steps(name: str) -> None:
    if name not in _noted:
        _noted.add(name)
        text = f"{name}(fused=True) has no XLA kernel. The non-fused version, the same algorithm, is used instead."
        trainer.write(events.Warned, code="fused-optimizer", text=text)


# -- after a move ------------------------------------------------------------------------------------------------------
def _repoint(optimizer: Any, successors: Mapping[Any, Any]) -> None:
    for group in optimizer.param_groups:
        group["params"][:] = [successors.get(one, one) for one in group["params"]]
    kept = [(successors.get(one, one), state) for one, state in optimizer.state.items()]
    optimizer.state.clear()  # refilled in the same order
    optimizer.state.update(kept)


def _place_state(optimizer: Any) -> None:
    """Move the state to the device of its parameters, as `load_state_dict` does (torch 2.9.0). The step counter stays
    on the CPU: reading it from the device would end each step with a transfer for each parameter."""
    for group in optimizer.param_groups:
        counts_there = group.get("capturable") or (group.get("fused") and not any(map(on_device, group["params"])))
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            for key, value in state.items():
                device = parameter.device if key != "step" or counts_there else torch.device("cpu")
                state[key] = _placed(value, device)


def _placed(value: Any, device: Any) -> Any:
    if issubclass(type(value), torch.Tensor):
        return value if value.device == device or not _crosses(value, device) else _moved(value, device)
    if issubclass(type(value), list):
        value[:] = [_placed(one, device) for one in value]
    return value


def _crosses(value: Any, device: Any) -> bool:
    """Whether it moves from the host to the device, or back."""
    return on_device(value) is not (device.type in DEVICE_TYPES)


def _moved(value: Any, device: Any) -> Any:
    """The tensor on the device, as the same object if possible."""
    new = value.detach().to(device)
    return value if tensor_transfer.take_contents(value, new) else new


def refuse_sharding(module: Any) -> None:
    """Raise for an optimizer whose parameters FSDP is about to replace by shards: it would train nothing."""
    parameters = {id(parameter) for parameter in module.parameters()}
    for name, optimizer in _followed:
        if any(id(one) in parameters for group in optimizer.param_groups for one in group["params"]):
            raise TpuMagicsError(
                f"The optimizer `{name}` was created in the notebook, but {type(module).__name__} is wrapped with "
                "FSDP in the worker.",
                "FSDP replaces the parameters that the optimizer holds by shards, so the optimizer would train "
                "nothing, without an error.",
                "Create the optimizer inside the training function, after the model is wrapped.",
            )
