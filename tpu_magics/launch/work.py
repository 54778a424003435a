"""What the workers are to run: a function, the statements of a cell, or a script.

What lives here: running it on a rank, and what of its results can travel. What does not: how a cell is read into one of
these (cell.py), and where results go (results.py).

Results travel as one pickle of a dict: `value` (pickled, or None) and `problem` (why it could not be); from a cell's
rank 0 also `names` {name: pickled}, `modules` {name: module's name}, `same` {name: name of a model that comes home},
and `left` {name: why it stayed}.
"""

from __future__ import annotations

import functools
import pickle
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch.copies import Copies
from tpu_magics.launch.source_file import execute, new_module
from tpu_magics.launch.state.snapshot import global_names
from tpu_magics.runs.events import cut_text

if TYPE_CHECKING:
    from tpu_magics.launch.hoist import HoistPlan

Note = Callable[[str, str], None]


class Pickles(Protocol):
    """What turns results into bytes: a Backend."""

    def dumps(self, value: Any) -> bytes:
        """Pickle `value`. Raises what pickle raises."""


class Work(Protocol):
    """Something that every rank runs. `models`: what comes home, by name."""

    @property
    def models(self) -> dict[str, Any]:
        """The models whose weights come home. A worker changes its own copy where it built one itself."""

    @property
    def hoists(self) -> HoistPlan | None:
        """What was built in the notebook."""

    def roots(self) -> list[tuple[str, Any]]:
        """Where all that it can reach begins, by name."""

    def assigned(self) -> Mapping[str, Any]:
        """In a worker, after the run: the notebook's names that it bound anew."""

    def install(self, note: Note, replicas: int) -> None:
        """Once in each worker, before its `replicas` threads run; `note(code, text)` records a warning."""

    def run(self, ordinal: int, replica: int) -> Any:
        """Run on one device, in its thread."""

    def results(self, ordinal: int, value: Any, backend: Pickles, **more: Any) -> bytes:
        """What travels home from this rank, and `more`. `done`: names assigned by a cell that travel already."""


def _install(hoists: HoistPlan | None, models: dict[str, Any], note: Note, replicas: int) -> None:
    if hoists is None:
        return

    def declined(number: int, reason: str) -> None:
        one = hoists.hoisted[number]
        note("not-hoisted", f"`{one.code}` in line {one.line} is built by each worker after all: {reason}.")

    def built(number: int, model: Any) -> None:
        """What was built here is what is trained, so it comes home in the place of the notebook's."""
        for name in [name for name, own in models.items() if own is hoists.hoisted[number].model]:
            models[name] = model

    hoists.install(declined, replicas=replicas, on_built=built)


def packed(value: Any, backend: Pickles, **more: Any) -> bytes:
    """A rank's results; a value that cannot be pickled is left out and named, it does not fail the run."""
    data, problem = _try_dumps(value, backend)
    return pickle.dumps({"value": data, "problem": problem, **more})


def _try_dumps(value: Any, backend: Pickles) -> tuple[bytes | None, str]:
    try:
        return backend.dumps(value), ""
    except TpuMagicsError as error:
        return None, error.what
    except Exception as error:
        return None, cut_text(f"{type(error).__name__}: {error}")


