"""Home again: what a run left in its folder becomes values, names and weights of the notebook.

What lives here: reading the ranks' results, the order and the "all or nothing" of the move, and the object that people
hold. What does not: how weights are written and checked (backends/), how results are packed (work.py).

A pickle is only ever loaded from a run that this process itself started.
"""

from __future__ import annotations

import functools
import importlib
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tpu_magics.backends.base import Backend
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import process
from tpu_magics.launch.state import restore
from tpu_magics.launch.state.pickling import loads as loads_state
from tpu_magics.launch.state.snapshot import StateSnapshot
from tpu_magics.runs.events import Value
from tpu_magics.runs.files import RunFiles
from tpu_magics.runs.reader import Run


@dataclass(frozen=True)
class Lost:
    """A value that could not travel, and why."""

    reason: str


@dataclass
class Home:
    """What came home. `values`: by rank; `names`: what a cell assigned; `left`: names that stayed, with the reason;
    `changed`: names of objects that the function changed; `unchanged`: what it changed and the notebook has as it was,
    with the reason; `notes`: lines for the person; `warnings`: those that the run's record has, too."""

    values: list[Any] = field(default_factory=list)
    names: dict[str, Any] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)
    unchanged: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


def bring_home(
    files: RunFiles,
    ranks: int,
    models: Mapping[str, Any],
    backend: Backend,
    snapshot: StateSnapshot | None = None,
    background: bool = False,
) -> Home:
    """Read the results, check the weights, then load them and change what was changed; nothing of the notebook changes
    unless all is well. `snapshot`: its objects before the run, which may have changed since, if that was in the
    background.

    Raises TpuMagicsError where the weights do not fit; they stay in the run folder then.
    """
    home = Home()
    packs = [_read(files, rank) for rank in range(ranks)]
    loads = functools.partial(loads_state, snapshot=snapshot, adapter=backend.object_state() if snapshot else None)
    home.values = [_value(rank, pack, loads) for rank, pack in enumerate(packs)]
    _names(packs[0], models, home, loads)
    models = {name: model for name, model in models.items() if name in packs[0].get("models", models)}
    staged = backend.check_weights(models, files.path) if models else None
    state = _staged(files, packs, snapshot, backend, home, background)
    with process.interrupts_held():
        put_back = state.apply() if state is not None else None
        try:
            if staged is not None:
                backend.load_weights(staged)
                home.notes += list(getattr(staged, "notes", ()))
                home.warnings += _not_finite(files, getattr(staged, "not_finite", ""))
        except BaseException:
            if put_back is not None:
                put_back()
            raise
    _clear(files)
    return home


def _staged(
    files: RunFiles,
    packs: Sequence[Mapping[str, Any]],
    snapshot: StateSnapshot | None,
    backend: Backend,
    home: Home,
    background: bool,
) -> restore.StagedChanges | None:
    """What the function changed besides weights, read and ready; what stays as it is is told by `home`."""
    if snapshot is None:
        return None
    state = restore.stage(snapshot, backend.object_state(), files.path)
    if background:
        state.keep_notebook_changes()
    home.names.update(state.names)
    home.changed = state.changed
    home.unchanged = state.left
    if different := restore.rank_differences(snapshot, [pack.get("sums") for pack in packs]):
        home.notes.append(different)
    return state


def _not_finite(files: RunFiles, found: str) -> list[str]:
    """What is to be said of weights that are not finite, with the step from which on a logged loss was not either."""
    if not found:
        return []
    logged = [one for one in Run(files.path).events("value", 0) if isinstance(one, Value) and _is_odd(one)]
    first = next((one for one in logged if "loss" in one.name.lower()), logged[0] if logged else None)
    if first is None:
        return [found]
    by = "at" if first.n == 1 else "by"
    return [f"{found} The logged `{first.name}` was not finite for the first time {by} step {first.step:,}."]


def _is_odd(logged: Value) -> bool:
    return bool({"nan", "inf", "-inf"} & {str(one) for one in (logged.value, logged.low, logged.high)})


def _read(files: RunFiles, rank: int) -> Mapping[str, Any]:
    try:
        return dict(pickle.loads(files.value_path(rank).read_bytes()))
    except FileNotFoundError:
        return {"value": None, "problem": f"rank {rank} wrote no result"}


