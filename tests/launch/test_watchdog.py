"""Interrupts of a run that holds the main thread, where Python itself would lose them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from tests.launch.strategies.signalled import Signal
from tpu_magics.launch import watchdog as module
from tpu_magics.launch.watchdog import INTERRUPT, Watchdog, interruptible
from tpu_magics.runs.meter import MemoryMeter
from tpu_magics.runs.writer import EventWriter

SOON = 5.0  # seconds; it takes a tenth, machines may be busy


class Interrupted:
    """Is interrupted while Python clears it up, and what is raised then is ignored."""

    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)


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
def watchdog(tmp_path: Path) -> Watchdog:
    return Watchdog(MemoryMeter(EventWriter(tmp_path / "supervisor.jsonl", -1), 0))


@pytest.fixture
def ignored(monkeypatch: pytest.MonkeyPatch) -> list[type[BaseException]]:
    """What reaches the hook that was there before."""
    seen: list[type[BaseException]] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: seen.append(found.exc_type))
    return seen


def test_an_interrupt_that_python_ignores_comes_again(watchdog: Watchdog, ignored: list[Any]) -> None:
    began, hook = time.monotonic(), sys.unraisablehook
    with watchdog.running(), pytest.raises(KeyboardInterrupt), watchdog.interruptible():
        Interrupted()
        assert time.monotonic() - began < SOON, "the interrupt was raised where Python does not ignore it"
        while time.monotonic() - began < SOON:
            time.sleep(0.01)
    assert time.monotonic() - began < SOON, "the interrupt was lost"
    assert watchdog.reason == INTERRUPT and ignored == []
    assert sys.unraisablehook is hook


def test_what_else_python_ignores_is_told_as_before(watchdog: Watchdog, ignored: list[Any]) -> None:
    hook = sys.unraisablehook
    with watchdog.running(), watchdog.interruptible():
        Broken()
    assert ignored == [ValueError] and watchdog.reason == "" and sys.unraisablehook is hook


def test_one_that_is_lost_as_the_block_ends_is_raised_once(watchdog: Watchdog, ignored: list[Any]) -> None:
    with watchdog.running():
        with pytest.raises(KeyboardInterrupt), watchdog.interruptible():
            Interrupted()
        time.sleep(0.3)  # in which it could be sent again
    assert ignored == [] and watchdog.reason == INTERRUPT


def test_a_context_that_is_interrupted_as_it_ends_ends_first(watchdog: Watchdog) -> None:
    """What is raised there leaves it suspended, for as long as the traceback is kept."""
    told: list[str] = []
    with watchdog.running(), pytest.raises(KeyboardInterrupt) as caught, watchdog.interruptible():
        with context(told):
            Signal(signal.SIGINT).comes
        told.append("after")
        time.sleep(SOON)
        told.append("the interrupt was lost")
    assert told == ["in", "out", "after"] and watchdog.reason == INTERRUPT
    assert "__exit__" not in [entry.name for entry in caught.traceback]


def test_one_that_comes_as_the_last_context_ends_is_not_lost(watchdog: Watchdog) -> None:
    told: list[str] = []
    with watchdog.running(), pytest.raises(KeyboardInterrupt), watchdog.interruptible(), context(told):
        Signal(signal.SIGINT).comes
    assert told == ["in", "out"] and watchdog.reason == INTERRUPT


def test_that_is_where_the_signal_of_these_tests_comes() -> None:
    places: list[str] = []
    before = signal.signal(signal.SIGINT, lambda _number, frame: places.append(frame.f_code.co_name if frame else ""))
    try:
        with context([]):
            Signal(signal.SIGINT).comes
    finally:
        signal.signal(signal.SIGINT, before)
    assert places == ["__exit__"]


def test_whoever_presses_again_is_not_interrupted_twice(watchdog: Watchdog, ignored: list[Any]) -> None:
    """What the code puts in order after the second is its own business, and not the first one's."""
    cleared = False
    with watchdog.running(), pytest.raises(KeyboardInterrupt), watchdog.interruptible():
        Interrupted()
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(SOON)
        finally:
            time.sleep(0.4)  # in which the lost one could be sent again
            cleared = True
    assert cleared and ignored == []


def test_after_a_lost_one_the_framework_is_asked_to_give_up(watchdog: Watchdog, ignored: list[Any]) -> None:
    """It is sent again, and the main thread is in a long program: a handler does not run there."""
    asked = threading.Event()
    watchdog.give_up = asked.set
    with watchdog.running(), pytest.raises(KeyboardInterrupt), watchdog.interruptible():
        Interrupted()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            assert asked.wait(SOON), "it waits for the program"
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        time.sleep(SOON)
    assert ignored == []


def test_a_call_that_does_not_give_up_is_named_and_asked_again(
    watchdog: Watchdog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No signal ends the wait for a mutex, as none ends a compiled program."""
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    monkeypatch.setattr(module, "STUCK", 0.05)
    library, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    asked: list[float] = []
    told: list[str] = []

    def give_up() -> None:
        asked.append(time.monotonic())
        if len(asked) == 2:
            library.pthread_mutex_unlock(mutex)

    def tell(frame: FrameType | None) -> None:
        told.append(frame.f_code.co_name if frame is not None else "")
        os.kill(os.getpid(), signal.SIGINT)

    watchdog.give_up, watchdog.tell_stuck = give_up, tell
    sender = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    library.pthread_mutex_lock(mutex)
    with pytest.raises(KeyboardInterrupt), watchdog.running(), watchdog.interruptible(limited=True):
        sender.start()
        library.pthread_mutex_lock(mutex)
    sender.join()
    assert len(asked) == 2 and told == ["test_a_call_that_does_not_give_up_is_named_and_asked_again"]


def test_a_block_that_is_minded_ends_and_leaves_everything_as_it_was() -> None:
    before = signal.getsignal(signal.SIGINT), sys.unraisablehook, threading.active_count()
    with pytest.raises(KeyboardInterrupt), interruptible():
        Interrupted()
        time.sleep(SOON)
    assert (signal.getsignal(signal.SIGINT), sys.unraisablehook, threading.active_count()) == before


def test_no_interrupt_comes_to_a_thread() -> None:
    """Where a handler could not be set, either."""
    done: list[str] = []

    def work() -> None:
        with interruptible():
            done.append("worked")

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == ["worked"]