@dataclass(frozen=True)
class FunctionWork:
    """A call of a function. `index_first`: the rank is its first argument (xmp.spawn, torch_xla.launch); `names`: what
    the person calls each of `args`."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    models: dict[str, Any] = field(default_factory=dict)
    hoists: HoistPlan | None = None
    index_first: bool = False
    names: tuple[str, ...] = ()

    calls: list[Callable[..., Any]] = field(default_factory=list)

    def roots(self) -> list[tuple[str, Any]]:
        name = str(getattr(self.function, "__name__", "function"))
        return [*zip(self.names, self.args, strict=False), *self.kwargs.items(), (name, self.function)]

    def assigned(self) -> Mapping[str, Any]:
        return {}

    def install(self, note: Note, replicas: int) -> None:
        _install(self.hoists, self.models, note, replicas)
        self.calls.append(functools.partial(_call, self.function, self.args, self.kwargs))
        self.calls.extend(self._copied_call() for _ in range(1, replicas))

    def _copied_call(self) -> Callable[..., Any]:
        copies = _copies(self.models, self.hoists)
        args = tuple(copies.argument(arg) for arg in self.args)
        kwargs = {name: copies.argument(arg) for name, arg in self.kwargs.items()}
        return functools.partial(_call, copies.function(self.function), args, kwargs)

    def run(self, ordinal: int, replica: int) -> Any:
        return self.calls[replica](*((ordinal,) if self.index_first else ()))

    def results(self, ordinal: int, value: Any, backend: Pickles, **more: Any) -> bytes:  # noqa: ARG002
        return packed(value, backend, models=list(self.models), **more)


def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], *first: Any) -> Any:
    return function(*first, *args, **kwargs)


def _copies(models: Mapping[str, Any], hoists: HoistPlan | None) -> Copies:
    """Copies for one more device; of hoisted models each device is given its own by the plan."""
    hoisted = {id(model) for model in hoists.models.values()} if hoists is not None else set()
    return Copies({name: model for name, model in models.items() if id(model) not in hoisted})


@dataclass(frozen=True)
class CellWork:
    """The statements of a cell, run with the notebook's names. `code`: compiled statements; `last`: the last
    expression, to be displayed; `namespace`: the notebook's own, inherited by the fork; `before`: what it held
    before the run."""

    code: types.CodeType
    last: types.CodeType | None
    namespace: dict[str, Any]
    models: dict[str, Any] = field(default_factory=dict)
    hoists: HoistPlan | None = None
    before: Mapping[str, Any] = field(default_factory=dict)
    spaces: list[dict[str, Any]] = field(default_factory=list)

    def roots(self) -> list[tuple[str, Any]]:
        read = [name for code in (self.code, self.last) if code is not None for name in global_names(code)[0]]
        return [(name, self.namespace[name]) for name in dict.fromkeys(read) if name in self.namespace]

    def install(self, note: Note, replicas: int) -> None:
        _install(self.hoists, self.models, note, replicas)
        self.spaces.append(self.namespace)
        self.spaces.extend(_copies(self.models, self.hoists).space(self.namespace) for _ in range(1, replicas))

    def run(self, ordinal: int, replica: int) -> Any:
        space = self.spaces[replica]
        exec(self.code, space)
        if self.last is not None:
            value = eval(self.last, space)
            if value is not None and ordinal == 0:
                _show(value)
        return None

    def results(self, ordinal: int, value: Any, backend: Pickles, **more: Any) -> bytes:
        done = frozenset(more.pop("done", ()))
        if ordinal != 0:
            return packed(value, backend, models=list(self.models), **more)
        names: dict[str, bytes] = {}
        modules: dict[str, str] = {}
        same: dict[str, str] = {}
        left: dict[str, str] = {}
        known = {id(model): name for name, model in self.models.items()}
        for name, item in self.assigned().items():
            if name in done:
                continue
            if isinstance(item, types.ModuleType):
                modules[name] = item.__name__
            elif id(item) in known:
                same[name] = known[id(item)]
            else:
                data, problem = _try_dumps(item, backend)
                if data is None:
                    left[name] = problem
                else:
                    names[name] = data
        return packed(
            None, backend, models=list(self.models), names=names, modules=modules, same=same, left=left, **more
        )

    def assigned(self) -> Mapping[str, Any]:
        """Names that the cell bound anew, except private ones."""
        missing = object()
        return {
            name: value
            for name, value in self.namespace.items()
            if not name.startswith("_") and self.before.get(name, missing) is not value
        }


def _show(value: Any) -> None:
    display = sys.modules.get("IPython.display")
    if display is not None:
        display.display(value)
    else:
        print(repr(value))


@dataclass(frozen=True)
class ScriptWork:
    """A script as `xla_spawn.py` runs it: its `_mp_fn(index)` where it defines one, else the script as `__main__`."""

    path: str
    argv: tuple[str, ...]
    has_mp_fn: bool
    models: dict[str, Any] = field(default_factory=dict)
    hoists: HoistPlan | None = None

    def roots(self) -> list[tuple[str, Any]]:
        return []

    def assigned(self) -> Mapping[str, Any]:
        return {}

    def install(self, note: Note, replicas: int) -> None:
        """A script builds its own models."""

    def run(self, ordinal: int, replica: int) -> Any:  # noqa: ARG002
        import runpy

        sys.argv = [self.path, *self.argv]
        sys.path.insert(0, str(Path(self.path).parent))
        if not self.has_mp_fn:
            runpy.run_path(self.path, run_name="__main__")
            return None
        return _imported(self.path)._mp_fn(ordinal)

    def results(self, ordinal: int, value: Any, backend: Pickles, **more: Any) -> bytes:  # noqa: ARG002
        return packed(value, backend, models=list(self.models), **more)


def _imported(path: str) -> Any:
    module = new_module(Path(path).stem, Path(path))
    execute(module)
    return module
