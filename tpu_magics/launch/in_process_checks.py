"""What must be so before training begins in the notebook's own process, and what is recorded of it.

What lives here: the options that such a run cannot have, models and data that cannot be trained where it goes on, room
for the state before it. What does not: the order of things (local.py), and the framework's own knowledge (backends/).
"""

from __future__ import annotations

import ast
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.base import Kept, LocalBackend, Placed, Problem
from tpu_magics.errors import TpuMagicsError
from tpu_magics.host import free_disk
from tpu_magics.launch import session
from tpu_magics.launch.plan import NO_SPMD, Options, Plan, mb
from tpu_magics.runs.folder import RunFolder

if TYPE_CHECKING:
    from tpu_magics.backends.lowered import Traced
    from tpu_magics.launch.train import Request

_HERE = "TensorFlow does not survive a fork, so a TensorFlow cell is trained in the notebook's own process"
_STRATEGY = "the strategy of %tpu_init drives all devices that there are"

Refusal = tuple[bool, str, str, str]


def check_options(options: Options, launcher: str = "") -> None:
    """Raise TpuMagicsError for what only forked workers can have, with the reason and what to do. `launcher`: the
    launching call that the cell has."""
    for found, what, why, todo in _refusals(options, launcher):
        if found:
            raise TpuMagicsError(what, why, todo)


def _refusals(options: Options, launcher: str) -> Iterator[Refusal]:
    yield (
        bool(launcher),
        f"{launcher}(...) cannot train with TensorFlow.",
        f"It starts PyTorch's workers. {_HERE}, where {_STRATEGY}.",
        "Take the launcher's call out: end the cell with the training function, or with model.fit(...). Where the "
        "function is PyTorch's, say %tpu_init --framework torch.",
    )
    yield (
        options.processes is not None,
        f"-n {options.processes} is not possible for TensorFlow.",
        f"{_HERE}, where {_STRATEGY}: there are no ranks to count.",
        "Leave -n away.",
    )
    yield (
        options.spmd not in (None, NO_SPMD),
        "--spmd is not possible for TensorFlow.",
        f"It is PyTorch/XLA's way to drive several devices from one process; {_STRATEGY}.",
        "Leave --spmd away: model.fit and strategy.run split each batch over the replicas.",
    )
    yield (
        options.background,
        "--background is not possible for TensorFlow.",
        f"{_HERE}, which the next cell needs as well.",
        "Leave --background away; an interrupt (the square, or I, I) ends the run, and the models are put back.",
    )
    yield (
        options.hoist != "auto",
        f"--hoist {options.hoist} has no meaning for TensorFlow.",
        f"Models are hoisted so that forked workers need not build them. {_HERE}: a model is built once.",
        "Leave --hoist away.",
    )
    yield (
        options.collective_timeout is not None,
        "--collective-timeout has no meaning for TensorFlow.",
        "It is for ranks that are rehearsed on XLA:CPU; TensorFlow's strategy has its own collectives.",
        "Leave --collective-timeout away; --timeout S stops the run after S seconds.",
    )
    yield (
        options.precision == "bf16-downcast",
        "--precision bf16-downcast is not possible for TensorFlow.",
        "It is a switch of PyTorch/XLA's, for double and float.",
        "Use --precision bf16: layers compute in bfloat16 and keep float32 variables (mixed_bfloat16).",
    )


def refuse_cache(cache: str | None) -> None:
    """Raise TpuMagicsError for the persistent compile cache of torch_xla."""
    if cache not in (None, "off"):
        raise TpuMagicsError(
            f"--cache {cache} is not possible for TensorFlow.",
            "It keeps programs that PyTorch/XLA has compiled.",
            "Leave --cache away.",
        )


def refuse_tpu(tpu: str) -> None:
    """Raise TpuMagicsError for a TPU that is named, where PyTorch is to be trained."""
    if tpu:
        raise TpuMagicsError(
            f"--tpu {tpu} is for TensorFlow.",
            "PyTorch/XLA drives the TPU chips of its own host; a TPU by name or address is another host's.",
            "Leave --tpu away, or say %tpu_init --framework tensorflow --tpu NAME.",
        )


def refuse_local_options(options: Options) -> None:
    """Raise TpuMagicsError where a run of forked workers is asked for what only a run in this process can have."""
    if options.jit != "auto":
        raise TpuMagicsError(
            f"--jit {options.jit} is for TensorFlow cells.",
            "PyTorch/XLA compiles all that it runs.",
            "Leave --jit away.",
        )


