"""What launch/ needs to know about torch modules: is it one, does a call create one, its size and its device, its
parameters and buffers by name.

Imports no framework, only looks in `sys.modules`: what was never imported can neither be an instance nor be called.
Names as in torch 2.9.0, transformers 5.23.0 and accelerate 1.15.0.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import inspect
import sys
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tpu_magics.backends.torch.runtime import DEVICE_TYPES

# classmethods of models that return a model
BUILDERS = frozenset({"from_pretrained", "from_config", "_from_config", "load_from_checkpoint"})
# classmethods of configs that return a config
CONFIG_BUILDERS = frozenset({"from_pretrained", "for_model", "from_dict", "from_json_file"})
# Names and shapes of parameters and buffers.
Structure = frozenset[tuple[str, tuple[int, ...] | None]]
# Modules of torch or a library without parameters: users see them as functions, not as models.
WEIGHTLESS = (
    "torch.nn.modules.loss",
    "torch.nn.modules.dropout",
    "torch.nn.modules.flatten",
    "torch.nn.modules.pooling",
    "torch.nn.modules.padding",
    "torch.nn.modules.pixelshuffle",
    "torch.nn.modules.channelshuffle",
    "torch.nn.modules.upsampling",
    "torch.nn.modules.distance",
    "torch.nn.modules.fold",
    "torchvision.transforms",
    "torchaudio.transforms",
    "torchmetrics",
)
ACTIVATIONS = "torch.nn.modules.activation"
ACTIVATIONS_WITH_WEIGHTS = frozenset({"PReLU", "MultiheadAttention"})
# Modules around a model: they add no weights of their own.
WRAPPERS = ("torch.nn.parallel", "torch.distributed", "torch_xla.distributed")
# Packages whose calls may start the accelerator's runtime.
DEVICE_PACKAGES = ("torch_xla", "torch_tpu", "torch.tpu", "accelerate", "torch.cuda")


def is_model(value: object) -> bool:
    """Whether `value` is a `torch.nn.Module`."""
    module = _module_class()
    return module is not None and issubclass(type(value), module)


def builds_model(function: object) -> bool:
    """Whether calling `function` returns a model with weights of its own, as far as known without calling it."""
    function = _without_partial(function)
    if isinstance(function, type):
        return _is_module_class(function) and not _from(function, WRAPPERS) and not _is_weightless_class(function)
    if inspect.ismethod(function) and isinstance(function.__self__, type):
        return function.__name__ in BUILDERS and _is_model_source(function.__self__)
    if inspect.ismethod(function) and is_model(function.__self__):
        return False  # nn.ModuleList.pop: what it returns has been a part of that model
    returned = _returned_class(function)
    return returned is not None and _is_module_class(returned)


def builds_weightless(function: object) -> bool:
    """Whether `function` is a class of modules without parameters (an activation, a dropout, a loss)."""
    function = _without_partial(function)
    return isinstance(function, type) and _is_module_class(function) and _is_weightless_class(function)


def builds_config(function: object) -> bool:
    """Whether calling `function` returns plain settings: a transformers config, a dataclass, a namespace, a dict."""
    function = _without_partial(function)
    if isinstance(function, type):
        return not _is_module_class(function) and _is_config_class(function)
    if not inspect.ismethod(function) or not isinstance(function.__self__, type):
        return False
    return function.__name__ in CONFIG_BUILDERS and _is_transformers_config(function.__self__)


def touches_device(value: Any) -> bool:
    """Whether using `value` may start the accelerator's runtime: a name, a device string, a module, a function.

    A string is taken as the name of a module or a device.
    """
    if issubclass(type(value), str):
        return value.partition(":")[0] in DEVICE_TYPES or _in_packages(value, DEVICE_PACKAGES)
    if issubclass(type(value), types.ModuleType):
        return _in_packages(value.__name__, DEVICE_PACKAGES)
    torch = sys.modules.get("torch")
    if torch is not None and issubclass(type(value), torch.device):
        return value.type in DEVICE_TYPES
    kind = value if callable(value) else type(value)
    try:
        module = object.__getattribute__(kind, "__module__")  # without the object's own code
    except Exception:
        return False
    return _in_packages(str(module), DEVICE_PACKAGES)


def model_bytes(model: Any) -> int:
    """Bytes of parameters and buffers. Tied tensors and shared storage count once; "meta" tensors count nothing."""
    seen: set[Any] = set()
    return sum(_tensor_bytes(tensor, seen) for tensor in _tensors(model))


def model_device(model: Any) -> str:
    """Device type of the first parameter or buffer that is not on "cpu"; "cpu" if all are."""
    return next((tensor.device.type for tensor in _tensors(model) if tensor.device.type != "cpu"), "cpu")


def shares_memory(model: Any, value: object) -> bool:
    """Whether a parameter or buffer of `model` shares memory with the tensor or NumPy array `value`."""
    address = _address(value)
    if address is None:
        return False
    start, end = address
    spans = (span for span in map(_address, _tensors(model)) if span is not None)
    return any(low < end and start < high for low, high in spans)


def tensor_content(value: object) -> tuple[Any, ...] | None:
    """Everything that makes a tensor in host memory equal to another; None if `value` is not one.

    Pickles of equal tensors differ (torch 2.9.0): they contain the address of the storage.
    """
    if _address(value) is None or not hasattr(value, "requires_grad"):
        return None
    tensor: Any = value
    import numpy as np

    from tpu_magics.backends.torch.tensor_transfer import memory_of

    kind = type(tensor), str(tensor.dtype), tuple(tensor.shape), tensor.stride(), tensor.requires_grad
    return *kind, np.asarray(memory_of(tensor.detach().contiguous()))


def structure(model: Any) -> Structure:
    """Names and shapes of a model's parameters and buffers, for comparison (None: not materialized yet). Wrappers
    around its parts, such as FSDP v2, change no name."""
    tensors = (*model.named_parameters(), *model.named_buffers())
    return frozenset((plain_name(name), None if _is_lazy(tensor) else tuple(tensor.shape)) for name, tensor in tensors)


def is_rebuilt(model: Any, before: Structure | None, now: Structure) -> bool:
    """Whether a model has other parts than `before`. What was not materialized may be now, and buffers that are not
    saved with the model are caches."""
    caches = {slot.name for slot in slots(model) if slot.kind == "buffer" and not slot.persistent}
    old, new = (
        {name: shape for name, shape in one if name not in caches} for one in (now if before is None else before, now)
    )
    return old.keys() != new.keys() or any(shape not in (None, new[name]) for name, shape in old.items())


def replace_reference(model: Any, old: object, new: object) -> None:
    """Replace `old` by `new` in every module of `model` that holds it, as an attribute or in a dict or list."""
    seen: set[int] = set()
    for module in model.modules():
        _replace_in(vars(module), old, new, seen)


def _replace_in(container: Any, old: object, new: object, seen: set[int]) -> None:
    seen.add(id(container))
    for key, value in list(container.items() if isinstance(container, dict) else enumerate(container)):
        if value is old:
            container[key] = new
        elif type(value) in (dict, list) and id(value) not in seen:
            _replace_in(value, old, new, seen)


# -- classes --------------------------------------------------------------------------------------------------------
def _module_class() -> type | None:
    nn = getattr(sys.modules.get("torch"), "nn", None)
    found = getattr(nn, "Module", None)
    return found if isinstance(found, type) else None


def _is_module_class(cls: type) -> bool:
    module = _module_class()
    return module is not None and issubclass(cls, module)


def _is_weightless_class(cls: type) -> bool:
    if issubclass(cls, _loss_classes()):
        return True
    if _from(cls, (ACTIVATIONS,)):
        return cls.__name__ not in ACTIVATIONS_WITH_WEIGHTS
    return _from(cls, WEIGHTLESS)


def _loss_classes() -> tuple[type, ...]:
    """torch's base class of losses (private, torch 2.9.0). Without it, a loss is still recognized because it has no
    bytes."""
    found = getattr(sys.modules.get("torch.nn.modules.loss"), "_Loss", None)
    return (found,) if isinstance(found, type) else ()


def _is_model_source(cls: type) -> bool:
    return _is_module_class(cls) or _is_auto_model(cls)


def _is_auto_model(cls: type) -> bool:
    """Whether `cls` is one of transformers' Auto*Model* classes: they are not modules, but return modules."""
    base = getattr(sys.modules.get("transformers.models.auto.auto_factory"), "_BaseAutoModelClass", None)
    return isinstance(base, type) and issubclass(cls, base)


