"""How the results of an SPMD step lie on the devices, where nobody has said it.

What lives here: the shardings that placeholders get. What does not: what lies where in training (../spmd.py).

In training XLA's partitioner decides it when it compiles the step, and torch_xla gives its decision to the tensors that
the step made: from the second step on they are as good as annotated. Here no step is compiled before the next one is
traced. What an optimizer keeps for a parameter, and its gradient, lie as the parameter lies: so does XLA decide, for
they are made of it element by element. Everything else without an annotation is taken to lie whole on each device. XLA
may split that too (a bias beside a split weight): then a device needs less memory than the preflight says, not more.

Functions of torch_xla's C++ module were read in 2.9.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tpu_magics.backends.torch_xla import optimizers
from tpu_magics.backends.torch_xla.trace.live_tensors import inner, number


def settle(pending: Sequence[Any]) -> None:
    """Give each of these inner tensors a sharding that has none. They must be pending: then it is noted and no more."""
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
    """(tensor, the parameter that it belongs to)."""
    for parameter, state in (item for optimizer in optimizers.living() for item in optimizer.state.items()):
        kept = state.values() if isinstance(state, dict) else ()
        yield from ((one, parameter) for one in _on_device((*kept, parameter.grad)))


def _on_device(found: Iterable[Any]) -> Iterator[Any]:
    import torch

    return (one for one in found if issubclass(type(one), torch.Tensor) and one.is_xla)
