"""How objects are treated, by the full names of their types, so that no library is imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from tpu_magics.runs.origin import is_library


@dataclass(frozen=True)
class TypeRule:
    """How the instances of a type are treated.

    `skip`: attributes that are neither followed nor updated; `only`: the only ones that are (None: all); `opaque`: no
    attribute is followed; `named`: a description for an object that cannot be updated, with `counter`, the attribute
    that changes when it is used; `quiet`: what of it cannot be pickled is not reported; `unlimited`: it has the size of
    the weights and does not count for the limit; `inner`: the attribute with the plain object inside a worker's
    wrapper; `stays`: it belongs to the worker, and the notebook keeps its own.
    """

    skip: frozenset[str] = frozenset()
    only: frozenset[str] | None = None
    opaque: bool = False
    named: str = ""
    counter: str = ""
    quiet: bool = False
    unlimited: bool = False
    inner: str = ""
    stays: bool = False

    def has(self, name: str) -> bool:
        """Whether the attribute `name` is followed."""
        return name not in self.skip and name not in LIBRARY_MARKS and (self.only is None or name in self.only)


Result = TypeVar("Result")


def cached_by_type(function: Callable[[type], Result]) -> Callable[[type], Result]:
    """Cache the results by the id of the class: a metaclass may make its classes unhashable."""
    known: dict[int, tuple[type, Result]] = {}

    def cached(kind: type) -> Result:
        if id(kind) not in known:
            known[id(kind)] = kind, function(kind)
        return known[id(kind)][1]

    return cached


PLAIN = TypeRule()
OPAQUE = TypeRule(opaque=True)
LIBRARY = TypeRule(quiet=True)

# Packages whose objects are opaque: of the session, of devices, of output, and immutable ones.
OPAQUE_PACKAGES = frozenset(
    {
        "tpu_magics",
        *("IPython", "ipykernel", "ipywidgets", "traitlets", "zmq", "tornado", "comm", "jupyter_client", "psutil"),
        *("accelerate", "torch_xla", "jax", "jaxlib", "tensorflow", "keras", "ray"),
        *("tqdm", "rich", "matplotlib", "PIL", "wandb", "mlflow", "tensorboard", "tensorboardX", "requests", "httpx"),
        *("datasets", "tokenizers", "pyarrow", "pandas", "polars", "safetensors", "huggingface_hub", "fsspec"),
        *("torch._C", "torch._dynamo", "torch._inductor", "torch.cuda", "torch.distributed", "torch.fx", "torch.jit"),
        *("torch.profiler", "torch.autograd", "torch.multiprocessing", "torch.utils.tensorboard", "torch.utils.hooks"),
        "numpy",
    }
)
# Modules of the standard library whose objects contain the user's data.
CONTAINER_MODULES = frozenset({"collections", "types", "argparse", "queue", "configparser"})

# Attributes that libraries set on any object as long as a process has its devices (accelerate 1.15.0: with this one
# `prepare` does not move an object).
LIBRARY_MARKS = frozenset({"_is_accelerate_prepared"})

RULES: dict[str, TypeRule] = {}


def add(rules: Mapping[str, TypeRule]) -> None:
    """Add rules, by the full name of a type (`module.Class`), also for its subclasses; before the first snapshot."""
    RULES.update(rules)


@cached_by_type
def rule_of(kind: type) -> TypeRule:
    """The rule for instances of `kind`."""
    for base in kind.__mro__:
        rule = RULES.get(f"{base.__module__}.{base.__qualname__}")
        if rule is not None:
            return rule
    if not is_library_type(kind):
        return PLAIN
    module = str(kind.__module__)
    packages = _packages(module)
    standard = module.partition(".")[0] in sys.stdlib_module_names
    if OPAQUE_PACKAGES & packages or (packages[-1:] and standard and not CONTAINER_MODULES & packages):
        return OPAQUE
    return LIBRARY


class _Packages(tuple[str, ...]):
    """The packages of a module, innermost first."""

    def __rand__(self, names: frozenset[str]) -> bool:
        return any(name in names for name in self)


def _packages(module: str) -> _Packages:
    parts = module.split(".")
    return _Packages(".".join(parts[:count]) for count in range(len(parts), 0, -1))


@cached_by_type
def is_library_type(kind: type) -> bool:
    """Whether a class is not from the user's own code."""
    return is_library_module(str(kind.__module__))


def is_library_module(name: str) -> bool:
    """Whether a module is not the user's own."""
    if name == "__main__":
        return False
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if module is None:
        return False
    return is_library(file) if file else True


def is_user_function(function: Any) -> bool:
    """Whether a function is from the user's own code."""
    code = getattr(function, "__code__", None)
    return code is not None and not is_library(code.co_filename)
