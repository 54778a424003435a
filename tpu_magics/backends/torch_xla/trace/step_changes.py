"""Changes of a training step that a preflight tries without a change of the code, while it traces the function.

A change is a text: "remat=on" and "remat=off" (gradient checkpointing of each block of layers), "pad=30522:30592" (a
vocabulary and all sizes that are equal to it), "bf16=MODULE@PATH:LINE" (the matrix multiplications that this line makes
in this module take bf16 operands), "heads=12x64:6x128" (other attention heads), "transpose=512x256x3x3:0,1"
(weights of this shape are stored with these dimensions swapped), "flash=on" (scaled_dot_product_attention by the Pallas
kernel of torch_xla), "mesh=data:4,model:2" and "vectors=30522x768" (mesh.py). Weights are not computed in a trace, so
new ones need no values.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from tpu_magics.backends.base import BF16, FLASH, HEADS, MESH, OFF, ON, PAD, REMAT, TRANSPOSE, VECTORS
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
        elif name == HEADS:
            before, _, after = value.partition(":")
            _at_first_call(functools.partial(_regroup_heads, before=_sizes(before), after=_sizes(after)))
        elif name == TRANSPOSE:
            shape, _, dims = value.partition(":")
            swapped = [int(one) for one in dims.split(",")]
            _at_first_call(functools.partial(_transpose, shape=_sizes(shape), dims=swapped))
        elif name == FLASH and value == ON:
            _at_first_call(_use_sdpa)
            _FlashAttention().__enter__()
        elif name == BF16:
            module, _, line = value.rpartition("@")
            _Bf16(scopes, module, line).__enter__()
        elif name == MESH:
            sizes = {axis: int(size) for axis, _, size in (one.partition(":") for one in value.split(","))}
            sharding = MeshSharding(sizes, lambda: moving() or bool(scopes.module))
            sharding.install()
            _at_first_call(sharding.shard_model)
        elif name == VECTORS:
            shard_vectors(_sizes(value))
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
    parts = list(model.children())
    is_list = isinstance(model, (torch.nn.ModuleList, torch.nn.Sequential)) and len(parts) > 1
    if is_list and len({type(one) for one in parts}) == 1 and next(parts[0].children(), None):
        yield from parts
        return
    for part in parts:
        yield from _blocks(part)


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


# -- attention heads --------------------------------------------------------------------------------------------------


def _regroup_heads(model: Any, before: tuple[int, ...], after: tuple[int, ...]) -> None:
    """Numbers and sizes of heads; weights stay as they are."""
    for part in model.modules():
        for holder in _holders(part):
            for name, value in list(vars(holder).items()):
                is_size = "dim" in name or "size" in name
                if "head" in name and type(value) is int and value == before[is_size]:
                    setattr(holder, name, after[is_size])


# -- layouts ----------------------------------------------------------------------------------------------------------


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split("x"))


def _transpose(model: Any, shape: tuple[int, ...], dims: Sequence[int]) -> None:
    """Store weights of that shape with two dimensions swapped. Modules see them as before."""
    for part in model.modules():
        names = [name for name, one in part._parameters.items() if one is not None and tuple(one.shape) == shape]
        for name in names:
            tensor = part._parameters[name]
            stored = list(shape)
            stored[dims[0]], stored[dims[1]] = stored[dims[1]], stored[dims[0]]
            tensor.data = torch.zeros(stored, dtype=tensor.dtype, device=tensor.device)
        if names:
            part.__class__ = type(type(part).__name__, (type(part),), {name: _view(name, dims) for name in names})


def _view(name: str, dims: Sequence[int]) -> Any:
    """An attribute: comes before the parameter itself, which nn.Module finds in __getattr__."""
    return property(lambda part: part._parameters[name].transpose(*dims))


# -- attention by the Pallas kernel -----------------------------------------------------------------------------------


def _use_sdpa(model: Any) -> None:
    """Modules of transformers that were created with eager attention."""
    for part in model.modules():
        for holder in _holders(part):
            if getattr(holder, "_attn_implementation", "") == "eager":
                holder._attn_implementation = "sdpa"


class _FlashAttention(TorchFunctionMode):
    """Calls of scaled_dot_product_attention; dropout is left out, which the kernel has not. A mask is taken as one of
    keys, as its last query has it: values do not matter in a trace."""

    def __init__(self) -> None:
        super().__init__()
        import jax
        from torch_xla.experimental import custom_kernel

        jax.config.update("jax_platforms", "cpu")  # a TPU is the worker's
        custom_kernel.trace_pallas = _trace_pallas

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is not _F.scaled_dot_product_attention:
            return function(*args, **kwargs or {})
        return _flash_attention(*args, **kwargs or {})


def _flash_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,  # noqa: ARG001 -- of the function that it stands for
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    from torch_xla.experimental import custom_kernel

    if torch.is_autocast_enabled("xla"):
        query, key, value = (one.to(torch.get_autocast_dtype("xla")) for one in (query, key, value))
    if enable_gqa:
        key, value = (one.repeat_interleave(query.shape[-3] // one.shape[-3], -3) for one in (key, value))
    ids = None
    if attn_mask is not None:
        last = attn_mask.expand(query.shape[0], 1, -1, -1)[:, 0, -1]
        ids = (last if last.dtype == torch.bool else last > -1).to(torch.int32)
    mine = None if ids is None else torch.ones((query.shape[0], query.shape[-2]), dtype=ids.dtype, device=ids.device)
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    return custom_kernel.flash_attention(query, key, value, is_causal, mine, ids, scale)


def _trace_pallas(
    kernel: Any,
    *args: Any,
    static_argnums: Any = None,
    static_argnames: Any = None,
    use_cache: bool = False,  # noqa: ARG001 -- likewise
    **rest: Any,
) -> tuple[str | None, list[Any]]:
    """torch_xla 2.9.0's own lowers for the device that is there, which is no TPU in a trace."""
    import jax
    import jax._src.pallas.mosaic.pallas_call_registration
    from torch_xla.experimental import custom_kernel

    tensors = [one for one in args if torch.is_tensor(one)]
    shapes = [custom_kernel.to_jax_shape_dtype_struct(one) if torch.is_tensor(one) else one for one in args]
    jitted = jax.jit(kernel, static_argnums=static_argnums, static_argnames=static_argnames)
    lowered = jitted.trace(*shapes, **rest).lower(lowering_platforms=("tpu",))
    return custom_kernel._extract_backend_config(lowered.compiler_ir()), tensors


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
        if function not in _MULTIPLYING:
            return function(*args, **kwargs)
        if self.scopes.module == self.module and self._is_here():
            with torch.autocast("xla", enabled=False):
                return function(*_cast(args, torch.bfloat16), **_cast(kwargs, torch.bfloat16))
        if torch.is_autocast_enabled("xla") or len(set(_float_types(args))) < 2:
            return function(*args, **kwargs)
        return function(*_cast(args, torch.float32), **kwargs)  # of a result of bf16 that was one of f32 before

    def _is_here(self) -> bool:
        place = self.scopes.place(sys._getframe(2))
        return place is not None and str(place) == self.line


_FLOATS = (torch.float32, torch.bfloat16)


def _float_types(args: Any) -> Iterator[torch.dtype]:
    return (one.dtype for one in args if isinstance(one, torch.Tensor) and one.dtype in _FLOATS)


def _cast(value: Any, to: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(to) if value.dtype in _FLOATS else value
    if isinstance(value, (tuple, list)):
        return type(value)(_cast(one, to) for one in value)
    return {name: _cast(one, to) for name, one in value.items()} if isinstance(value, dict) else value
