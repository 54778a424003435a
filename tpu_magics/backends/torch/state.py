"""How torch and NumPy objects are compared and copied when the notebook's state is brought up to date
(launch/state/)."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.hooks import RemovableHandle

from tpu_magics.backends.object_kinds import BaseKind, StateKind
from tpu_magics.backends.protocols import Label, Undo
from tpu_magics.backends.torch import (
    lightning,
    module_tables,
    notebook_devices,
    randomness,
    recreate,
    runtime,
    user_hooks,
)
from tpu_magics.backends.torch.modules import is_rebuilt, named_modules, slots
from tpu_magics.backends.torch.tensor_transfer import has_own_memory, memory_of, on_device, settle, to_cpu

# Attributes of a module that torch keeps for itself (torch 2.9.0, torch/nn/modules/module.py and rnn.py), or that
# accelerate puts there (1.15.0).
_MODULE_SKIPS = frozenset(
    {
        *("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_backward_pre_hooks"),
        *("_backward_hooks", "_forward_hooks", "_forward_hooks_with_kwargs"),
        *("_forward_hooks_always_called", "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"),
        *("_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks"),
        *("_compiled_call_impl", "_flat_weights", "_flat_weight_refs", "call_super_init"),
        *("forward", "_original_forward", "_old_forward", "_hf_hook", "_tpu_magics_wrapper"),
    }
)
# Attributes of TrainingArguments that belong to a process (transformers 5.23.0; cpu_only.py).
_ARGUMENTS_SKIPS = frozenset({"_setup_devices", "distributed_state", "_n_gpu", "_tpu_magics_process"})
_HANDLER_SKIPS = frozenset({"train_dataloader", "eval_dataloader"})  # for callbacks of the current run
# What an Accelerator gathers while it is used; the rest belongs to a process (accelerate 1.15.0; rebuild.py).
_GATHERED = frozenset({"trackers", "step", "project_configuration", "_custom_objects"})
_LOADER = frozenset({"dataset", "sampler", "batch_sampler", "generator", "collate_fn"})
RULES: Mapping[str, Mapping[str, Any]] = {
    "torch.device": {"constant": True, "opaque": True},
    "torch.nn.modules.module.Module": {"skip": _MODULE_SKIPS, "unlimited": True},
    "torch.optim.optimizer.Optimizer": {"skip": recreate.OPTIMIZER_SKIPS, "unlimited": True},
    "torch.utils.data.dataloader.DataLoader": {"only": _LOADER, "quiet": True},
    "torch.utils.data.dataloader._BaseDataLoaderIter": {"named": "an iterator", "counter": "_num_yielded"},
    "torch.utils.hooks.RemovableHandle": {"only": frozenset()},
    "torch.utils.tensorboard.writer.SummaryWriter": {"opaque": True},
    "accelerate.optimizer.AcceleratedOptimizer": {"inner": "optimizer", "only": frozenset({"optimizer"})},
    "accelerate.scheduler.AcceleratedScheduler": {"inner": "scheduler", "only": frozenset({"scheduler"})},
    "transformers.training_args.TrainingArguments": {"skip": _ARGUMENTS_SKIPS},
    "transformers.trainer_callback.CallbackHandler": {"skip": _HANDLER_SKIPS},
    "accelerate.accelerator.Accelerator": {"stays": True, "only": _GATHERED},
    "accelerate.utils.dataclasses.ProjectConfiguration": {"quiet": True},
    "accelerate.data_loader.DataLoaderStateMixin": {"stays": True, "opaque": True},
    "torch_xla.distributed.parallel_loader.MpDeviceLoader": {"stays": True, "opaque": True},
    "torch_xla.distributed.parallel_loader.ParallelLoader": {"stays": True, "opaque": True},
    **lightning.RULES,
}


# -- checksums ---------------------------------------------------------------------------------------------------------
_LARGE = 2**26  # bytes from which sums are used, which are faster than crc32
_ROW = 1000  # numbers of a row


def checksum(data: Any) -> tuple[int, ...]:
    """A checksum of contiguous bytes. For large ones, of the sums of their rows and columns: that detects any changed
    number and any changed order, at memory speed."""
    if data.nbytes < _LARGE:
        return data.nbytes, zlib.crc32(data)
    view = memoryview(data).cast("B")
    numbers = np.frombuffer(view[: view.nbytes // 8 * 8], dtype=np.int64)
    square = numbers[: numbers.size // _ROW * _ROW].reshape(-1, _ROW)
    rest = zlib.crc32(numbers[square.size :].data.cast("B"), zlib.crc32(view[numbers.nbytes :]))
    return view.nbytes, zlib.crc32(square.sum(0)), zlib.crc32(square.sum(1)), rest


def _bytes_of(tensor: Any) -> Any:
    """The values of a CPU tensor as bytes."""
    return memory_of(tensor.detach().resolve_conj().resolve_neg().contiguous())


def _plain(tensor: Any) -> bool:
    """Whether the values of `tensor` are contiguous in host memory of its own."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and has_own_memory(tensor)
    )


