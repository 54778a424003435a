"""Interrupts of a run that holds the main thread, where Python itself would lose them."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tpu_magics.launch.minder import INTERRUPT, Minder
from tpu_magics.runs.meter import MemoryMeter
from tpu_magics.runs.writer import EventWriter

SOON = 5.0  # seconds; it takes a tenth, machines may be busy


class Interrupted:
    """Is interrupted while Python clears it up, and what is raised then is ignored."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)


class Signal(int):
    """`.comes`: it has come to this process, and Python looks at it when it begins its next function."""

    comes = property(_thread.interrupt_main)


@contextmanager
def context(told: list[str]) -> Iterator[None]:
    told.append("in")
    try:
        yield
    finally:
        told.append("out")


class Broken:
    def __del__(self) -> None:
        raise ValueError("a bug of the person's")


@pytest.fixture
def minder(tmp_path: Path) -> Minder:
    return Minder(MemoryMeter(EventWriter(tmp_path / "supervisor.jsonl", -1), 0))


@pytest.fixture
def ignored(monkeypatch: pytest.MonkeyPatch) -> list[type[BaseException]]:
    """What reaches the hook that was there before."""
    seen: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: seen.append(found.exc_type))
    return seen


def test_an_interrupt_that_python_ignores_comes_again(minder: Minder, ignored: list[Any]) -> None:
    began = time.monotonic()
    with minder.looking(), pytest.raises(KeyboardInterrupt), minder.interruptible():
        Interrupted()
        assert time.monotonic() - began < SOON, "the interrupt was raised where Python does not ignore it"
        while time.monotonic() - began < SOON:
            time.sleep(0.01)
    assert time.monotonic() - began < SOON, "the interrupt was lost"
    assert minder.reason == INTERRUPT and ignored == []


def test_what_else_python_ignores_is_told_as_before(minder: Minder, ignored: list[Any]) -> None:
    hook = sys.unraisablehook
    with minder.looking(), minder.interruptible():
        Broken()
    assert ignored == [ValueError] and minder.reason == "" and sys.unraisablehook is hook


def test_outside_of_the_block_it_is_not_sent_again(minder: Minder, ignored: list[Any]) -> None:
    """The code was over when it came."""
    with minder.looking():
        with minder.interruptible():
            Interrupted()
        time.sleep(0.3)
    assert ignored == []


def test_a_context_that_is_interrupted_as_it_ends_is_left(minder: Minder) -> None:
    """Its own end has not begun yet, and the traceback would keep it from being cleared up."""
    told: list[str] = []
    with minder.looking(), pytest.raises(KeyboardInterrupt) as caught, minder.interruptible(), context(told):
        Signal(signal.SIGINT).comes
    frames = [entry.name for entry in caught.traceback]
    assert frames[-2:] == ["__exit__", "_interrupted"], "it came elsewhere, and this test shows nothing"
    assert told == ["in", "out"]
