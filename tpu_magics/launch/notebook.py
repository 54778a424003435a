"""The launcher's interface to the notebook, without IPython (magics/notebook.py implements it), and a plain program in
its place."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tpu_magics.check.cells import CodeCell, read_file
from tpu_magics.launch.relay import PlainScreen, Screen
from tpu_magics.launch.run_observer import RunObserver
from tpu_magics.runs.files import RunFiles


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
        """The same for a run in the main thread: another thread updates the panel."""

    def follow(self, files: RunFiles, stop: Callable[[], None], main: str) -> RunObserver | None:
        """Report a run without a panel to the front end; None if there is none. `main`: see run_observer.py."""

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