class TensorKind(BaseKind):
    """A tensor that is not a weight of a returned model."""

    def parts(self, value: Any) -> Iterator[tuple[Label, Any]]:
        return _parts_of(value)

    def mark(self, value: Any) -> Any:
        return _form(value), self._sum(value), _own_attributes(value)

    def changed(self, value: Any, mark: Any) -> bool:
        moved = on_device(value) or _form(value) != mark[0] or self._sum(value) != mark[1]
        return bool(moved or _changed_attributes(value, mark[2]) != ({}, []))

    def content(self, value: Any, mark: Any) -> Any:
        return is_trained(value), value.detach(), *_changed_attributes(value, mark[2])

    def pieces(self, content: Any) -> list[tuple[Label, Any]]:
        return [(("attribute", "data"), content[1]), *_pieces_of(content[2])]

    def without(self, content: Any, mark: Any, labels: set[Any]) -> Any:  # noqa: ARG002
        requires_grad, data, new, gone = content
        return (
            None if "data" in labels else (requires_grad, data, {k: v for k, v in new.items() if k not in labels}, gone)
        )

    def put(self, value: Any, content: Any) -> Undo:
        requires_grad, new, attributes, gone = content
        if on_device(value):  # a cell has started the runtime
            new = new.to(value.device)
        back = _set_attributes(value, attributes, gone)
        old_flag, old = value.requires_grad, value.detach()
        fits = _form(value)[:3] == _form(new)[:3] and value.layout is torch.strided
        kept = old.clone() if fits else old

        def write(flag: bool, data: Any, copies: bool) -> None:
            with torch.no_grad():
                if copies:
                    value.detach().copy_(data)
                else:
                    value.data = data
            if value.is_leaf:
                value.requires_grad_(flag)

        write(requires_grad, new, fits)

        def undo() -> None:
            write(old_flag, kept, fits)
            back()

        return undo

    def _sum(self, value: Any) -> Any:
        return checksum(_bytes_of(value)) if _plain(value) else value._version


def _form(tensor: Any) -> tuple[Any, ...]:
    return tensor.device.type, tensor.dtype, tuple(tensor.shape), tensor.requires_grad


class WeightKind(BaseKind):
    """A weight of a returned model: here only whether it is trained, and the attributes that the user gave it."""

    def parts(self, value: Any) -> Iterator[tuple[Label, Any]]:
        return _parts_of(value)

    def mark(self, value: Any) -> Any:
        return value.requires_grad, _own_attributes(value)

    def changed(self, value: Any, mark: Any) -> bool:
        return bool(value.requires_grad != mark[0] or _changed_attributes(value, mark[1]) != ({}, []))

    def content(self, value: Any, mark: Any) -> Any:
        return value.requires_grad, *_changed_attributes(value, mark[1])

    def pieces(self, content: Any) -> list[tuple[Label, Any]]:
        return _pieces_of(content[1])

    def without(self, content: Any, mark: Any, labels: set[Any]) -> Any:  # noqa: ARG002
        trained, new, gone = content
        return trained, {name: item for name, item in new.items() if name not in labels}, gone

    def put(self, value: Any, content: Any) -> Undo:
        trained, new, gone = content
        old = value.requires_grad
        value.requires_grad_(trained)
        back = _set_attributes(value, new, gone)

        def undo() -> None:
            value.requires_grad_(old)
            back()

        return undo


# -- the attributes that the user gave a tensor ------------------------------------------------------------------------
def _own_attributes(tensor: Any) -> dict[str, Any]:
    """Without those of libraries."""
    return {name: item for name, item in vars(tensor).items() if not name.startswith("_")}


def _parts_of(tensor: Any) -> Iterator[tuple[Label, Any]]:
    return ((("attribute", name), item) for name, item in _own_attributes(tensor).items())


def _pieces_of(attributes: Mapping[str, Any]) -> list[tuple[Label, Any]]:
    return [(("attribute", name), item) for name, item in attributes.items()]