def _is_transformers_config(cls: type) -> bool:
    if cls is getattr(sys.modules.get("transformers.models.auto.configuration_auto"), "AutoConfig", None):
        return True
    module = sys.modules.get("transformers.configuration_utils")
    bases = (getattr(module, name, None) for name in ("PreTrainedConfig", "PretrainedConfig"))
    return any(isinstance(base, type) and issubclass(cls, base) for base in bases)


def _is_config_class(cls: type) -> bool:
    if issubclass(cls, (types.SimpleNamespace, argparse.Namespace, dict)) or dataclasses.is_dataclass(cls):
        return True
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return True
    return _is_transformers_config(cls) or _is_bare_class(cls)


def _is_bare_class(cls: type) -> bool:
    """Whether `cls` is a user's class without a constructor, such as `class CFG: width = 8`."""
    inherited = all(getattr(cls, name) is getattr(object, name) for name in ("__init__", "__new__"))
    return inherited and type(cls) is type and cls.__module__ != "builtins"


def _returned_class(function: object) -> type | None:
    """The class in a function's return annotation, as an object or as text."""
    if not isinstance(function, (types.FunctionType, types.MethodType)):
        return None
    plain = inspect.unwrap(getattr(function, "__func__", function))
    annotation = getattr(plain, "__annotations__", {}).get("return")
    if isinstance(annotation, str):
        annotation = _named(annotation, getattr(plain, "__globals__", {}))
    return annotation if isinstance(annotation, type) else None


