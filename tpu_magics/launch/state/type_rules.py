"""How objects are treated, by the full names of their types, so that no library is imported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tpu_magics.backends import frameworks
from tpu_magics.runs.origin import cached_by_type, is_library_type


@dataclass(frozen=True)
class TypeRule:
    """How the instances of a type are treated.

    `skip`: attributes that are neither followed nor updated; `only`: the only ones that are (None: all); `opaque`: no
    attribute is followed; `named`: a description for an object that cannot be updated, with `counter`, the attribute
    that changes when it is used, or a name of COUNTERS; `quiet`: what of it cannot be pickled is not reported;
    `unlimited`: it has the size of the weights and does not count for the limit; `whole`: its own `__getstate__` tells
    its state; `inner`: the attribute with the plain object inside a worker's wrapper; `stays`: it belongs to the
    worker, and the notebook keeps its own; `constant`: it never changes, so equal ones are the same.
    """

    skip: frozenset[str] = frozenset()
    only: frozenset[str] | None = None
    opaque: bool = False
    named: str = ""
    counter: str = ""
    quiet: bool = False
    unlimited: bool = False
    whole: bool = False
    inner: str = ""
    stays: bool = False
    constant: bool = False

    def has(self, name: str) -> bool:
        """Whether the attribute `name` is followed."""
        return name not in self.skip and name not in LIBRARY_MARKS and (self.only is None or name in self.only)


PLAIN = TypeRule()
OPAQUE = TypeRule(opaque=True)
LIBRARY = TypeRule(quiet=True)
WHOLE = TypeRule(quiet=True, whole=True)

# Packages whose objects are opaque: of the session, of devices, of connections, processes and threads, and immutable.
OPAQUE_PACKAGES = frozenset(
    {
        "tpu_magics",
        *("IPython", "ipykernel", "ipywidgets", "traitlets", "zmq", "tornado", "comm", "jupyter_client", "psutil"),
        *frameworks.OPAQUE,
        *("matplotlib", "wandb", "mlflow", "tensorboard", "tensorboardX", "requests", "httpx"),
        *("pyarrow", "safetensors", "huggingface_hub", "fsspec"),
        *("torch._C", "torch._dynamo", "torch._inductor", "torch.cuda", "torch.distributed", "torch.fx", "torch.jit"),
        *("torch.profiler", "torch.autograd", "torch.multiprocessing", "torch.utils.tensorboard", "torch.utils.hooks"),
        *("torch.storage", "torch.library", "torch._ops"),
        *("asyncio", "concurrent", "multiprocessing", "subprocess", "socket", "ssl", "selectors", "http", "urllib"),
        *("importlib", "unittest", "ctypes", "signal", "inspect", "ast", "code", "traceback", "typing", "abc", "_abc"),
        *("_frozen_importlib", "_frozen_importlib_external", "zipimport", "_thread", "_socket", "_ssl", "re", "enum"),
    }
)
# Packages whose classes tell their state themselves, by `__getstate__`.
WHOLE_PACKAGES = frozenset({"pandas", "polars", "PIL", "xarray"})

# Attributes that libraries set on any object as long as a process has its devices (accelerate 1.15.0: with this one
# `prepare` does not move an object).
LIBRARY_MARKS = frozenset({"_is_accelerate_prepared"})

RULES: dict[str, TypeRule] = {
    "logging.Logger": TypeRule(
        only=frozenset({"level", "handlers", "filters", "disabled", "propagate", "parent"}), quiet=True
    ),
    "logging.Handler": TypeRule(skip=frozenset({"lock", "_closed"}), quiet=True),
    "threading.Thread": OPAQUE,
    "ipywidgets.widgets.widget.Widget": TypeRule(opaque=True, quiet=True, stays=True),  # no page shows a worker's
    "tqdm.std.tqdm": TypeRule(only=frozenset({"n", "total", "desc", "postfix"}), quiet=True),  # the rest is its display
    "matplotlib.artist.Artist": TypeRule(named="a figure", counter="artists"),
    "tokenizers.Tokenizer": TypeRule(named="the vocabulary of a tokenizer", counter="vocabulary"),
}


def _artists(value: Any) -> Any:
    """What was drawn, without what a figure makes itself when it is shown."""
    axes = getattr(value, "axes", None)
    each = axes if isinstance(axes, list) else [value]
    names = ("lines", "patches", "collections", "images", "texts", "artists")
    return [(id(one), *(len(getattr(one, name, ())) for name in names)) for one in each]


COUNTERS: Mapping[str, Callable[[Any], Any]] = {
    "artists": _artists,
    "vocabulary": lambda value: value.get_vocab_size(with_added_tokens=True),
}
"""Values that differ after a change, for a rule's `counter` that is no attribute."""


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
    packages = _packages(str(kind.__module__))
    return OPAQUE if OPAQUE_PACKAGES & packages else WHOLE if WHOLE_PACKAGES & packages else LIBRARY


class _Packages(tuple[str, ...]):
    """The packages of a module, innermost first."""

    def __rand__(self, names: frozenset[str]) -> bool:
        return any(name in names for name in self)


def _packages(module: str) -> _Packages:
    parts = module.split(".")
    return _Packages(".".join(parts[:count]) for count in range(len(parts), 0, -1))
