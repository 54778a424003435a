"""The comm to the JupyterLab extension: opening, closing, sending.

`%load_ext` opens one comm; a front end that comes later opens its own to the registered target. Messages have no
parent, so they belong to no cell, and tools that run notebooks never see them. The kernel's own Comm class is not used:
it fires the shell's events with each message, in whichever thread reads it, and (7.4) routes a front end's messages to
the thread that sent last, which may be training.

Nothing here may fail: a lost front end must not stop a run or print a line.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from tpu_magics import __version__
from tpu_magics.panel.json_values import plain
from tpu_magics.panel.protocol import PROTOCOL, TARGET, VERSION, HelloMessage, KernelHost

MOST_COMMS = 8  # opened by front ends; the least recently active one is closed
RATE = 0.5  # seconds between updates, unless a front end has requested another rate
LATELY = 60.0  # seconds in which the rates of all front ends count; after that, the newest one
# Seconds after which a silent front end counts as closed. An open one sends its rate every 20 seconds, a hidden one
# every minute, because browsers throttle its timers.
SILENT = 150.0


class FrontEndComm:
    """One comm, as the kernel's comm manager knows it. `heard`: the time of its last message;
    `rate`: the time of its last rate request, and its seconds."""

    primary, target_name, target_module, kernel = True, TARGET, None, None

    def __init__(self, lab: Lab, comm_id: str, own: bool) -> None:
        self.lab, self.comm_id, self.own = lab, comm_id, own
        self.heard: float | None = None
        self.rate: tuple[float, float] | None = None
        self._closed = False

    def handle_msg(self, message: Mapping[str, Any]) -> None:
        """Called by the manager, in whichever thread it reads messages."""
        self.lab.take(self.comm_id, message["content"].get("data"))

    def handle_close(self, _message: Mapping[str, Any]) -> None:
        self.lab.was_closed(self)

    def ask_rate(self, seconds: float) -> None:
        """Replace the update rate of its front end."""
        self.rate = (self.lab.now(), seconds)


class Lab:
    """The comms of one kernel, between `%load_ext` and `%unload_ext`."""

    def __init__(self, kernel: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._kernel, self.now = kernel, clock
        self._manager = kernel.comm_manager
        self._wires: dict[str, FrontEndComm] = {}
        self._lock = threading.RLock()
        self.kept: dict[str, Any] = {}  # messages for the first front end that becomes active, by type
        self._open = False

    # -- its life ----------------------------------------------------------------------------------------------------
    def open(self) -> None:
        """Register the target, and open a comm to a front end that is already there."""
        self._open = True
        self._manager.register_target(TARGET, self._was_opened)
        wire = self._wire(uuid.uuid4().hex, own=True)
        more = {"target_name": TARGET, "target_module": None}
        self._post("comm_open", wire, as_message(self.hello()), **more)

    def close(self) -> None:
        """Close all comms, and unregister the target."""
        self._open = False
        with self._lock:
            wires, self._wires = list(self._wires.values()), {}
        for wire in wires:
            self._drop(wire)
        if getattr(self._manager.targets.get(TARGET), "__self__", None) is self:
            self._manager.unregister_target(TARGET, self._was_opened)

    def hello(self) -> HelloMessage:
        """The greeting: versions, host, newest run."""
        run = self.following()
        live = run is not None and run.live
        answers = run.answers if live else self.answers
        return HelloMessage(__version__, VERSION, known_host(), run.files.id if run else None, live, answers)

    @property
    def answers(self) -> bool:
        """Whether this kernel answers while any cell runs, also one without a run."""
        return has_subshells(self._kernel)

    def _wire(self, comm_id: str, own: bool) -> FrontEndComm:
        wire = FrontEndComm(self, comm_id, own)
        with self._lock:
            self._wires[comm_id] = wire
        self._manager.register_comm(wire)
        return wire

    def _drop(self, wire: FrontEndComm) -> None:
        wire._closed = True
        self._post("comm_close", wire, {})
        with contextlib.suppress(KeyError):
            self._manager.unregister_comm(wire)

    # -- opened and closed by front ends ------------------------------------------------------------------------------
    def _was_opened(self, comm: Any, message: Mapping[str, Any]) -> None:
        """A front end has opened a comm; ours replaces the Comm that the manager made for it."""
        comm._closed = True  # else it sends comm_close when it is collected
        self.adopt(comm.comm_id, message["content"].get("data"))

    def adopt(self, comm_id: str, data: Any) -> None:
        """Accept a comm that a front end has opened, and send the greeting."""
        wire = self._wire(comm_id, own=False)
        wire.heard = self.now()
        with self._lock:
            others = sorted((one for one in self._wires.values() if not one.own), key=lambda one: one.heard or 0.0)
            old = others[:-MOST_COMMS] if len(others) > MOST_COMMS else []
            for one in old:
                del self._wires[one.comm_id]
        for one in old:
            self._drop(one)
        if _is_ours(data) and data.get("request"):
            self.take(comm_id, data)
        else:
            self._post("comm_msg", wire, as_message(self.hello()))

    def was_closed(self, wire: FrontEndComm) -> None:
        """A front end without the extension closes our comm for all; keep it for the others."""
        if self._open and wire.own:
            wire._closed = False
            self._manager.register_comm(wire)
            return
        with self._lock:
            self._wires.pop(wire.comm_id, None)

    @property
    def heard(self) -> bool:
        """Whether any front end is active; else no message is needed."""
        return bool(self._listening())

    @staticmethod
    def following() -> Any:
        """The newest run (front_ends.py), None where there is none: `%load_ext` does not import that module."""
        front_ends = sys.modules.get("tpu_magics.magics.front_ends")
        return front_ends.following() if front_ends is not None else None

    def _listening(self) -> list[FrontEndComm]:
        """The active comms. Silence counts only while the kernel reads messages."""
        run = self.following()
        hears = run is not None and run.live and run.hears
        oldest = self.now() - SILENT if hears else float("-inf")
        return [wire for wire in list(self._wires.values()) if wire.heard is not None and wire.heard >= oldest]

    # -- messages of front ends ---------------------------------------------------------------------------------------
    def take(self, comm_id: str, data: Any) -> bool:
        """Answer a message, in any thread. False: it belongs to none of our comms."""
        wire = self._wires.get(comm_id)
        if wire is None:
            return False
        if _is_ours(data):
            from tpu_magics.magics import lab_requests

            first, wire.heard = not self.heard, self.now()
            kept = tuple(self.kept.values()) if first else ()
            for message in (*lab_requests.answers(wire, data), *kept):
                self._post("comm_msg", wire, as_message(message))
        return True

    @property
    def every(self) -> float:
        """Seconds between updates: the fastest rate that was requested lately."""
        rates = [wire.rate for wire in list(self._wires.values()) if wire.rate is not None]
        lately = [seconds for at, seconds in rates if self.now() - at <= LATELY]
        return min(lately) if lately else max(rates)[1] if rates else RATE

    # -- sending -------------------------------------------------------------------------------------------------------
    def announce(self) -> None:
        """Send the greeting to all, also to silent front ends: in "run all" their messages wait behind the cells, and
        only messages sent later, while a cell waits for its run, are answered at once."""
        data = as_message(self.hello())
        for wire in list(self._wires.values()):
            self._post("comm_msg", wire, data)

    def tell(self, *messages: Any) -> None:
        """Send to all active front ends."""
        wires = self._listening()
        for message in messages if wires else ():
            data = as_message(message)
            for wire in wires:
                self._post("comm_msg", wire, data)

    def tell_or_keep(self, message: Any) -> None:
        """To all active front ends; where there is none yet, to the first that becomes active: with "Run All", a page
        is heard only after the cells."""
        if self.heard:
            self.kept.pop(message.type, None)
            self.tell(message)
        else:
            self.kept[message.type] = message

    def _post(self, kind: str, wire: FrontEndComm, data: Mapping[str, Any], **more: Any) -> None:
        content = {"comm_id": wire.comm_id, "data": data, **more}
        with contextlib.suppress(Exception):
            self._kernel.session.send(
                self._kernel.iopub_socket, kind, content, ident=f"comm-{wire.comm_id}".encode("ascii")
            )


def _is_ours(data: Any) -> bool:
    """Whether this is a message of our protocol, of any version."""
    return isinstance(data, Mapping) and data.get("protocol") == PROTOCOL


def as_message(message: Any) -> dict[str, Any]:
    """A message as it is sent."""
    return {"protocol": PROTOCOL, "v": VERSION, "type": message.type, **plain(message)}


# -- the kernel -------------------------------------------------------------------------------------------------------


def known_host() -> KernelHost | None:
    """The host of this kernel; None before it was detected."""
    session = sys.modules.get("tpu_magics.launch.session")
    if session is None or session.current.host is None:
        return None
    from tpu_magics.panel.host import host_summary

    current = session.current
    with contextlib.suppress(Exception):
        return host_summary(current.host, current.processes, current.spmd, current.placed, current.pod)
    return None


def has_subshells(kernel: Any) -> bool:
    """Whether front ends can send messages past any busy cell (ipykernel 7). Without them, messages
    are read only while the cell's thread waits for a run (front_ends.py)."""
    return bool(getattr(kernel, "_supports_kernel_subshells", False))


# -- the current comms -----------------------------------------------------------------------------------------------

current: Lab | None = None


def load(shell: Any) -> None:
    """Open the comm of this shell's kernel; there is none without a kernel."""
    global current
    unload(shell)
    kernel = getattr(shell, "kernel", None)
    if kernel is None or not hasattr(kernel, "comm_manager"):
        return
    with contextlib.suppress(Exception):
        made = Lab(kernel)
        made.open()
        current = made


def unload(shell: Any) -> None:
    """Close it; also one that an earlier import of this module has left."""
    global current
    manager = getattr(getattr(shell, "kernel", None), "comm_manager", None)
    if manager is None:
        return
    current = None
    left: set[Any] = {getattr(one, "lab", None) for one in list(manager.comms.values()) if one.target_name == TARGET}
    for desk in left - {None}:
        with contextlib.suppress(Exception):
            desk.close()


def say_hello() -> None:
    """Send the greeting again: the host was detected, or a run begins."""
    if current is not None:
        current.announce()
