"""Who looks on while a run is watched: the panel, if there is one.

What lives here: the protocol, and the guard that keeps a failure of the observer away from the run. What does not: any
observer (panel/widget.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Protocol

# What the main thread does while the run goes on.
WAITS, FREE, TRAINS = "waits for it", "runs other cells", "trains"


class RunObserver(Protocol):
    """Looks at a run, always from the thread that watches it."""

    def look(self) -> None:
        """Called at each tick of the watch; takes milliseconds."""

    def settle(self) -> None:
        """Nobody is left to be watched: leave what shall stay. Called again when the results are home."""

    def close(self, why: str) -> None:
        """Stop looking, because of what `why` says, and leave nothing open."""


class NullObserver:
    """Looks at nothing."""

    def look(self) -> None:
        pass

    def settle(self) -> None:
        pass

    def close(self, why: str) -> None:
        pass


class SafeObserver:
    """An observer that may fail: the run goes on without it, and one line says why."""

    def __init__(self, observer: RunObserver, say: Callable[[str], None]) -> None:
        self._observer = observer
        self._say = say

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
            self._say(f"The panel has stopped, the run goes on: {why}")


def open_observer(
    make: Callable[[], RunObserver | None],
    say: Callable[[str], None],
    otherwise: Callable[[], RunObserver | None] = lambda: None,
) -> RunObserver:
    """The observer that `make` gives, guarded; where it fails a line says why. Where it gives none, the one that
    `otherwise` gives, or nobody."""
    try:
        observer = make()
    except Exception as error:
        say(f"There is no panel, the run goes on: {describe_error(error)}")
        observer = None
    if observer is None:
        with contextlib.suppress(Exception):
            observer = otherwise()
    return NullObserver() if observer is None else SafeObserver(observer, say)


def describe_error(error: BaseException) -> str:
    """An error in one line, e.g. "ValueError: no such part"."""
    return " ".join(f"{type(error).__name__}: {error}".split())
