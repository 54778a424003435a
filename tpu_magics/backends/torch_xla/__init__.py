"""torch_xla behind the seam: see base.py for what each method means.

What lives here: the methods' way to their files. Importing this imports no framework; each method does when it must.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tpu_magics.backends.base import Watcher, WorkerSpec
from tpu_magics.errors import TpuMagicsError
from tpu_magics.runs.writer import EventWriter


class TorchXla:
    """The backend of PyTorch/XLA (Backend in base.py)."""

    name = "torch_xla"

    # -- the notebook's process -----------------------------------------------------------------------------------
    def prepare(self) -> None:
        import importlib

        try:
            importlib.import_module("torch_xla.core.xla_model")
        except ImportError as error:
            raise _cannot_import(error) from error
        for name in ("torch_xla.runtime", "torch_xla._internal.pjrt", "torch_xla.distributed.parallel_loader"):
            importlib.import_module(name)
        if "tqdm" in sys.modules and "ipykernel" in sys.modules:
            importlib.import_module("tqdm.notebook")

    def runtime_initialized(self) -> bool:
        # torch_xla 2.9: torch_xla/_internal/pjrt.py asks the same before it spawns.
        module = sys.modules.get("torch_xla")
        extension = getattr(module, "_XLAC", None)
        return bool(extension is not None and extension._xla_runtime_is_initialized())

    def other_states(self) -> Sequence[str]:
        found = []
        state = sys.modules.get("accelerate.state")
        if state is not None and (state.PartialState._shared_state or state.AcceleratorState._shared_state):
            found.append("accelerator")
        cuda = sys.modules.get("torch.cuda")
        if cuda is not None and hasattr(cuda, "is_initialized") and cuda.is_initialized():
            found.append("cuda")
        return found

    def quiet_seeds(self) -> None:
        from tpu_magics.backends.torch_xla import randomness

        randomness.quiet_seeds()

    # -- models ---------------------------------------------------------------------------------------------------
    def is_model(self, value: object) -> bool:
        from tpu_magics.backends.torch_xla import modules

        return modules.is_model(value)

    def builds_model(self, function: object) -> bool:
        from tpu_magics.backends.torch_xla import modules

        return modules.builds_model(function)

    def builds_config(self, function: object) -> bool:
        from tpu_magics.backends.torch_xla import modules

        return modules.builds_config(function)

    def model_bytes(self, model: Any) -> int:
        from tpu_magics.backends.torch_xla import modules

        return modules.model_bytes(model)

    def model_device(self, model: Any) -> str:
        from tpu_magics.backends.torch_xla import modules

        return modules.model_device(model)

    def detached_optimizer(self, value: object, models: Mapping[str, Any]) -> str | None:
        from tpu_magics.backends.torch_xla import modules

        return modules.detached_optimizer(value, models)

    def random_state(self) -> Any:
        from tpu_magics.backends.torch_xla import randomness

        return randomness.random_state()

    def set_random_state(self, state: Any) -> None:
        from tpu_magics.backends.torch_xla import randomness

        randomness.set_random_state(state)

    def same_random_state(self, left: Any, right: Any) -> bool:
        from tpu_magics.backends.torch_xla import randomness

        return randomness.same_random_state(left, right)

    def is_seed_call(self, function: object) -> bool:
        from tpu_magics.backends.torch_xla import randomness

        return randomness.is_seed_call(function)

    def seeds_without_runtime(self) -> Any:
        from tpu_magics.backends.torch_xla import randomness

        return randomness.seeds_without_runtime()

    # -- results --------------------------------------------------------------------------------------------------
    def collect_weights(self, models: Mapping[str, Any], folder: Path, rank: int) -> None:
        from tpu_magics.backends.torch_xla import sharded, weights

        sharded.collect_shards(models, folder, rank)
        if sharded.spread(models):
            import torch_xla.core.xla_model as xm

            xm.rendezvous("tpu_magics-shards")
        if rank == 0:
            weights.collect_weights(models, folder)

    def check_weights(self, models: Mapping[str, Any], folder: Path) -> Any:
        from tpu_magics.backends.torch_xla import weights

        return weights.check_weights(models, folder)

    def load_weights(self, staged: Any) -> None:
        from tpu_magics.backends.torch_xla import weights

        weights.load_weights(staged)

    def dumps(self, value: Any) -> bytes:
        from tpu_magics.backends.torch_xla import pickling

        return pickling.dumps(value)

    # -- the worker -----------------------------------------------------------------------------------------------
    def run_worker(
        self,
        spec: WorkerSpec,
        on_ready: Callable[[int, int, str], None],
        function: Callable[[int, int], Any],
    ) -> Mapping[int, Any]:
        from tpu_magics.backends.torch_xla import worker

        return worker.run_worker(spec, on_ready, function)

    def observing(self, writer: EventWriter, max_steps: int | None) -> AbstractContextManager[Watcher]:
        from tpu_magics.backends.torch_xla import observe

        return observe.observing(writer, max_steps)

    def compiles(self) -> int | None:
        from tpu_magics.backends.torch_xla import observe

        return observe.compiles()

    def finish(self) -> None:
        from tpu_magics.backends.torch_xla import observe

        observe.finish()


def _cannot_import(error: ImportError) -> TpuMagicsError:
    if isinstance(error, ModuleNotFoundError):
        return TpuMagicsError(
            f"{error.name} is not installed.",
            "Training goes through PyTorch/XLA.",
            "Install it: pip install 'tpu-magics[torch]'",
        )
    return TpuMagicsError(
        "torch_xla cannot be imported.",
        f"{error}",
        "Install a pair of versions that fit, then restart the kernel: pip install torch==2.9.0 torch_xla==2.9.0",
    )
