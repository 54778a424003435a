"""The code of a file, run up to a function: a notebook's cells, or a Python file's top level; and the call of that
function, with its arguments and options.
"""

from __future__ import annotations

import argparse
import inspect
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from tpu_magics.check.cells import CodeCell, read_file
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import session
from tpu_magics.launch.cell import evaluate_all, parse_arguments
from tpu_magics.launch.notebook import PlainProgram
from tpu_magics.launch.options import Options
from tpu_magics.launch.request import check_function
from tpu_magics.launch.work import execute, new_module
from tpu_magics.magics import headless
from tpu_magics.magics.call_spec import defining_cell, parameter_text, required_parameters, trains, value_of
from tpu_magics.magics.headless import FileCell, HeadlessShell, SkippedTraining, TrainingStubs, first_of, last_line
from tpu_magics.preflight.run import trains_spmd
from tpu_magics.runs.files import kind_of, working_folder

SLOW = 1.0  # seconds above which a cell's time is shown
_NOTHING = object()
Say = Callable[[str], None]


class FileProgram(Protocol):
    """A cell that defines a function."""

    @property
    def namespace(self) -> dict[str, Any]:
        """Its names."""

    def run(self) -> None:
        """Run it up to the function's definition. Raises TpuMagicsError where that fails."""

    def go_on(self) -> bool:
        """Run on to where the function is trained; False where nothing there looks like it."""

    def function(self) -> Any:
        """The function. Raises TpuMagicsError where there is none after all."""

    def launch_of(self, function: Any) -> SkippedTraining | None:
        """The training that the code so far would have begun with this function."""


@contextmanager
def program_of(path: Path, function: str, say: Say) -> Iterator[FileProgram]:
    """The program of a file, its folder and names in place while it is used.

    Raises TpuMagicsError where the file cannot be read, or does not define the function.
    """
    path = path.expanduser().absolute()
    _check_file(path)
    if path.suffix.lower() == ".py":
        with importing_from(path.parent):
            yield ScriptProgram(path, function, say)
        return
    codes = headless.code_cells(path)
    at = defining_cell([code.read for code in codes], function)
    with headless.shell_in(path.parent) as shell:
        yield NotebookProgram(path, codes, at, function, shell, say)


def _check_file(path: Path) -> None:
    if path.is_file():
        return
    near = sorted(one.name for one in path.parent.glob("*.ipynb")) if path.parent.is_dir() else []
    raise TpuMagicsError(
        f"{path} {f'is {kind}' if (kind := kind_of(path)) else 'does not exist'}.",
        f"Notebooks in that folder: {', '.join(near[:10])}."
        if near
        else f"The working directory is {working_folder()}.",
        "Name a notebook (.ipynb) or a Python file (.py).",
    )


# -- a notebook -----------------------------------------------------------------------------------------------------


