"""TrainingArguments in a notebook, without starting the XLA runtime.

What lives here: a stand-in for `TrainingArguments._setup_devices`, which is the one place where transformers asks for
the device. What does not: seeding (randomness.py) and when this is put in place.

Read in transformers 5.23.0, training_args.py: `__post_init__` reads `self.device`, which is the cached property
`_setup_devices`. It resets accelerate's state, builds a PartialState (that starts the runtime), keeps it as
`distributed_state`, and sets `_n_gpu` to 0 wherever torch_xla is installed. `world_size`, `process_index`,
`local_process_index`, `should_log` and `should_save` read `distributed_state`, with 1 and 0 where it is None.
trainer.py: `Trainer.__init__` builds its Accelerator before it reads `args._setup_devices`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any


class NotebookDevice:
    """Stands for `_setup_devices`. In the notebook: the CPU, and nothing is kept. In a worker: the original."""

    def __init__(self, original: Any, in_notebook: Callable[[], bool]) -> None:
        self.original = original
        self.in_notebook = in_notebook

    def __get__(self, arguments: Any, owner: type | None = None) -> Any:
        if arguments is None:
            return self
        if not self.in_notebook():
            return self._set_up(arguments, owner)
        import torch

        arguments._n_gpu = 0  # what the original sets on every machine with torch_xla
        return torch.device("cpu")

    def _set_up(self, arguments: Any, owner: type | None) -> Any:
        """The original, unless it would reset the state of an Accelerator that was built after the arguments were."""
        state = sys.modules.get("accelerate.state")
        if not is_waiting(arguments) or state is None or not state.AcceleratorState._shared_state:
            return self.original.__get__(arguments, owner)
        arguments.distributed_state = state.PartialState()
        return arguments.distributed_state.device


class NotebookState:
    """Stands for `distributed_state` until the original has set it: None in the notebook, which has no ranks.

    Arguments made in the notebook and read in a worker have not been set up there: the first read does it.
    """

    def __init__(self, in_notebook: Callable[[], bool]) -> None:
        self.in_notebook = in_notebook

    def __get__(self, arguments: Any, owner: type | None = None) -> Any:
        if arguments is None:
            return self
        if self.in_notebook():
            return None
        _ = arguments._setup_devices
        return vars(arguments).get("distributed_state")


def is_waiting(arguments: Any) -> bool:
    """Whether TrainingArguments were made in the notebook and are not set up in this worker yet."""
    return "_n_gpu" in vars(arguments) and "distributed_state" not in vars(arguments)


def quiet_arguments(module: Any, in_notebook: Callable[[], bool]) -> Callable[[], None] | str:
    """Change the class in `module` (transformers.training_args). Returns how to undo it, or why it cannot be done."""
    cls = getattr(module, "TrainingArguments", None)
    original = vars(cls).get("_setup_devices") if isinstance(cls, type) else None
    if original is None or not hasattr(original, "__get__") or "distributed_state" in vars(cls):
        return (
            "TrainingArguments of this version of transformers has no `_setup_devices` as 5.23 has it, so that "
            "making one may start the XLA runtime in the notebook: make it inside the training function."
        )

    def here() -> bool:
        # Without torch_xla in transformers' eyes the original starts no runtime and answers with another device.
        return bool(module.is_torch_xla_available()) and in_notebook()

    setattr(cls, "_setup_devices", NotebookDevice(original, here))  # noqa: B010
    setattr(cls, "distributed_state", NotebookState(here))  # noqa: B010

    def undo() -> None:
        setattr(cls, "_setup_devices", original)  # noqa: B010
        delattr(cls, "distributed_state")

    return undo


def set_up_before_trainer(module: Any, in_notebook: Callable[[], bool]) -> Callable[[], None] | str:
    """Let `Trainer` in `module` (transformers.trainer) set up arguments of the notebook before its Accelerator."""
    cls = getattr(module, "Trainer", None)
    if cls is None:
        return "transformers.trainer has no Trainer in this version: make TrainingArguments inside the function."
    original = cls.__init__

    @functools.wraps(original)
    def initialise(trainer: Any, *args: Any, **kwargs: Any) -> None:
        for value in (*args, *kwargs.values()):
            if isinstance(value, module.TrainingArguments) and is_waiting(value) and not in_notebook():
                _ = value._setup_devices
        original(trainer, *args, **kwargs)

    cls.__init__ = initialise

    def undo() -> None:
        cls.__init__ = original

    return undo
