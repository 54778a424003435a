"""Who writes to a place of checkpoints: one run at a time.

A lock is a note in the place, `.lock-7`. The one with the highest number counts, and the next is made only where it is
not there yet, which disks and object stores can both do. Its owner writes it anew every few seconds: whether a run on
another machine is still there is told by whether its note changes, not by comparing clocks.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from tpu_magics.errors import TpuMagicsError
from tpu_magics.runs.owner import process_started, same_process

PREFIX = ".lock-"
BEAT = 5.0  # seconds between two writes
PATIENCE = 20.0  # seconds without one after which an owner on another machine is gone
_LOOK = 1.0  # seconds between two looks at another's
_RACES = 10  # others that may be faster, one after the other


class Notes(Protocol):
    """What a lock needs of a place (`CheckpointPlace`). All methods raise OSError."""

    name: str

    def notes(self, prefix: str) -> list[str]:
        """Names of notes, in any order."""

    def read_note(self, name: str) -> str | None:
        """None if there is none."""

    def write_note(self, name: str, text: str, new: bool = False) -> bool:
        """Write the note whole. `new`: only if there is none; returns whether it was written."""

    def remove_note(self, name: str) -> None:
        """If it is there."""


@dataclass(frozen=True)
class PlaceOwner:
    """A run. `token`: its secret; `machine`: equal only for processes that know each other by `pid`; `since`: seconds
    since the epoch, by its own clock; `beat`: how often it was written."""

    token: str
    run: str
    host: str
    machine: str
    pid: int
    started: int | None
    since: float
    beat: int = 0

    @classmethod
    def of_this_process(cls, run: str) -> PlaceOwner:
        pid = os.getpid()
        host, started = socket.gethostname(), process_started(pid)
        return cls(secrets.token_hex(8), run, host, _machine(), pid, started, round(time.time(), 3))

    @classmethod
    def parsed(cls, text: str) -> PlaceOwner | None:
        """None for a note that is not as `of_this_process` makes it."""
        try:
            found = cls(**json.loads(text))
            texts = (found.token, found.run, found.host, found.machine)
            good = all(isinstance(one, str) for one in texts) and type(found.pid) is int and float(found.since) >= 0
            return found if good and type(found.started) in (int, type(None)) else None
        except (ValueError, TypeError, RecursionError):
            return None

    def text(self) -> str:
        return json.dumps(asdict(self))

    def is_gone(self) -> bool | None:
        """Whether its process has ended, or is this one, which has one run at a time. None: another machine's."""
        if self.machine != _machine():
            return None
        mine = (self.pid, self.started) == (os.getpid(), process_started(os.getpid()))
        return mine or not same_process(self.pid, self.started)

    def described(self) -> str:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"the run {self.run} on {self.host}, process {self.pid}, since {since} by its clock"


class PlaceLost(OSError):
    """Another run has taken the place over; the text says which."""


class PlaceLock:
    """A place that this process's run writes to, and no other's."""

    def __init__(self, place: Notes, number: int, owner: PlaceOwner) -> None:
        self.place = place
        self.number = number
        self.owner = owner
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def token(self) -> str:
        """For `require`, in the workers."""
        return self.owner.token

    def keep(self) -> None:
        """Write it anew from now on, in a thread, until `release`."""
        self._thread = threading.Thread(target=self._beat_on, name="tpu_magics-lock", daemon=True)
        self._thread.start()

    def _beat_on(self) -> None:
        while not self._over.wait(BEAT):
            with contextlib.suppress(Exception):  # the network's, of any type: it is tried again
                if not self.beat():
                    return

    def beat(self) -> bool:
        """Write it once more. False: another has it."""
        name = f"{PREFIX}{self.number}"
        if self.place.read_note(name) != self.owner.text():
            return False
        self.owner = replace(self.owner, beat=self.owner.beat + 1)
        return self.place.write_note(name, self.owner.text())

    def release(self) -> None:
        """The run has ended (idempotent)."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(BEAT)
        with contextlib.suppress(Exception):
            name = f"{PREFIX}{self.number}"
            found = PlaceOwner.parsed(self.place.read_note(name) or "")
            if found is not None and found.token == self.token:
                self.place.remove_note(name)


def acquire(
    place: Notes,
    run: str,
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> PlaceLock:
    """Take a place for a run, also from one that is gone. Raises OSError, and TpuMagicsError where another has it."""
    for _ in range(_RACES):
        number, text = newest(place)
        if text is not None:
            _wait_until_gone(place, number, text, say, sleep, clock)
        lock = PlaceLock(place, number + 1, PlaceOwner.of_this_process(run))
        if place.write_note(f"{PREFIX}{lock.number}", lock.owner.text(), new=True):
            for old in _numbers(place):
                if old < lock.number:
                    place.remove_note(f"{PREFIX}{old}")
            return lock
    raise _in_use(place, None)


def require(place: Notes, token: str) -> None:
    """Raise PlaceLost if another run has taken the place over since."""
    _, text = newest(place)
    owner = PlaceOwner.parsed(text or "")
    if owner is None or owner.token != token:
        other = owner.described() if owner is not None else "another run"
        raise PlaceLost(f"{other} has taken the place over")


def newest(place: Notes) -> tuple[int, str | None]:
    """The lock that counts: its number and text; (0, None) where there is none."""
    for number in sorted(_numbers(place), reverse=True):
        if (text := place.read_note(f"{PREFIX}{number}")) is not None:
            return number, text
    return 0, None


def _numbers(place: Notes) -> list[int]:
    found = (name.removeprefix(PREFIX) for name in place.notes(PREFIX))
    return [int(one) for one in found if one.isascii() and one.isdecimal()]


def _wait_until_gone(
    place: Notes,
    number: int,
    text: str,
    say: Callable[[str], None],
    sleep: Callable[[float], None],
    clock: Callable[[], float],
) -> None:
    owner = PlaceOwner.parsed(text)
    gone = owner.is_gone() if owner is not None else None
    if gone is None:
        who = owner.described() if owner is not None else "a run that cannot be told"
        say(f"{place.name} belongs to {who}. Looking whether that is still there; {PATIENCE:.0f} s at most ...")
        until = clock() + PATIENCE
        while clock() < until:
            sleep(_LOOK)
            now = newest(place)
            if now == (0, None):
                return  # it has ended
            if now != (number, text):
                raise _in_use(place, PlaceOwner.parsed(now[1] or ""))
        say("It is gone: this run takes its place.")
    elif not gone:
        raise _in_use(place, owner)


def _in_use(place: Notes, owner: PlaceOwner | None) -> TpuMagicsError:
    return TpuMagicsError(
        f"Another run saves its checkpoints in {place.name}.",
        f"It is {owner.described()}. Two runs in one place would remove each other's checkpoints."
        if owner is not None
        else "Several runs began there at the same moment.",
        "Wait for it or stop it, or give this run a name of its own: --run-name NAME.",
    )


def _machine() -> str:
    """This boot of this host, and its pid namespace; unique where the parts cannot be told."""
    parts: list[Any] = [socket.gethostname()]
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        try:
            parts.append(Path(path).readlink() if path.endswith("pid") else Path(path).read_text().strip())
        except OSError:
            return f"unknown {secrets.token_hex(8)}"
    return "/".join(map(str, parts))
