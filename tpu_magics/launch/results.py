"""Loading a run's results from its folder into the notebook, and `TrainResult`; with --keep-partial, rank 0's although
the run failed: all of them or nothing.

A pickle is only loaded from a run that this process started itself.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import json
import pickle
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.protocols import Backend
from tpu_magics.errors import TpuMagicsError, TrainingFailed, plural
from tpu_magics.launch import process
from tpu_magics.launch.errors import base
from tpu_magics.launch.errors.ranks import without_result
from tpu_magics.launch.object_graph import contents, find_models
from tpu_magics.launch.state import changes
from tpu_magics.launch.state.pickling import loads as loads_state
from tpu_magics.launch.state.snapshot import StateSnapshot
from tpu_magics.runs import events
from tpu_magics.runs.dataframes import RunFrames
from tpu_magics.runs.events import Value
from tpu_magics.runs.files import LIVE, RunFiles, read_record
from tpu_magics.runs.reader import Run, Tail
from tpu_magics.runs.summary import RunSummary, loss_name

if TYPE_CHECKING:
    from tpu_magics.launch.supervisor import WorkerProcess


@dataclass(frozen=True)
class MissingValue:
    """A return value that could not be loaded, and why."""

    reason: str


@dataclass
class RunResults:
    """The loaded results. `values`: by rank; `names`: assigned by the cell; `left`: names that could not be loaded,
    with the reason; `changed`: names of objects that the function changed; `unchanged`: objects that it changed in the
    worker only, with the reason; `notes`: messages; `warnings`: messages that run.json has too; `models`: those whose
    weights changed; `made`: the names of models that the cell built itself."""

    values: list[Any] = field(default_factory=list)
    names: dict[str, Any] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)
    unchanged: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    made: list[str] = field(default_factory=list)


Where = Callable[[str, Any], str]


def collect_results(
    files: RunFiles,
    ranks: int,
    models: Mapping[str, Any],
    backend: Backend,
    snapshot: StateSnapshot | None = None,
    background: bool = False,
    where: Where = lambda name, _model: name,
) -> RunResults:
    """Read the results, check the weights, then load the weights and apply all changes: all or nothing. `snapshot`: the
    notebook's objects before the run; `background`: they may have changed since; `where`: how a trained model is called
    that no name of the notebook leads to.

    Raises TpuMagicsError if a rank has no results, or if the weights do not fit the models, which then stay in the run
    folder.
    """
    results = RunResults()
    packs = [_read_pack(files, rank) for rank in range(ranks)]
    loads = functools.partial(loads_state, snapshot=snapshot, adapter=backend.object_state() if snapshot else None)
    results.values = [_load_value(rank, pack, loads) for rank, pack in enumerate(packs)]
    _load_names(packs[0], models, results, loads)
    given = models
    models = {name: model for name, model in models.items() if name in packs[0].get("models", models)}
    if background and snapshot is not None:
        models = _untouched(models, snapshot, backend, results)
    rebuilt = [name for name in packs[0].get("rebuilt", ()) if name in models]
    staged = backend.results.check_weights(models, files.path) if models and not rebuilt else None
    state = _stage_state(files, packs, snapshot, backend, results, background)
    reassigned = _reassigned_names(snapshot) if background and snapshot is not None else set()
    with process.interrupts_held():
        put_back = state.apply() if state is not None else None
        if state is not None:
            results.names.update(state.names)
        for name in [name for name in results.names if name in reassigned]:
            del results.names[name]
            results.unchanged[name] = changes.DURING
        try:
            if rebuilt:  # they have the parts now that were trained
                staged = backend.results.check_weights(models, files.path, rebuilt)
            if staged is not None:
                loaded = [*dict.fromkeys((*backend.results.load_weights(staged), *rebuilt))]
                results.models = [_name_of(models[name], name, results.names, snapshot, where) for name in loaded]
                results.notes += list(getattr(staged, "notes", ()))
            results.warnings += not_finite_warning(files, getattr(staged, "not_finite", ""))
            if state is not None:
                state.apply_gradients()
        except BaseException:
            if put_back is not None:
                put_back()
            raise
    results.made = _made(results.names, given, backend)
    for path in files.path.glob("result-*"):
        path.unlink(missing_ok=True)
    return results


def _stage_state(
    files: RunFiles,
    packs: Sequence[Mapping[str, Any]],
    snapshot: StateSnapshot | None,
    backend: Backend,
    results: RunResults,
    background: bool,
) -> changes.StagedChanges | None:
    """The changes besides weights, ready to apply; `results` gets the names of what stays unchanged."""
    if snapshot is None:
        return None
    state = changes.stage(snapshot, backend.object_state(), files.path)
    if background:
        state.keep_notebook_changes(results.unchanged)
    results.changed = state.changed
    results.unchanged.update(state.left)
    state.left = results.unchanged
    if different := changes.rank_differences(snapshot, [pack.get("sums") for pack in packs]):
        results.notes.append(different)
    return state


NOT_FINITE = "not-finite"  # code of the warning


def not_finite_warning(files: RunFiles, warning: str) -> list[str]:
    """The warning about weights that are not finite, with the first step at which a logged loss was not finite."""
    if not warning:
        return _not_finite_loss(files)
    logged = [one for one in Run(files.path).events("value", 0) if isinstance(one, Value) and _is_not_finite(one)]
    first = next((one for one in logged if "loss" in one.name.lower()), logged[0] if logged else None)
    if first is None:
        return [warning]
    by = "at" if first.n == 1 else "by"
    return [f"{warning} The logged `{first.name}` was first not finite {by} step {first.step:,}."]


def _not_finite_loss(files: RunFiles) -> list[str]:
    """A loss that is not finite at the end, where no weight is known to be so."""
    last = {one.name: one for one in Run(files.path).events("value", 0) if isinstance(one, Value)}
    bad = [one for one in last.values() if "loss" in one.name.lower() and str(one.value) in _NOT_FINITE]
    return [f"The logged `{one.name}` is {one.value} at the end. Look at the labels and the inputs." for one in bad[:1]]


def _is_not_finite(logged: Value) -> bool:
    return bool(_NOT_FINITE & {str(one) for one in (logged.value, logged.low, logged.high)})


_NOT_FINITE = frozenset({"nan", "inf", "-inf"})


def _read_pack(files: RunFiles, rank: int) -> Mapping[str, Any]:
    path = files.value_path(rank)
    try:
        return dict(pickle.loads(read_record(path)))
    except FileNotFoundError as error:
        raise without_result(rank, path) from error


def _load_value(rank: int, pack: Mapping[str, Any], loads: Callable[[bytes], Any]) -> Any:
    if pack["value"] is None:
        return MissingValue(f"The return value of rank {rank} could not be sent to the notebook: {pack['problem']}")
    try:
        return loads(pack["value"])
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also a SystemExit of an object's own code
        return MissingValue(
            f"The return value of rank {rank} could not be loaded in the notebook: {type(error).__name__}: {error}"
        )


def _load_names(
    pack: Mapping[str, Any], models: Mapping[str, Any], results: RunResults, loads: Callable[[bytes], Any]
) -> None:
    """The names that rank 0 of a cell assigned, loaded one by one, so that one failure does not affect the others."""
    results.left.update(pack.get("left", {}))
    results.names.update({name: models[model] for name, model in pack.get("same", {}).items()})
    for name, module in pack.get("modules", {}).items():
        _load_name(name, functools.partial(importlib.import_module, module), results)
    for name, data in pack.get("names", {}).items():
        _load_name(name, functools.partial(loads, data), results)


def _untouched(
    models: Mapping[str, Any], snapshot: StateSnapshot, backend: Backend, results: RunResults
) -> dict[str, Any]:
    """The models whose weights the notebook has not changed during a run in the background; the others are named."""
    now = backend.object_state().versions(models, contents=True)
    changed = {key[0] for key, number in snapshot.slots.items() if now.get(key) != snapshot.versions.get(number)}
    results.unchanged.update({name: changes.DURING for name in models if name in changed})
    return {name: model for name, model in models.items() if name not in changed}


def _reassigned_names(snapshot: StateSnapshot) -> set[str]:
    """The names that the notebook assigned or deleted since the run began."""
    missing, main = object(), vars(sys.modules["__main__"])
    return {one for one in {*main, *snapshot.main} if main.get(one, missing) is not snapshot.main.get(one, missing)}


def _name_of(
    model: Any,
    name: str,
    names: Mapping[str, Any],
    snapshot: StateSnapshot | None,
    where: Where = lambda name, _model: name,
) -> str:
    """How a trained model is called: a hoisted one that a cell put into a dict is known by the call that built it."""
    main = vars(sys.modules["__main__"])
    if snapshot is None or names.get(name) is model or main.get(name) is model:
        return name
    if snapshot.main.get(name) is model:
        return f"the {name} from before it was assigned again"
    found = itertools.chain.from_iterable(itertools.starmap(contents, names.items()))
    return next((path for path, one in found if one is model), None) or where(name, model)


def _made(names: Mapping[str, Any], models: Mapping[str, Any], backend: Backend) -> list[str]:
    """The names of models with weights that are not among `models`, nor a part of another one."""
    known = set(map(id, models.values()))
    found = find_models(iter(names.items()), backend.models.is_model)
    return [name for name, model in found.items() if id(model) not in known and backend.results.structure(model)]


def _load_name(name: str, load: Callable[[], Any], results: RunResults) -> None:
    try:
        results.names[name] = load()
    except AttributeError as error:
        # The class of the object was defined in the worker, after other statements.
        results.left[name] = f"{error}. Define classes and functions at the top of the cell, or in an earlier one."
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        results.left[name] = f"{type(error).__name__}: {error}"


def _facts(summary: RunSummary) -> Iterator[str]:
    """What a run came to, in few words."""
    yield summary.status
    if summary.steps is not None:
        each = f" of {summary.step_seconds * 1e3:.3g} ms" if summary.step_seconds is not None else ""
        yield f"{plural(summary.steps, 'step')}{each}"
    if summary.compiles is not None:
        again = sum(summary.avoidable.values())
        recompiles = f" ({plural(again, 'recompile')})" if again else ""
        yield f"{plural(summary.compiles, 'compile')}{recompiles}"
    if loss := loss_name(summary.values):
        value = summary.values[loss]
        yield f"{loss[:40]} {f'{value:.4g}' if isinstance(value, float) else str(value)[:40]}"
    if summary.models:
        yield f"updated in the notebook: {', '.join(summary.models)}"


class TrainResult:
    """The result of a run. In the notebook it is `_tpu`, or the name given with -o.

    Attributes:
        run: the run's records (`.path`, `.events()`, `.status`, `.summary()`).
        models: the models that were updated, by name, hoisted ones included.
    """

    def __init__(self, run: Run, models: Mapping[str, Any], wait: Callable[[], None] | None = None) -> None:
        self.run = run
        self.models = dict(models)
        self._wait = wait
        self._results: RunResults | None = None
        self.failure: BaseException | None = None

    def __repr__(self) -> str:
        summary = self.run.summary()
        return f"<TrainResult {summary.name!r}: {', '.join(_facts(summary))}; see %tpu_panel {summary.name}>"

    @property
    def status(self) -> str:
        """The run's status: "running", "done", "failed", ..."""
        return self.run.status

    def wait(self) -> TrainResult:
        """Wait for a background run and load its results. Raises the error of a failed run."""
        if self._wait is not None:
            self._wait()
        if self.failure is not None:
            raise self.failure
        return self

    def settle(self, results: RunResults) -> None:
        """Set the loaded results; called once."""
        self._results = results

    @property
    def values(self) -> list[Any]:
        """The return value of each rank. Raises TpuMagicsError if one could not be loaded."""
        return [self._require_value(value) for value in self._loaded().values]

    @property
    def value(self) -> Any:
        """The return value of rank 0; None for a run that --steps stopped."""
        values = self._loaded().values
        return self._require_value(values[0]) if values else None

    @property
    def left(self) -> dict[str, str]:
        """What could not be loaded, with the reason: names that the cell assigned, and objects that were changed only
        in the worker."""
        results = self._loaded()
        return {**results.left, **results.unchanged}

    @property
    def made(self) -> list[str]:
        """Names of the models that the cell built itself, and that are set in the notebook; none before the end."""
        return list(self._results.made) if self._results is not None else []

    @property
    def changed(self) -> list[str]:
        """Names of the objects, besides weights, that the function changed and that are changed in the notebook."""
        return list(self._loaded().changed)

    @property
    def steps(self) -> int:
        """Number of steps of rank 0."""
        return self.run.summary().steps or 0

    @property
    def compiles(self) -> int | None:
        """Number of graphs that rank 0 compiled; None if not available."""
        return self.run.summary().compiles

    @property
    def recompiles(self) -> int | None:
        """Number of graphs that rank 0 compiled at a line that had compiled before; None if not available."""
        return self.run.summary().recompiles

    def to_pandas(self, rank: int | Sequence[int] | None = 0) -> RunFrames:
        """The steps, logged values and compiles of the run so far, as DataFrames `.steps`, `.values` (a column for each
        logged name, by step) and `.compiles`.

        Args:
            rank: a rank, several, or None for all; of several the index begins with the rank.

        Raises:
            TpuMagicsError: pandas is not installed, or the run has no such rank.
        """
        return self.run.to_pandas(rank)

    def _loaded(self) -> RunResults:
        if self._results is None:
            raise TpuMagicsError(
                f"The run {self.run.name!r} has no results: its status is {self.status}.",
                "Results are loaded after a run has succeeded.",
                f"{'Wait for it with .wait()' if self.status in LIVE else 'Run the cell again'}, or see its output: "
                "%tpu_logs",
            )
        return self._results

    def _require_value(self, value: Any) -> Any:
        if type(value) is MissingValue:
            raise TpuMagicsError(
                value.reason,
                "Return values are sent from the workers as pickles.",
                "Return plain values (numbers, tensors, dicts of them) from the training function.",
            )
        return value


