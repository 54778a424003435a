"""Tensors, numbers, modes, lengths and functions in the user's frames when a graph is compiled, by name; and a run that
trained on the host, which is seen there.

Compiles are rare, so nothing is recorded per step, and nothing is kept alive.
"""

from __future__ import annotations

import ast
import inspect
import types
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from types import FrameType
from typing import Any, TypeGuard

from tpu_magics.backends.observe.sites import Sites, indexed, locals_of, names_used, outwards, parsed
from tpu_magics.runs.origin import package_of

_FRAMES = 16  # read, from the innermost outwards
_NAMES = 400  # read in one frame
_ITEMS = 32  # of a container
_ATTRIBUTES = 4000  # numbers of modules and objects, in all
_LONGEST = 60

Number = int | float | bool


@dataclass(frozen=True)
class TensorInfo:
    """A named tensor. `where`: "xla" or "cpu"; `key`: its id while it lives; `leaf`: not made by autograd."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    where: str
    key: int
    leaf: bool = True


@dataclass
class FrameSnapshot:
    """Values by name; the innermost frame with a name counts. `numbers`: ints, floats and bools of frames, of
    attributes of objects and modules, and of optimizer groups; `training`: the mode of each model; `lengths`: the
    number of tensors in a list; `functions`: qualified names; `models`: by identity, class and shapes of parameters;
    `sizes`: these shapes by the user's names; `unused`: names of numbers that the user's code computes nothing with;
    `indexed`: of the user's line, see sites.indexed."""

    tensors: dict[str, TensorInfo] = field(default_factory=dict)
    numbers: dict[str, Number] = field(default_factory=dict)
    training: dict[str, bool] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    functions: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    models: dict[int, tuple[str, Counter[tuple[int, ...]]]] = field(default_factory=dict)
    sizes: dict[str, Counter[tuple[int, ...]]] = field(default_factory=dict)
    unused: frozenset[str] = frozenset()
    indexed: tuple[tuple[str, str], ...] = ()

    def name_of(self, key: int, dtype: str, shape: tuple[int, ...]) -> str:
        """The name of a tensor: by identity, else of a tensor in host memory with the same dtype and shape; "" if
        none."""
        same = [one.name for one in self.tensors.values() if one.key == key]
        alike = [one for one in self.tensors.values() if (one.dtype, one.shape) == (dtype, shape)]
        return _plainest(same) or _plainest([one.name for one in alike if one.where == "cpu"])


def _plainest(names: list[str]) -> str:
    """`ids` before `batches[3][0]`: the index of a batch in a list changes in every step."""
    return min(names, key=lambda name: "[" in name, default="")


def take(frame: FrameType | None, sites: Sites) -> FrameSnapshot:
    """Read the frames from `frame` outwards: all inside the user's innermost frame, and the user's own outside it."""
    snapshot = FrameSnapshot()
    users = sites.user_frame(frame)
    inside = True
    looked = 0
    owned = []
    for one in outwards(frame):
        own = sites.is_user_code(one.f_code.co_filename, one.f_code.co_name)
        if looked >= _FRAMES or (not own and not inside):
            continue
        inside = inside and one is not users
        looked += 1
        _FrameReader(snapshot).frame(one, own)
        owned += [one] if own else []
    snapshot.unused = _unused(owned, frozenset(filter(str.isidentifier, snapshot.numbers)), sites)
    snapshot.indexed = indexed(users.f_code.co_filename, users.f_lineno) if users is not None else ()
    return snapshot


def _unused(frames: Sequence[FrameType], numbers: frozenset[str], sites: Sites) -> frozenset[str]:
    """Numbers that nothing is computed with: of the frames' own variables by their function, of others by none of the
    user's files and cells. The innermost frame with a name counts."""
    paths = dict.fromkeys(one.f_code.co_filename for one in frames)
    cells = tuple(sites.cell_names) if any(path in sites.cell_names for path in paths) else ()
    known, used = names_used((*dict.fromkeys((*paths, *cells)),), numbers)
    unused = known - used
    for one in reversed(frames):
        code = one.f_code
        if code.co_flags & inspect.CO_OPTIMIZED:
            own = frozenset((*code.co_varnames, *code.co_cellvars))
            known, used = names_used((code.co_filename,), numbers, code.co_name, one.f_lineno)
            unused = unused - own | (known - used) & own
    return unused & numbers


