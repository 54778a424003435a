"""The TorchTPU backend; base.py documents each method. Importing this module imports no framework."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from tpu_magics.backends.torch import TorchBackend, import_shared, method_of


class TorchTpu(TorchBackend):
    """The backend of TorchTPU (Backend in base.py)."""

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

    prepare_notebook = method_of("torch_tpu.device", "prepare_notebook")
    refuse = method_of("torch_tpu.options", "refuse")
    run_worker = method_of("torch_tpu.worker", "run_worker")

    def rebuild(self, items: Sequence[tuple[str, Any]], replicas: int) -> None:
        from tpu_magics.backends.torch import rebuild
        from tpu_magics.backends.torch_tpu.observe import batch_norm

        rebuild.rebuild(items, replicas)
        batch_norm.remember(items)

    observing = method_of("torch_tpu.observe", "observing")
    finish = method_of("torch_tpu.observe", "finish")
