"""The cells of a notebook, run in a shell without a front end, and stubs that replace a training meanwhile."""

from __future__ import annotations

import atexit
import functools
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from tpu_magics.backends.frameworks import TRAINING_METHODS
from tpu_magics.backends.torch.post_import import PostImport
from tpu_magics.check.cells import CodeCell, NotANotebook, cell_of, read_notebook
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import session, train
from tpu_magics.launch.cell import LAUNCHERS
from tpu_magics.launch.options import Options
from tpu_magics.launch.request import Request
from tpu_magics.launch.work import FunctionWork, ScriptWork
from tpu_magics.magics.notebook import ShellNotebook
from tpu_magics.runs.files import read_regular

MAY_FAIL, NOT_RUN = "raises-exception", "skip-execution"  # tags of cells, as nbclient reads them


@dataclass(frozen=True)
class FileCell:
    """A code cell of a file. `number` counts code cells from 1; `read`: its text as Python, for looking into it."""

    number: int
    text: str
    read: CodeCell
    tags: frozenset[str] = frozenset()

    @property
    def title(self) -> str:
        """The first line that says something."""
        lines = [line.strip() for line in self.text.splitlines()]
        return next((line for line in lines if line and not line.startswith("#")), "(nothing to run)")[:80]


def code_cells(path: Path) -> tuple[FileCell, ...]:
    """The code cells of a notebook. Raises TpuMagicsError where it cannot be read, or has none."""
    data = read_regular(path)
    try:
        found = read_notebook(data)
    except NotANotebook as error:
        raise TpuMagicsError(
            f"{path} is not a notebook: {error} (line {error.line}).",
            "A notebook is a JSON file with a list of cells.",
            "Name a notebook as Jupyter saves it (.ipynb), or a Python file (.py).",
        ) from None
    if not any(text.strip() for text in found.sources):
        other = f" Its kernel language is {found.language}." if found.language else ""
        raise TpuMagicsError(
            f"{path} has no code cells.",
            f"A preflight runs the Python cells of a notebook.{other}",
            "Name the notebook that defines the training function.",
        )
    tags = _tags(data)
    return tuple(
        FileCell(number, text, cell_of(text, str(path), number), tags[number - 1])
        for number, text in enumerate(found.sources, start=1)
    )


def _tags(data: bytes) -> list[frozenset[str]]:
    """The tags of each code cell; nbformat 3 has none, and there are as many sets as `read_notebook` gives sources."""
    found = json.loads(data.decode("utf-8-sig"))
    sheets = [found] if "cells" in found else found["worksheets"]
    cells = [cell for sheet in map(_dict, sheets) for cell in map(_dict, sheet.get("cells") or ())]
    metadata = [_dict(cell.get("metadata")) for cell in cells if cell.get("cell_type") == "code"]
    return [frozenset(map(str, tags if isinstance(tags := one.get("tags"), list) else ())) for one in metadata]


def _dict(found: Any) -> dict[str, Any]:
    return found if isinstance(found, dict) else {}


# -- the shell ------------------------------------------------------------------------------------------------------


class HeadlessShell(InteractiveShell):
    """IPython's shell without a terminal and without a kernel: figures are drawn (with Agg), and not shown."""

    def enable_gui(self, gui: str | None = None) -> None:
        """There is no event loop to run."""

    def enable_matplotlib(self, gui: str | None = None) -> tuple[None, str]:  # noqa: ARG002
        """`%matplotlib ...` gets Agg, whichever front end it names."""
        return None, "agg"


@contextmanager
def shell_in(folder: Path) -> Iterator[HeadlessShell]:
    """A fresh shell in this folder, as Jupyter starts one: magics loaded, nothing kept in the person's history.

    Afterwards this process is as it was, but for what cells have imported.
    """
    before = Path.cwd(), list(sys.path), os.environ.get("MPLBACKEND"), session.current.notebook
    os.chdir(folder)
    sys.path.insert(0, "")
    os.environ["MPLBACKEND"] = "agg"
    shell = _new_shell()
    try:
        yield shell
    finally:
        shell.restore_sys_module_state()
        _forget_inline_figures()
        HeadlessShell.clear_instance()
        atexit.unregister(shell.atexit_operations)  # otherwise this process keeps the shell until it exits
        os.chdir(before[0])
        sys.path[:] = before[1]
        _set("MPLBACKEND", before[2])
        session.current.notebook = before[3]


def _new_shell() -> HeadlessShell:
    config = Config({"HistoryManager": {"enabled": False}})
    shell: HeadlessShell = HeadlessShell.instance(config=config, colors="neutral" if sys.stderr.isatty() else "nocolor")
    _know_inline_figures(shell)
    shell.extension_manager.load_extension("tpu_magics")
    shell.extension_manager.loaded.discard("tpu_magics")  # so that a cell's own %load_ext prints no warning
    session.current.notebook = ShellNotebook(shell)
    return shell


def _know_inline_figures(shell: HeadlessShell) -> None:
    """`%config InlineBackend.figure_format = "retina"` is in many notebooks; a kernel has it from the start."""
    try:
        from matplotlib_inline.config import InlineBackend
    except ImportError:
        return
    shell.configurables.append(InlineBackend.instance(parent=shell))


def _forget_inline_figures() -> None:
    config = sys.modules.get("matplotlib_inline.config")
    if config is not None:
        config.InlineBackend.clear_instance()


def _set(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


# -- a cell ---------------------------------------------------------------------------------------------------------


def run_cell(shell: HeadlessShell, code: FileCell) -> BaseException | None:
    """Run one cell under its number; gives what it raised, whose traceback the shell has shown.

    Raises KeyboardInterrupt: the person stopped it.
    """
    _count_to(shell, code.number)
    result = shell.run_cell(code.text, store_history=True)
    error: BaseException | None = result.error_before_exec or result.error_in_exec
    if isinstance(error, KeyboardInterrupt) and not isinstance(error, TpuMagicsError):
        raise KeyboardInterrupt
    return error


def _count_to(shell: HeadlessShell, number: int) -> None:
    """Let the next cell be `In [number]`: cells without text have no number in IPython, and are not run."""
    while shell.execution_count < number:
        shell.history_manager.store_inputs(shell.execution_count, "")
        shell.execution_count += 1


def last_line(error: BaseException) -> str:
    """ "NameError: name 'x' is not defined"; of our own errors the first sentence."""
    if isinstance(error, TpuMagicsError):
        return error.what
    return traceback.format_exception_only(error)[-1].strip()


# -- trainings that are skipped ---------------------------------------------------------------------------------------


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
    """A context in which trainings are recorded and skipped, also those of modules that are imported later: our
    launcher, the launchers that are called in its stead, transformers' Trainer.train, and fit, evaluate and predict of
    Keras models. Not covered, and run for real: training loops in a cell, train() of a subclass that overrides it, and
    references taken before.

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
        for module, paths in TRAINING_METHODS.items():
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
            train.run_launcher(kind, bound, Options())

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
