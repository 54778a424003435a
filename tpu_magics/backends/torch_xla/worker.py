"""Turns a forked process into a torch_xla rank: starts the runtime and calls the user's function on each device.

Everything runs in new threads: GNU OpenMP's thread pool does not survive a fork, and a new thread gets a new pool.
"""

from __future__ import annotations

import contextvars
import ctypes
import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tpu_magics.backends.base import WorkerSpec
from tpu_magics.backends.torch import rebuild
from tpu_magics.backends.torch.precision_request import variables
from tpu_magics.backends.torch_xla import observe, spmd
from tpu_magics.errors import TpuMagicsError

# Read in torch 2.9.0: torch/csrc/autograd/engine.h
_DEFAULT_ENGINE = "_ZN5torch8autograd6Engine18get_default_engineEv"
_START_DEVICE_THREADS = "_ZN5torch8autograd6Engine20start_device_threadsEv"


def apply_environment(spec: WorkerSpec) -> None:
    """Set the worker's environment, before the runtime reads it. Precision must be set before the first XLA tensor.

    Without LOCAL_RANK, accelerate (1.15) uses local rank -1 if XLA has no TPU, and no rank prints.
    """
    changes: dict[str, str | None] = {
        "PJRT_DEVICE": spec.device,
        "FORK_LAUNCHED": "1",  # what accelerate's PrepareForLaunch sets
        **({"LOCAL_RANK": str(spec.index)} if spec.device == "CPU" else {}),
        **spec.environment,
    }
    found = {**os.environ, **{name: value or "" for name, value in changes.items()}}
    changes.update(variables(spec.precision, found))
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


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
    outcome: dict[str, Any] = {}
    enter = _thread_modes()
    rebuild.remember_state()

    def body() -> None:
        try:
            outcome["values"] = _on_each_device(spec, on_ready, function, enter)
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=body, name="tpu_magics-rank")
    thread.start()
    thread.join()
    if "error" in outcome:
        raise outcome["error"]
    values: Mapping[int, Any] = outcome["values"]
    return values


def _use_cache(spec: WorkerSpec) -> None:
    """Use the persistent compile cache. On XLA:CPU every load fails (torch_xla 2.9: counter
    PersistentCacheDeserializeFailure), so there it stays off."""
    if spec.cache and spec.device != "CPU":
        import torch_xla.runtime as xr

        xr.initialize_cache(spec.cache)


def _on_each_device(
    spec: WorkerSpec,
    on_ready: Callable[[int, int, str], None],
    function: Callable[[int, int], Any],
    enter: Callable[..., Any],
) -> Mapping[int, Any]:
    # torch_xla 2.9: _run_thread_per_device is what xmp.spawn runs in each of its processes.
    import torch_xla
    from torch_xla._internal import pjrt

    from tpu_magics.backends.torch import randomness

    use_up_autograds_start()
    first = _FirstDevice(spec, on_ready)

    def on_device() -> tuple[int, Any]:
        replica = torch_xla.device().index or 0
        ordinal = _ordinal(spec, replica)
        if not first.prepared(ordinal, replica) or replica >= spec.replicas:
            return ordinal, None
        randomness.replay_seed()
        return ordinal, enter(_launched(function), ordinal, ordinal, replica)

    by_device = pjrt._run_thread_per_device(spec.index, spec.count, on_device, _start(spec))
    return dict(by_device.values())


def _start(spec: WorkerSpec) -> Callable[[int, int], None]:
    """How the runtime starts: on all chips for SPMD, on one chip for a single worker of several, otherwise as
    torch_xla's launcher does."""
    from torch_xla._internal import pjrt

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
        optimizers.arrange()
        library_fixes.hide_torchax()
        library_fixes.skip_jax()
        library_fixes.fix_checkpointing()
        if self.spec.device == "CPU":
            library_fixes.fix_autocast()
        start_autograd_threads()
        rebuild.adopt_state()
        if self.spec.spmd is not None:
            spmd.make_mesh(self.spec)
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


def _thread_modes() -> Callable[..., Any]:
    """A function that calls another function with the modes of the notebook's main thread (torch's grad mode and
    default device, context variables)."""
    import torch

    grad = torch.is_grad_enabled()
    device = torch.get_default_device()
    context = contextvars.copy_context()

    def enter(function: Callable[..., Any], *args: Any) -> Any:
        torch.set_grad_enabled(grad)
        if device.type != "cpu":
            torch.set_default_device(device)
        return context.copy().run(function, *args)

    return enter


def use_up_autograds_start() -> None:
    """A small backward on the CPU, before the runtime starts.

    Autograd starts its device threads once, at a process's first backward, for the devices known then (none, here). So
    the state is the same whether the notebook ran a backward or not: the threads are not started, and will not start by
    themselves. Starting them twice would not work either: autograd then waits until exactly one thread for each device
    has come up, which may never happen with two of them.
    """
    import torch

    # After torch.set_num_threads() in the notebook, the first thread that calls this recreates a forked process's
    # pool; two at once abort ("Invalid thread pool!", torch 2.9.0), and autograd's threads call it as they start.
    torch.get_num_threads()
    torch.ones(1, requires_grad=True).sum().backward()


def start_autograd_threads() -> None:
    """Start autograd's device threads for the devices known now (pytorch/xla#4174), after `use_up_autograds_start`.

    Without it, every XLA backward fails in a worker whose notebook ran a backward on the CPU.

    Raises:
        TpuMagicsError: torch does not have the internal functions that this needs (torch 2.8 and 2.9 have them).
    """
    import torch

    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    try:
        engine = getattr(library, _DEFAULT_ENGINE)
        start = getattr(library, _START_DEVICE_THREADS)
    except AttributeError as missing:
        raise TpuMagicsError(
            "Autograd's device threads cannot be started in this worker.",
            f"torch {torch.__version__} has no {missing}. Without it, a backward() on the CPU in the notebook breaks "
            "every backward() on an XLA device (pytorch/xla#4174).",
            "Use torch 2.9.0 with torch_xla 2.9.0: pip install 'tpu-magics[torch]'",
        ) from missing
    engine.restype = ctypes.c_void_p
    start.argtypes = [ctypes.c_void_p]
    start.restype = None
    start(engine())
