"""What the backends of PyTorch share (torch_xla and TorchTPU): models, weights, optimizers, random states, accelerate,
transformers. What differs between the two is in runtime.py. Importing this module imports no framework."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any


def method_of(module: str, name: str) -> Any:
    """A method that is a function of a module of tpu_magics.backends, imported at its first call."""

    def method(_self: object, *args: Any, **kwargs: Any) -> Any:
        return getattr(import_module(f"tpu_magics.backends.{module}"), name)(*args, **kwargs)

    return method


class TorchBackend:
    """The part of a Backend (base.py) that is the same for every framework of PyTorch."""

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

    def refuse(self, precision: str = "", spmd: int | None = None, cache: str = "", hosts: str = "") -> None:
        """All of it is supported."""

    rehearsal_problem = method_of("torch.rehearsal", "problem")
    device_holder = method_of("torch.cpu_only", "device_holder")
    deferral_problems = method_of("torch.randomness", "deferral_problems")

    # -- models ---------------------------------------------------------------------------------------------------
    is_model = method_of("torch.modules", "is_model")
    builds_model = method_of("torch.modules", "builds_model")
    builds_weightless = method_of("torch.modules", "builds_weightless")
    builds_config = method_of("torch.modules", "builds_config")
    touches_device = method_of("torch.modules", "touches_device")
    model_bytes = method_of("torch.modules", "model_bytes")
    model_device = method_of("torch.modules", "model_device")
    shares_memory = method_of("torch.modules", "shares_memory")
    structure = method_of("torch.modules", "structure")
    tensor_content = method_of("torch.modules", "tensor_content")
    replace_reference = method_of("torch.modules", "replace_reference")

    # -- random states --------------------------------------------------------------------------------------------
    random_state = method_of("torch.randomness", "random_state")
    set_random_state = method_of("torch.randomness", "set_random_state")
    same_modes = method_of("torch.randomness", "same_modes")
    drawn = method_of("torch.randomness", "drawn")
    same_drawn = method_of("torch.randomness", "same_drawn")
    is_seed_call = method_of("torch.randomness", "is_seed_call")
    seeds_device_only = method_of("torch.randomness", "seeds_device_only")
    seeds_without_runtime = method_of("torch.randomness", "seeds_without_runtime")
    process_state = method_of("torch.randomness", "process_state")
    set_process_state = method_of("torch.randomness", "set_process_state")

    # -- results --------------------------------------------------------------------------------------------------
    check_weights = method_of("torch.weights", "check_weights")
    load_weights = method_of("torch.weights", "load_weights")
    digests = method_of("torch.weights", "digests")
    trained_elsewhere = method_of("torch.weights", "trained_elsewhere")
    dumps = method_of("torch.pickling", "dumps")
    follow_optimizers = method_of("torch.optimizers", "follow")
    checkpoint_store = method_of("torch.checkpoints", "TorchStore")
    follow_library_loops = method_of("torch.trainer_loops", "arrange")
    random_states = method_of("torch.checkpoints", "TorchRandomStates")

    def object_state(self) -> Any:
        from tpu_magics.backends.torch.state import TorchState

        return TorchState()

    def splits_weights(self, models: Mapping[str, Any]) -> bool:  # noqa: ARG002 - where nothing can be sharded
        return False

    def collect_weights(self, models: Mapping[str, Any], folder: Path, rank: int) -> None:
        from tpu_magics.backends.torch import runtime, weights

        runtime.settle()
        if rank == 0:
            weights.collect_weights(models, folder)

    # -- the worker -----------------------------------------------------------------------------------------------
    rebuild = method_of("torch.rebuild", "rebuild")


SHARED_MODULES = (
    "checkpoints",
    "pickling",
    "randomness",
    "rebuild",
    "recreate",
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
