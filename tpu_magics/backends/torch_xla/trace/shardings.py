"""Shardings for the results of a traced SPMD step that have no annotation.

In training, XLA's partitioner decides them when it compiles the step, and torch_xla assigns them to the step's results:
from the second step on they count as annotated. Here no step is compiled before the next one is traced. Optimizer state
and gradients get the sharding of their parameter, as XLA decides too, because they are made from it element by element.
Everything else without an annotation is replicated. XLA may shard that too (a bias beside a sharded weight); then a
device needs less memory than the preflight says, not more. C++ functions as in torch_xla 2.9.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tpu_magics.backends.torch_xla import optimizers
from tpu_magics.backends.torch_xla.trace.live_tensors import inner, number


def settle(pending: Sequence[Any]) -> None:
    """Give a sharding to each of these inner tensors that has none. They must be pending: then it is only noted."""
    import torch_xla
    from torch_xla.distributed.spmd import ShardingType

    extension = torch_xla._XLAC
    bare = {number(one): one for one in pending if not extension._get_xla_sharding_spec(one)}
    if not bare:
        return
    for tensor, parameter in _like_parameters():
        found = bare.get(number(inner(tensor)))
        sharding = extension._get_xla_op_sharding(inner(parameter))
        if found is not None and sharding is not None and found.shape == parameter.shape:
            extension._xla_mark_sharding(found, sharding)
            del bare[number(found)]
    whole = extension.OpSharding([], [], [], ShardingType.REPLICATED)
    for one in bare.values():
        extension._xla_mark_sharding(one, whole)


def _like_parameters() -> Iterator[tuple[Any, Any]]:
    """(tensor, the parameter it belongs to)."""
    for parameter, state in (item for optimizer in optimizers.living() for item in optimizer.state.items()):
        kept = state.values() if isinstance(state, dict) else ()
        yield from ((one, parameter) for one in _on_device((*kept, parameter.grad)))


def _on_device(found: Iterable[Any]) -> Iterator[Any]:
    import torch

    return (one for one in found if issubclass(type(one), torch.Tensor) and one.is_xla)