# -- --keep-partial ---------------------------------------------------------------------------------------------------


NOT_KEPT = "not-kept"  # code of the warning with the reason
SHARDED = "its weights are sharded over the ranks, which would have to stop at the same step"
NO_STEP = "no step was finished"


def mark_partial_written(files: RunFiles, step: int) -> None:
    """In the worker: note that all results are written."""
    path = files.partial_path
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps({"step": step}))
    temporary.replace(path)


def partial_step(files: RunFiles) -> int | None:
    """The step of rank 0's results; None if it wrote none, or not all of them."""
    try:
        return int(json.loads(read_record(files.partial_path))["step"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def partial_text(step: int) -> str:
    """What was kept, as text."""
    return f"weights and state of step {step:,}"


def reason_partial_missing(files: RunFiles, workers: Sequence[WorkerProcess]) -> str:
    """Why rank 0 wrote no results, as far as it is known."""
    warnings = [one.text for one in Tail(files.events_path(0)).read() if isinstance(one, events.Warned)]
    reasons = [text for text in warnings if text.startswith(_NOT_KEPT_PREFIX)]
    if reasons:
        return reasons[-1].removeprefix(_NOT_KEPT_PREFIX)
    lead = next((one for one in workers if one.rank == 0), None)
    if lead is not None and lead.signal is not None and not lead.stopped_by_us:
        return f"rank 0 was stopped ({base.signal_name(lead.signal)})"
    if lead is not None and lead.end is None and lead.signal is None:
        return "rank 0 exited"
    return "rank 0 did not finish its step in time"


_NOT_KEPT_PREFIX = "No results could be kept: "


def partial_warning(reason: object) -> str:
    """The text of the warning."""
    text = reason.what if isinstance(reason, TpuMagicsError) else str(reason)
    return f"{_NOT_KEPT_PREFIX}{events.cut_text(text)}"


def with_sentence(error: TrainingFailed, sentence: str) -> TrainingFailed:
    """The error, with `sentence` in place of what it says about the notebook's models."""
    parts = [error.why, error.todo]
    error.why, error.todo = (part.replace(base.UNCHANGED, sentence) for part in parts)
    if sentence not in error.why + error.todo:
        error.why = f"{error.why} {sentence}".strip()
    return error
