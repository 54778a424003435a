"""Checks before a run: what would break a forked worker, and options that a framework does not support."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

from tpu_magics.backends.protocols import Backend
from tpu_magics.errors import IN_USE, TpuMagicsError
from tpu_magics.host import Host
from tpu_magics.launch.options import NO_SPMD, Options
from tpu_magics.launch.runtime_start import RuntimeStart, find_start


class ForkBlockers:
    """Which cell brought the process into a state that forbids a fork. Recorded after every cell; imports nothing."""

    def __init__(self) -> None:
        self.cells: dict[str, str] = {}
        self.start = RuntimeStart(_EARLIER)

    def record(self, backend: Backend, cell: str, source: str = "", names: Mapping[str, Any] | None = None) -> None:
        """Note `cell` for every state that is new. `source`: its Python code; `names`: the notebook's."""
        runtime = ["runtime"] if backend.runtime_initialized() else []
        if runtime and "runtime" not in self.cells:
            self.start = find_start(cell, source, names or {}, backend)
        for state in (*runtime, *backend.other_states()):
            self.cells.setdefault(state, cell)

    def cell_of(self, state: str) -> str:
        """The cell as text."""
        return self.cells.get(state, _EARLIER)


_EARLIER = "code that ran before tpu_magics was loaded, or by this cell"


@dataclass(frozen=True)
class LaunchContext:
    """What the checks need. `models`: that the function can reach; `forks`: the workers are forks of the notebook's
    process."""

    backend: Backend
    host: Host
    fork_blockers: ForkBlockers
    models: Mapping[str, Any] = field(default_factory=dict)
    forks: bool = True


def require_rehearsal(backend: Backend, ranks: int) -> None:
    """Raise TpuMagicsError if several ranks cannot be rehearsed."""
    problem = backend.rehearsal_problem()
    if problem:
        version = metadata.version("torch").partition("+")[0]
        raise TpuMagicsError(
            f"{ranks} ranks cannot be rehearsed on this machine.",
            problem,
            f"Install PyTorch's own build for Linux (pip install torch=={version}), or train with -n 1.",
        )


def check(situation: LaunchContext) -> None:
    """Raise TpuMagicsError for the first problem that would break the workers."""
    for guard in GUARDS:
        guard(situation)


RESTART = "Restart the kernel (nothing else stops the runtime), "


def runtime_is_down(s: LaunchContext) -> None:
    if s.forks and s.backend.runtime_initialized():
        start = s.fork_blockers.start
        raise TpuMagicsError(
            f"The {s.backend.runtime} is already initialized in this notebook, by {start}.",
            f"A forked worker cannot use a runtime that its parent has started{s.backend.fork_error}.",
            RESTART + start.advice(s.backend.starts_it),
        )


def no_accelerator(s: LaunchContext) -> None:
    if "accelerator" in s.backend.other_states():
        holder = s.backend.device_holder()
        cells = s.fork_blockers.cells
        if cells.get("runtime", cells.get("accelerator")) != cells.get("accelerator"):  # it found the runtime running
            raise TpuMagicsError(
                f"{holder} was created in this notebook, by {cells.get('accelerator')}.",
                f"It is on the device: the runtime ran already, started by {s.fork_blockers.start}. "
                "A worker cannot use this object.",
                f"{RESTART}{s.fork_blockers.start.advice(s.backend.starts_it)}",
            )
        raise TpuMagicsError(
            f"{holder} was created in this notebook, by {s.fork_blockers.cell_of('accelerator')}.",
            "It started the accelerator's runtime, which a forked worker cannot use.",
            RESTART
            + "and run %tpu_init before that cell: it is then created on the CPU, and again by each worker on its "
            "own device. Or create it inside the training function.",
        )


def no_cuda(s: LaunchContext) -> None:
    if "cuda" in s.backend.other_states():
        raise TpuMagicsError(
            f"CUDA was initialized in this notebook, by {s.fork_blockers.cell_of('cuda')}.",
            "CUDA does not work in a forked process.",
            RESTART + "and do not use the GPU in other cells of the notebook.",
        )


def tpu_is_free(s: LaunchContext) -> None:
    """Check again: another notebook may use the TPU since %tpu_init."""
    if s.host.device != "TPU":
        return
    problems = [problem for problem in s.host.problems if problem.about == IN_USE and problem.state == "broken"]
    if problems:
        raise TpuMagicsError(problems[0].what, problems[0].why, problems[0].todo)


def models_on_cpu(s: LaunchContext) -> None:
    for name, model in s.models.items():
        device = s.backend.models.model_device(model)
        if device not in ("cpu", "meta"):
            raise TpuMagicsError(
                f"The model `{name}` is already on the device {device!r}.",
                "Workers inherit models in host memory and move them to their own devices.",
                f"Keep `{name}` on the CPU in the notebook, and move it inside the training function "
                f"(model.to({s.backend.device}), or accelerator.prepare).",
            )


