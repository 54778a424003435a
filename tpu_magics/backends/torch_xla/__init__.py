"""The PyTorch/XLA backend; base.py documents each method. Importing this module imports no framework."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from tpu_magics.backends.torch import TorchBackend, import_shared, method_of
from tpu_magics.errors import TpuMagicsError


class TorchXla(TorchBackend):
    """The backend of PyTorch/XLA (Backend in base.py)."""

    name = "torch_xla"
    runtime = "XLA runtime"
    fork_error = ': torch_xla raises "Runtime is already initialized"'
    starts_it = "torch_xla.device(), tensor.to('xla'), xr.world_size(), ..."
    device = "torch_xla.device()"
    no_step = (
        "The program ended without a sync: what it had computed ran as one graph wherever a value was read, and at its "
        "end. End each step of a training with torch_xla.sync(), or use a loader from accelerator.prepare."
    )
    spawns = False

    # -- the notebook's process -----------------------------------------------------------------------------------
    def prepare(self) -> None:
        try:
            import_module("torch_xla.core.xla_model")
        except ImportError as error:
            raise _cannot_import(error) from error
        for name in ("torch_xla.runtime", "torch_xla._internal.pjrt", "torch_xla.distributed.parallel_loader"):
            import_module(name)
        for name in ("observe.hooks", "observe.observer", "rehearse.join", "fsdp_shards", "trainer", "worker"):
            import_module(f"{__name__}.{name}")
        import_shared()

    prepare_notebook = method_of("torch_xla.library_fixes", "prepare_notebook")
    load_stand_in = method_of("torch_xla.tpu_branch", "load")

    # -- results --------------------------------------------------------------------------------------------------
    splits_weights = method_of("torch_xla.fsdp_shards", "spread")
    structure = method_of("torch_xla.fsdp_shards", "structure")

    def digests(self, models: Mapping[str, Any]) -> Mapping[str, str]:
        from tpu_magics.backends.torch import weights
        from tpu_magics.backends.torch_xla import fsdp_shards

        return weights.digests({name: one for name, one in models.items() if not fsdp_shards.spread({name: one})})

    def collect_weights(self, models: Mapping[str, Any], folder: Path, rank: int) -> None:
        from tpu_magics.backends.torch import weights
        from tpu_magics.backends.torch_xla import fsdp_shards

        fsdp_shards.collect_shards(models, folder, rank)
        if fsdp_shards.spread(models):
            import torch_xla.core.xla_model as xm

            xm.rendezvous("tpu_magics-shards")
        if rank == 0:
            weights.collect_weights(models, folder, fsdp_shards.full_weights)

    # -- the worker -----------------------------------------------------------------------------------------------
    run_worker = method_of("torch_xla.worker", "run_worker")
    observing = method_of("torch_xla.observe", "observing")
    finish = method_of("torch_xla.observe", "finish")


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
