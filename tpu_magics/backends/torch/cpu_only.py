"""Makes accelerate and transformers see a CPU-only machine in the notebook's process, so that they do not start the XLA
runtime or CUDA; TrainingArguments are set up for the CPU, and again in each worker.

accelerate 1.15.0 and transformers 5.23.0: each calls its own `is_torch_xla_available`, which its modules import by
name, before it touches torch_xla; `PartialState.default_device` is the device without XLA.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from tpu_magics.backends.instances import instances
from tpu_magics.backends.torch import precision_request

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

# Accelerators, in their order -> what they were built with. Workers inherit those of the notebook, and add their own.
built: WeakKeyDictionary[Any, tuple[tuple[Any, ...], Mapping[str, Any]]] = WeakKeyDictionary()
# Their Trainer's TrainingArguments; None for one of no Trainer.
arguments_of: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
# Loaders that an Accelerator prepared -> the loader that was given to it.
given_loaders: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


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


def remember_accelerators(module: Any, in_notebook: Callable[[], bool]) -> Callable[[], None] | str:  # noqa: ARG001
    """Record the arguments of each Accelerator of `module` (accelerate.accelerator), and the loaders that it gets."""
    cls = module.Accelerator
    original, original_loader = cls.__init__, cls.prepare_data_loader

    @functools.wraps(original)
    def initialise(accelerator: Any, *args: Any, **kwargs: Any) -> None:
        original(accelerator, *args, **kwargs)
        built[accelerator] = (args, kwargs)
        arguments_of[accelerator] = precision_request.trainer_arguments()

    @functools.wraps(original_loader)
    def prepare_data_loader(accelerator: Any, data_loader: Any, *args: Any, **kwargs: Any) -> Any:
        prepared = original_loader(accelerator, data_loader, *args, **kwargs)
        if prepared is not data_loader:
            given_loaders[prepared] = data_loader
        return prepared

    cls.__init__, cls.prepare_data_loader = initialise, prepare_data_loader

    def undo() -> None:
        cls.__init__, cls.prepare_data_loader = original, original_loader

    return undo


def device_holder() -> str:
    """The object that initialized accelerate's device in this process, in words."""
    for module, name, words in _HOLDERS:
        cls = getattr(sys.modules.get(module), name, None)
        if isinstance(cls, type) and instances(cls):
            return words
    return "An Accelerator"


_HOLDERS = (
    ("transformers.trainer", "Trainer", "A Trainer"),
    ("transformers.training_args", "TrainingArguments", "A TrainingArguments"),
)


# -- TrainingArguments ------------------------------------------------------------------------------------------------


# transformers 5.23.0, training_args.py: `__post_init__` reads `self.device`, which is the cached property
# `_setup_devices`. It resets accelerate's state, creates a PartialState, keeps it as `distributed_state`, and sets
# `_n_gpu`. `world_size`, `process_index`, `local_process_index`, `should_log` and `should_save` read
# `distributed_state`. trainer.py: `Trainer.__init__` creates its Accelerator before it reads `args._setup_devices`.

DEVICE, STATE = "_setup_devices", "distributed_state"
PROCESS = "_tpu_magics_process"  # the process that the arguments are set up for


