"""Gradients of XLA FSDP (v1) under accelerate: they are already averaged, and each rank has another part.

accelerate 1.15.0 averages the gradients of every optimizer over all ranks (optimizer.py, AcceleratedOptimizer.step;
accelerator.py, clip_grad_norm_). With FSDP that would mix gradients of different parts of a parameter, on a TPU as
well, and each rank would clip by the norm of its own part. transformers' Trainer (5.23.0) trains FSDP through both;
without this patch the loss differs from the second step on. Models without such shards are not affected.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tpu_magics.backends.torch_xla.post_import import PostImport


def arrange() -> None:
    """Change accelerate in this process as it is imported. Only for workers."""
    hook = PostImport()
    hook.when_imported("accelerate.optimizer", lambda module: _change_step(module.AcceleratedOptimizer))
    hook.when_imported("accelerate.accelerator", lambda module: _change_clipping(module.Accelerator))


def is_shard(parameter: Any) -> bool:
    """Whether this is a rank's shard of a parameter, by torch_xla's mark (2.9.0: torch_xla/distributed/fsdp)."""
    return bool(getattr(parameter, "_is_sharded", False))


def _change_step(Optimizer: Any) -> None:
    original = Optimizer.step
    if getattr(original, "knows_shards", False):
        return

    @functools.wraps(original)
    def step(optimizer: Any, closure: Any = None) -> Any:
        average_whole(optimizer)
        return original(optimizer, closure)

    step.knows_shards = True  # type: ignore[attr-defined]
    Optimizer.step = step


def _change_clipping(Accelerator: Any) -> None:
    original = Accelerator.clip_grad_norm_
    if getattr(original, "knows_shards", False):
        return

    @functools.wraps(original)
    def clip_grad_norm_(accelerator: Any, parameters: Iterable[Any], max_norm: float, norm_type: float = 2) -> Any:
        held = list(parameters)
        if not any(map(is_shard, held)):
            return original(accelerator, held, max_norm, norm_type)
        for optimizer in accelerator._optimizers:
            average_whole(optimizer)
        accelerator.unscale_gradients()
        return clip(held, float(max_norm), float(norm_type))

    clip_grad_norm_.knows_shards = True  # type: ignore[attr-defined]
    Accelerator.clip_grad_norm_ = clip_grad_norm_


def average_whole(optimizer: Any) -> None:
    """For an accelerate optimizer that holds shards: average the gradients of parameters that are not shards, and mark
    the gradients as averaged for accelerate."""
    parameters = list(_parameters(optimizer))
    if optimizer.gradient_state.is_xla_gradients_synced or not any(map(is_shard, parameters)):
        return
    whole = [one.grad.data for one in parameters if one.grad is not None and not is_shard(one)]
    if whole:
        import torch_xla.core.xla_model as xm
        import torch_xla.runtime as xr

        xm.all_reduce("sum", whole, scale=1.0 / xr.world_size())
    optimizer.gradient_state.is_xla_gradients_synced = True


def _parameters(optimizer: Any) -> Iterator[Any]:
    for group in optimizer.param_groups:
        yield from group["params"]


def clip(parameters: Sequence[Any], max_norm: float, norm_type: float) -> Any:
    """Scale gradients so that their total norm, including the shards of all ranks, is at most `max_norm`. Returns the
    norm before, as torch.nn.utils.clip_grad_norm_ and FSDP's own clip_grad_norm_ do."""
    import torch

    with torch.no_grad():
        graded = [one for one in parameters if one.grad is not None]
        parts = _norm([one.grad for one in graded if is_shard(one)], norm_type)
        norms = [_of_all_ranks(parts, norm_type)] if parts is not None else []
        whole = _norm([one.grad for one in graded if not is_shard(one)], norm_type)
        norms += [whole] if whole is not None else []
        if not norms:
            return torch.tensor(0.0)
        total = torch.linalg.vector_norm(torch.stack(norms), norm_type)
        factor = torch.clamp(max_norm / (total + 1e-6), max=1.0)
        for one in graded:
            one.grad.mul_(factor.to(one.grad.dtype))
    return total


def _norm(gradients: Sequence[Any], norm_type: float) -> Any | None:
    import torch

    if not gradients:
        return None
    return torch.linalg.vector_norm(
        torch.stack([torch.linalg.vector_norm(one, norm_type, dtype=torch.float32) for one in gradients]), norm_type
    )


def _of_all_ranks(norm: Any, norm_type: float) -> Any:
    import torch_xla.core.xla_model as xm

    if norm_type == float("inf"):
        return xm.all_reduce("max", norm)
    return xm.all_reduce("sum", norm**norm_type) ** (1.0 / norm_type)
