"""Stubs that replace a training while a person's cells run.

They replace our launcher, the launchers that are called in its stead, transformers' Trainer.train, and fit, evaluate
and predict of Keras models. Not covered, and run for real: training loops in a cell, train() of a subclass that
overrides it, and references taken before.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType, TracebackType
from typing import Any

from tpu_magics.backends.torch_xla.post_import import PostImport
from tpu_magics.launch import cells, train
from tpu_magics.launch.cell import LAUNCHERS
from tpu_magics.launch.plan import Options
from tpu_magics.launch.request import Request
from tpu_magics.launch.work import FunctionWork, ScriptWork

# Methods, by module and path in it; read in transformers 5.23 and Keras 3.
METHODS = {"transformers.trainer": ("Trainer.train",), "keras": ("Model.fit", "Model.evaluate", "Model.predict")}
# Preflights in cells: they take minutes as well, and are not the one of this command.
PREFLIGHTS = ("tpu_magics.magics.preflight.run", "tpu_magics.magics.preflight.preflight")


@dataclass(frozen=True)
class SkippedTraining:
    """A training that was skipped. `place`: "cell 4", or the file; `text`: the training in words;
    `function` is None for statements, scripts and trainers. `args` are complete: the rank, where the launcher gives
    one, is the first of them."""

    place: str
    text: str
    function: Callable[..., Any] | None = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Options = field(default_factory=Options)


class TrainingStubs:
    """A context in which trainings are recorded and skipped, also those of modules that are imported later.

    Not thread-safe: it changes modules of this process. `say` gets a line for each skipped training.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.place = ""
        self.launches: list[SkippedTraining] = []
        self._hook = PostImport()
        self._undo: list[Callable[[], None]] = []
        self._active = False

    def __enter__(self) -> TrainingStubs:
        self._active = True
        self._replace(train, "start", self._started)
        for module, found in self._replacements().items():
            self._hook.when_imported(module, functools.partial(self._leave_out, found))
        return self

    def __exit__(self, *_: TracebackType | type | BaseException | None) -> None:
        self._active = False
        self._hook.remove()
        while self._undo:
            self._undo.pop()()

    def _replacements(self) -> dict[str, dict[str, Callable[..., None]]]:
        """The stub of each function, by module and path in it."""
        found: dict[str, dict[str, Callable[..., None]]] = {}
        for name, kind in LAUNCHERS.items():
            module, _, attribute = name.rpartition(".")
            found.setdefault(module, {})[attribute] = self._launcher(kind)
        for module, paths in METHODS.items():
            found.setdefault(module, {}).update({path: self._method(path) for path in paths})
        for name in PREFLIGHTS:
            module, _, attribute = name.rpartition(".")
            found.setdefault(module, {})[attribute] = self._preflight
        return found

    # -- in the place of what trains ------------------------------------------------------------------------------

    def _started(self, request: Request, options: Options, workers: int | None = None) -> None:  # noqa: ARG002
        """In the place of `train.start`, where all our own ways to train meet."""
        options.check()
        work = request.make({}, None)
        if not isinstance(work, FunctionWork):
            text = f"the script {request.script}" if isinstance(work, ScriptWork) else _STATEMENTS
            self._note(SkippedTraining(self.place, text, options=options))
            return
        first = (0,) if work.index_first else ()
        text = f"the training of `{request.name}`"
        self._note(SkippedTraining(self.place, text, work.function, (*first, *work.args), work.kwargs, options))

    def _launcher(self, kind: str) -> Callable[..., None]:
        def launched(original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
            bound = inspect.signature(original).bind(*args, **kwargs)
            cells.run_launcher(kind, bound, Options())

        return launched

    def _method(self, path: str) -> Callable[..., None]:
        def called(*_: Any, **__: Any) -> None:
            self._note(SkippedTraining(self.place, f"{path}()"))

        return called

    def _preflight(self, *_: Any, **__: Any) -> None:
        self._note(SkippedTraining(self.place, "the preflight of the cell"))

    def _note(self, launch: SkippedTraining) -> None:
        self.launches.append(launch)
        self.say(f"{launch.place}: {launch.text} is skipped: nothing is trained here.")

    # -- putting it there -----------------------------------------------------------------------------------------

    def _leave_out(self, instead: Mapping[str, Callable[..., None]], module: ModuleType) -> None:
        for path, function in instead.items():
            owner: Any = module
            *above, name = path.split(".")
            for part in above:
                owner = getattr(owner, part, None)
            original = getattr(owner, name, None)
            if original is not None and getattr(original, _MARK, None) is not self:
                self._replace(owner, name, self._left_out(original, function))

    def _left_out(self, original: Callable[..., Any], instead: Callable[..., None]) -> Callable[..., Any]:
        """A function that calls `instead(original, ...)`. Code that holds on to it gets the original's work, when the
        cells have run."""

        @functools.wraps(original)
        def left_out(*args: Any, **kwargs: Any) -> Any:
            return instead(original, *args, **kwargs) if self._active else original(*args, **kwargs)

        setattr(left_out, _MARK, self)
        return left_out

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        """What a class has inherited is inherited again afterwards."""
        found = vars(owner).get(name)
        before = functools.partial(setattr, owner, name, found) if found else functools.partial(delattr, owner, name)
        self._undo.append(before)
        setattr(owner, name, value)


_MARK = "__tpu_magics_stub__"
_STATEMENTS = "the code below %%tpu_train (except the imports, functions and classes at its start)"


def first_of(launches: Sequence[SkippedTraining], function: Any) -> SkippedTraining | None:
    """The first of the trainings that would have trained this function."""
    return next((one for one in launches if one.function is not None and one.function is function), None)
