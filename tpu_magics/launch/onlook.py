"""Who looks on while a run is watched: the panel, if there is one.

What lives here: the protocol, and the guard that keeps a failure of the onlooker away from the run. What does not: any
onlooker (panel/widget.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Protocol

# What the main thread does while the run goes on.
WAITS, FREE, TRAINS = "waits for it", "runs other cells", "trains"


class Onlooker(Protocol):
    """Looks at a run, always from the thread that watches it."""

    def look(self) -> None:
        """Called at each tick of the watch; takes milliseconds."""

    def settle(self) -> None:
        """Nobody is left to be watched: leave what shall stay. Called again when the results are home."""

    def close(self, why: str) -> None:
        """Stop looking, because of what `why` says, and leave nothing open."""


class Nobody:
    """Looks at nothing."""

    def look(self) -> None:
        pass

    def settle(self) -> None:
        pass

    def close(self, why: str) -> None:
        pass


class Guarded:
    """An onlooker that may fail: the run goes on without it, and one line says why."""

    def __init__(self, onlooker: Onlooker, say: Callable[[str], None]) -> None:
        self._onlooker = onlooker
        self._say = say

    def look(self) -> None:
        self._guard(self._onlooker.look)

    def settle(self) -> None:
        self._guard(self._onlooker.settle)

    def close(self, why: str) -> None:
        self._guard(lambda: self._onlooker.close(why))

    def _guard(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception as error:
            failed, self._onlooker = self._onlooker, Nobody()
            why = told(error)
            with contextlib.suppress(Exception):
                failed.close(why)
            self._say(f"The panel has stopped, the run goes on: {why}")


def opened(
    make: Callable[[], Onlooker | None],
    say: Callable[[str], None],
    otherwise: Callable[[], Onlooker | None] = lambda: None,
) -> Onlooker:
    """The onlooker that `make` gives, guarded; where it fails a line says why. Where it gives none, the one that
    `otherwise` gives, or nobody."""
    try:
        onlooker = make()
    except Exception as error:
        say(f"There is no panel, the run goes on: {told(error)}")
        onlooker = None
    if onlooker is None:
        with contextlib.suppress(Exception):
            onlooker = otherwise()
    return Nobody() if onlooker is None else Guarded(onlooker, say)


def told(error: BaseException) -> str:
    """An error in one line, e.g. "ValueError: no such part"."""
    return " ".join(f"{type(error).__name__}: {error}".split())