GUARDS: tuple[Callable[[LaunchContext], None], ...] = (
    no_accelerator,  # before the runtime, which it starts: its message helps more
    runtime_is_down,
    no_cuda,
    tpu_is_free,
    models_on_cpu,
)


# -- runs in the notebook's own process --------------------------------------------------------------------------------


_HERE = "TensorFlow does not work in a forked process, so a TensorFlow cell trains in the notebook's process"
_STRATEGY = "the strategy of %tpu_init uses all devices"

Refusal = tuple[bool, str, str, str]


def refuse_forked_options(options: Options, launcher: str = "") -> None:
    """Raise TpuMagicsError for options that only forked workers support. `launcher`: the launcher that the cell
    calls."""
    for refused, what, why, todo in _refusals(options, launcher):
        if refused:
            raise TpuMagicsError(what, why, todo)


def _refusals(options: Options, launcher: str) -> Iterator[Refusal]:
    yield (
        bool(launcher),
        f"{launcher}(...) cannot train with TensorFlow.",
        f"It starts PyTorch workers. {_HERE}, where {_STRATEGY}.",
        "Remove the launcher call: end the cell with the training function, or with model.fit(...). If the function "
        "uses PyTorch, run %tpu_init --framework torch.",
    )
    yield (
        options.processes is not None,
        f"-n {options.processes} is not supported for TensorFlow.",
        f"{_HERE}, where {_STRATEGY}; there are no ranks.",
        "Omit -n.",
    )
    yield (
        options.spmd not in (None, NO_SPMD),
        "--spmd is not supported for TensorFlow.",
        f"It makes PyTorch/XLA drive several devices from one process; for TensorFlow {_STRATEGY}.",
        "Omit --spmd: model.fit and strategy.run split each batch over the replicas.",
    )
    yield (
        options.background,
        "--background is not supported for TensorFlow.",
        f"{_HERE}, which the next cell needs too.",
        "Omit --background; an interrupt (the stop button, or I, I) ends the run and restores the models.",
    )
    yield (
        options.hoist != "auto",
        f"--hoist {options.hoist} has no effect for TensorFlow.",
        f"Hoisting avoids that each forked worker builds the model. {_HERE}, where a model is built once.",
        "Omit --hoist.",
    )
    yield (
        options.collective_timeout is not None,
        "--collective-timeout has no effect for TensorFlow.",
        "It is for ranks rehearsed on XLA:CPU; TensorFlow's strategy has its own collectives.",
        "Omit --collective-timeout; --timeout S stops the run after S seconds.",
    )
    yield (
        options.precision == "bf16-downcast",
        "--precision bf16-downcast is not supported for TensorFlow.",
        "It is a PyTorch/XLA setting for double and float.",
        "Use --precision bf16: layers compute in bfloat16 and keep float32 variables (mixed_bfloat16).",
    )


def refuse_cache(cache: str | None) -> None:
    """Raise TpuMagicsError for the persistent compile cache of torch_xla."""
    if cache not in (None, "off"):
        raise TpuMagicsError(
            f"--cache {cache} is not supported for TensorFlow.",
            "It stores programs compiled by PyTorch/XLA.",
            "Omit --cache.",
        )


def refuse_tpu_branch(option: str) -> None:
    """Raise TpuMagicsError for --tpu-branch or --as ("": neither) with TensorFlow."""
    if option:
        raise TpuMagicsError(
            f"{option} is not supported for TensorFlow.",
            "It is about PyTorch/XLA, accelerate, transformers and Lightning, which ask whether there is a TPU.",
            f"Omit {option}, or train with PyTorch: %tpu_init --framework torch {option}.",
        )


def refuse_other_ranks(name: str, ranks: int, options: Options, tpu_branch: bool | None) -> None:
    """Raise TpuMagicsError for options that contradict `--as name`, a TPU with so many ranks."""
    other = [
        *([f"-n {options.processes}"] if options.processes not in (None, ranks) else []),
        *([f"--spmd {options.spmd}"] if options.spmd not in (None, ranks) else []),
        *(["--no-tpu-branch"] if tpu_branch is False else []),
    ]
    if other:
        raise TpuMagicsError(
            f"--as {name} is not supported together with {' and '.join(other)}.",
            f"A {name} has {ranks} ranks, and libraries take their TPU branch there.",
            f"Omit {' and '.join(other)} or --as.",
        )


def refuse_in_process_options(options: Options) -> None:
    """Raise TpuMagicsError for options that only a run in this process supports."""
    if options.jit != "auto":
        raise TpuMagicsError(
            f"--jit {options.jit} is only for TensorFlow cells.",
            "PyTorch/XLA compiles everything that it runs.",
            "Omit --jit.",
        )
