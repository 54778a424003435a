"""The PyTorch/XLA backend; base.py documents each method. Importing this module imports no framework."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from tpu_magics.errors import TpuMagicsError


def _from(module: str, name: str) -> Any:
    """A method that is a function of a module in this folder, imported at its first call."""

    def method(_self: object, *args: Any, **kwargs: Any) -> Any:
        return getattr(import_module(f"{__name__}.{module}"), name)(*args, **kwargs)

    return method


class TorchXla:
    """The backend of PyTorch/XLA (Backend in base.py)."""

    name = "torch_xla"

    # -- the notebook's process -----------------------------------------------------------------------------------
    def prepare(self) -> None:
        try:
            import_module("torch_xla.core.xla_model")
        except ImportError as error:
            raise _cannot_import(error) from error
        for name in ("torch_xla.runtime", "torch_xla._internal.pjrt", "torch_xla.distributed.parallel_loader"):
            import_module(name)
        for name in (
            "observe.hooks",
            "observe.observer",
            "pickling",
            "randomness",
            "rehearse.join",
            "rebuild",
            "fsdp_shards",
            "state",
            "tied_weights",
            "trainer",
            "weights",
            "worker",
        ):
            import_module(f"{__name__}.{name}")
        if "tqdm" in sys.modules and "ipykernel" in sys.modules:
            import_module("tqdm.notebook")

    rehearsal_problem = _from("rehearse", "problem")

    def runtime_initialized(self) -> bool:
        # torch_xla 2.9: torch_xla/_internal/pjrt.py checks the same before it spawns.
        module = sys.modules.get("torch_xla")
        extension = getattr(module, "_XLAC", None)
        return bool(extension is not None and extension._xla_runtime_is_initialized())

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

    device_holder = _from("cpu_only", "device_holder")
    prepare_notebook = _from("library_fixes", "prepare_notebook")
    deferral_problems = _from("randomness", "deferral_problems")

    # -- models ---------------------------------------------------------------------------------------------------
    is_model = _from("modules", "is_model")
    builds_model = _from("modules", "builds_model")
    builds_weightless = _from("modules", "builds_weightless")
    builds_config = _from("modules", "builds_config")
    touches_device = _from("modules", "touches_device")
    model_bytes = _from("modules", "model_bytes")
    model_device = _from("modules", "model_device")
    shares_memory = _from("modules", "shares_memory")
    structure = _from("modules", "structure")
    tensor_content = _from("modules", "tensor_content")
    replace_reference = _from("modules", "replace_reference")

    # -- random states --------------------------------------------------------------------------------------------
    random_state = _from("randomness", "random_state")
    set_random_state = _from("randomness", "set_random_state")
    same_modes = _from("randomness", "same_modes")
    drawn = _from("randomness", "drawn")
    same_drawn = _from("randomness", "same_drawn")
    is_seed_call = _from("randomness", "is_seed_call")
    seeds_device_only = _from("randomness", "seeds_device_only")
    seeds_without_runtime = _from("randomness", "seeds_without_runtime")

    process_state = _from("randomness", "process_state")
    set_process_state = _from("randomness", "set_process_state")

    # -- results --------------------------------------------------------------------------------------------------
    check_weights = _from("weights", "check_weights")
    load_weights = _from("weights", "load_weights")
    dumps = _from("pickling", "dumps")
    digests = _from("weights", "digests")
    splits_weights = _from("fsdp_shards", "spread")

    def object_state(self) -> Any:
        from tpu_magics.backends.torch_xla.state import TorchState

        return TorchState()

    follow_optimizers = _from("optimizers", "follow")

    def collect_weights(self, models: Mapping[str, Any], folder: Path, rank: int) -> None:
        from tpu_magics.backends.torch_xla import fsdp_shards, weights

        fsdp_shards.collect_shards(models, folder, rank)
        if fsdp_shards.spread(models):
            import torch_xla.core.xla_model as xm

            xm.rendezvous("tpu_magics-shards")
        if rank == 0:
            weights.collect_weights(models, folder)

    # -- the worker -----------------------------------------------------------------------------------------------
    run_worker = _from("worker", "run_worker")
    rebuild = _from("rebuild", "rebuild")
    observing = _from("observe", "observing")
    finish = _from("observe", "finish")


def _cannot_import(error: ImportError) -> TpuMagicsError:
    if isinstance(error, ModuleNotFoundError):
        return TpuMagicsError(
            f"{error.name} is not installed.",
            "Training needs PyTorch/XLA.",
            "Install it: pip install 'tpu-magics[torch]'",
        )
    return TpuMagicsError(
        "torch_xla cannot be imported.",
        f"{error}",
        "Install matching versions, then restart the kernel: pip install torch==2.9.0 torch_xla==2.9.0",
    )
