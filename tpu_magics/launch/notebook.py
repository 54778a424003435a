"""The launcher's interface to the notebook, without IPython (magics/notebook.py implements it), a plain program in its
place, and observers of a run, such as the live panel, whose errors never affect the run."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tpu_magics.check.cells import CodeCell, read_file
from tpu_magics.launch.streams import PlainScreen, Screen
from tpu_magics.runs.files import RunFiles

# What the main thread does during the run.
WAITS, FREE, TRAINS = "waits for it", "runs other cells", "trains"
PANEL = "The panel"


class RunObserver(Protocol):
    """Observes a run; always called from the thread that watches it."""

    def look(self) -> None:
        """Called at each tick; takes milliseconds."""

    def settle(self) -> None:
        """All workers have ended: show the final state. Called again when the results are loaded."""

    def close(self, why: str) -> None:
        """Stop observing, for the reason `why`, and close everything."""


class NullObserver:
    """Does nothing."""

    def look(self) -> None:
        pass

    def settle(self) -> None:
        pass

    def close(self, why: str) -> None:
        pass


class ObserverGroup:
    """Several observers as one."""

    def __init__(self, *observers: RunObserver) -> None:
        self._observers = observers

    def look(self) -> None:
        for each in self._observers:
            each.look()

    def settle(self) -> None:
        for each in self._observers:
            each.settle()

    def close(self, why: str) -> None:
        for each in self._observers:
            each.close(why)


class SafeObserver:
    """Wraps an observer: if it fails, the run continues without it, and a message says why. `name`: of what stops."""

    def __init__(self, observer: RunObserver, say: Callable[[str], None], name: str = PANEL) -> None:
        self._observer = observer
        self._say = say
        self._name = name

    def look(self) -> None:
        self._guard(self._observer.look)

    def settle(self) -> None:
        self._guard(self._observer.settle)

    def close(self, why: str) -> None:
        self._guard(lambda: self._observer.close(why))

    def _guard(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            failed, self._observer = self._observer, NullObserver()
            why = describe_error(error)
            with contextlib.suppress(Exception):
                failed.close(why)
            self._say(f"{self._name} stopped because of an error, the run continues: {why}")


def open_observer(
    make: Callable[[], RunObserver | None],
    say: Callable[[str], None],
    otherwise: Callable[[], RunObserver | None] = lambda: None,
    name: str = PANEL,
) -> RunObserver:
    """The observer from `make`, else from `otherwise`, wrapped in a SafeObserver; a NullObserver if there is none. An
    error of `make` becomes a message."""
    try:
        observer = make()
    except Exception as error:
        say(f"{name} could not be opened, the run continues: {describe_error(error)}")
        observer = None
    if observer is None:
        with contextlib.suppress(Exception):
            observer = otherwise()
    return NullObserver() if observer is None else SafeObserver(observer, say, name)


def describe_error(error: BaseException) -> str:
    """An error as one line, e.g. "ValueError: no such part"."""
    return " ".join(f"{type(error).__name__}: {error}".split())


# -- the notebook -----------------------------------------------------------------------------------------------------


class NotebookInterface(Protocol):
    """The notebook or program that training is started from."""

    @property
    def namespace(self) -> dict[str, Any]:
        """The user's names."""

    def screen(self) -> Screen:
        """The screen for output; called when a run starts."""

    def background_screen(self, title: str) -> Screen:
        """The screen of a background run: one display that is updated."""

    def panel(self, files: RunFiles, stop: Callable[[], None], background: bool) -> RunObserver | None:
        """Show a live panel of the run; None if that is not possible. `stop` stops the run and may be called from any
        thread."""

    def local_panel(self, files: RunFiles, stop: Callable[[], None]) -> RunObserver | None:
        """The panel of a run in the main thread: another thread updates it."""

    def follow(self, files: RunFiles, stop: Callable[[], None], main: str) -> RunObserver | None:
        """Report a run without a panel to the front end; None if there is none. `main`: see WAITS, FREE and TRAINS."""

    def show_again(self, files: RunFiles) -> bool:
        """Show the panel of a run in this cell, too; False if it has none."""

    def cell_names(self) -> Mapping[str, str]:
        """File names of cells -> "In [n]"."""

    def cell_ids(self) -> Mapping[str, str]:
        """ "In [n]" -> the front end's id of the cell, if it sends one."""

    def checked_cells(self) -> Sequence[CodeCell]:
        """The code so far, with the current cell last, for the rules of check/."""

    def say(self, line: str) -> None:
        """Show a message of one line."""


class PlainProgram:
    """A script or a plain Python shell."""

    @property
    def namespace(self) -> dict[str, Any]:
        return vars(sys.modules["__main__"])

    def screen(self) -> Screen:
        return PlainScreen()

    def background_screen(self, title: str) -> Screen:  # noqa: ARG002
        return PlainScreen()

    def panel(self, files: RunFiles, stop: Callable[[], None], background: bool) -> RunObserver | None:  # noqa: ARG002
        return None

    def local_panel(self, files: RunFiles, stop: Callable[[], None]) -> RunObserver | None:  # noqa: ARG002
        return None

    def follow(self, files: RunFiles, stop: Callable[[], None], main: str) -> RunObserver | None:  # noqa: ARG002
        return None

    def show_again(self, files: RunFiles) -> bool:  # noqa: ARG002
        return False

    def cell_names(self) -> Mapping[str, str]:
        return {}

    def cell_ids(self) -> Mapping[str, str]:
        return {}

    def checked_cells(self) -> Sequence[CodeCell]:
        path = getattr(sys.modules["__main__"], "__file__", None)
        return read_file(Path(path)) if path else []

    def say(self, line: str) -> None:
        print(line, flush=True)
