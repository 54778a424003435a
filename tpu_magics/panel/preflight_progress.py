"""The progress of a compile in one line."""

from __future__ import annotations

import shutil
from typing import TextIO

from tpu_magics.panel.formats import clock, short, size
from tpu_magics.panel.html_parts import BLUE, say
from tpu_magics.panel.table import printable
from tpu_magics.preflight.compilation import CompileProgress

_STATES = {
    "kept": "cached from an earlier compile",
    "starting": "starting the compiler",
    "compiling": "compiling",
    "done": "compiled",
}
_CLEAR = "\r\x1b[K"
_TRACK = "rgba(128,128,128,.22)"
_BAR = "display:inline-block;width:8em;height:.55em;border-radius:.3em;overflow:hidden;vertical-align:middle"


def progress_text(now: CompileProgress) -> str:
    """E.g. "v5litepod-8, graph 1 of 2: compiling, 12 s, about 18 s left, compiler memory 2.1 GiB"."""
    which = f", graph {now.graph + 1} of {now.count}" if now.count > 1 else ""
    return f"{printable(now.target)}{which}: {', '.join(_parts(now))}"


def _parts(now: CompileProgress) -> list[str]:
    words = _STATES.get(now.state, now.state)
    if now.state == "done":
        return [f"{words} in {clock(now.elapsed)}"]
    if now.state not in ("starting", "compiling"):
        return [words]
    rest = [_rest(now)] if now.state == "compiling" else []
    held = [f"compiler memory {size(now.resident)}"] if now.resident is not None else []
    return [words, clock(now.elapsed), *rest, *held]


def _rest(now: CompileProgress) -> str:
    if now.expected is None:
        return "remaining time unknown"
    if now.elapsed > now.expected:
        return f"longer than the expected {clock(now.expected)}"
    return f"about {clock(now.expected - now.elapsed)} left"


def progress_html(now: CompileProgress) -> str:
    """The progress with a bar, where the expected time is known. For a display that is updated."""
    text = progress_text(now)
    share = _share(now)
    if share is None:
        return f'<div class="tpu-magics-preflight" style="color:inherit">◐ {say(text)}</div>'
    bar = f'<span style="display:block;height:100%;width:{100 * share:.0f}%;background:{BLUE}"></span>'
    whole = f'<span aria-hidden="true" style="{_BAR};background:{_TRACK}">{bar}</span>'
    return f'<div class="tpu-magics-preflight" style="color:inherit">{whole} {say(text)}</div>'


def _share(now: CompileProgress) -> float | None:
    if now.state in ("done", "kept"):
        return 1.0
    if now.state != "compiling" or not now.expected:
        return None
    return min(1.0, now.elapsed / now.expected)


class TerminalLine:
    """One line of a terminal that is written again and again; where the stream is none, a line for each new state."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._live = stream, stream.isatty()
        self._told: tuple[str, int, str] | None = None

    def show(self, now: CompileProgress) -> None:
        key = (now.target, now.graph, now.state)
        if self._live:
            width = shutil.get_terminal_size().columns
            self._stream.write(_CLEAR + short(progress_text(now), max(width - 1, 20)))
        elif key != self._told:
            self._stream.write(progress_text(now) + "\n")
        self._told = key
        self._stream.flush()

    def close(self) -> None:
        """Leave the terminal's line empty for what comes next."""
        if self._live and self._told is not None:
            self._stream.write(_CLEAR)
            self._stream.flush()
