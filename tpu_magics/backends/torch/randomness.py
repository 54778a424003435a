"""Random states and modes of a process, and seeding without starting the XLA runtime.

Imports no framework, only looks in `sys.modules`.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from tpu_magics.backends.torch import lightning, runtime
from tpu_magics.backends.torch.cpu_only import (
    choose_cpu,
    hide_xla,
    patch_training_arguments,
    remember_accelerators,
    set_up_before_trainer,
)
from tpu_magics.backends.torch.post_import import PostImport

# Functions that seed, as (module, name): torch 2.9.0, torch_xla 2.9.0, accelerate 1.15.0, transformers 5.23.0.
DEVICE_SEEDS = (
    ("torch.cuda", "manual_seed"),
    ("torch.cuda", "manual_seed_all"),
    ("torch_xla", "manual_seed"),
    ("torch_xla.core.xla_model", "set_rng_state"),
)
SEEDS = (
    ("random", "seed"),
    ("numpy.random", "seed"),
    ("torch", "manual_seed"),
    ("accelerate.utils.random", "set_seed"),
    ("transformers.trainer_utils", "set_seed"),
    ("transformers", "set_seed"),
    ("lightning", "seed_everything"),
    ("lightning.fabric", "seed_everything"),
    ("lightning_fabric", "seed_everything"),
    ("pytorch_lightning", "seed_everything"),
)
XLA_MODEL = "torch_xla.core.xla_model"
# Functions through which everything else seeds the device: (module, name), torch_xla 2.9.0 and torch_tpu 0.2.0.
_TPU_SEEDS = "torch_tpu._internal.device._device_ops_backend"
DEFERRED = ((XLA_MODEL, "set_rng_state"), (_TPU_SEEDS, "manual_seed"), (_TPU_SEEDS, "manual_seed_all"))

# Patches that keep accelerate and transformers from starting the runtime in the notebook: module -> patch.
Change = Callable[[Any, Callable[[], bool]], "Callable[[], None] | str"]
QUIETED: tuple[tuple[str, Change], ...] = (
    ("accelerate.utils.imports", hide_xla),
    ("accelerate.state", choose_cpu),
    ("accelerate.accelerator", remember_accelerators),
    ("transformers.utils.import_utils", hide_xla),
    ("transformers.training_args", patch_training_arguments),
    ("transformers.trainer", set_up_before_trainer),
    *((f"{package}.{lightning.CONNECTOR}", lightning.choose_device) for package in lightning.PACKAGES),
)


# -- states ---------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class RandomState:
    """Random states of one process. `numpy` and `torch` are None if the package was not imported; after `drawn`,
    generators that a build did not use are None.

    `modes`: what affects a build besides random numbers, each as text: default dtype, default device, grad mode, and
    whether something replaced the way in which modules register their parameters.
    """

    python: Any
    numpy: Any
    torch: Any
    modes: tuple[str, ...]


def random_state() -> RandomState:
    """The random states and modes of this thread's process."""
    numpy, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    return RandomState(
        python=random.getstate(),
        numpy=numpy.get_state() if numpy is not None else None,
        torch=torch.get_rng_state() if torch is not None else None,
        modes=_modes(torch) if torch is not None else (),
    )


def set_random_state(state: RandomState) -> None:
    """Restore the random states (not the modes) that `random_state` returned."""
    if state.python is not None:
        random.setstate(state.python)
    if state.numpy is not None:
        sys.modules["numpy.random"].set_state(state.numpy)
    if state.torch is not None:
        sys.modules["torch"].set_rng_state(state.torch)


def same_modes(left: RandomState, right: RandomState) -> bool:
    """Whether default dtype, default device, grad mode and the registration of parameters are the same."""
    return left.modes == right.modes


def same_numbers(left: RandomState, right: RandomState) -> bool:
    """Whether the next random numbers of all generators would be the same."""
    return not _different(left, right)


def drawn(before: RandomState, after: RandomState) -> tuple[RandomState, RandomState] | None:
    """Both states with only those generators that differ, which a build in between used; None if there are none.

    Python reseeds `random` in each forked process: there, the state of an unused generator says nothing.
    """
    names = _different(before, after)
    if not names:
        return None
    others: dict[str, Any] = {name: None for name in GENERATORS if name not in names}
    return replace(before, **others), replace(after, **others)


def same_drawn(before: RandomState, now: RandomState) -> bool:
    """Whether the generators in `before`, as returned by `drawn`, have the same state now."""
    names = [name for name in GENERATORS if getattr(before, name) is not None]
    return not set(names) & set(_different(before, now))


def _different(left: RandomState, right: RandomState) -> list[str]:
    return [name for name, same in GENERATORS.items() if not same(getattr(left, name), getattr(right, name))]


