"""IPython as the launcher sees it: the person's names, the cells, and where output goes.

What lives here: all that knows the shell. What does not: the launcher's side (launch/notebook.py).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from tpu_magics.launch.cells import Source
from tpu_magics.launch.relay import Screen

LINES_KEPT = 200  # lines of a background run's output that its one display shows
UPDATE_EVERY = 0.5  # seconds between updates of that display


class ShellNotebook:
    """A running IPython shell, 7.34 or newer."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self._own: dict[str, str] = {}

    @property
    def namespace(self) -> dict[str, Any]:
        space: dict[str, Any] = self.shell.user_ns
        return space

    def screen(self) -> Screen:
        return ShellScreen(self.shell)

    def background_screen(self, title: str) -> Screen:
        return BackgroundScreen(title)

    def say(self, line: str) -> None:
        print(f"tpu_magics: {line}", flush=True)

    def cell_label(self) -> str:
        """The cell that is running, e.g. "In [7]"."""
        return f"In [{self.shell.execution_count}]"

    def cell_names(self) -> Mapping[str, str]:
        """File names of the cells that ran. IPython names files after the cell's text, and 7.34 keeps no table."""
        names: dict[str, str] = {}
        history = self.shell.history_manager
        raw, parsed = history.input_hist_raw, history.input_hist_parsed
        for number in range(1, len(raw)):
            transformed = parsed[number] if number < len(parsed) else raw[number]
            names[self.shell.compile.get_code_name(raw[number], transformed, number)] = f"In [{number}]"
        return {**names, **self._own}

    def source(self, magic_line: str, body: str) -> Source:
        """The body of a cell magic as Python, known to linecache under the cell's own file name."""
        raw = self._raw_cell(magic_line, body)
        transformed = self.shell.transform_cell(body)
        blank = 0
        for line in body.splitlines():
            if line.strip():
                break
            blank += 1
        text = "\n" * (_lines_before(raw, magic_line) + blank) + transformed
        filename = self.shell.compile.cache(text, self.shell.execution_count, raw_code=raw)
        self._own[filename] = self.cell_label()
        return Source(text, filename)

    def _raw_cell(self, magic_line: str, body: str) -> str:
        history = self.shell.history_manager.input_hist_raw
        last = history[-1] if history else ""
        return str(last) if body.strip() and body.strip() in last else f"%%tpu_train {magic_line}\n{body}"


def _lines_before(raw: str, magic_line: str) -> int:  # noqa: ARG001
    """Lines of the cell up to and with the magic's own."""
    for number, line in enumerate(raw.splitlines(), start=1):
        if line.lstrip().startswith("%%"):
            return number
    return 1


class ShellScreen:
    """The output of the cell that is running."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell

    def text(self, text: str) -> None:
        sys.stdout.write(text)
        sys.stdout.flush()

    def display(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str, update: bool) -> None:
        transient = {"display_id": display_id} if display_id else {}
        self.shell.display_pub.publish(data=data, metadata=metadata, transient=transient, update=update)

    def clear(self, wait: bool) -> None:
        self.shell.display_pub.clear_output(wait)


class BackgroundScreen:
    """One display that is updated: prints of a background run would land in whichever cell runs."""

    def __init__(self, title: str) -> None:
        from IPython.display import display

        self.lines: list[str] = []
        self.rest = ""
        self.title = title
        self.next = 0.0
        self.handle = display(self._bundle(), raw=True, display_id=True)

    def _bundle(self) -> dict[str, str]:
        shown = [f"[{self.title}]", *self.lines[-LINES_KEPT:], self.rest]
        return {"text/plain": "\n".join(line for line in shown if line)}

    def text(self, text: str) -> None:
        *whole, self.rest = (self.rest + text).split("\n")
        self.lines = [*self.lines, *(_settled(line) for line in whole)][-LINES_KEPT:]
        self.rest = _settled(self.rest)
        if time.monotonic() >= self.next and self.handle is not None:
            self.next = time.monotonic() + UPDATE_EVERY
            self.handle.update(self._bundle(), raw=True)

    def display(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str, update: bool) -> None:  # noqa: ARG002
        self.text(str(data.get("text/plain", "")) + "\n")

    def clear(self, wait: bool) -> None:  # noqa: ARG002
        self.lines, self.rest = [], ""

    def close(self) -> None:
        """Show what the last update left out."""
        if self.handle is not None:
            self.handle.update(self._bundle(), raw=True)


def _settled(line: str) -> str:
    """What a terminal shows of a line in which the cursor went back (progress bars)."""
    return line.rstrip("\r").rsplit("\r", 1)[-1]