def check(request: Request, backend: LocalBackend, say: Callable[[str], None]) -> None:
    """Models outside the scope, data that cannot be read where the training goes on, places that cannot be saved to."""
    notebook = session.current.notebook
    report(backend.placement_problems(request.items), say)
    report(backend.data_problems(request.items, notebook.cell_names()), say)
    names = {**notebook.namespace, **dict(request.items), **request.arguments}
    report(backend.saving_problems(_tree(request), names), say)


def _tree(request: Request) -> ast.AST:
    """The code that is run, as far as it can be read."""
    if isinstance(request.hoistable, ast.AST):
        return request.hoistable
    try:
        return ast.parse(textwrap.dedent(request.source))
    except SyntaxError:  # a lambda in the middle of a call, or no source at all
        return ast.Module([], [])


def report(problems: Sequence[Problem], say: Callable[[str], None]) -> None:
    """Raise the first problem that refuses the run; say the others."""
    for problem in sorted(problems, key=lambda one: not one.refuses):
        if problem.refuses:
            raise TpuMagicsError(problem.what, problem.why, problem.todo)
        say(problem_text(problem))


def problem_text(problem: Problem) -> str:
    """A problem in one line."""
    return " ".join(filter(None, (problem.what, problem.why, problem.todo)))


NO_STEP = (
    "--preflight found no training step in what was run: it looks at the first model.fit, and at tf.functions that "
    "assign variables. Give the step to %tpu_preflight."
)


@contextmanager
def with_gate(
    request: Request, options: Options, backend: LocalBackend, cells: Mapping[str, str]
) -> Iterator[Callable[[], bool]]:
    """Within it the gate of --preflight is asked when the first step is known, before that is executed. Gives a
    function that tells whether there was such a step."""
    gate = options.gate
    if gate is None:
        yield lambda: True
        return

    def ask(program: Traced) -> None:
        gate(replace(request, program=program), replace(options, gate=None))

    with backend.before_first_step(ask, options.precision or session.current.precision, cells) as asked:
        yield asked


# -- room -------------------------------------------------------------------------------------------------------------


def create_folder(name: str, request: Request, options: Options, backend: LocalBackend) -> RunFolder:
    """The run's folder, on a disk that has room for the state before the run."""
    folder = RunFolder.create(name)
    try:
        _require_room(folder.path, backend.state_bytes(request.items), options.force)
    except TpuMagicsError as refused:
        failure = {"what": refused.what, "why": refused.why, "todo": refused.todo}
        folder.update(status="refused", ended=time.time(), failure=failure)
        raise
    if folder.warning:
        session.current.notebook.say(folder.warning)
    return folder


def _require_room(folder: Path, size: int, force: bool) -> None:
    free = free_disk(folder)
    if force or free is None or size <= free:
        return
    raise TpuMagicsError(
        f"The weights as they are cannot be kept: they take {mb(size)}, and {mb(free)} are free on the disk.",
        f"They are written into the run folder, {folder}, before the training, and put back where it fails.",
        "Free some disk space, set TPU_MAGICS_RUNS to a folder on another disk, or try all the same with --force.",
    )


def save_state(backend: LocalBackend, items: Sequence[tuple[str, Any]], folder: Path) -> Kept:
    """The state before the run. Raises TpuMagicsError where it cannot be written; nothing of it is left then."""
    try:
        return backend.kept(items, folder)
    except OSError as error:
        raise TpuMagicsError(
            "The weights as they are could not be written into the run folder.",
            f"{folder}: {error.strerror or error}. They are kept there to be put back where the training fails.",
            "Free some disk space, or set TPU_MAGICS_RUNS to a folder on another disk, and run the cell again.",
        ) from error


def plan_record(options: Options, placed: Placed, precision: str) -> dict[str, Any]:
    """The plan, for run.json."""
    made = Plan(
        device=placed.device,
        workers=1,
        replicas=placed.replicas,
        precision=options.precision or precision,
        environment={},
        steps=options.steps,
        timeout=options.timeout,
        max_recompiles=options.max_recompiles,
    )
    own = {"framework": "tensorflow", "topology": placed.topology, "jit": options.jit}
    return {**made.record(), **own}
