"""The PyTorch/XLA backend; protocols.py documents each method. Importing this module imports no framework."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.base import ObserverConfig, WorkerSpec
from tpu_magics.backends.protocols import OnReady, Results, Trained, WorkerWatcher
from tpu_magics.backends.torch import TorchBackend, import_shared
from tpu_magics.errors import TpuMagicsError

if TYPE_CHECKING:
    from tpu_magics.runs.writer import EventWriter


class TorchXla(TorchBackend):
    """The backend of PyTorch/XLA (Backend in protocols.py)."""

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
        for name in ("observe.hooks", "observe.observer", "rehearse.join", "results", "trainer", "worker"):
            import_module(f"{__name__}.{name}")
        import_shared()

    def prepare_notebook(self) -> None:
        from tpu_magics.backends.torch_xla import library_fixes

        library_fixes.prepare_notebook()

    def load_stand_in(self, asked: bool) -> bool:
        from tpu_magics.backends.torch_xla import tpu_branch

        return tpu_branch.load(asked)

    @property
    def results(self) -> Results:
        from tpu_magics.backends.torch_xla import results

        return results

    # -- the worker -----------------------------------------------------------------------------------------------
    def run_worker(self, spec: WorkerSpec, on_ready: OnReady, function: Trained) -> Mapping[int, Any]:
        from tpu_magics.backends.torch_xla import worker

        return worker.run_worker(spec, on_ready, function)

    def observing(self, writer: EventWriter, config: ObserverConfig) -> AbstractContextManager[WorkerWatcher]:
        from tpu_magics.backends.torch_xla import observe

        return observe.observing(writer, config)

    def finish(self) -> bool:
        from tpu_magics.backends.torch_xla import observe

        return observe.finish()


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
