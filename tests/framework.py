"""The device of PyTorch's framework in this environment: "xla" with torch_xla, "tpu" with TorchTPU. Suites that both
have to pass use it through these functions, in workers only."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.util import find_spec
from typing import Any

TORCH_TPU = find_spec("torch_xla") is None and find_spec("torch_tpu") is not None
NAME = "torch_tpu" if TORCH_TPU else "torch_xla"
MODULES = "torch" if TORCH_TPU else "torch_xla"  # for tests/forks.py; torch imports torch_tpu by itself
TYPE = "tpu" if TORCH_TPU else "xla"
BATCH_NORM = not TORCH_TPU  # torch_tpu 0.2.0 leaves its running mean and variance as they are
OPTIMIZER = "adamw_torch" if TORCH_TPU else "adamw_torch_xla"  # transformers' name of one without host reads


if TORCH_TPU:  # before torch is imported: else programs that earlier tests compiled come from the disk, uncounted
    os.environ["TORCHINDUCTOR_AUTOGRAD_CACHE"] = "0"


def import_framework() -> None:
    """What a notebook's process has imported when a run begins."""
    if not TORCH_TPU:
        importlib.import_module("torch_xla")
        return
    from tpu_magics.backends.torch_tpu import device as registration

    os.environ.setdefault("PJRT_DEVICE", "CPU")
    registration.prepare_notebook()
    registration.register()


def begin_notebook() -> None:
    """In a fork that stands for a notebook's process of its own."""
    if TORCH_TPU:
        from tpu_magics.backends.torch_tpu import device as registration

        registration._registered[:] = [os.getpid()]


def begin_worker() -> None:
    """In a forked process's new thread: what run_worker does before the function, where a test does without it."""
    if TORCH_TPU:
        import torch

        from tpu_magics.backends.torch import worker
        from tpu_magics.backends.torch_tpu import xla_cpu

        os.environ["ACCELERATE_TORCH_DEVICE"] = "tpu"
        torch.get_num_threads()
        worker.start_autograd_threads()
        xla_cpu.arrange()


def device() -> Any:
    """This rank's device."""
    import torch

    return torch.device("tpu") if TORCH_TPU else importlib.import_module("torch_xla").device()


def sync() -> None:
    """The end of a step. TorchTPU has none: there, the step of the optimizer is counted."""
    if not TORCH_TPU:
        importlib.import_module("torch_xla").sync()


def rank() -> int:
    """This worker's rank."""
    if TORCH_TPU:
        return int(os.environ.get("RANK", 0))
    return int(importlib.import_module("torch_xla.runtime").global_ordinal())


def seed() -> int:
    """Of this worker's device."""
    if TORCH_TPU:
        return int(importlib.import_module("torch.accelerator.random").initial_seed())
    return int(importlib.import_module("torch_xla.core.xla_model").get_rng_state())


def set_seed(number: int) -> None:
    """Of this process's device; in a notebook, of its workers'."""
    if TORCH_TPU:
        importlib.import_module("torch_tpu._internal.device._device_ops_backend").manual_seed(number)
    else:
        importlib.import_module("torch_xla.core.xla_model").set_rng_state(number)


def world_size() -> int:
    """The number of ranks."""
    if TORCH_TPU:
        return int(os.environ.get("WORLD_SIZE", 1))
    return int(importlib.import_module("torch_xla.runtime").world_size())


def compiles() -> int:
    """The programs that XLA has compiled in this process."""
    if TORCH_TPU:
        backend: Any = sys.modules["torch_tpu._internal.device._device_ops_backend"]
        return int(backend._get_cache_misses())
    return int(importlib.import_module("torch_xla.debug.metrics").counter_value("UncachedCompile") or 0)


def runtime_is_up() -> bool:
    """Whether the framework's runtime runs in this process."""
    if TORCH_TPU:
        backend = sys.modules.get("torch_tpu._internal.device._device_ops_backend")
        return backend is not None and bool(backend._is_initialized())
    extension = getattr(sys.modules.get("torch_xla"), "_XLAC", None)
    return extension is not None and bool(extension._xla_runtime_is_initialized())
