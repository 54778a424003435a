"""Checkpoints of a training in progress: tensors as they lie on the device and in files, and the random states of a
rank."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from tpu_magics.backends.torch import optimizers, randomness, runtime, weights_files
from tpu_magics.backends.torch.runtime import on_device
from tpu_magics.backends.torch.tensor_transfer import settle, to_cpu

_PLAIN, _ODD = ".safetensors", ".pt"
_SHARDED = "XlaFullyShardedDataParallel"  # torch_xla 2.9.0: each rank has its part of the weights


class TorchStore:
    """The `StateStore` of backends/protocols.py."""

    def __init__(self) -> None:
        self._steps = optimizers.steps_done()

    def new_steps(self, observed: int) -> tuple[int, bool]:  # noqa: ARG002
        """Since the last call: 1 if an optimizer has stepped, else 0; and whether no step is half done. `observed`: all
        steps of the run, as the observer counts them."""
        before, self._steps = self._steps, optimizers.steps_done()
        return int(self._steps != before), self._steps != before

    def following_steps(self, watcher: object, call: Callable[[], None]) -> AbstractContextManager[None]:  # noqa: ARG002
        """Within it, `call` is called after each step of an optimizer."""
        return optimizers.following_steps(call)

    def replicated(self, values: Iterable[Any]) -> set[int]:
        """The ids of the tensors among these objects that are the same on all ranks: the parameters of modules, and
        what optimizers keep for them. Not those that are sharded."""
        values = list(values)
        if any(base.__name__ == _SHARDED for one in values for base in type(one).__mro__):
            return set()
        found: set[int] = set()
        for one in values:
            if issubclass(type(one), torch.nn.Module):
                found.update(map(id, one._parameters.values()))
            elif issubclass(type(one), torch.optim.Optimizer):
                states = (state for state in one.state.values() if isinstance(state, dict))
                found.update(id(value) for state in states for value in state.values())
        return found

    def is_tensor(self, value: Any) -> bool:
        return issubclass(type(value), torch.Tensor)

    def describe(self, tensor: Any) -> dict[str, Any]:
        """`d`: on the device; `g`: it requires gradients; `p`: it is a Parameter; `s`: it is sharded over devices."""
        leaf = bool(tensor.is_leaf and tensor.requires_grad)
        there, parameter = on_device(tensor), isinstance(tensor, torch.nn.Parameter)
        return {"d": there, "g": leaf, "p": parameter, "s": there and _is_sharded(tensor)}

    def make(self, content: Any, described: Mapping[str, Any]) -> Any:
        tensor = _sent(content) if described["d"] else content.clone()
        if described["p"]:
            return torch.nn.Parameter(tensor, described["g"])
        return tensor.requires_grad_() if described["g"] else tensor

    def put(self, tensor: Any, content: Any, described: Mapping[str, Any]) -> None:
        if isinstance(tensor, torch.nn.Parameter) and tensor.shape != content.shape:
            here, saved = (list(one.shape) for one in (tensor, content))
            raise ValueError(f"it has the shape {here} here, and had {saved} at the checkpoint")
        with torch.no_grad():
            # A copy keeps how it is sharded; and with torch_xla 2.9 the next step is then the graph that it was before,
            # if numbers are not copied.
            alike = tensor.shape == content.shape and tensor.dtype == content.dtype
            if alike and (content.dim() or not on_device(tensor)):
                tensor.copy_(content)
            else:
                tensor.data = _sent(content) if on_device(tensor) else content.clone()
        if tensor.is_leaf:
            tensor.requires_grad_(described["g"])

    def plain(self, value: Any) -> tuple[str, Any] | None:
        if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufc":
            array = np.array(value)  # a copy: the original may be read-only, or change
            kind = "array" if isinstance(value, np.ndarray) else "number"
            bits = array.reshape(-1).view(np.uint8)
            shaped = f"{array.dtype.str} {' '.join(map(str, array.shape))}".rstrip()
            return f"{kind} {shaped}", torch.from_numpy(bits)
        if issubclass(type(value), (torch.dtype, torch.device)):
            return type(value).__name__, str(value).removeprefix("torch.")
        if type(value) is torch.Size:
            return "Size", list(value)
        return None

    def from_plain(self, name: str, value: Any) -> Any:
        if name == "dtype":
            return getattr(torch, value)
        if name == "device":
            return torch.device(value)
        if name == "Size":
            return torch.Size(value)
        kind, dtype, *shape = name.split(" ")
        array = value.numpy().view(np.dtype(dtype)).reshape([int(one) for one in shape])
        return array if kind == "array" else array[()]

    def tables(self, value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        if issubclass(type(value), torch.nn.Module):
            yield "_parameters", value._parameters
            yield "_buffers", value._buffers

    def wrapped(self, value: Any) -> Any:
        """accelerate and transformers put it around a model where there are several ranks (TorchTPU)."""
        return value.module if issubclass(type(value), torch.nn.parallel.DistributedDataParallel) else None

    def gradients(self, values: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        for key, value in values:
            if issubclass(type(value), torch.Tensor) and value.is_leaf and value.grad is not None:
                yield key, value.grad

    def set_gradient(self, tensor: Any, gradient: Any) -> None:
        tensor.grad = gradient

    # -- files ------------------------------------------------------------------------------------------------------
    def fetch(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """The tensors in host memory of their own. Waits for the device, whose random numbers stay as they are (each
        sync of torch_xla advances them)."""
        seed = runtime.running_seed()
        settle()
        copies = to_cpu(list(tensors.values()))
        if seed is not None and (current := runtime.current()) is not None:
            current.set_seed(seed)
        return {
            key: copy.clone() if not on_device(tensor) else copy
            for (key, tensor), copy in zip(tensors.items(), copies, strict=True)
        }

    def write(self, path: Path, tensors: Mapping[str, Any]) -> list[Path]:
        """Write what `fetch` returned, without an ending in `path`. Returns the files. Raises OSError."""
        plain = {key: tensor for key, tensor in tensors.items() if weights_files.is_plain(tensor)}
        odd = {key: tensor for key, tensor in tensors.items() if key not in plain}
        written = [path.with_name(path.name + _PLAIN)]
        order = weights_files.in_order(plain)
        weights_files.write(written[0], plain, ((key, plain[key]) for key in order))
        if odd:
            written.append(path.with_name(path.name + _ODD))
            weights_files.save(odd, written[1])
        return written

    def read(self, path: Path) -> dict[str, Any]:
        """What `write` wrote there."""
        from safetensors.torch import load_file

        tensors: dict[str, Any] = load_file(path.with_name(path.name + _PLAIN))
        odd = path.with_name(path.name + _ODD)
        if odd.exists():
            tensors.update(torch.load(odd, map_location="cpu", weights_only=True))
        return tensors


def _is_sharded(tensor: Any) -> bool:
    """Over the devices of an SPMD worker (torch_xla 2.9.0)."""
    module = sys.modules.get("torch_xla")
    if module is None or tensor.device.type != "xla":
        return False
    inner = getattr(tensor, "global_tensor", tensor)
    return "devices=" in str(module._XLAC._get_xla_sharding_spec(inner))


def _sent(content: torch.Tensor) -> torch.Tensor:
    current = runtime.current()
    assert current is not None
    return cast(torch.Tensor, current.send(content))


# How the state of a generator is read and set.
_GENERATORS: tuple[tuple[type, Any, Any], ...] = (
    (torch.Generator, torch.Generator.get_state, torch.Generator.set_state),
    (np.random.Generator, lambda one: one.bit_generator.state, lambda one, state: _set_bits(one, state)),
    (np.random.RandomState, np.random.RandomState.get_state, np.random.RandomState.set_state),
    (random.Random, random.Random.getstate, random.Random.setstate),
)
# Where a loader has the objects that draw its order (torch 2.9, torch_xla 2.9.0, accelerate 1.15.0).
_PARTS = ("_loader", "base_dataloader", "dataset", "sampler", "batch_sampler", "generator", "synchronized_generator")


class TorchRandomStates:
    """The `LoopRandomStates` of backends/protocols.py. `objects`: those of the program, among which are generators,
    and loaders, which have some and may count their passes."""

    def __init__(self, objects: Iterable[Any] = ()) -> None:
        self._generators: list[tuple[Any, Any, Any]] = []
        self._counters: list[Any] = []
        seen: set[int] = set()
        for one in objects:
            for part in _with_parts(one, seen):
                known = next(((get, put) for kind, get, put in _GENERATORS if isinstance(part, kind)), None)
                if known is not None:
                    self._generators.append((part, *known))
                elif _counts_passes(part):
                    self._counters.append(part)

    def read(self, device: bool = True) -> dict[str, Any]:
        numbers = randomness.random_state()
        return {
            "python": numbers.python,
            "numpy": numbers.numpy,
            "torch": numbers.torch,
            "device": runtime.running_seed() if device else None,
            "generators": [get(one) for one, get, _ in self._generators],
            "passes": [int(one.iteration) for one in self._counters],
        }

    def write(self, states: Any) -> None:
        self._write(states, set())

    def write_unmoved(self, states: Any, before: Any) -> None:
        now = self.read()
        moved: set[str | int] = {*self.moved(before, now)}
        moved |= {n for n, one in enumerate(now["generators"]) if not _same(one, before["generators"][n])}
        self._write({**states, "passes": now["passes"]}, moved)

    def moved(self, before: Any, now: Any) -> set[str]:
        return {name for name in ("python", "numpy", "torch") if not _same(now[name], before[name])}

    def loader_state(self, loader: Any) -> Any:
        module = sys.modules.get("torchdata.stateful_dataloader")  # 0.11
        if module is None or not isinstance(loader, module.StatefulDataLoader):
            return None
        return deepcopy(loader.state_dict())  # datasets return objects that the next item changes

    def set_loader_state(self, loader: Any, state: Any) -> None:
        loader.load_state_dict(state)

    def _write(self, states: Any, but: set[Any]) -> None:
        names = ("python", "numpy", "torch")
        kept = {name: None if name in but else states[name] for name in names}
        randomness.set_random_state(randomness.RandomState(**kept, modes=()))
        if states["device"] is not None and (current := runtime.current()) is not None:
            current.set_seed(states["device"])
        # For several ranks accelerate gives a sampler a generator (TorchTPU), which that of one rank does not have.
        generators = states["generators"] if len(states["generators"]) == len(self._generators) else []
        for n, state in enumerate(generators):
            if n not in but:
                one, _, put = self._generators[n]
                put(one, state)
        for one, count in zip(self._counters, states["passes"], strict=True):
            one.iteration = count


def _with_parts(value: Any, seen: set[int]) -> Iterator[Any]:
    """An object, and of a loader what draws its order."""
    if id(value) in seen:
        return
    seen.add(id(value))
    yield value
    if issubclass(type(value), _loaders()):
        yield from _parts(value, seen, 0)


def _parts(value: Any, seen: set[int], depth: int) -> Iterator[Any]:
    names = getattr(value, "__dict__", {})
    found = [names[name] for name in _PARTS if name in names]
    generators = tuple(kind for kind, *_ in _GENERATORS)
    found += [one for one in names.values() if issubclass(type(one), generators)]
    for one in found:
        if id(one) not in seen and depth < 6:
            seen.add(id(one))
            yield one
            yield from _parts(one, seen, depth + 1)


def _loaders() -> tuple[type, ...]:
    """accelerate's (1.15.0) only say in `__class__` that they are a DataLoader."""
    more = (
        ("torch_xla.distributed.parallel_loader", "MpDeviceLoader"),
        ("accelerate.data_loader", "DataLoaderStateMixin"),
    )
    loaded = [(sys.modules[module], name) for module, name in more if module in sys.modules]
    return (torch.utils.data.DataLoader, *(getattr(module, name) for module, name in loaded if hasattr(module, name)))


def _counts_passes(value: Any) -> bool:
    """A loader of accelerate's (1.15.0), whose seeded sampler draws by the number of the pass."""
    module = sys.modules.get("accelerate.data_loader")
    return module is not None and issubclass(type(value), module.DataLoaderStateMixin) and "iteration" in vars(value)


def _set_bits(generator: Any, state: Any) -> None:
    generator.bit_generator.state = state


def _same(left: Any, right: Any) -> bool:
    if isinstance(left, Mapping):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, (tuple, list)):
        return len(left) == len(right) and all(map(_same, left, right))
    found = left == right
    return bool(found.all()) if hasattr(found, "all") else bool(found)
