"""The displays of a preflight: its progress, and its result."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tpu_magics.launch import session
from tpu_magics.panel.preflight import to_html, to_text
from tpu_magics.panel.preflight_progress import TerminalLine, progress_html, progress_text
from tpu_magics.preflight import report
from tpu_magics.preflight.compilation import Progress
from tpu_magics.preflight.run import Callbacks

__all__ = ["PreflightResult", "shown", "telling"]

DONE, WITHOUT = "The preflight is done.", "The preflight ended without a result."


class PreflightResult(report.Preflight):
    """A result that a notebook shows as tables and drawings, and `print` as text."""

    def __str__(self) -> str:
        return to_text(self)

    def _repr_mimebundle_(self, **_: Any) -> Mapping[str, str]:
        return {"text/plain": to_text(self), "text/html": to_html(self)}


def shown(found: report.Preflight) -> PreflightResult:
    """The result as one that shows itself."""
    return PreflightResult(**{field.name: getattr(found, field.name) for field in dataclasses.fields(found)})


# -- progress ------------------------------------------------------------------------------------------------------


@contextmanager
def telling(plain: bool) -> Iterator[Callbacks]:
    """Progress in one line of the notebook or terminal, which the result replaces; no progress with `plain`."""
    if plain:
        yield Callbacks(found=lambda found: _print(found, no_times=True))
    elif _has_front_end():
        with Output() as output:
            yield Callbacks(output.progress, output.line, output.result)
    else:
        yield from _in_terminal()


def _has_front_end() -> bool:
    """Whether this shell is a kernel's: libraries import ipykernel in terminals, too."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return hasattr(shell, "kernel")


def _print(found: report.Preflight, no_times: bool = False) -> None:
    print(to_text(found, no_times=no_times), flush=True)


def _in_terminal() -> Iterator[Callbacks]:
    line = TerminalLine(sys.stderr)

    def result(found: report.Preflight) -> None:
        line.close()
        _print(found)

    try:
        yield Callbacks(line.show, lambda text: session.current.notebook.say(text), result)
    finally:
        line.close()


class Output:
    """One output of a cell: how it goes, and then the result in its place. Where there is none, or a function gives it
    as its value, a line says so: an output that is there cannot be taken back."""

    def __init__(self) -> None:
        self.handle: Any = None
        self.settled = False

    def __enter__(self) -> Output:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self.handle is not None and not self.settled:
            self._put({"text/plain": DONE if kind is None else WITHOUT})

    def progress(self, now: Progress) -> None:
        self._put({"text/plain": progress_text(now), "text/html": progress_html(now)})

    def line(self, text: str) -> None:
        self._put({"text/plain": text, "text/html": _line(text)})

    def result(self, found: report.Preflight) -> None:
        self._put(shown(found)._repr_mimebundle_())
        self.settled = True

    def _put(self, bundle: Mapping[str, str]) -> None:
        from IPython.display import display

        if self.handle is None:
            self.handle = display(dict(bundle), raw=True, display_id=True)
        else:
            self.handle.update(dict(bundle), raw=True)


def _line(text: str) -> str:
    from tpu_magics.panel.sections_words import say

    return f'<div class="tpu-magics-preflight" style="color:inherit">◐ {say(text)}</div>'
