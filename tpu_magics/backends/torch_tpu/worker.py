"""Turns a forked process into a rank on TorchTPU: starts the runtime on one device and calls the user's function."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from tpu_magics.backends.base import WorkerSpec
from tpu_magics.backends.torch import (
    fastai,
    notebook_devices,
    optimizers,
    randomness,
    rebuild,
    tied_weights,
    trainer,
)
from tpu_magics.backends.torch.worker import in_new_thread, set_variables, start_autograd_threads, thread_modes
from tpu_magics.backends.torch_tpu import device, process_group, xla_cpu

DEVICE = "tpu:0"


def _variables(spec: WorkerSpec) -> dict[str, str | None]:
    """accelerate trains on the device that ACCELERATE_TORCH_DEVICE names (1.15 does not know "tpu"). What the notebook
    has set stays."""
    defaults = {"ACCELERATE_TORCH_DEVICE": "tpu", device.LOG_LEVEL: "1"}
    return {
        **{name: os.environ.get(name, value) for name, value in defaults.items()},
        "FORK_LAUNCHED": "1",  # what accelerate's PrepareForLaunch sets
        **spec.environment,
    }


def run_worker(
    spec: WorkerSpec,
    on_ready: Callable[[int, int, str], None],
    function: Callable[[int, int], Any],
) -> Mapping[int, Any]:
    """Start the runtime and call `function(rank, 0)`, in a new thread.

    `on_ready(rank, world_size, device)` is called once before it. Returns {rank: value}; an exception is raised here.
    """
    set_variables(_variables(spec))
    enter = thread_modes()
    rebuild.remember_state()
    return in_new_thread(lambda: _run(spec, on_ready, function, enter))


def _run(
    spec: WorkerSpec,
    on_ready: Callable[[int, int, str], None],
    function: Callable[[int, int], Any],
    enter: Callable[..., Any],
) -> Mapping[int, Any]:
    import torch

    # torch_tpu's own access, where the host reads a tensor that has a gradient function
    warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf.*torch_tpu")
    torch.get_num_threads()  # recreates the pool of a forked process, before autograd's threads call it
    rank = spec.number
    if spec.ranks > 1 and spec.meeting is None:
        process_group.name_ranks(spec)
    if spec.tracing is not None:
        device.use_cpu()
    with device.quiet():
        start_autograd_threads()  # asks for the devices, and so starts the runtime
    if spec.meeting is not None:
        process_group.name_ranks(spec)
        process_group.rehearse(spec)
    if spec.tracing is not None and spec.tracing.world > 1:
        many = replace(spec, count=spec.tracing.world)
        process_group.name_ranks(many)
        process_group.pretend(many)
    if spec.device == "CPU":
        xla_cpu.arrange()
    notebook_devices.restore()
    tied_weights.keep_ties()
    optimizers.arrange(keep=spec.device == "CPU" and spec.tracing is None)
    trainer.arrange()
    fastai.arrange()
    rebuild.adopt_state()
    on_ready(rank, spec.ranks, DEVICE)
    randomness.replay_seed()
    with _precision(spec.precision):
        return {rank: enter(function, rank, 0)}


def _precision(precision: str) -> AbstractContextManager[Any]:
    """What `--precision` means: bf16 is autocast, which leaves the weights in float32."""
    import torch

    return torch.autocast("tpu", torch.bfloat16) if precision == "bf16" else nullcontext()