class NotebookProgram:
    """A notebook's code cells in a shell. `at`: the index of the one that defines the function; None where only
    running them can tell."""

    def __init__(
        self, path: Path, codes: Sequence[FileCell], at: int | None, function: str, shell: HeadlessShell, say: Say
    ) -> None:
        self.path, self.codes, self.at, self.name, self.shell, self.say = path, codes, at, function, shell, say
        self.stubs = TrainingStubs(say)
        self.next = 0
        self.total = len(codes) if at is None else codes[at].number

    @property
    def namespace(self) -> dict[str, Any]:
        names: dict[str, Any] = self.shell.user_ns
        return names

    def run(self) -> None:
        with self.stubs:
            if self.at is not None:
                self._run_to(self.at)
                return
            while self.next < len(self.codes) and not self._is_defined():
                self._run_to(self.next)

    def go_on(self) -> bool:
        ahead = (index for index in range(self.next, len(self.codes)) if trains(self.codes[index].read, self.name))
        index = next(ahead, None)
        if index is None:
            return False
        self.say(f"`{self.name}` needs arguments: continuing to cell {self.codes[index].number}, which trains it.")
        self.total = self.codes[index].number
        with self.stubs:
            self._run_to(index)
        return True

    def function(self) -> Any:
        if not self._is_defined():
            raise self._undefined()
        return value_of(self.namespace, self.name)

    def launch_of(self, function: Any) -> SkippedTraining | None:
        return first_of(self.stubs.launches, function)

    def _is_defined(self) -> bool:
        return self._root is not _NOTHING

    @property
    def _root(self) -> Any:
        """The current value of the function's name; of "a.b", of its "a"."""
        return self.namespace.get(self.name.partition(".")[0], _NOTHING)

    def _run_to(self, last: int) -> None:
        for code in self.codes[self.next : last + 1]:
            self.next = code.number
            if not code.text.strip():
                continue
            self.stubs.place = f"cell {code.number}"
            told = f"cell {code.number} of {self.total}: {code.title}"
            if headless.NOT_RUN in code.tags:
                self.say(f"{told}  [not run: its tag is {headless.NOT_RUN}]")
                continue
            self.say(told)
            self._run(code)

    def _run(self, code: FileCell) -> None:
        before, began = self._root, time.monotonic()
        error = headless.run_cell(self.shell, code)
        seconds = time.monotonic() - began
        if seconds > SLOW:
            self.say(f"cell {code.number} took {seconds:.1f} s")
        if error is None or headless.MAY_FAIL in code.tags:
            return
        if self._is_needed(code, defines=self._root is not before):
            raise self._failed(code, error)
        why = " (it may need a training that was skipped)" if self.stubs.launches else ""
        self.say(f"cell {code.number} failed{why}; continuing.")

    def _is_needed(self, code: FileCell, defines: bool) -> bool:
        """Whether a failure of this cell ends the command. Where a training was left out, cells often fail for lack of
        its results, the function's own too; `defines`: that one had bound the function before."""
        index = code.number - 1
        if self.stubs.launches:
            return index == self.at and not defines
        return self.at is None or index <= self.at

    def _failed(self, code: FileCell, error: BaseException) -> TpuMagicsError:
        upto = f"up to cell {self.at + 1}, which defines `{self.name}`," if self.at is not None else "one by one"
        return TpuMagicsError(
            f"Cell {code.number} of {self.path.name} failed: {headless.last_line(error)}",
            f"Its traceback is above. The cells {upto} are run first, in the notebook's folder.",
            "Correct the cell, and make sure that the files and packages it needs are available. To skip a cell, give "
            f'it the tag "{headless.NOT_RUN}".',
        )

    def _undefined(self) -> TpuMagicsError:
        if self.at is None:
            return TpuMagicsError(
                f"`{self.name}` is not defined after all {len(self.codes)} cells of {self.path.name} have run.",
                "No cell defines it by that name, and what they import with * or %run has no such name either.",
                "Give --function the name of the training function.",
            )
        return TpuMagicsError(
            f"Cell {self.at + 1} of {self.path.name} has run, and `{self.name}` is not defined.",
            "Below %%tpu_train, statements that do not end with a function are skipped, with their definitions; "
            "a definition below an `if` may not have been reached.",
            f"Move `{self.name}` to a cell of its own.",
        )


# -- a Python file --------------------------------------------------------------------------------------------------


class ScriptNotebook(PlainProgram):
    """An imported Python file in the role of the notebook."""

    def __init__(self, path: Path, module: ModuleType) -> None:
        self.path, self.module = path, module

    @property
    def namespace(self) -> dict[str, Any]:
        return vars(self.module)

    def checked_cells(self) -> Sequence[CodeCell]:
        return read_file(self.path)


class ScriptProgram:
    """A Python file, run as a module: the code below `if __name__ == "__main__":` does not run."""

    def __init__(self, path: Path, function: str, say: Callable[[str], None]) -> None:
        self.path, self.name, self.say = path, function, say
        self.stubs = TrainingStubs(say)
        self.module = ModuleType(path.stem)

    @property
    def namespace(self) -> dict[str, Any]:
        return vars(self.module)

    def run(self) -> None:
        cells = read_file(self.path)
        if all(cell.tree is not None for cell in cells):
            defining_cell(cells, self.name)
        self.say(f'{self.path.name} (what is below `if __name__ == "__main__":` is not run)')
        self.stubs.place = self.path.name
        with self.stubs:
            try:
                self._import()
            except (Exception, SystemExit) as error:
                traceback.print_exception(type(error), error, _without_ours(error))
                raise TpuMagicsError(
                    f"{self.path.name} failed: {last_line(error)}",
                    f"Its traceback is above. The file is run first, because it defines `{self.name}`.",
                    "Correct it, and make sure that the files and packages it needs are available.",
                ) from error

    def _import(self) -> None:
        name = self.path.stem if self.path.stem not in sys.modules else f"{self.path.stem}_of_{self.path.parent.name}"
        self.module = new_module(name, self.path)
        session.current.notebook = ScriptNotebook(self.path, self.module)
        execute(self.module)

    def go_on(self) -> bool:
        return False

    def function(self) -> Any:
        if self.name.partition(".")[0] not in self.namespace:
            raise TpuMagicsError(
                f"{self.path.name} has run, and `{self.name}` is not defined.",
                "It is not defined at the top level of the file, or below a condition that was false.",
                "Give --function the name of the training function.",
            )
        return value_of(self.namespace, self.name)

    def launch_of(self, function: Any) -> SkippedTraining | None:
        return first_of(self.stubs.launches, function)


