"""The process state that a forked worker inherits besides objects, for a process that is not a fork."""

from __future__ import annotations

from dataclasses import dataclass

from tpu_magics.backends.torch_xla import randomness
from tpu_magics.backends.torch_xla.randomness import RandomState


@dataclass(frozen=True)
class ProcessState:
    """Random states, the XLA seed, torch's default dtype and device, and grad mode."""

    random: RandomState
    seed: int | None
    dtype: str
    device: str
    gradients: bool


def process_state() -> ProcessState:
    import torch

    dtype = str(torch.get_default_dtype()).removeprefix("torch.")
    device = randomness._default_device(torch)
    return ProcessState(
        randomness.random_state(), randomness.recorded_seed(), dtype, device, bool(torch.is_grad_enabled())
    )


def set_process_state(state: ProcessState) -> None:
    """In another process's main thread, from which workers are then forked."""
    import numpy.random  # noqa: F401 - its state may be among those that are set
    import torch

    randomness.defer_seeds()
    randomness.adopt_seed(state.seed)
    torch.set_default_dtype(getattr(torch, state.dtype))
    torch.set_grad_enabled(state.gradients)
    if state.device != "cpu":
        torch.set_default_device(state.device)
    randomness.set_random_state(state.random)
