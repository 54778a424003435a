"""Changes of a training step that a preflight tries without a change of the code, while it traces the function.

A change is a text: "remat=on" and "remat=off" (gradient checkpointing of each block of layers), "pad=30522:30592" (a
vocabulary and all sizes that are equal to it), "bf16=MODULE@PATH:LINE" (the matrix multiplications that this line makes
in this module take bf16 operands), "mesh=data:4,model:2" and "vectors=30522x768" (mesh.py). Weights are not computed in
a trace, so new ones need no values.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from tpu_magics.backends.base import BF16, MESH, OFF, ON, PAD, REMAT, VECTORS
from tpu_magics.backends.torch_xla.trace.mesh import MeshSharding, shard_vectors
from tpu_magics.backends.torch_xla.trace.op_scopes import OpScopes


def install(changes: Sequence[str], scopes: OpScopes, moving: Callable[[], bool]) -> None:
    """Until the process ends: models are changed when they are called for the first time. `moving`: whether a model is
    being moved to the device. Raises ValueError for a change of another form."""
    for change in changes:
        name, _, value = change.partition("=")
        if name == REMAT and value in (ON, OFF):
            _at_first_call(_rematerialise if value == ON else _keep)
        elif name == PAD:
            size, _, padded = value.partition(":")
            _at_first_call(functools.partial(_pad, size=int(size), padded=int(padded)))
        elif name == BF16:
            module, _, line = value.rpartition("@")
            _Bf16(scopes, module, line).__enter__()
        elif name == MESH:
            sizes = {axis: int(size) for axis, _, size in (one.partition(":") for one in value.split(","))}
            sharding = MeshSharding(sizes, lambda: moving() or bool(scopes.module))
            sharding.install()
            _at_first_call(sharding.shard_model)
        elif name == VECTORS:
            shard_vectors(tuple(int(size) for size in value.split("x")))
        else:
            raise ValueError(f"no such change: {change}")


def _at_first_call(change: Any) -> None:
    """Change each model when it is called for the first time."""
    known: set[int] = set()
    kept: list[Any] = []  # so that no other object gets their id()

    def before(module: Any, _args: Any) -> None:
        if id(module) not in known:
            known.update(id(part) for part in module.modules())
            kept.append(module)
            change(module)

    register_module_forward_pre_hook(before)


# -- gradient checkpointing -------------------------------------------------------------------------------------------


def _rematerialise(model: Any) -> None:
    """transformers' models do it themselves, without their cache; of others, each block of a list of equal ones."""
    for part in _outermost(model, "supports_gradient_checkpointing"):
        part.gradient_checkpointing_enable()
        part.config.use_cache = False
    from torch.utils.checkpoint import checkpoint

    for block in _blocks(model):
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)


def _keep(model: Any) -> None:
    """torch's and torch_xla's checkpoint() run the function alone, however they are called."""
    import torch.utils.checkpoint as of_torch

    for part in _outermost(model, "is_gradient_checkpointing"):
        part.gradient_checkpointing_disable()

    def once(*_args: Any, **_kwargs: Any) -> Iterator[None]:
        yield

    of_torch._checkpoint_without_reentrant_generator = once
    of_xla = sys.modules.get("torch_xla.utils.checkpoint")
    for module in (of_torch, of_xla) if of_xla is not None else (of_torch,):
        module.CheckpointFunction.apply = staticmethod(lambda function, _preserve, *args: function(*args))


def _outermost(model: Any, name: str) -> Iterator[Any]:
    """The modules whose attribute of that name is true, without those inside of them."""
    if getattr(model, name, False):
        yield model
        return
    for child in model.children():
        yield from _outermost(child, name)


def _blocks(model: Any) -> Iterator[Any]:
    """The layers of a model: members of a list or a sequence that are of one class and have modules of their own, the
    outermost ones. transformers' models are left out."""
    if getattr(model, "supports_gradient_checkpointing", False):
        return
    for child in model.children():
        members = list(child.children()) if isinstance(child, (torch.nn.ModuleList, torch.nn.Sequential)) else []
        if len(members) > 1 and len({type(one) for one in members}) == 1 and next(members[0].children(), None):
            yield from members
        else:
            yield from _blocks(child)


# -- padding ----------------------------------------------------------------------------------------------------------


def _pad(model: Any, size: int, padded: int) -> None:
    """Parameters, buffers and numbers of this size, of its modules and their configurations."""
    for part in model.modules():
        for tensors in (part._parameters, part._buffers):
            for tensor in tensors.values():
                if tensor is not None and size in tensor.shape:
                    shape = [padded if one == size else one for one in tensor.shape]
                    tensor.data = torch.zeros(shape, dtype=tensor.dtype, device=tensor.device)
        for holder in _holders(part):
            for name, value in list(vars(holder).items()):
                if type(value) is int and value == size:
                    setattr(holder, name, padded)
                elif isinstance(value, tuple) and size in value:  # of a LayerNorm
                    setattr(holder, name, tuple(padded if one == size else one for one in value))


def _holders(part: Any) -> Iterator[Any]:
    yield part
    config = vars(part).get("config")
    if hasattr(config, "__dict__"):
        yield config
        yield from (one for one in vars(config).values() if type(one).__name__.endswith("Config"))


# -- islands of f32 ---------------------------------------------------------------------------------------------------

_F, _T = torch.nn.functional, torch.Tensor
_MULTIPLYING = frozenset(
    {
        *(torch.matmul, torch.mm, torch.bmm, torch.addmm, torch.baddbmm, torch.einsum, _F.linear, _F.bilinear),
        *(_T.matmul, _T.__matmul__, _T.__rmatmul__, _T.mm, _T.bmm, _T.addmm, _T.baddbmm),
        *(torch.conv1d, torch.conv2d, torch.conv3d, _F.conv1d, _F.conv2d, _F.conv3d),
        *(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d, _F.scaled_dot_product_attention),
    }
)


class _Bf16(TorchFunctionMode):
    def __init__(self, scopes: OpScopes, module: str, line: str) -> None:
        super().__init__()
        self.scopes, self.module, self.line = scopes, module, line

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function not in _MULTIPLYING or self.scopes.module != self.module or not self._is_here():
            return function(*args, **kwargs)
        narrow = _cast(args, torch.float32, torch.bfloat16), _cast(kwargs, torch.float32, torch.bfloat16)
        with torch.autocast("xla", enabled=False):
            return _cast(function(*narrow[0], **narrow[1]), torch.bfloat16, torch.float32)

    def _is_here(self) -> bool:
        place = self.scopes.place(sys._getframe(2))
        return place is not None and str(place) == self.line


def _cast(value: Any, of: torch.dtype, to: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(to) if value.dtype == of else value
    if isinstance(value, (tuple, list)):
        return type(value)(_cast(one, of, to) for one in value)
    return {name: _cast(one, of, to) for name, one in value.items()} if isinstance(value, dict) else value