def _same_python(left: Any, right: Any) -> bool:
    return bool(left == right)


def _same_numpy(left: Any, right: Any) -> bool:
    if left is None or right is None:
        return left is right
    return all(bool((a == b).all()) if hasattr(a, "all") else a == b for a, b in zip(left, right, strict=True))


def _same_torch(left: Any, right: Any) -> bool:
    if left is None or right is None:
        return left is right
    return left.shape == right.shape and bool((left == right).all())


GENERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "python": _same_python,
    "numpy": _same_numpy,
    "torch": _same_torch,
}


def _modes(torch: Any) -> tuple[str, ...]:
    register = torch.nn.Module.register_parameter  # accelerate's init_empty_weights replaces it
    return (
        f"default dtype {torch.get_default_dtype()}",
        f"default device {_default_device(torch)}",
        f"gradients {torch.is_grad_enabled()}, inference mode {torch.is_inference_mode_enabled()}",
        f"parameters registered by {register.__module__}.{register.__qualname__}",
    )


def _default_device(torch: Any) -> str:
    """The default device, read without `torch.get_default_device`: that creates a tensor on it, which on XLA would
    start the runtime. The stack of modes is private (torch 2.9.0, torch/overrides.py)."""
    modes = torch.overrides._get_current_function_mode_stack()
    devices = [str(mode.device) for mode in modes if isinstance(getattr(mode, "device", None), torch.device)]
    return devices[-1] if devices else "cpu"


# -- seeding --------------------------------------------------------------------------------------------------------
def is_seed_call(function: object) -> bool:
    """Whether `function` is a library's seeding function, for the host or a device."""
    return _is_one_of(function, SEEDS + DEVICE_SEEDS)


def seeds_device_only(function: object) -> bool:
    """Whether `function` seeds an accelerator, but not Python, NumPy and torch."""
    return _is_one_of(function, DEVICE_SEEDS)


def _is_one_of(function: object, known: tuple[tuple[str, str], ...]) -> bool:
    for module, name in known:
        # vars(), since getattr on transformers' lazy module would import
        found = vars(sys.modules[module]).get(name) if module in sys.modules else None
        if found is not None and (function is found or function is getattr(found, "__wrapped__", found)):
            return True
    return False


@contextmanager
def seeds_without_runtime() -> Iterator[None]:
    """Within it, seeding calls seed Python, NumPy and torch, but not the accelerator; flags they set are restored."""
    torch = sys.modules.get("torch")
    there = [(sys.modules[module], name) for module, name in DEFERRED if module in sys.modules]
    found = [(module, name, getattr(module, name)) for module, name in there if hasattr(module, name)]
    restore = _deterministic_flags(torch) if torch is not None else lambda: None
    for module, name, _ in found:
        setattr(module, name, _seed_nothing)
    try:
        yield
    finally:
        for module, name, original in found:
            setattr(module, name, original)
        restore()


def _seed_nothing(seed: int, device: str | None = None) -> None:
    pass


def _deterministic_flags(torch: Any) -> Callable[[], None]:
    """How to restore the flags that `set_seed(deterministic=True)` sets."""
    enabled = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    cudnn = torch.backends.cudnn
    deterministic, benchmark = cudnn.deterministic, cudnn.benchmark

    def restore() -> None:
        torch.use_deterministic_algorithms(enabled, warn_only=warn_only)
        cudnn.deterministic, cudnn.benchmark = deterministic, benchmark

    return restore


# -- the notebook's process -----------------------------------------------------------------------------------------
@dataclass
class _SeedGuard:
    """What `defer_seeds` has changed in this process. `seed`: what the notebook set for the device; `ended`: where the
    last run's device ended, until the notebook seeds again."""

    pid: int
    seed: int | None = None
    ended: int | None = None
    problems: list[str] = field(default_factory=list)
    undo: list[Callable[[], None]] = field(default_factory=list)
    hook: PostImport | None = None


_quiet: list[_SeedGuard] = []


def defer_seeds() -> None:
    """Keep `set_seed`, Trainers and Accelerators from starting the XLA runtime in this process (idempotent).

    Works for modules that are imported already and for later ones. Forked workers are not affected: there the originals
    run. `deferral_problems` returns what could not be done.
    """
    if _quiet and _quiet[0].pid == os.getpid():
        return
    undo_deferred_seeds()
    state = _SeedGuard(pid=os.getpid())
    _quiet.append(state)

    def in_notebook() -> bool:
        return os.getpid() == state.pid and not runtime.running()

    state.hook = hook = PostImport()
    state.undo.append(hook.remove)
    for module in dict(DEFERRED):
        hook.when_imported(module, lambda module: _defer_seeding(module, state, in_notebook))
    hook.when_imported("torch.random", lambda module: _keep(state, _reset_with_torch(module, state)))
    for name, change in QUIETED:
        hook.when_imported(name, _changing(change, state, in_notebook))