def _without_ours(error: BaseException) -> Any:
    """The traceback from the file's own first line on; None where it did not come so far."""
    found = error.__traceback__
    while found is not None and found.tb_frame.f_code.co_name != "<module>":
        found = found.tb_next
    return found


@contextmanager
def importing_from(folder: Path) -> Iterator[None]:
    """Put its folder first in sys.path, as `python file.py` does."""
    before, notebook = list(sys.path), session.current.notebook
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = before
        session.current.notebook = notebook


# -- the call -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PreflightCall:
    """A function and its arguments. `precision`, `processes`, `spmd` as in `%%tpu_train`; None and False: the
    session's; `environment`: variables that its launcher sets."""

    function: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    precision: str | None = None
    processes: int | None = None
    spmd: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


def call_of(program: FileProgram, found: argparse.Namespace) -> PreflightCall:
    """The function with the ARGs that were given, else with those that the file itself trains it with.

    Raises TpuMagicsError: the code fails, the function or an ARG is missing.
    """
    positional, named = parse_arguments(found.args or ())
    program.run()
    function = program.function()
    launch = program.launch_of(function)
    if found.args is None and launch is None and lacking(function, (), {}) and program.go_on():
        launch = program.launch_of(function)
    if found.args is not None:
        args, kwargs = evaluate_all(positional, named, program.namespace)
    else:
        args, kwargs = (list(launch.args), dict(launch.kwargs)) if launch else ([], {})
    _check(function, args, kwargs, found)
    return PreflightCall(function, args, kwargs, **_options(found, launch))


def _options(found: argparse.Namespace, launch: SkippedTraining | None) -> dict[str, Any]:
    """Options: the command line's before those that the file trains the function with, and these before the session's.
    A file that asks for several ranks gets those of the target, as the launcher would give it there."""
    theirs = launch.options if launch else Options()
    one = 1 if theirs.processes == 1 else None
    return {
        "precision": found.precision or theirs.precision,
        "processes": found.processes or (None if found.spmd else one),
        "spmd": found.spmd or (found.processes is None and trains_spmd(theirs)),
        "environment": theirs.environment,
    }


# -- the arguments --------------------------------------------------------------------------------------------------


def _check(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], found: argparse.Namespace) -> None:
    """Raise TpuMagicsError where the function cannot be called so."""
    missing = lacking(function, args, kwargs)
    if missing:
        raise TpuMagicsError(
            f"{found.function}{inspect.signature(function)} needs {_listed(missing)}.",
            "No --args were given, and no executed cell or call trains it with any."
            if found.args is None
            else f"--args gives {' '.join(found.args) or 'nothing'}.",
            "After --args, give an expression for each parameter, evaluated in the notebook: "
            f"--args {' '.join(map(parameter_text, required_parameters(inspect.signature(function))))}",
        )
    check_function(function, args, kwargs, index_first=False)


def lacking(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """The parameters without a value. Raises TpuMagicsError for arguments that none takes."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # no function, or one of C
        return []
    try:
        bound = signature.bind_partial(*args, **kwargs)
    except TypeError as error:
        name = getattr(function, "__name__", type(function).__name__)
        raise TpuMagicsError(
            f"{name}{signature} does not take these arguments: {error}.",
            f"Given: {len(args)} positional{''.join(f', {name}' for name in kwargs)}.",
            "After --args, give the arguments as in a call: --args model lr=1e-3",
        ) from None
    return [one.name for one in required_parameters(signature) if one.name not in bound.arguments]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
