"""What the launcher needs of the notebook, without knowing IPython.

What lives here: the protocol, and the plain Python program that stands for a notebook where there is none. What does
not: IPython's side of it (magics/notebook.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tpu_magics.check.cells import Cell, read_file
from tpu_magics.launch.relay import PlainScreen, Screen
from tpu_magics.launch.run_observer import RunObserver
from tpu_magics.runs.files import RunFiles


class NotebookInterface(Protocol):
    """The place that training is started from."""

    @property
    def namespace(self) -> dict[str, Any]:
        """The person's names."""

    def screen(self) -> Screen:
        """Where output goes now; called when a run starts."""

    def background_screen(self, title: str) -> Screen:
        """Output of a run that goes on while other cells run: one display, updated."""

    def panel(self, files: RunFiles, stop: Callable[[], None], background: bool) -> RunObserver | None:
        """Show the run while it goes on; None where there is nothing to show it with. `stop` asks, from any thread,
        that it be stopped."""

    def local_panel(self, files: RunFiles, stop: Callable[[], None]) -> RunObserver | None:
        """The same for a run that holds the main thread: the panel is looked at from another one."""

    def follow(self, files: RunFiles, stop: Callable[[], None], main: str) -> RunObserver | None:
        """Tell the front end of a run that has no panel; None where there is nothing to tell. `main`: see onlook.py."""

    def show_again(self, files: RunFiles) -> bool:
        """Show the panel of a run here, too; False where it has none."""

    def cell_names(self) -> Mapping[str, str]:
        """File names of cells -> "In [n]"."""

    def cell_ids(self) -> Mapping[str, str]:
        """ "In [n]" -> the front end's id of that cell, where it sends one."""

    def checked_cells(self) -> Sequence[Cell]:
        """The code so far, the cell that runs now as its last, for the rules of check/."""

    def say(self, line: str) -> None:
        """Show one line of ours."""


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

    def checked_cells(self) -> Sequence[Cell]:
        path = getattr(sys.modules["__main__"], "__file__", None)
        return read_file(Path(path)) if path else []

    def say(self, line: str) -> None:
        print(line, flush=True)
