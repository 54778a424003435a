"""A model and its inputs sharded over a mesh, without a change of the function: what `--mesh` compares.

An axis "data" shards the batch; "fsdp" shards the batch, and each parameter along its largest dimension; "model" shards
the features of linear layers and embeddings (tensor parallelism). What the function has marked itself stays as it is.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from tpu_magics.backends.base import DATA, FSDP, MODEL
from tpu_magics.backends.torch_xla.spmd import AXES

Spec = tuple[Any, ...]  # for each dimension the axis that shards it, a tuple of axes, or None

# Functions of torch that send or make an input, by their names: some are replaced in a worker.
_MAKING = frozenset(["to", "tensor", "as_tensor", "zeros", "ones", "full", "empty", "rand", "randn", "randint"])
_WHOLE = "{replicated}"  # how torch_xla sends a batch of a loader, without a mark
_SMALL = 1 << 10  # elements: sharding them saves nothing


class MeshSharding:
    """The shardings over one mesh. `sizes`: of its axes; `in_model`: whether a model runs, or is being moved to the
    device, so that new tensors are no inputs."""

    def __init__(self, sizes: Mapping[str, int], in_model: Callable[[], bool]) -> None:
        self.sizes = dict(sizes)
        self.in_model = in_model
        self._mesh: Any = None

    @property
    def mesh(self) -> Any:
        """With the axes of our own meshes besides, so that functions that name these run."""
        if self._mesh is None:
            import numpy as np
            import torch_xla.distributed.spmd as xs

            sizes = {**self.sizes, **{axis: 1 for axis in AXES if axis not in self.sizes}}
            self._mesh = xs.Mesh(np.arange(math.prod(sizes.values())), tuple(sizes.values()), tuple(sizes))
            xs.set_global_mesh(self._mesh)
        return self._mesh

    def install(self) -> None:
        """Until the process ends; once the runtime has its devices."""
        import torch_xla

        assert self.mesh
        extension = torch_xla._XLAC
        extension._xla_tensors_from_aten = functools.partial(self._sent, extension._xla_tensors_from_aten)
        _Inputs(self).__enter__()

    # -- inputs -----------------------------------------------------------------------------------------------------
    def _sent(self, original: Any, tensors: Sequence[Any], *args: Any, **kwargs: Any) -> list[Any]:
        """A batch of a loader, which may have a thread of its own."""
        made = list(original(tensors, *args, **kwargs))
        for one in made:
            self.shard_input(one)
        return made

    def shard_input(self, tensor: Any) -> None:
        """Along its first dimension, if that has as many rows as there are shards, or a multiple."""
        axes = tuple(axis for axis in (DATA, FSDP) if self.sizes.get(axis, 1) > 1)
        shards = math.prod(self.sizes[axis] for axis in axes)
        if shards > 1 and tensor.dim() and tensor.shape[0] and tensor.shape[0] % shards == 0:
            self._mark(tensor, (axes if len(axes) > 1 else axes[0], *[None] * (tensor.dim() - 1)))

    # -- models -----------------------------------------------------------------------------------------------------
    def shard_model(self, model: Any) -> None:
        """Each of its parameters once; tied ones by the module that has them first."""
        known: set[int] = set()
        for module, name, parameter in _parameters(model):
            if id(parameter) not in known and parameter.is_xla:
                known.add(id(parameter))
                self._mark(parameter, self.spec(module, name, parameter))

    def spec(self, module: Any, name: str, parameter: Any) -> Spec:
        """How a parameter of that module is sharded."""
        found: list[Any] = [None] * parameter.dim()
        size = self.sizes.get(MODEL, 1)
        by_model = _features(module, name)
        if size > 1 and by_model is not None and parameter.shape[by_model] % size == 0:
            found[by_model] = MODEL
        size = self.sizes.get(FSDP, 1)
        free = [place for place, axis in enumerate(found) if axis is None and parameter.shape[place] % size == 0]
        if size > 1 and free and parameter.numel() >= _SMALL:
            found[max(free, key=lambda place: parameter.shape[place])] = FSDP
        return tuple(found)

    def _mark(self, tensor: Any, spec: Spec) -> None:
        import torch_xla
        import torch_xla.distributed.spmd as xs

        known = torch_xla._XLAC._get_xla_sharding_spec(tensor)
        if any(spec) and known in ("", _WHOLE):
            xs.mark_sharding(tensor, self.mesh, spec)


def _parameters(model: Any) -> Iterator[tuple[Any, str, Any]]:
    """(module, name in it, parameter)"""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield module, name, parameter


def _features(module: Any, name: str) -> int | None:
    """The dimension of a parameter that tensor parallelism shards: of a layer that widens, or keeps the width, its
    outputs, of one that narrows its inputs, so that nothing is sent between the two; of an embedding its vectors. None:
    it is on all devices."""
    if isinstance(module, torch.nn.Embedding):
        return 1
    if isinstance(module, torch.nn.Linear):
        outputs = 0
    elif type(module).__name__ == "Conv1D":  # transformers': stored the other way round
        outputs = 1
    else:
        return None
    weight = module.weight
    widens = weight.shape[outputs] >= weight.shape[1 - outputs]
    if name == "bias":
        return 0 if widens else None
    return outputs if widens else 1 - outputs


def shard_vectors(shape: tuple[int, ...]) -> None:
    """Until the process ends: tables of embeddings of that shape that the function shards over their rows are sharded
    over their vectors instead, so that a lookup sends nothing."""
    from torch_xla.distributed.spmd import xla_sharding

    original = xla_sharding.mark_sharding

    def mark(tensor: Any, mesh: Any, spec: Sequence[Any]) -> Any:
        if tuple(tensor.shape) == shape and len(spec) == 2 and spec[0] is not None and spec[1] is None:
            spec = (None, spec[0])
        return original(tensor, mesh, spec)

    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get("mark_sharding") is original:
            module.mark_sharding = mark  # type: ignore[attr-defined]


class _Inputs(TorchFunctionMode):
    """Follows the functions that send or make an input."""

    def __init__(self, sharding: MeshSharding) -> None:
        super().__init__()
        self.sharding = sharding

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **kwargs or {})
        makes = getattr(function, "__name__", "") in _MAKING and not any(map(_is_on_device, args))
        if makes and _is_on_device(result) and not result.requires_grad and not self.sharding.in_model():
            self.sharding.shard_input(result)
        return result


def _is_on_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and bool(value.is_xla)