class _FrameReader:
    """Adds what it finds to a snapshot. It only looks at values in ways that run no user code, but for mappings that
    are no dicts."""

    def __init__(self, snapshot: FrameSnapshot) -> None:
        self.snapshot = snapshot

    def frame(self, frame: FrameType, own: bool) -> None:
        names = locals_of(frame)
        if own:
            used = frame.f_code.co_names
            names = {**{name: frame.f_globals[name] for name in used if name in frame.f_globals}, **names}
            if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # a module or a cell: its names are all the globals
                names = {name: names[name] for name in used if name in names}
        for name, value in list(names.items())[:_NAMES]:
            if not name.startswith(("__", "@")):
                with suppress(Exception):  # a container's own code
                    self.value(name, value, own)

    def value(self, name: str, value: Any, own: bool) -> None:
        if issubclass(type(value), (bool, int, float)):
            if own:
                self.snapshot.numbers.setdefault(name, value)
        elif issubclass(type(value), str):
            if own and len(value) <= _LONGEST:
                self.snapshot.texts.setdefault(name, value)
        elif is_tensor(value):
            self.tensor(name, value)
        elif issubclass(type(value), (types.FunctionType, types.MethodType, types.BuiltinFunctionType)):
            if own:
                self.snapshot.functions.setdefault(name, str(getattr(value, "__qualname__", name)))
        elif not issubclass(type(value), (types.ModuleType, type, bytes)):
            self.thing(name, value, own)

    def thing(self, name: str, value: Any, own: bool) -> None:
        import torch

        if issubclass(type(value), torch.nn.Module):
            self.module(name, value)
            if own and name != "self":
                self.snapshot.sizes.setdefault(name, _sizes(value))
        elif issubclass(type(value), torch.optim.Optimizer):
            self.optimizer(name, value)
        elif issubclass(type(value), (Mapping, list, tuple)) or type(value).__name__ == "deque":
            self.container(name, value, own)
        elif own:
            self.attributes(name, _attributes(value))

    def tensor(self, name: str, value: Any) -> None:
        if not (value.is_leaf and value.requires_grad):
            where = "xla" if value.is_xla else "cpu"
            seen = TensorInfo(name, dtype_name(value), tuple(value.shape), where, id(value), value.is_leaf)
            self.snapshot.tensors.setdefault(name, seen)

    def container(self, name: str, value: Any, own: bool) -> None:
        items = list(_items(name, value))
        tensors = [(label, item) for label, item in items if is_tensor(item)]
        if tensors and any(item.is_xla for _label, item in tensors):
            self.snapshot.lengths.setdefault(name, len(value))
        for label, item in tensors[:_ITEMS]:
            self.tensor(label, item)
        if not tensors and own:
            for label, item in items[:_ITEMS]:
                if issubclass(type(item), (bool, int, float)):
                    self.snapshot.numbers.setdefault(label, item)
                elif issubclass(type(item), (Mapping, list, tuple)):
                    for inner, leaf in list(_items(label, item))[:_ITEMS]:
                        if is_tensor(leaf):
                            self.tensor(inner, leaf)

    def module(self, name: str, module: Any) -> None:
        self.snapshot.training.setdefault(name, module.training)
        if id(module) not in self.snapshot.models:
            self.snapshot.models[id(module)] = (type(module).__name__, _sizes(module))
        for path, one in module.named_modules():
            if len(self.snapshot.numbers) > _ATTRIBUTES:
                return
            self.attributes(f"{name}.{path}" if path else name, vars(one))

    def attributes(self, name: str, values: Mapping[str, Any]) -> None:
        for key, value in list(values.items())[:_NAMES]:
            if issubclass(type(value), (bool, int, float)) and not str(key).startswith("_") and key != "training":
                self.snapshot.numbers.setdefault(f"{name}.{key}", value)
            elif issubclass(type(value), list) and value and is_tensor(value[0]) and value[0].is_xla:
                self.snapshot.lengths.setdefault(f"{name}.{key}", len(value))
            elif _is_module(value):
                self.snapshot.sizes.setdefault(f"{name}.{key}", _sizes(value))

    def optimizer(self, name: str, optimizer: Any) -> None:
        inner = getattr(optimizer, "optimizer", optimizer)  # inside accelerate's wrapper
        for number, group in enumerate(getattr(inner, "param_groups", ())):
            for key, value in group.items():
                if issubclass(type(value), (bool, int, float)):
                    self.snapshot.numbers.setdefault(f"{name}.param_groups[{number}][{key!r}]", value)


def _sizes(module: Any) -> Counter[tuple[int, ...]]:
    return Counter(tuple(parameter.shape) for parameter in module.parameters())


def _is_module(value: Any) -> bool:
    import torch

    return issubclass(type(value), torch.nn.Module)


