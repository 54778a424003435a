"""The accelerator's runtime in this process: that of torch_xla or that of TorchTPU, which do not go into one process.

Imports no framework: without its import, no tensor is on its device.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol, cast

# Package of the framework -> the module in backends/ that has its `Runtime` as functions.
_MODULES = {
    "torch_tpu": "tpu_magics.backends.torch_tpu.runtime",
    "torch_xla": "tpu_magics.backends.torch_xla.runtime",
}
DEVICE_TYPES = ("xla", "tpu")


class Runtime(Protocol):
    """What differs between the frameworks. `device_type`: of their tensors ("xla", "tpu"); `random`: the key of the
    device's random state in checkpoints of transformers."""

    device_type: str
    random: str

    def running(self) -> bool:
        """Whether the runtime runs in this process. Never starts it."""

    def step(self) -> None:
        """The end of a step: run what was traced so far, where operations are traced."""

    def rank_device(self) -> Any:
        """The device of this rank. The runtime is running."""

    def ranks(self) -> tuple[int, int]:
        """How many ranks train, and which of them this is."""

    def average(self, gradients: list[Any]) -> None:
        """Average tensors of the device over all ranks, in place."""

    def broadcast(self, value: Any, rank: int) -> Any:
        """The value that `rank` has: anything that can be pickled."""

    def settle(self) -> None:
        """Run pending operations on this rank's device and wait for them. The runtime is running."""

    def fetch(self, batch: list[Any]) -> list[Any]:
        """Tensors of the device on the CPU, in one go."""

    def send(self, tensor: Any) -> Any:
        """A tensor of the CPU on this rank's device, in memory of its own."""

    def get_seed(self) -> int:
        """The state of the random numbers of this thread's device."""

    def set_seed(self, seed: int) -> None:
        """Set the random numbers of this thread's device."""


def current() -> Runtime | None:
    """The runtime of the framework that this process has imported; None without one."""
    name = next((module for package, module in _MODULES.items() if package in sys.modules), None)
    return None if name is None else cast(Runtime, import_module(name))


def running() -> bool:
    """Whether an accelerator's runtime is running in this process. Imports nothing that is not there."""
    runtime = current()
    return runtime is not None and runtime.running()


def running_seed() -> int | None:
    """In a worker: the state of the random numbers of this thread's device; None if its runtime is not running."""
    runtime = current()
    return runtime.get_seed() if runtime is not None and runtime.running() else None


def on_device(tensor: Any) -> bool:
    """Whether the values of `tensor` are on an accelerator of these frameworks."""
    return tensor.device.type in DEVICE_TYPES


def settle() -> None:
    """Run pending operations on this rank's device and wait for them. Does nothing if the runtime was never used.

    Every rank must do this before rank 0 fetches: a pending step may contain a collective, which waits for all ranks.
    Call it on the thread that the rank's function ran on (torch_xla's default device belongs to the thread).
    """
    runtime = current()
    if runtime is not None and runtime.running():
        runtime.settle()


def fetch(batch: Sequence[Any]) -> list[Any]:
    """Tensors, which are all on the device or all not, on the CPU."""
    runtime = current()
    if runtime is None or not on_device(batch[0]):
        return [tensor.cpu() for tensor in batch]
    return runtime.fetch(list(batch))
