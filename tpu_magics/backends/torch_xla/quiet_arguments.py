"""TrainingArguments in a notebook, without starting the XLA runtime.

What lives here: a stand-in for `TrainingArguments._setup_devices`, which is the one place where transformers asks for
the device. What does not: seeding (randomness.py) and when this is put in place.

Read in transformers 5.23.0, training_args.py: `__post_init__` reads `self.device`, which is the cached property
`_setup_devices`. It builds accelerate's PartialState (that starts the runtime), keeps it as `distributed_state`, and
sets `_n_gpu` to 0 wherever torch_xla is installed. `world_size`, `process_index`, `local_process_index`, `should_log`
and `should_save` read `distributed_state`, with 1 and 0 where it is None.
"""

from __future__ import annotations

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
            return self.original.__get__(arguments, owner)
        import torch

        arguments._n_gpu = 0  # what the original sets on every machine with torch_xla
        return torch.device("cpu")


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
