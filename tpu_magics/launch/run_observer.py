"""Observers of a run, such as the live panel. An error of an observer never affects the run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Protocol

# What the main thread does during the run.
WAITS, FREE, TRAINS = "waits for it", "runs other cells", "trains"


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


class SafeObserver:
    """Wraps an observer: if it fails, the run continues without it, and a message says why."""

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
            self._say(f"The panel stopped because of an error, the run continues: {why}")


def open_observer(
    make: Callable[[], RunObserver | None],
    say: Callable[[str], None],
    otherwise: Callable[[], RunObserver | None] = lambda: None,
) -> RunObserver:
    """The observer from `make`, else from `otherwise`, wrapped in a SafeObserver; a NullObserver if there is none. An
    error of `make` becomes a message."""
    try:
        observer = make()
    except Exception as error:
        say(f"The panel could not be opened, the run continues: {describe_error(error)}")
        observer = None
    if observer is None:
        with contextlib.suppress(Exception):
            observer = otherwise()
    return NullObserver() if observer is None else SafeObserver(observer, say)


def describe_error(error: BaseException) -> str:
    """An error as one line, e.g. "ValueError: no such part"."""
    return " ".join(f"{type(error).__name__}: {error}".split())
