"""What the backends of PyTorch share (torch_xla and TorchTPU): models, weights, optimizers, random states, accelerate,
transformers. What differs between the two is in runtime.py. Importing this module imports no framework."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from tpu_magics.backends.protocols import (
    LibraryLoops,
    LoopRandomStates,
    Models,
    NotebookState,
    Randomness,
    Results,
    StateStore,
)


class TorchBackend:
    """The part of a Backend (protocols.py) that is the same for every framework of PyTorch. A module of this folder is
    imported when it is first needed."""

    # -- the notebook's process -----------------------------------------------------------------------------------
    def runtime_initialized(self) -> bool:
        from tpu_magics.backends.torch import runtime

        return runtime.running()

    def other_states(self) -> Sequence[str]:
        found = []
        state = sys.modules.get("accelerate.state")
        device = state.PartialState._shared_state.get("device") if state is not None else None
        if device is not None and device.type != "cpu":
            found.append("accelerator")
        cuda = sys.modules.get("torch.cuda")
        if cuda is not None and hasattr(cuda, "is_initialized") and cuda.is_initialized():
            found.append("cuda")
        return found

    def device_holder(self) -> str:
        from tpu_magics.backends.torch import cpu_only

        return cpu_only.device_holder()

    def refuse(self, precision: str = "", spmd: int | None = None, cache: str = "", hosts: str = "") -> None:
        """All of it is supported."""

    def rehearsal_problem(self) -> str:
        from tpu_magics.backends.torch import rehearsal

        return rehearsal.problem()

    # -- its parts ------------------------------------------------------------------------------------------------
    @property
    def models(self) -> Models:
        from tpu_magics.backends.torch import modules

        return modules

    @property
    def randomness(self) -> Randomness:
        from tpu_magics.backends.torch import randomness

        return randomness

    @property
    def results(self) -> Results:
        from tpu_magics.backends.torch import results

        return results

    def object_state(self) -> NotebookState:
        from tpu_magics.backends.torch.state import TorchState

        return TorchState()

    def checkpoint_store(self) -> StateStore:
        from tpu_magics.backends.torch.checkpoints import TorchStore

        return TorchStore()

    def loop_random_states(self, objects: Iterable[Any]) -> LoopRandomStates:
        from tpu_magics.backends.torch.checkpoints import TorchRandomStates

        return TorchRandomStates(objects)

    # -- the worker -----------------------------------------------------------------------------------------------
    def follow_library_loops(self, loops: LibraryLoops, folder: Path) -> None:
        from tpu_magics.backends.torch import trainer_loops

        trainer_loops.arrange(loops, folder)

    def follow_optimizers(self, items: Sequence[tuple[str, Any]]) -> None:
        from tpu_magics.backends.torch import optimizers

        optimizers.follow(items)

    def rebuild(self, items: Sequence[tuple[str, Any]], replicas: int) -> None:
        from tpu_magics.backends.torch import rebuild, sending

        sending.to_devices()
        rebuild.rebuild(items, replicas)

    def failed_collective(self) -> BaseException | None:
        from tpu_magics.backends.torch.rehearsal import group

        return group.failure()


SHARED_MODULES = (
    "checkpoints",
    "pickling",
    "randomness",
    "rebuild",
    "recreate",
    "results",
    "state",
    "tied_weights",
    "trainer",
    "trainer_loops",
    "weights",
)


def import_shared() -> None:
    """What workers need of this folder, before the fork."""
    for name in SHARED_MODULES:
        import_module(f"{__name__}.{name}")
    if "tqdm" in sys.modules and "ipykernel" in sys.modules:
        import_module("tqdm.notebook")
