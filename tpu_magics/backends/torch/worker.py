"""What turns a forked process into a rank, the same for torch_xla and TorchTPU.

Everything runs in new threads: GNU OpenMP's thread pool does not survive a fork, and a new thread gets a new pool.
"""

from __future__ import annotations

import contextvars
import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from tpu_magics.errors import TpuMagicsError

# Read in torch 2.9.0 and 2.15.0: torch/csrc/autograd/engine.h, c10/core/impl/DeviceGuardImplInterface.h
_DEFAULT_ENGINE = "_ZN5torch8autograd6Engine18get_default_engineEv"
_START_DEVICE_THREADS = "_ZN5torch8autograd6Engine20start_device_threadsEv"
_GUARDS = "_ZN3c104impl26device_guard_impl_registryE"
_PRIVATE_USE_1 = 20  # c10::DeviceType

T = TypeVar("T")


def set_variables(changes: Mapping[str, str | None]) -> None:
    """Change the environment; None unsets."""
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


LOG_LEVEL, _WARNINGS, _ERRORS = "TF_CPP_MIN_LOG_LEVEL", "1", "2"


def only_errors() -> None:
    """XLA and torch_xla write errors only, unless the user chose a level: torch_xla sets it to warnings as it is
    imported. (Its partitioner warns at each compile for several devices that it will be replaced one day.)"""
    if os.environ.get(LOG_LEVEL, _WARNINGS) == _WARNINGS:
        os.environ[LOG_LEVEL] = _ERRORS


def in_new_thread(body: Callable[[], T]) -> T:
    """Call `body` in a new thread; what it raises is raised here."""
    outcome: dict[str, Any] = {}

    def run() -> None:
        try:
            outcome["value"] = body()
        except BaseException as error:
            outcome["error"] = error

    thread = threading.Thread(target=run, name="tpu_magics-rank")
    thread.start()
    thread.join()
    if "error" in outcome:
        raise outcome["error"]
    value: T = outcome["value"]
    return value


def thread_modes() -> Callable[..., Any]:
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


# -- autograd's threads -----------------------------------------------------------------------------------------------
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

    Without it, every backward on the device fails in a worker whose notebook ran a backward on the CPU.

    Raises:
        TpuMagicsError: torch does not have the internal functions that this needs (2.8, 2.9 and 2.15 have them).
    """
    library = _library("libtorch_cpu.so")
    try:
        engine = getattr(library, _DEFAULT_ENGINE)
        start = getattr(library, _START_DEVICE_THREADS)
    except AttributeError as missing:
        raise _unknown_torch(missing) from missing
    engine.restype = ctypes.c_void_p
    start.argtypes = [ctypes.c_void_p]
    start.restype = None
    start(engine())


@contextmanager
def hidden_device() -> Iterator[None]:
    """Within it, torch does not know the device of a PrivateUse1 backend (TorchTPU's): autograd's start would ask how
    many there are, and that starts the runtime.

    Raises:
        TpuMagicsError: torch does not have the internal table that this needs (torch 2.15 has it).
    """
    try:
        table = ctypes.addressof(ctypes.c_char.in_dll(_library("libc10.so"), _GUARDS))
    except ValueError as missing:
        raise _unknown_torch(missing) from missing
    guard = ctypes.c_void_p.from_address(table + _PRIVATE_USE_1 * ctypes.sizeof(ctypes.c_void_p))
    before, guard.value = guard.value, None
    try:
        yield
    finally:
        guard.value = before


def _library(name: str) -> ctypes.CDLL:
    import torch

    return ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))


def _unknown_torch(missing: Exception) -> TpuMagicsError:
    import torch

    return TpuMagicsError(
        "Autograd's device threads cannot be started in this worker.",
        f"torch {torch.__version__} has no {missing}. Without it, a backward() on the CPU in the notebook breaks every "
        "backward() on the device (pytorch/xla#4174).",
        "Use a version that was tested: pip install 'tpu-magics[torch]' (torch 2.9.0 with torch_xla 2.9.0), or "
        "'tpu-magics[torch-tpu]' (torch 2.15 with torch_tpu 0.2).",
    )
