"""The end of a failed run in the notebook's process: restoring names and state, and explaining the error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.base import RecompileLimit
from tpu_magics.backends.protocols import LocalBackend, SavedState
from tpu_magics.errors import TpuMagicsError, TrainingFailed, TrainingInterrupted
from tpu_magics.launch import stacks
from tpu_magics.launch.errors import base, hangs
from tpu_magics.launch.errors.failure import Failure, WorkerOutcome, error_record
from tpu_magics.launch.watchdog import INTERRUPT, TIMEOUT
from tpu_magics.runs import events
from tpu_magics.runs.origin import OWN, under

if TYPE_CHECKING:
    from tpu_magics.launch.run import TrainingRun
    from tpu_magics.launch.strategies.in_process import InProcessStrategy

STATE = "state-before"  # folder in the run folder: the state to restore if the run fails
PARTLY = "The notebook's models keep their training so far (--keep-partial)."
_STATUS = {INTERRUPT: "interrupted", TIMEOUT: "timeout"}


def status_of(reason: str) -> str:
    """The status of a failed run."""
    return _STATUS.get(reason, "failed")


def trained_models(
    backend: LocalBackend, reached: Mapping[str, Any], before: Mapping[str, Any], namespace: Mapping[str, Any]
) -> dict[str, Any]:
    """The models that were trained: those that the code could reach (`reached`), and those that it assigned to names of
    the notebook (`before`: the values of these names before the run)."""
    new = {name: value for name, value in namespace.items() if before.get(name) is not value and name[:1] != "_"}
    models = {name: value for name, value in new.items() if backend.is_model(value)}
    known = {id(value) for value in reached.values()}
    return {**reached, **{name: value for name, value in models.items() if id(value) not in known}}


def restore(saved: SavedState | None, before: Mapping[str, Any], namespace: dict[str, Any]) -> list[str]:
    """Restore the state and its names. Returns one line for each object that could not be restored."""
    if saved is None:
        return []
    for name, value in before.items():
        if namespace.get(name) is not value and saved.holds(value):
            namespace[name] = value
    try:
        return list(saved.put_back())
    except Exception as error:  # e.g. the run folder is gone
        return [f"{type(error).__name__}: {error}."]


# -- the error -------------------------------------------------------------------------------------------------------


def explain_failure(
    run: TrainingRun, strategy: InProcessStrategy, error: BaseException, keep: bool, lost: Sequence[str]
) -> BaseException:
    """The error to raise: ours if there is something to explain, else the user's own."""
    state = _state_text(keep, lost)
    explained = _explain_stop(run, strategy, error, state) or _explain_known(run, strategy, error, state)
    if explained is not None:
        return explained
    strategy.records.say(state)
    return error


def _state_text(keep: bool, lost: Sequence[str]) -> str:
    if keep:
        return PARTLY
    if not lost:
        return base.UNCHANGED
    return " ".join((f"Some state could not be restored (the run folder has it in {STATE}):", *lost))


def _explain_stop(
    run: TrainingRun, strategy: InProcessStrategy, error: BaseException, state: str
) -> TrainingFailed | None:
    """The error of a run that the user or a limit stopped."""
    path, lines = str(run.folder.path), _user_lines(run, error)
    if strategy.watchdog.reason == TIMEOUT:
        return TrainingFailed(
            f"The run was stopped after {run.options.timeout:g} s (--timeout).",
            f"It was still training. {state}",
            "If it was making progress, give the run more time with --timeout. Otherwise check the line below.",
            lines,
            rank=0,
            run=path,
        )
    if isinstance(error, KeyboardInterrupt) or strategy.watchdog.reason == INTERRUPT:
        return TrainingInterrupted(
            "The run was interrupted.",
            state,
            f"Run the cell again. {hangs.KEPT_PARTLY}",
            run=path,
        )
    if isinstance(error, RecompileLimit):
        explanation = hangs.too_many_recompiles(*_as_failure(run, strategy.records.started, error))
        if explanation is not None:
            details = [*explanation.details, *(["", *lines] if lines else [])]
            return TrainingFailed(
                explanation.what, f"{explanation.why} {state}", explanation.todo, details, rank=0, run=path
            )
    return None


def _as_failure(run: TrainingRun, started: float, error: BaseException) -> tuple[Failure, WorkerOutcome]:
    """The failure in the form that the explainers of forked workers need."""
    kind, text = stacks.describe(error)
    end = events.End(started, 0, status="failed", error_type=kind, error_text=text)
    outcome = WorkerOutcome(0, exit_code=1, end=end)
    return Failure("worker", (outcome,), run=str(run.folder.path)), outcome


def _explain_known(
    run: TrainingRun, strategy: InProcessStrategy, error: BaseException, state: str
) -> TrainingFailed | None:
    """The error if the backend or tpu_magics can explain it."""
    explained = error if isinstance(error, TpuMagicsError) else _explain_by_backend(run, strategy, error)
    if explained is None:
        return None
    if isinstance(explained, TrainingFailed):  # of a run that the code itself started
        return explained
    details = [*explained.details, *([""] if explained.details else []), *_user_lines(run, error)]
    path = str(run.folder.path)
    return TrainingFailed(explained.what, f"{explained.why} {state}".strip(), explained.todo, details, rank=0, run=path)


def user_frames(stack: TracebackType | None) -> TracebackType | None:
    """A traceback without our own frames; unchanged if it has no others."""
    remaining = [one for one in _tracebacks(stack) if not _is_ours(one.tb_frame)]
    for one, following in zip_longest(remaining, remaining[1:]):
        one.tb_next = following
    return remaining[0] if remaining else stack


def _is_ours(frame: FrameType) -> bool:
    """By its file, or by `__tracebackhide__` (backends/tensorflow/jit_functions.py)."""
    return under(frame.f_code.co_filename, OWN) or "__tracebackhide__" in frame.f_code.co_varnames


def _tracebacks(stack: TracebackType | None) -> Iterator[TracebackType]:
    while stack is not None:
        yield stack
        stack = stack.tb_next


def _explain_by_backend(run: TrainingRun, strategy: InProcessStrategy, error: BaseException) -> TpuMagicsError | None:
    try:
        return strategy.backend.explained(error, run.cell_names)
    except Exception as fault:  # a bug of ours must not hide the user's error
        strategy.records.say(f"The error could not be explained ({type(fault).__name__}: {fault}).")
        return None


def _user_lines(run: TrainingRun, error: BaseException) -> list[str]:
    """The user's own lines of the stack."""
    stack = [one for one in stacks.from_exception(error, run.cell_names) if not one.library]
    return stacks.fold(stack)


def failure_record(error: BaseException) -> dict[str, Any]:
    """For run.json."""
    if isinstance(error, TpuMagicsError):
        return error_record(error)
    kind, text = stacks.describe(error)
    return {"what": f"{kind}: {text}", "why": "", "todo": "", "details": []}
