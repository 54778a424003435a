"""Turns a forked process into a torch_xla rank: starts the runtime and calls the user's function on each device."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tpu_magics.backends.base import WorkerSpec
from tpu_magics.backends.torch import rebuild
from tpu_magics.backends.torch.precision_request import variables
from tpu_magics.backends.torch.worker import (
    in_new_thread,
    set_variables,
    start_autograd_threads,
    thread_modes,
    use_up_autograds_start,
)
from tpu_magics.backends.torch_xla import graph_cache, observe, spmd, tpu_branch


def apply_environment(spec: WorkerSpec) -> None:
    """Set the worker's environment, before the runtime reads it. Precision must be set before the first XLA tensor.

    Without LOCAL_RANK, accelerate (1.15) uses local rank -1 if XLA has no TPU, and no rank prints.
    """
    changes: dict[str, str | None] = {
        "PJRT_DEVICE": spec.device,
        "FORK_LAUNCHED": "1",  # what accelerate's PrepareForLaunch sets
        graph_cache.NAME: os.environ.get(graph_cache.NAME, ""),
        **({"LOCAL_RANK": str(spec.index)} if spec.branch == "CPU" else {}),
        **tpu_branch.variables(spec),
        **spec.environment,
    }
    found = {**os.environ, **{name: value or "" for name, value in changes.items()}}
    changes.update(variables(spec.precision, found))
    set_variables(changes)
    tpu_branch.enter(spec)


def run_worker(
    spec: WorkerSpec,
    on_ready: Callable[[int, int, str], None],
    function: Callable[[int, int], Any],
) -> Mapping[int, Any]:
    """Start the runtime and call `function(ordinal, replica)` on every device of this worker, each in its own thread.

    `on_ready(ordinal, world_size, device)` is called once, on the first device's thread, before the function. Returns
    {ordinal: value}; an exception of any thread is raised here.
    """
    apply_environment(spec)
    observe.arrange(spec.scratch, None if spec.meeting is None else spec.number)
    _use_cache(spec)
    spmd.refuse_leftover(spec)
    if spec.spmd is not None:
        spmd.arrange(spec)
    enter = thread_modes()
    rebuild.remember_state()
    return in_new_thread(lambda: _on_each_device(spec, on_ready, function, enter))


def _use_cache(spec: WorkerSpec) -> None:
    """Use the persistent compile cache. On XLA:CPU every load fails (torch_xla 2.9: counter
    PersistentCacheDeserializeFailure), so there it stays off."""
    if spec.cache and spec.device != "CPU":
        import torch_xla.runtime as xr

        xr.initialize_cache(spec.cache)


def _kept_names(spec: WorkerSpec) -> Path | None:
    """Where the names of graphs outlive the worker: beside the compiled programs."""
    return Path(spec.cache) / graph_cache.KEPT if spec.cache and spec.device != "CPU" else None


def _on_each_device(
    spec: WorkerSpec,
    on_ready: Callable[[int, int, str], None],
    function: Callable[[int, int], Any],
    enter: Callable[..., Any],
) -> Mapping[int, Any]:
    # torch_xla 2.9: _run_thread_per_device is what xmp.spawn runs in each of its processes.
    import torch_xla
    from torch_xla._internal import pjrt

    from tpu_magics.backends.torch import notebook_devices, randomness

    notebook_devices.restore()
    use_up_autograds_start()
    first = _FirstDevice(spec, on_ready)

    def on_device() -> tuple[int, Any]:
        replica = torch_xla.device().index or 0
        ordinal = _ordinal(spec, replica)
        if not first.prepared(ordinal, replica) or replica >= spec.replicas:
            return ordinal, None
        randomness.replay_seed()
        return ordinal, enter(_launched(function), ordinal, ordinal, replica)

    try:
        by_device = pjrt._run_thread_per_device(spec.index, spec.count, on_device, _start(spec))
    except RuntimeError as error:
        if isinstance(error.__cause__, StopIteration):  # its executor.map is a generator, which cannot raise this one
            raise error.__cause__ from None
        raise
    return dict(by_device.values())


def _start(spec: WorkerSpec) -> Callable[[int, int], None]:
    """How the runtime starts: on all chips for SPMD, on one chip for a single worker of several, otherwise as
    torch_xla's launcher does."""
    from torch_xla._internal import pjrt

    if spec.in_tpus_place:
        return tpu_branch.start
    if spec.spmd is not None:
        return spmd.start
    return _start_one_chip if spec.count == 1 and spec.device == "TPU" else pjrt.initialize_multiprocess