def look_again() -> None:
    """After `defer_seeds`, when torch_tpu was imported: its own finder imports the module that seeds."""
    if _quiet and _quiet[0].hook is not None:
        _quiet[0].hook.look_again()


def undo_deferred_seeds() -> None:
    """Restore the originals."""
    while _quiet:
        for undo in reversed(_quiet.pop().undo):
            undo()


def deferral_problems() -> list[str]:
    """What `defer_seeds` could not change, and why; one sentence each."""
    return list(_quiet[0].problems) if _quiet else []


def recorded_seed() -> int | None:
    """The device's seed with which a worker starts: where the last run ended, else the last one that the notebook set
    for the device since `defer_seeds`; None if there was none."""
    if not _quiet:
        return None
    return _quiet[0].seed if _quiet[0].ended is None else _quiet[0].ended


def adopt_seed(seed: int | None) -> None:
    """After `defer_seeds`: the seed that workers start with, as set in a notebook on another host, or where the
    previous run ended."""
    if _quiet:
        _quiet[0].ended = seed


def replay_seed() -> None:
    """In a worker, on each device's thread: set the device's seed that the notebook set before the fork."""
    seed, device = recorded_seed(), runtime.current()
    if seed is not None and device is not None:
        device.set_seed(seed)


def _defer_seeding(module: Any, state: _SeedGuard, in_notebook: Callable[[], bool]) -> None:
    """Defer all functions with which a module of DEFERRED seeds."""
    for owner, name in DEFERRED:
        if owner == module.__name__:
            _defer(module, name, state, in_notebook)


def _defer(module: Any, name: str, state: _SeedGuard, in_notebook: Callable[[], bool]) -> None:
    original = getattr(module, name, None)
    if original is None:
        state.problems.append(
            f"This version of {module.__name__.partition('.')[0]} has no {module.__name__}.{name}, so setting a seed "
            "may start the accelerator's runtime in the notebook. Set the seed inside the training function."
        )
        return

    def seeding(seed: int, *device: Any, **kwargs: Any) -> None:
        if not any((*device, *kwargs.values())) and in_notebook():
            state.seed, state.ended = int(seed), None
        else:
            original(seed, *device, **kwargs)

    seeding.__wrapped__ = original  # type: ignore[attr-defined]
    setattr(module, name, seeding)
    state.undo.append(lambda: setattr(module, name, original))


def _reset_with_torch(module: Any, state: _SeedGuard) -> Callable[[], None] | str:
    """torch.manual_seed, which does not seed an XLA device, begins the device's random numbers again where they began
    before the last run. (Of `module`, torch.random of torch 2.9 and 2.15: what seeds other devices, so that a
    `manual_seed` that the notebook has imported counts too.)"""
    original = getattr(module, _SEED_OTHERS, None)
    if original is None:
        return "In this version of torch, torch.manual_seed does not begin the device's random numbers again."

    def seeding(seed: int) -> None:
        if os.getpid() == state.pid:
            state.ended = None
        original(seed)

    setattr(module, _SEED_OTHERS, seeding)
    return lambda: setattr(module, _SEED_OTHERS, original)


_SEED_OTHERS = "_seed_custom_device"


def _changing(change: Change, state: _SeedGuard, in_notebook: Callable[[], bool]) -> Callable[[Any], None]:
    return lambda module: _keep(state, change(module, in_notebook))


def _keep(state: _SeedGuard, outcome: Callable[[], None] | str) -> None:
    if isinstance(outcome, str):
        state.problems.append(outcome)
    else:
        state.undo.append(outcome)


# -- for a process that is not a fork ---------------------------------------------------------------------------------
@dataclass(frozen=True)
class ProcessState:
    """What a forked worker inherits besides objects: random states, the XLA seed, torch's default dtype and device, and
    grad mode."""

    random: RandomState
    seed: int | None
    dtype: str
    device: str
    gradients: bool


def process_state() -> ProcessState:
    import torch

    dtype = str(torch.get_default_dtype()).removeprefix("torch.")
    device = _default_device(torch)
    return ProcessState(random_state(), recorded_seed(), dtype, device, bool(torch.is_grad_enabled()))


def set_process_state(state: ProcessState) -> None:
    """In another process's main thread, from which workers are then forked; after `defer_seeds`."""
    import numpy.random  # noqa: F401 - its state may be among those that are set
    import torch

    adopt_seed(state.seed)
    torch.set_default_dtype(getattr(torch, state.dtype))
    torch.set_grad_enabled(state.gradients)
    if state.device != "cpu":
        torch.set_default_device(state.device)
    set_random_state(state.random)