def _value(rank: int, pack: Mapping[str, Any], loads: Callable[[bytes], Any]) -> Any:
    if pack["value"] is None:
        return Lost(f"What rank {rank} returned could not travel: {pack['problem']}")
    try:
        return loads(pack["value"])
    except Exception as error:
        return Lost(f"What rank {rank} returned could not be loaded here: {type(error).__name__}: {error}")


def _names(pack: Mapping[str, Any], models: Mapping[str, Any], home: Home, loads: Callable[[bytes], Any]) -> None:
    """What a cell's rank 0 assigned, each name apart: one that cannot be loaded holds no other back."""
    home.left.update(pack.get("left", {}))
    home.names.update({name: models[model] for name, model in pack.get("same", {}).items()})
    for name, module in pack.get("modules", {}).items():
        _attempt(name, functools.partial(importlib.import_module, module), home)
    for name, data in pack.get("names", {}).items():
        _attempt(name, functools.partial(loads, data), home)


def _attempt(name: str, load: Callable[[], Any], home: Home) -> None:
    try:
        home.names[name] = load()
    except AttributeError as error:
        # What a pickle says of an object whose class was defined in the worker, after other statements.
        home.left[name] = f"{error}. Define classes and functions at the top of the cell, or in an earlier one."
    except Exception as error:
        home.left[name] = f"{type(error).__name__}: {error}"


def _clear(files: RunFiles) -> None:
    """Results do not stay on the disk once they are home."""
    for path in files.path.glob("result-*"):
        path.unlink(missing_ok=True)


class TrainResult:
    """What a run gave. In the notebook it is `_tpu`, or the name given with -o.

    Attributes:
        run: the run's records (`.path`, `.events()`, `.status`, `.summary()`).
        models: models whose weights came home, by name; hoisted ones too.
    """

    def __init__(self, run: Run, models: Mapping[str, Any], wait: Callable[[], None] | None = None) -> None:
        self.run = run
        self.models = dict(models)
        self._wait = wait
        self._home: Home | None = None
        self.failure: BaseException | None = None

    def __repr__(self) -> str:
        return f"<TrainResult {self.run.name!r}: {self.status}>"

    @property
    def status(self) -> str:
        """The run's status: "running", "done", "failed", ..."""
        return self.run.status

    def wait(self) -> TrainResult:
        """Wait for a background run, bring its results home, and raise what made it fail."""
        if self._wait is not None:
            self._wait()
        if self.failure is not None:
            raise self.failure
        return self

    def settle(self, home: Home) -> None:
        """Called once, when the results are home."""
        self._home = home

    @property
    def values(self) -> list[Any]:
        """What each rank returned. Raises TpuMagicsError where one could not travel."""
        return [self._checked(value) for value in self._arrived().values]

    @property
    def value(self) -> Any:
        """What rank 0 returned; None for a run that was stopped by --steps."""
        values = self._arrived().values
        return self._checked(values[0]) if values else None

    @property
    def left(self) -> dict[str, str]:
        """What could not come home, each with the reason: names that a cell assigned, and what was changed in the
        worker and is unchanged here."""
        home = self._arrived()
        return {**home.left, **home.unchanged}

    @property
    def changed(self) -> list[str]:
        """Names of what the function changed besides weights and is changed here, too."""
        return list(self._arrived().changed)

    @property
    def steps(self) -> int:
        """User-visible steps of rank 0."""
        return self.run.summary().steps or 0

    @property
    def compiles(self) -> int | None:
        """Graphs that rank 0 compiled; None where the runtime did not tell."""
        return self.run.summary().compiles

    @property
    def recompiles(self) -> int | None:
        """Graphs that rank 0 compiled at a line that had compiled before; None where observing stopped."""
        return self.run.summary().recompiles

    def _arrived(self) -> Home:
        if self._home is None:
            raise TpuMagicsError(
                f"The run {self.run.name!r} has no results: it is {self.status}.",
                "Results come home after a run has ended well.",
                "Wait for it with .wait(), or look at what happened: %tpu_logs",
            )
        return self._home

    def _checked(self, value: Any) -> Any:
        if isinstance(value, Lost):
            raise TpuMagicsError(
                value.reason,
                "Results travel from the workers as pickles.",
                "Return plain values (numbers, tensors, dicts of them) from the training function.",
            )
        return value
