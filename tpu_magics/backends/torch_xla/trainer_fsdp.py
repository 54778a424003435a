"""Fixes for transformers' Trainer with XLA FSDP (`fsdp_config={"xla": True, ...}`) in a worker.

Two problems of transformers 5.23.0 stop the training before its first step, on a TPU as well. (1) No optimizer is
created: trainer.py delays it until the model is wrapped (`_prepare_for_training`), and then creates one only for models
that accelerate wraps: "'NoneType' object has no attribute 'param_groups'". (2) FSDP v2 supports the outputs of few
models: integrations/tpu.py splits the output of each wrapped part by its first dimension, but accepts only tensors of
three dimensions, tuples that begin with one, and CausalLMOutputWithPast: "the output of the model shouldn't be `None`".
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from tpu_magics.backends.torch_xla.post_import import PostImport

_FSDP_V2 = "torch_xla.experimental.spmd_fully_sharded_data_parallel"
_PREFERRED = ("logits", "last_hidden_state")


def arrange() -> None:
    """Patch the modules in this process, once they are imported. Only for workers."""
    hook = PostImport()
    hook.when_imported("transformers.trainer", lambda module: _make_optimizer(module.Trainer))
    hook.when_imported(_FSDP_V2, lambda module: _know_outputs(module.SpmdFullyShardedDataParallel))


# -- the optimizer -----------------------------------------------------------------------------------------------------
def _make_optimizer(Trainer: Any) -> None:
    original = getattr(Trainer, "_wrap_model", None)
    if original is None or getattr(original, "makes_optimizer", False):
        return

    @functools.wraps(original)
    def wrap_model(trainer: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        wrapped = original(trainer, model, *args, **kwargs)
        missing = getattr(trainer, "is_fsdp_xla_enabled", False) and trainer.optimizer is None
        if missing and wrapped is not model:
            trainer.create_optimizer(wrapped)
        return wrapped

    wrap_model.makes_optimizer = True  # type: ignore[attr-defined]
    Trainer._wrap_model = wrap_model


# -- outputs under FSDP v2 ---------------------------------------------------------------------------------------------
def _know_outputs(Fsdp: Any) -> None:
    original = Fsdp.__init__
    if getattr(original, "knows_outputs", False):
        return

    @functools.wraps(original)
    def init(self: Any, module: Any, *, shard_output: Any = None, **kwargs: Any) -> None:
        if getattr(shard_output, "__module__", "") == "transformers.integrations.tpu":
            shard_output = split_output
        original(self, module, shard_output=shard_output, **kwargs)

    init.knows_outputs = True  # type: ignore[attr-defined]
    Fsdp.__init__ = init


def split_output(output: Any, mesh: Any) -> None:
    """Shard the output of a wrapped part by its first dimension over the mesh axis "fsdp", as transformers does."""
    import torch_xla.distributed.spmd as xs

    tensor = main_tensor(output)
    if tensor is not None:
        xs.mark_sharding(tensor, mesh, ("fsdp", *[None] * (tensor.dim() - 1)))


def main_tensor(output: Any) -> Any | None:
    """The tensor of an output that has a row for each sample: logits, else hidden states, else the first that is not a
    scalar. None if there is none."""
    import torch

    if isinstance(output, torch.Tensor):
        return output if output.dim() else None
    values: Iterable[Any] = ()
    if isinstance(output, Mapping):
        values = (*(output.get(name) for name in _PREFERRED), *output.values())
    elif isinstance(output, (list, tuple)):
        values = output
    return next((one for one in values if isinstance(one, torch.Tensor) and one.dim()), None)