def _named(text: str, names: Mapping[str, Any]) -> object:
    """The object of a dotted name in a function's globals, or None. It may be quoted."""
    first, *rest = text.strip(" '\"").split(".")
    return functools.reduce(lambda value, name: getattr(value, name, None), rest, names.get(first))


def _without_partial(function: object) -> object:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _from(cls: type, modules: tuple[str, ...]) -> bool:
    return _in_packages(cls.__module__, modules)


def _in_packages(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


# -- tensors --------------------------------------------------------------------------------------------------------
def _tensors(model: Any) -> Iterator[Any]:
    yield from model.parameters()
    yield from model.buffers()


def _tensor_bytes(tensor: Any, seen: set[Any]) -> int:
    """Bytes that `tensor` adds to those of the tensors in `seen`."""
    if tensor.device.type == "meta" or _is_lazy(tensor):
        return 0
    key, size = _storage(tensor)
    if key in seen:
        return 0
    seen.add(key)
    return size


def _is_lazy(tensor: Any) -> bool:
    """Whether the shape of `tensor` in a lazy module is still unknown."""
    lazy = getattr(sys.modules.get("torch.nn.parameter"), "is_lazy", None)
    return bool(lazy(tensor)) if lazy is not None else False


def _storage(tensor: Any) -> tuple[Any, int]:
    """The identity of the bytes of `tensor`, and their number. A view counts with everything it keeps alive."""
    if tensor.is_sparse:
        parts = (tensor._indices(), tensor._values())
        return id(tensor), sum(part.numel() * part.element_size() for part in parts)
    span = _address(tensor)
    if span is None:
        return id(tensor), tensor.numel() * tensor.element_size()
    return span, span[1] - span[0]


def _address(value: Any) -> tuple[int, int] | None:
    """Start and end of the host memory of a tensor's storage or of an array; None if it has none."""
    torch = sys.modules.get("torch")
    if torch is not None and issubclass(type(value), torch.Tensor):
        if value.device.type != "cpu" or value.layout is not torch.strided or _is_lazy(value):
            return None
        storage = value.untyped_storage()
        start, size = storage.data_ptr(), storage.nbytes()
    else:
        numpy = sys.modules.get("numpy")
        if numpy is None or not issubclass(type(value), numpy.ndarray):
            return None
        bounds = getattr(sys.modules.get("numpy.lib.array_utils"), "byte_bounds", None) or numpy.byte_bounds
        start, end = bounds(value)
        size = end - start
    return (start, start + size) if size else None


# -- parameters and buffers by name -----------------------------------------------------------------------------------


# So a model has the same names in the worker, where it may be wrapped layer by layer, and in the notebook.

# Attributes in which wrappers keep the module they wrap: torch_xla 2.9.0 (XlaFullyShardedDataParallel,
# XlaFlattenParamsWrapper, SpmdFullyShardedDataParallel) and torch 2.9.0 (OptimizedModule, CheckpointWrapper).
WRAPPER_SEGMENTS = frozenset(
    {"_fsdp_wrapped_module", "_fpw_module", "_orig_module", "_orig_mod", "_checkpoint_wrapped_module"}
)
# torch_xla 2.9.0 registers a wrapper's shards under names with this prefix; fsdp_shards.py reads them.
SHARD_PREFIX = "_fsdp_shard"


@dataclass(frozen=True)
class Slot:
    """A place that holds a tensor, or None.

    `name`: without the name parts of wrappers; `module` and `key`: where it is; `kind`: "parameter" or "buffer";
    `persistent`: whether `state_dict()` has it.
    """

    name: str
    module: Any
    key: str
    kind: str
    persistent: bool = True

    @property
    def tensor(self) -> Any:
        """The tensor there now, or None."""
        return self.table[self.key]

    @property
    def table(self) -> dict[str, Any]:
        """The module's own dict that the tensor is kept in."""
        table: dict[str, Any] = self.module._parameters if self.kind == "parameter" else self.module._buffers
        return table


def plain_name(name: str) -> str:
    """`name` without the name parts of wrappers."""
    return ".".join(part for part in name.split(".") if part and part not in WRAPPER_SEGMENTS)


def named_modules(model: Any) -> Iterator[tuple[str, Any]]:
    """Every module of `model` once, with its name without wrappers (the model itself has "")."""
    for name, module in model.named_modules():
        yield plain_name(name), module


def slots(model: Any) -> list[Slot]:
    """Every place in `model` that is registered for a parameter or a buffer, set or not, in the model's order."""
    return [slot for name, module in named_modules(model) for slot in own_slots(name, module)]


def own_slots(prefix: str, module: Any) -> Iterator[Slot]:
    """Slots of one module, which is called `prefix`."""
    for key, _ in module._parameters.items():  # a scripted module's table is not iterable
        if not key.startswith(SHARD_PREFIX):
            yield Slot(_join(prefix, key), module, key, "parameter")
    for key, _ in module._buffers.items():
        persistent = key not in module._non_persistent_buffers_set
        yield Slot(_join(prefix, key), module, key, "buffer", persistent)


def _join(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix else key