def _ordinal(spec: WorkerSpec, replica: int) -> int:
    """The rank of this thread's device. Processes on XLA:CPU do not know each other."""
    import torch_xla.runtime as xr

    return xr.global_ordinal() if spec.device == "TPU" else spec.first + spec.index * spec.replicas + replica


class _FirstDevice:
    """The setup by the first device's thread, before any thread runs the user's code."""

    def __init__(self, spec: WorkerSpec, on_ready: Callable[[int, int, str], None]) -> None:
        self.spec = spec
        self.on_ready = on_ready
        self.done = threading.Event()
        self.good = False

    def prepared(self, ordinal: int, replica: int) -> bool:
        """Set up on the first device's thread, wait on the others; False if it failed."""
        if replica:
            self.done.wait()
            return self.good
        try:
            self._prepare(ordinal)
            self.good = True
        finally:
            self.done.set()
        return True

    def _prepare(self, ordinal: int) -> None:
        import torch_xla
        import torch_xla.runtime as xr

        from tpu_magics.backends.torch import optimizers, tied_weights
        from tpu_magics.backends.torch_xla import fsdp_shards, library_fixes, trainer

        tied_weights.keep_ties()
        fsdp_shards.watch_wrappers()
        trainer.arrange()
        library_fixes.arrange_fsdp()
        optimizers.arrange(keep=self.spec.device == "CPU" and self.spec.tracing is None and self.spec.spmd is None)
        library_fixes.launch_here()
        library_fixes.hide_torchax()
        library_fixes.skip_jax()
        library_fixes.fix_checkpointing()
        library_fixes.fix_elu()
        library_fixes.fix_loss_of_one_row()
        library_fixes.fix_frozen_batch_norm()
        library_fixes.fix_reductions_and_scales()
        library_fixes.fix_inference_mode()
        library_fixes.fix_loaders()
        library_fixes.fix_autocast()
        tpu_branch.arrange(self.spec)
        if self.spec.tracing is None:
            graph_cache.guard(_kept_names(self.spec))
        start_autograd_threads()
        rebuild.adopt_state()
        if self.spec.spmd is not None:
            spmd.make_mesh(self.spec)
        elif self.spec.tracing is None:
            spmd.refuse_later()
        if self.spec.tracing is not None and self.spec.tracing.world > 1:
            from tpu_magics.backends.torch_xla.trace.fake_world import enter

            enter(self.spec.tracing.world)
        if self.spec.meeting is not None:
            from tpu_magics.backends.torch_xla.rehearse.join import join

            join(self.spec, ordinal)
        world_size = max(xr.world_size(), self.spec.ranks)
        self.on_ready(ordinal, world_size, str(torch_xla.device()))


def _launched(function: Callable[[int, int], Any]) -> Callable[[int, int, int], Any]:
    """The function as accelerate's own launcher calls it, with the index first; does not import accelerate."""
    if "accelerate" not in sys.modules:
        return lambda _index, ordinal, replica: function(ordinal, replica)
    from accelerate.utils import PrepareForLaunch

    values: list[Any] = []
    prepared = PrepareForLaunch(lambda *args: values.append(function(*args)), distributed_type="XLA")

    def call(index: int, ordinal: int, replica: int) -> Any:
        prepared(index, ordinal, replica)  # PrepareForLaunch drops what the function returns
        return values[0]

    return call


def _start_one_chip(_local_rank: int, _local_world_size: int) -> None:
    """One worker on one chip. torch_xla's multi-process start multiplies the bounds variables, which on Colab are 2,2,1
    for a single chip ("Expected 4 worker addresses, got 1")."""
    from torch_xla._internal import pjrt

    pjrt.initialize_singleprocess()