def _items(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The items of a container by name: a batch's keys, else `name[i]`."""
    if issubclass(type(value), Mapping):
        items = dict.items(value) if issubclass(type(value), dict) else value.items()
        for key, item in islice(items, 4 * _ITEMS):
            yield (key if isinstance(key, str) else f"{name}[{key!r}]"), item
    else:
        for number, item in enumerate(islice(value, 4 * _ITEMS)):
            yield f"{name}[{number}]", item


def _attributes(value: Any) -> Mapping[str, Any]:
    try:
        found: Mapping[str, Any] = object.__getattribute__(value, "__dict__")
    except AttributeError:  # it has slots
        return {}
    return found


def is_tensor(value: Any) -> bool:
    import torch

    return issubclass(type(value), torch.Tensor)


def dtype_name(tensor: Any) -> str:
    """ "int64" for torch.int64."""
    return str(tensor.dtype).removeprefix("torch.")


# -- training on the host ---------------------------------------------------------------------------------------------


_GPU_CHECKS = ("cuda.is_available", "mps.is_available", "accelerator.is_available")
_SILENT = frozenset({"torch", "torch_xla", "Python", "tpu_magics"})  # their choice of a device is not the user's


@dataclass(frozen=True)
class HostTraining:
    """A backward pass on the CPU. `model`: the name of the model with gradients, or ""; `files`: those on the stack,
    the user's first."""

    model: str
    files: tuple[str, ...]

    def text(self, sites: Sites, cells: Mapping[str, str]) -> str:
        """The message for a run in which nothing ran on the device."""
        stayed = f"`{self.model}` stayed on the CPU" if self.model else "the model stayed on the CPU"
        chosen = _device_line((*self.files, *reversed(list(cells))))
        where = ""
        if chosen is not None:
            site = sites.of_line(*chosen)
            where = f" Line {site.line} of {site.path} selects the device: {site.code}."
        todo = "Move the model and the batches to torch_xla.device(), or use Accelerator().prepare()."
        return f"No step ran on the XLA device: {stayed} and was trained there.{where} {todo}"


def find_host_training(frame: FrameType, sites: Sites) -> HostTraining:
    """The evidence of a backward pass that has just run on the host."""
    stack = [one for one in outwards(frame) if package_of(one.f_code.co_filename, one.f_code.co_name) not in _SILENT]
    names = [name for one in stack[:_FRAMES] for name, model in _models(one) if _has_gradients(model)]
    files = [one.f_code.co_filename for one in stack]
    own = sorted(files, key=lambda path: not sites.is_user_code(path))
    return HostTraining(min(names, key=lambda name: name.count("."), default=""), tuple(own))


def _models(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """The modules in a frame's variables, directly or as an attribute."""
    import torch

    used = frame.f_code.co_names
    names = {**{name: frame.f_globals[name] for name in used if name in frame.f_globals}, **locals_of(frame)}
    for name, value in list(names.items())[:_NAMES]:
        if issubclass(type(value), torch.nn.Module):
            yield name, value
        elif not issubclass(type(value), type):
            inner = list(_attributes(value).items())[:_NAMES]
            yield from ((f"{name}.{key}", one) for key, one in inner if issubclass(type(one), torch.nn.Module))


def _has_gradients(model: Any) -> bool:
    return any(parameter.grad is not None for parameter in model.parameters())


# -- the line that selects the device ----------------------------------------------------------------------------------


def _device_line(paths: Iterable[str]) -> tuple[str, int] | None:
    """The first line in these files, in order, that checks for a GPU or names the CPU: (path, line)."""
    for path in dict.fromkeys(paths):
        tree = parsed(path)
        lines = sorted(_lines(tree)) if tree is not None else []
        if lines:
            return path, lines[0]
    return None


def _lines(tree: ast.Module) -> Iterator[int]:
    for node in ast.walk(tree):
        if _checks_gpu(node) or _names_cpu(node):
            yield node.lineno


def _checks_gpu(node: ast.AST) -> TypeGuard[ast.stmt | ast.expr]:
    """`if torch.cuda.is_available():`, or the same in an expression."""
    return isinstance(node, (ast.If, ast.IfExp)) and any(check in ast.unparse(node.test) for check in _GPU_CHECKS)


def _names_cpu(node: ast.AST) -> TypeGuard[ast.stmt]:
    """`device = "cpu"`."""
    return isinstance(node, ast.Assign) and _is_cpu(node.value) and "device" in ast.unparse(node.targets[0]).lower()


def _is_cpu(value: ast.expr) -> bool:
    """`"cpu"`, or `torch.device("cpu")`."""
    if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] == "device" and value.args:
        value = value.args[0]
    return isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value.startswith("cpu")
