"""What the launcher needs of the notebook, without knowing IPython.

What lives here: the protocol, and the plain Python program that stands for a notebook where there is none. What does
not: IPython's side of it (magics/notebook.py).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Protocol

from tpu_magics.launch.relay import PlainScreen, Screen


class Notebook(Protocol):
    """The place that training is started from."""

    @property
    def namespace(self) -> dict[str, Any]:
        """The person's names."""

    def screen(self) -> Screen:
        """Where output goes now; called when a run starts."""

    def background_screen(self, title: str) -> Screen:
        """Output of a run that goes on while other cells run: one display, updated."""

    def cell_names(self) -> Mapping[str, str]:
        """File names of cells -> "In [n]"."""

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

    def cell_names(self) -> Mapping[str, str]:
        return {}

    def say(self, line: str) -> None:
        print(line, flush=True)