class DeviceDescriptor:
    """Replaces `_setup_devices`: the device of this process. In the notebook, that is the CPU."""

    def __init__(self, original: Callable[[Any], Any], in_notebook: Callable[[], bool]) -> None:
        self.original = original
        self.in_notebook = in_notebook

    def __get__(self, arguments: Any, owner: type | None = None) -> Any:
        if arguments is None:
            return self
        if not is_set_up(arguments) or DEVICE not in vars(arguments):
            self._set_up(arguments)
        return vars(arguments)[DEVICE]

    def __set__(self, arguments: Any, value: Any) -> None:
        """A data descriptor has priority over the object's dict, which may hold another process's device."""
        vars(arguments)[DEVICE] = value

    def _set_up(self, arguments: Any) -> None:
        renewed = PROCESS in vars(arguments)
        vars(arguments)[PROCESS] = os.getpid()  # from here on: the original reads `distributed_state`
        try:
            if self.in_notebook():
                vars(arguments)[DEVICE] = self._on_cpu(arguments)
            elif renewed and accelerator_is_built():
                self._join(arguments)
            else:
                vars(arguments)[DEVICE] = self.original(arguments)
        except BaseException:
            del vars(arguments)[PROCESS]
            raise

    def _on_cpu(self, arguments: Any) -> Any:
        """Behave like use_cpu=True, even if there is a GPU: an initialized CUDA prevents every fork."""
        asked = arguments.use_cpu
        arguments.use_cpu = True
        try:
            return self.original(arguments)
        finally:
            arguments.use_cpu = asked

    def _join(self, arguments: Any) -> None:
        """Use the existing state: the original would reset the state of an Accelerator in this worker."""
        vars(arguments)[STATE] = sys.modules["accelerate.state"].PartialState()
        vars(arguments)["_n_gpu"] = 0  # what the original sets on every machine with torch_xla
        vars(arguments)[DEVICE] = vars(arguments)[STATE].device


class StateDescriptor:
    """Replaces `distributed_state`: that of this process. The first read in another process sets it up."""

    def __get__(self, arguments: Any, owner: type | None = None) -> Any:
        if arguments is None:
            return self
        if is_waiting(arguments):
            getattr(arguments, DEVICE)
        if STATE not in vars(arguments):
            raise AttributeError(STATE)
        return vars(arguments)[STATE]

    def __set__(self, arguments: Any, value: Any) -> None:
        vars(arguments)[STATE] = value


def is_set_up(arguments: Any) -> bool:
    """Whether TrainingArguments are set up for this process."""
    return bool(vars(arguments).get(PROCESS) == os.getpid())


def is_waiting(arguments: Any) -> bool:
    """Whether TrainingArguments were set up in another process (the notebook's), but not in this one yet."""
    return PROCESS in vars(arguments) and not is_set_up(arguments)


def accelerator_is_built() -> bool:
    """Whether this thread's process has created an Accelerator since its state was last reset."""
    state = sys.modules.get("accelerate.state")
    return state is not None and bool(state.AcceleratorState._shared_state)


def patch_training_arguments(module: Any, in_notebook: Callable[[], bool]) -> Callable[[], None] | str:
    """Patch the class in `module` (transformers.training_args). Returns how to undo it, or why it is not possible."""
    cls: Any = getattr(module, "TrainingArguments", None)
    original = vars(cls).get(DEVICE) if isinstance(cls, type) else None
    function = getattr(original, "func", None) or getattr(original, "fget", None)  # functools', or transformers' own
    if function is None or STATE in vars(cls):
        return (
            "TrainingArguments in this version of transformers has no `_setup_devices` (5.23 has it), so creating "
            "one may start the XLA runtime in the notebook. Create it inside the training function."
        )
    for made in instances(cls):  # those that a cell has made before are set up
        if DEVICE in vars(made):
            vars(made).setdefault(PROCESS, os.getpid())
    setattr(cls, DEVICE, DeviceDescriptor(function, in_notebook))
    setattr(cls, STATE, StateDescriptor())

    def undo() -> None:
        setattr(cls, DEVICE, original)
        delattr(cls, STATE)

    return undo


def set_up_before_trainer(module: Any, in_notebook: Callable[[], bool]) -> Callable[[], None] | str:
    """Make `Trainer` in `module` (transformers.trainer) set up arguments of the notebook before its Accelerator."""
    cls = getattr(module, "Trainer", None)
    if cls is None:
        return (
            "transformers.trainer has no Trainer in this version. Create TrainingArguments inside the training "
            "function."
        )
    original = cls.__init__

    @functools.wraps(original)
    def initialise(trainer: Any, *args: Any, **kwargs: Any) -> None:
        for value in (*args, *kwargs.values()):
            if isinstance(value, module.TrainingArguments) and is_waiting(value) and not in_notebook():
                getattr(value, DEVICE)
        original(trainer, *args, **kwargs)

    cls.__init__ = initialise

    def undo() -> None:
        cls.__init__ = original

    return undo
