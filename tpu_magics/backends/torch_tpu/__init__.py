"""The TorchTPU backend; protocols.py documents each method. Importing this module imports no framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.base import ObserverConfig, WorkerSpec
from tpu_magics.backends.protocols import OnReady, Trained, WorkerWatcher
from tpu_magics.backends.torch import TorchBackend, import_shared

if TYPE_CHECKING:
    from tpu_magics.runs.writer import EventWriter


class TorchTpu(TorchBackend):
    """The backend of TorchTPU (Backend in protocols.py)."""

    name = "torch_tpu"
    runtime = "TorchTPU runtime"
    fork_error = ""
    starts_it = 'tensor.to("tpu"), torch.accelerator.synchronize(), ...'
    device = '"tpu"'
    no_step = ""
    spawns = True  # a fork with libtpu's own plugin was not seen yet

    def prepare(self) -> None:
        from tpu_magics.backends.torch_tpu import device

        device.register()
        for name in ("observe", "process_group", "trace", "worker", "xla_cpu"):
            import_module(f"{__name__}.{name}")
        import_shared()

    def load_stand_in(self, asked: bool) -> bool:  # noqa: ARG002
        """False: TorchTPU has no other branch, and `prepare` loads what that one needs."""
        return False

    def prepare_notebook(self) -> None:
        from tpu_magics.backends.torch_tpu import device

        device.prepare_notebook()

    def refuse(self, precision: str = "", spmd: int | None = None, cache: str = "", hosts: str = "") -> None:
        from tpu_magics.backends.torch_tpu import options

        options.refuse(precision, spmd, cache, hosts)

    # -- the worker -----------------------------------------------------------------------------------------------
    def run_worker(self, spec: WorkerSpec, on_ready: OnReady, function: Trained) -> Mapping[int, Any]:
        from tpu_magics.backends.torch_tpu import worker

        return worker.run_worker(spec, on_ready, function)

    def rebuild(self, items: Sequence[tuple[str, Any]], replicas: int) -> None:
        from tpu_magics.backends.torch_tpu.observe import batch_norm

        super().rebuild(items, replicas)
        batch_norm.remember(items)

    def observing(self, writer: EventWriter, config: ObserverConfig) -> AbstractContextManager[WorkerWatcher]:
        from tpu_magics.backends.torch_tpu import observe

        return observe.observing(writer, config)

    def finish(self) -> bool:
        from tpu_magics.backends.torch_tpu import observe

        return observe.finish()
