"""What must be so before anything forks.

What lives here: one small check for each thing that would break a forked worker, and the memory of which cell did it.
What does not: the facts themselves (host/, backends/), and failures of workers (diagnose.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tpu_magics.backends.base import Backend
from tpu_magics.errors import TpuMagicsError
from tpu_magics.host import Host
from tpu_magics.host.problem import HOLDER


class ForkBlockers:
    """Which cell brought the process into a state that forbids a fork. Asked after every cell; cheap, imports
    nothing."""

    def __init__(self) -> None:
        self.cells: dict[str, str] = {}

    def record(self, backend: Backend, cell: str) -> None:
        """Note `cell` for every state that is there now and was not before."""
        for state in _states(backend):
            self.cells.setdefault(state, cell)

    def cell_of(self, state: str) -> str:
        """The cell in words."""
        return self.cells.get(state, "code that ran before tpu_magics was loaded")


def _states(backend: Backend) -> list[str]:
    runtime = ["runtime"] if backend.runtime_initialized() else []
    return [*runtime, *backend.other_states()]


@dataclass(frozen=True)
class LaunchContext:
    """What the guards look at. `items`: what the function can reach; `models`: the models among it; `source`: the text
    of the function or cell ("" where it is not at hand)."""

    backend: Backend
    host: Host
    fork_blockers: ForkBlockers
    items: Sequence[tuple[str, Any]] = ()
    models: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""


def require_rehearsal(backend: Backend, ranks: int) -> None:
    """Raise TpuMagicsError where several ranks cannot be rehearsed."""
    problem = backend.rehearsal_problem()
    if problem:
        raise TpuMagicsError(
            f"{ranks} ranks cannot be rehearsed on this machine.",
            problem,
            "Install PyTorch's own build for Linux (pip install torch==2.9.0), or train with -n 1.",
        )


def check(situation: LaunchContext) -> None:
    """Raise TpuMagicsError for the first thing that would break the workers."""
    for guard in GUARDS:
        guard(situation)


RESTART = "Restart the kernel (the runtime cannot be stopped otherwise), "


def runtime_is_down(s: LaunchContext) -> None:
    if s.backend.runtime_initialized():
        raise TpuMagicsError(
            f"The XLA runtime is already initialised in this notebook, by {s.fork_blockers.cell_of('runtime')}.",
            "A forked worker cannot use a runtime that its parent has started; torch_xla would stop with "
            '"Runtime is already initialized".',
            RESTART + "take the use of the XLA device out of that cell (torch_xla.device(), tensor.to('xla'), "
            "xr.world_size(), ...), and do it inside the training function.",
        )


def no_accelerator(s: LaunchContext) -> None:
    if "accelerator" in s.backend.other_states():
        holder = s.backend.device_holder()
        raise TpuMagicsError(
            f"{holder} was built in this notebook, by {s.fork_blockers.cell_of('accelerator')}.",
            "It has started the accelerator's runtime, which a forked worker cannot use.",
            RESTART + "and run %tpu_init before that cell: then it is built on the CPU, and each worker builds it "
            "again on its own device. Or build it inside the training function.",
        )


def no_cuda(s: LaunchContext) -> None:
    if "cuda" in s.backend.other_states():
        raise TpuMagicsError(
            f"CUDA was initialised in this notebook, by {s.fork_blockers.cell_of('cuda')}.",
            "CUDA does not survive a fork.",
            RESTART + "and keep GPU work out of the notebook's own cells.",
        )


def tpu_is_free(s: LaunchContext) -> None:
    """Looks anew: another notebook may have taken the TPU since %tpu_init."""
    if s.host.device != "TPU":
        return
    taken = [problem for problem in s.host.problems if problem.about == HOLDER and problem.state == "broken"]
    if taken:
        raise TpuMagicsError(taken[0].what, taken[0].why, taken[0].todo)


def models_on_cpu(s: LaunchContext) -> None:
    for name, model in s.models.items():
        device = s.backend.model_device(model)
        if device not in ("cpu", "meta"):
            raise TpuMagicsError(
                f"The model `{name}` is on the device {device!r} already.",
                "Workers inherit models in host memory and move them to their own devices.",
                f"Leave `{name}` on the CPU in the notebook, and move it inside the training function "
                "(model.to(torch_xla.device()), or accelerator.prepare).",
            )


GUARDS: tuple[Callable[[LaunchContext], None], ...] = (
    no_accelerator,  # before the runtime, which it starts: its own words help more
    runtime_is_down,
    no_cuda,
    tpu_is_free,
    models_on_cpu,
)


# -- the function -----------------------------------------------------------------------------------------------------


def check_function(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], index_first: bool) -> dict[str, Any]:
    """Check that `function` can be trained with these arguments; returns them by parameter, defaults applied."""
    name = getattr(function, "__name__", repr(function))
    if not callable(function):
        raise TpuMagicsError(
            f"`{name}` is not a function.",
            f"It is of type {type(function).__name__}.",
            "Name a function that takes the model (or nothing) and trains it.",
        )
    _refuse_kinds(function, name)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return {str(i): arg for i, arg in enumerate(args)} | dict(kwargs)
    try:
        bound = signature.bind(*((0,) if index_first else ()), *args, **kwargs)
    except TypeError as problem:
        given = f"{len(args)} positional" + (f" and {', '.join(kwargs)}" if kwargs else "")
        raise TpuMagicsError(
            f"{name}{signature} does not take these arguments: {problem}.",
            f"Given: {given}" + (", after the process index" if index_first else "") + ".",
            f"Write one ARG for each parameter behind the magic: %%tpu_train {' '.join(_needed(signature))}".rstrip(),
        ) from None
    bound.apply_defaults()
    return dict(bound.arguments)


def _needed(signature: inspect.Signature) -> list[str]:
    return [p.name for p in signature.parameters.values() if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]


def _refuse_kinds(function: Any, name: str) -> None:
    inner = inspect.unwrap(function)
    kinds = (
        (inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner), "an async function"),
        (inspect.isgeneratorfunction(inner), "a generator function (it contains yield)"),
    )
    for found, kind in kinds:
        if found:
            raise TpuMagicsError(
                f"`{name}` is {kind}, and cannot be trained.",
                "Calling it runs nothing of its body.",
                "Make it a plain function that trains and returns.",
            )
