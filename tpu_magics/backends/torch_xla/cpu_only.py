"""Makes accelerate and transformers see a CPU-only machine in the notebook's process, so that they do not start the XLA
runtime or CUDA.

accelerate 1.15.0 and transformers 5.23.0: each calls its own `is_torch_xla_available`, which its modules import by
name, before it touches torch_xla; `PartialState.default_device` is the device without XLA.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

QUESTION = "is_torch_xla_available"
# Callers that need the real value also in the notebook: (module, function). A module that is being imported decides by
# it whether to import torch_xla, which workers need; `set_seed` sets XLA's seed, which is recorded (randomness.py);
# bf16 is rejected without it.
TRUTH = frozenset(
    {
        ("accelerate.utils.random", "set_seed"),
        ("transformers.training_args", "__post_init__"),
        ("transformers.training_args", "_validate_args"),
    }
)

# Accelerators built in the notebook, in their order -> what they were built with. Workers inherit it.
built: WeakKeyDictionary[Any, tuple[tuple[Any, ...], Mapping[str, Any]]] = WeakKeyDictionary()


def hide_xla(module: Any, in_notebook: Callable[[], bool]) -> Callable[[], None] | str:
    """Make `is_torch_xla_available` of `module` return False in the notebook, wherever it is called. Returns how to
    undo it, or why it is not possible."""
    original = getattr(module, QUESTION, None)
    if original is None:
        return (
            f"{module.__name__} in this version has no `{QUESTION}`, so creating a Trainer or an Accelerator may "
            "start the XLA runtime in the notebook. Create it inside the training function."
        )

    @functools.wraps(original)
    def is_torch_xla_available(*args: Any, **kwargs: Any) -> bool:
        if in_notebook() and not _needs_truth(sys._getframe(1)):
            return False
        return bool(original(*args, **kwargs))

    _replace(original, is_torch_xla_available)
    return lambda: _replace(is_torch_xla_available, original)


def _needs_truth(frame: Any) -> bool:
    function = frame.f_code.co_name
    return function == "<module>" or (frame.f_globals.get("__name__"), function) in TRUTH


def _replace(old: object, new: object) -> None:
    """In every module that has it under its name."""
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and vars(module).get(QUESTION) is old:
            setattr(module, QUESTION, new)


def choose_cpu(module: Any, in_notebook: Callable[[], bool]) -> Callable[[], None] | str:
    """Make PartialState of `module` (accelerate.state) use the CPU in the notebook, even if there is a GPU."""
    original = vars(module.PartialState).get("default_device")
    if not isinstance(original, property) or original.fget is None:
        return (
            "PartialState in this version of accelerate has no `default_device`, so on a machine with a GPU it may "
            "start CUDA."
        )
    own = original.fget

    def default_device(state: Any) -> Any:
        return sys.modules["torch"].device("cpu") if in_notebook() else own(state)

    module.PartialState.default_device = property(default_device)
    return lambda: setattr(module.PartialState, "default_device", original)


def remember_accelerators(module: Any, in_notebook: Callable[[], bool]) -> Callable[[], None] | str:
    """Record the arguments of each Accelerator of `module` (accelerate.accelerator) created in the notebook."""
    cls = module.Accelerator
    original = cls.__init__

    @functools.wraps(original)
    def initialise(accelerator: Any, *args: Any, **kwargs: Any) -> None:
        original(accelerator, *args, **kwargs)
        if in_notebook():
            built[accelerator] = (args, kwargs)

    cls.__init__ = initialise

    def undo() -> None:
        cls.__init__ = original

    return undo


def device_holder() -> str:
    """The object that initialized accelerate's device in this process, in words."""
    for module, name, words in _HOLDERS:
        cls = getattr(sys.modules.get(module), name, None)
        if isinstance(cls, type) and any(issubclass(type(value), cls) for value in gc.get_objects()):
            return words
    return "An Accelerator"


_HOLDERS = (
    ("transformers.trainer", "Trainer", "A Trainer"),
    ("transformers.training_args", "TrainingArguments", "A TrainingArguments"),
)
