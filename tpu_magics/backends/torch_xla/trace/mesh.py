"""A model and its inputs sharded over a mesh, without a change of the function: what `--mesh` compares.

An axis "data" shards the batch; "fsdp" shards the batch, and each parameter along its largest dimension; "model" shards
the features of linear layers and embeddings (tensor parallelism). What the function marks itself, it marks in the place
of ours.
"""

from __future__ import annotations

import functools
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from tpu_magics.backends.base import DATA, FSDP, MODEL
from tpu_magics.backends.torch_xla.spmd import AXES

Spec = tuple[Any, ...]  # for each dimension the axis that shards it, a tuple of axes, or None

# Functions of torch that send or make an input, by their names: some are replaced in a worker.
_INPUT_FUNCTIONS = frozenset(["to", "tensor", "as_tensor", "zeros", "ones", "rand", "randn", "randint"])
_REPLICATED = "{replicated}"  # how torch_xla sends a batch of a loader, without a mark
_MIN_ELEMENTS = 1 << 10  # sharding fewer saves nothing
# Layers that sum over features, by the end of their path, where their sizes do not tell; and those that make features.
_SUMS = re.compile(r"(?:^|[._])(?:o_proj|out_proj|c_proj|down_proj|out_lin|fc2|lin2|wo|o|output\.dense|to_out\.0)$")
_MAKES = re.compile(r"(?:^|[._])(?:[qkv]|[qkv]_proj|[qkv]_lin|query|key|value|to_[qkv]|c_attn|qkv)$")


class MeshSharding:
    """The shardings over one mesh. `sizes`: of its axes; `in_model`: whether a model runs, or is being moved to the
    device, so that new tensors are no inputs."""

    def __init__(self, sizes: Mapping[str, int], in_model: Callable[[], bool]) -> None:
        self.sizes = dict(sizes)
        self.in_model = in_model
        self.mesh: Any = None
        self._marked = WeakIdKeyDictionary()  # what we have sharded, until the function marks it

    def install(self) -> None:
        """Until the process ends; once the runtime has its devices. The mesh has the axes of our own meshes besides, so
        that functions that name these run."""
        import numpy as np
        import torch_xla
        import torch_xla.distributed.spmd as xs

        sizes = {**self.sizes, **{axis: 1 for axis in AXES if axis not in self.sizes}}
        self.mesh = xs.Mesh(np.arange(math.prod(sizes.values())), tuple(sizes.values()), tuple(sizes))
        xs.set_global_mesh(self.mesh)
        extension = torch_xla._XLAC
        extension._xla_tensors_from_aten = functools.partial(self._sent, extension._xla_tensors_from_aten)
        self._mark = _replace_marks(self._by_function)
        _Inputs(self).__enter__()

    def _by_function(self, original: Any, tensor: Any, mesh: Any, spec: Spec) -> Any:
        """The function marks a tensor."""
        if self._marked.pop(tensor, False):
            _clear(tensor)
        return original(tensor, mesh, spec)

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
            self._shard(tensor, (axes if len(axes) > 1 else axes[0], *[None] * (tensor.dim() - 1)))

    # -- models -----------------------------------------------------------------------------------------------------
    def shard_model(self, model: Any) -> None:
        """Each of its parameters once; tied ones by the module that has them first."""
        known: set[int] = set()
        for path, module, name, parameter in _parameters(model):
            if id(parameter) not in known and parameter.is_xla:
                known.add(id(parameter))
                if self._marked.pop(parameter, False):  # it was made on the device, as an input may be
                    _clear(parameter)
                self._shard(parameter, self.spec(path, module, name, parameter))

    def spec(self, path: str, module: Any, name: str, parameter: Any) -> Spec:
        """How a parameter of that module is sharded."""
        found: list[Any] = [None] * parameter.dim()
        size = self.sizes.get(MODEL, 1)
        features = _features(path, module, name)
        if size > 1 and features is not None and features < len(found) and parameter.shape[features] % size == 0:
            found[features] = MODEL
        size = self.sizes.get(FSDP, 1)
        free = [place for place, axis in enumerate(found) if axis is None and parameter.shape[place] % size == 0]
        if size > 1 and free and parameter.numel() >= _MIN_ELEMENTS:
            found[max(free, key=lambda place: parameter.shape[place])] = FSDP
        return tuple(found)

    def _shard(self, tensor: Any, spec: Spec) -> None:
        import torch_xla

        known = torch_xla._XLAC._get_xla_sharding_spec(tensor)
        if any(spec) and known in ("", _REPLICATED):
            self._mark(tensor, self.mesh, spec)
            self._marked[tensor] = True


def _clear(tensor: Any) -> None:
    import torch_xla.distributed.spmd as xs

    xs.clear_sharding(tensor)


def _replace_marks(mark: Callable[[Any, Any, Any, Spec], Any]) -> Any:
    """From now on `mark(original, tensor, mesh, spec)` is called in the place of xs.mark_sharding, by all that have it.
    Returns the original."""
    from torch_xla.distributed.spmd import xla_sharding

    original = xla_sharding.mark_sharding

    @functools.wraps(original)
    def mark_sharding(t: Any, mesh: Any, partition_spec: Spec) -> Any:
        return mark(original, t, mesh, partition_spec)

    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get("mark_sharding") is original:
            module.mark_sharding = mark_sharding  # type: ignore[attr-defined]
    return original


def _parameters(model: Any) -> Iterator[tuple[str, Any, str, Any]]:
    """(path of the module, module, name in it, parameter)"""
    for path, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield path, module, name, parameter


def _features(path: str, module: Any, name: str) -> int | None:
    """The dimension of a parameter that tensor parallelism shards: of a layer that makes features its outputs, of one
    that sums over them its inputs, so that nothing is sent between the two; of an embedding its vectors. None: it is on
    all devices."""
    if isinstance(module, torch.nn.Embedding):
        return 1
    if isinstance(module, torch.nn.Linear):
        outputs = 0
    elif type(module).__name__ == "Conv1D":  # transformers': stored the other way round
        outputs = 1
    else:
        return None
    shape = module.weight.shape
    sums = bool(_SUMS.search(path)) or (not _MAKES.search(path) and shape[outputs] < shape[1 - outputs])
    if name == "bias":
        return None if sums else 0
    return 1 - outputs if sums else outputs


def shard_vectors(shape: tuple[int, ...]) -> None:
    """Until the process ends: tables of embeddings of that shape that the function shards over their rows are sharded
    over their vectors instead, so that a lookup sends nothing."""

    def mark(original: Any, tensor: Any, mesh: Any, spec: Spec) -> Any:
        if tuple(tensor.shape) == shape and len(spec) == 2 and spec[0] is not None and spec[1] is None:
            spec = (None, spec[0])
        return original(tensor, mesh, spec)

    _replace_marks(mark)


class _Inputs(TorchFunctionMode):
    """Follows the functions that send or make an input."""

    def __init__(self, sharding: MeshSharding) -> None:
        super().__init__()
        self.sharding = sharding

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **kwargs or {})
        makes = getattr(function, "__name__", "") in _INPUT_FUNCTIONS and not any(map(_is_on_device, args))
        if makes and _is_on_device(result) and not result.requires_grad and not self.sharding.in_model():
            self.sharding.shard_input(result)
        return result


def _is_on_device(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and bool(value.is_xla)