def _changed_attributes(tensor: Any, before: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """New ones, and the names of those that were removed."""
    now = _own_attributes(tensor)
    new = {name: item for name, item in now.items() if name not in before or not _same(item, before[name])}
    return new, [name for name in before if name not in now]


def _set_attributes(tensor: Any, new: Mapping[str, Any], gone: Sequence[str]) -> Undo:
    before = dict(vars(tensor))
    for name in gone:
        vars(tensor).pop(name, None)
    vars(tensor).update(new)

    def back() -> None:
        vars(tensor).clear()
        vars(tensor).update(before)

    return back


def is_trained(tensor: Any) -> bool:
    """Whether it needs a gradient of its own. What was computed in a worker comes without the graph behind it: as a
    leaf that is trained, `backward()` would do nothing without a word."""
    return bool(tensor.requires_grad and user_hooks.is_leaf(tensor))


def _same(left: Any, right: Any) -> bool:
    plain = (bool, int, float, str, bytes)
    return left is right or (type(left) is type(right) and isinstance(left, plain) and left == right)


class ArrayKind(BaseKind):
    """A NumPy array."""

    def parts(self, value: Any) -> Iterator[tuple[Label, Any]]:
        return ((("item", n), item) for n, item in enumerate(value.flat)) if value.dtype == object else iter(())

    def mark(self, value: Any) -> Any:
        return value.shape, value.dtype, self._sum(value)

    def changed(self, value: Any, mark: Any) -> bool:
        return bool(self.mark(value) != mark)

    def content(self, value: Any, mark: Any) -> Any:  # noqa: ARG002
        return np.array(value)

    def put(self, value: Any, content: Any) -> Undo:
        if value.shape != content.shape or value.dtype != content.dtype:
            return self._reform(value, content)
        old, numbers = np.array(value), value.view(np.ndarray)  # not through a mask, which assigned numbers remove
        numbers[...] = content

        def back() -> None:
            numbers[...] = old

        return back

    def _reform(self, value: Any, content: Any) -> Undo:
        """Resize in place; `arr.resize` needs an array without other references, but the notebook's names are
        references."""
        old = np.array(value)

        def write(data: Any) -> None:
            value.resize(data.shape, refcheck=False)
            value.view(np.ndarray)[...] = data

        write(content)
        return lambda: write(old)

    def _sum(self, value: Any) -> Any:
        if not value.flags.writeable or _is_mapped(value):
            return None  # read-only, or a mapped file
        if value.dtype.hasobject:
            return zlib.crc32(repr([id(item) for item in value.flat]).encode())
        return checksum(np.ascontiguousarray(value).reshape(-1).view(np.uint8))


def _is_mapped(array: Any) -> bool:
    while array is not None:
        if isinstance(array, np.memmap):
            return True
        array = getattr(array, "base", None)
    return False


def _set_bits(value: Any, state: Any) -> None:
    value.bit_generator.state = state


_TENSOR, _WEIGHT = user_hooks.WithHooks(TensorKind()), user_hooks.WithHooks(WeightKind())
_ARRAY = ArrayKind()
_GENERATOR = StateKind(lambda value: value.get_state(), lambda value, state: value.set_state(state))
_NUMPY_GENERATOR = StateKind(lambda value: value.bit_generator.state, _set_bits)
_NUMPY_RANDOM = StateKind(lambda value: value.get_state(legacy=False), lambda value, state: value.set_state(state))
_KINDS: tuple[tuple[type, Any], ...] = (
    (torch.Tensor, _TENSOR),
    (np.ndarray, _ARRAY),
    (torch.Generator, _GENERATOR),
    (np.random.Generator, _NUMPY_GENERATOR),
    (np.random.RandomState, _NUMPY_RANDOM),
)


def _is_moved(name: str, kept: Any) -> bool:
    """Whether it is where the parameter is: `step` is not (torch.optim.Optimizer, 2.9)."""
    return name != "step" and issubclass(type(kept), torch.Tensor)


class TorchState:
    """The NotebookState (backends/protocols.py) of torch and NumPy objects."""

    rules = RULES

    # -- the notebook's process, before the fork -------------------------------------------------------------------
    def kind(self, kind: type) -> Any:
        """The kind of tensors, arrays and generators, and of the hooks of modules and optimizers; None for everything
        else."""
        if issubclass(kind, (torch.nn.Module, torch.optim.Optimizer)):
            return user_hooks.HOOKS
        return next((found for base, found in _KINDS if issubclass(kind, base)), None)

    def has_fields(self, kind: type) -> bool:
        """Whether values of a class that `kind` knows have attributes besides: a mask, or those of a subclass."""
        own_array = issubclass(kind, np.ndarray) and kind is not np.ndarray
        return own_array or issubclass(kind, (torch.nn.Module, torch.optim.Optimizer))

    def weight(self, value: Any) -> Any:
        """The kind of a weight; None for a module, which is compared like other objects."""
        return _WEIGHT if issubclass(type(value), torch.Tensor) else None

    def own_dicts(self, value: Any) -> Iterator[tuple[str, Any]]:
        """The dicts of hooks, which their handles refer to."""
        return user_hooks.dicts(value)

    def own_dict(self, value: Any, name: str) -> Any:
        """One of them; a tensor has none before its first hook."""
        return user_hooks.dict_of(value, name)

    def named(self, models: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
        """Tensors of the models by name."""
        return {
            (name, slot.name): slot.tensor
            for name, model in models.items()
            for slot in slots(model)
            if slot.tensor is not None
        }

    def versions(self, models: Mapping[str, Any], *, contents: bool = False) -> dict[tuple[str, str], Any]:
        """Versions of the tensors of `named`: torch counts what is written to them, but not through `.data` or a
        NumPy view; `contents`: also a checksum of the values, but of those in memory that a worker may write to."""

        def total(tensor: Any) -> Any:
            return checksum(_bytes_of(tensor)) if contents and _plain(tensor) and not tensor.is_shared() else None

        return {key: (id(tensor), tensor._version, total(tensor)) for key, tensor in self.named(models).items()}

    def modules(self, models: Mapping[str, Any]) -> dict[tuple[str, str], Any]:
        """Modules of the models by name."""
        return {(name, inner): module for name, model in models.items() for inner, module in named_modules(model)}

    is_rebuilt = staticmethod(is_rebuilt)
    tables = staticmethod(module_tables.tables)
    is_reordered = staticmethod(module_tables.is_reordered)
    changed_tables = staticmethod(module_tables.changed_tables)
    set_tables = staticmethod(module_tables.set_tables)
    own_tensors = staticmethod(module_tables.own_tensors)

    def more_parts(self, value: Any) -> Iterator[tuple[str, Any]]:
        """The parts of a module outside its attributes; the hooks that a handle can remove."""
        if issubclass(type(value), RemovableHandle) and value.hooks_dict_ref() is not None:
            yield "hooks", value.hooks_dict_ref()
        if issubclass(type(value), torch.nn.Module):
            for table in (value._modules, value._parameters, value._buffers):
                yield from table.items()

    def extra_state(self, kind: type) -> tuple[str, str] | None:
        """The methods of a module's own extra state; None if it has none."""
        if not issubclass(kind, torch.nn.Module):
            return None
        first = next(base for base in kind.__mro__ if "get_extra_state" in vars(base))
        return None if first is torch.nn.Module else ("get_extra_state", "set_extra_state")

    def random_state(self) -> Any:
        """The random states of this process."""
        return randomness.random_state()

    # -- the worker ------------------------------------------------------------------------------------------------
    def settle(self) -> None:
        settle()

    def is_tensor(self, value: Any) -> bool:
        return issubclass(type(value), torch.Tensor)

    def is_of_user(self, value: Any) -> bool:
        """Whether a tensor's class is not torch's."""
        return type(value) not in (torch.Tensor, torch.nn.Parameter)

    def on_device(self, value: Any) -> bool:
        return on_device(value)

    def reduced(self, value: Any) -> tuple[Any, ...] | None:
        return notebook_devices.reduced(value)

    def tensor_bytes(self, value: Any) -> int:
        return int(value.numel() * value.element_size())

    def fetch(self, tensors: Sequence[Any]) -> list[Any]:
        """The tensors on the CPU, with the flags of those on the device."""
        found = []
        for tensor, value in zip(tensors, to_cpu(tensors), strict=True):
            copy = torch.nn.Parameter(value, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else value
            found.append(copy.requires_grad_(is_trained(tensor)) if copy.is_leaf else copy)
        return found

    def describe(self, value: Any) -> Any:
        """What the ranks compare of a tensor, without fetching it."""
        form = str(value.device.type), str(value.dtype), tuple(value.shape), bool(value.requires_grad)
        return form, checksum(_bytes_of(value)) if _plain(value) else None

    def compact(self, value: Any) -> Any:
        """A tensor without its graph, and in its own memory, if it is a small part of a larger storage."""
        if not _plain(value) or value.untyped_storage().nbytes() <= 2 * self.tensor_bytes(value) + 2**10:
            return None if user_hooks.is_leaf(value) else value.detach()
        copy = value.detach().clone()
        if isinstance(value, torch.nn.Parameter):  # also a class of its own that torch marks as one
            return torch.nn.Parameter(copy, value.requires_grad)
        return copy.requires_grad_(is_trained(value))

    def gradient(self, value: Any) -> Any:
        """The gradient that a tensor has; None for none, and for other objects."""
        return value.grad if issubclass(type(value), torch.Tensor) and user_hooks.is_leaf(value) else None

    def put_weight(self, value: Any, data: Any) -> Undo:
        """In the notebook: the values of a tensor that is in no model any more."""
        return TensorKind().put(value, (value.requires_grad, data, {}, []))

    def set_gradient(self, value: Any, gradient: Any) -> None:
        """In the notebook, after the tensor has its new values."""
        value.grad = gradient.to(value.device) if gradient is not None and on_device(value) else gradient

    def storage(self, value: Any) -> tuple[Any, str, int] | None:
        """The bytes of a storage in host memory, how to recreate it, and its address; None for anything else."""
        if not issubclass(type(value), (torch.storage.TypedStorage, torch.UntypedStorage)):
            return None
        # torch 2.9, storage.py: the content of a TypedStorage; its public methods warn that it is deprecated
        whole = value if issubclass(type(value), torch.UntypedStorage) else value._untyped_storage
        if whole.device.type != "cpu":
            return None
        dtype = "" if value is whole else str(value.dtype).removeprefix("torch.")
        return memory_of(torch.empty(0, dtype=torch.uint8).set_(whole)), dtype, int(whole.data_ptr())

    def is_unchanged_on_device(self, value: Any, mark: Any, content: Any, fetched: Mapping[int, Any]) -> bool:
        """Whether a tensor that moved to the device has the same values."""
        if not issubclass(type(value), torch.Tensor) or not on_device(value) or not isinstance(content, tuple):
            return False
        (content, hooks), mark = content, mark[0]
        if content is None or hooks != user_hooks.NONE or content[2:] != ({}, []):
            return False
        now = fetched.get(id(content[1]))
        if now is None or (content[0], now.dtype, tuple(now.shape)) != (mark[0][3], mark[0][1], mark[0][2]):
            return False
        return bool(checksum(_bytes_of(now)) == mark[1])

    def random_changes(self, before: Any) -> Any:
        """The states of the generators that were used or seeded since `before`, and the device's seed; None if none."""
        found = randomness.drawn(before, randomness.random_state())
        seed = runtime.running_seed()
        return None if found is None and seed is None else (found[1] if found is not None else None, seed)

    def recipe(self, value: Any) -> Any:
        """How an object that belongs to the worker is created in the notebook; None for others."""
        return recreate.recipe(value)

    # -- the notebook again ----------------------------------------------------------------------------------------
    def set_random_state(self, state: Any) -> Callable[[], None]:
        """Continue with the states of `random_changes`; returns how to restore the previous ones."""
        numbers, seed = state
        before, seed_before = randomness.random_state(), randomness.recorded_seed()

        def put(random: Any, seed: int | None) -> None:
            if random is not None:
                randomness.set_random_state(random)
            if seed is not None:
                randomness.adopt_seed(seed)

        put(numbers, seed)
        return lambda: put(before, seed_before)

    def begin(self) -> None:
        """Before the results of a run are read."""
        recreate.begin()

    def finish(self, values: Iterable[Any]) -> list[tuple[Any, str]]:
        """After all changes are applied: complete what `recipe` described. Returns the objects for which that failed,
        with the reason. What optimizers keep is where the notebook has their parameters."""
        for optimizer in (one for one in values if issubclass(type(one), torch.optim.Optimizer)):
            for parameter, kept in optimizer.state.items():
                if issubclass(type(parameter), torch.Tensor) and on_device(parameter):
                    moved = {name: one.to(parameter.device) for name, one in kept.items() if _is_moved(name, one)}
                    kept.update(moved)
        before = randomness.random_state()
        try:
            return recreate.finish()
        finally:
            randomness.set_random_state(before)

    def make_storage(self, content: Any, dtype: str) -> Any:
        """A writable storage of these bytes."""
        whole = (
            torch.frombuffer(content, dtype=torch.uint8).clone().untyped_storage()  # its own: it can be resized
            if len(content)
            else torch.UntypedStorage(0)
        )
        if not dtype:
            return whole
        return torch.storage.TypedStorage(wrap_storage=whole, dtype=getattr(torch, dtype), _internal=True)
