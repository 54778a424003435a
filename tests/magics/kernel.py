"""One real ipykernel for the tests of the magics: cells, everything that it sends in order and with its time,
interrupts, kills, and a sure end.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import SystemRandom
from typing import Any

import psutil
import pytest
from jupyter_client import KernelManager

from tests import overlay

from .samples import FOREVER

ROOT = Path(__file__).resolve().parents[2]
PANEL = "tpu_magics-"  # how the display ids of panels begin
LOAD = "%load_ext tpu_magics"
# A cell that takes long. In short sleeps: while time.sleep() waits to give the GIL away, an interrupt ends no sleep.
SLEEPING = "for _ in range(1000): time.sleep(0.1)"
# The names a test leaves, a run that still goes on, and the folder of the runs before; the histories stay.
FRESH = """
import os as _os, sys as _sys
_session = _sys.modules.get("tpu_magics.launch.session")
if _session is not None:
    _told = _session.current
    _told.active_run = _told.last = _told.processes = _told.spmd = _told.collective_timeout = _told.pod = None
    _told.precision = _told.cache = ""
get_ipython().user_ns.pop("_tpu", None)
for _name in [n for n in get_ipython().user_ns if n not in get_ipython().user_ns_hidden and not n.startswith("_")]:
    del get_ipython().user_ns[_name]
_os.chdir({folder!r})
"""


@dataclass(frozen=True)
class Output:
    """One message that a front end shows. `kind` is its type on the wire; `at`: seconds since its cell was sent."""

    kind: str
    at: float
    content: dict[str, Any]

    @property
    def text(self) -> str:
        """The text of a stream, else what stands as text/plain, else an error's lines."""
        if self.kind == "error":
            return "\n".join(self.content["traceback"])
        data: dict[str, Any] = self.content.get("data") or {}
        return str(self.content.get("text") or data.get("text/plain") or "")

    @property
    def display_id(self) -> str:
        return str((self.content.get("transient") or {}).get("display_id", ""))


@dataclass
class Cell:
    """A cell that was sent, and what has come of it so far. `count`: its number, once it is known. What the panel shows
    is kept apart, and so is what is said to widgets."""

    id: str
    sent: float
    outputs: list[Output] = field(default_factory=list)
    panel: list[Output] = field(default_factory=list)
    comms: list[Output] = field(default_factory=list)
    payloads: list[dict[str, Any]] = field(default_factory=list)
    count: int | None = None
    seconds: float = 0.0

    def of(self, *kinds: str) -> list[Output]:
        return [output for output in self.outputs if output.kind in kinds]

    @property
    def printed(self) -> str:
        """stdout and stderr, as one text."""
        return "".join(output.text for output in self.of("stream"))

    @property
    def shown(self) -> str:
        """Everything that a person reads, in its order."""
        return "".join(o.text if o.kind == "stream" else f"{o.text}\n" for o in self.outputs)

    @property
    def displays(self) -> list[dict[str, Any]]:
        return [output.content["data"] for output in self.of("display_data", "execute_result")]

    @property
    def error(self) -> str:
        """The error as it is shown, without colours; "" where there is none."""
        return without_colours("\n".join(output.text for output in self.of("error")))

    @property
    def said(self) -> str:
        """The error on one line: where it is wrapped is not the tests' business."""
        return " ".join(self.error.split())

    @property
    def error_type(self) -> str:
        return next((str(output.content["ename"]) for output in self.of("error")), "")

    def good(self) -> Cell:
        """Itself; fails the test where the cell raised."""
        assert not self.of("error"), self.shown
        return self


def with_old_kernel() -> dict[str, str]:
    """The environment of a kernel as Colab has it: ipykernel 6.17, IPython 7.34, ipywidgets 7.7."""
    return {"PYTHONPATH": os.pathsep.join(map(str, (*overlay.old_kernel(), ROOT)))}


# The kernel as it is installed, and Colab's older one, which `make test-hosts` tests as Colab's own. In the environment
# of a host there is one, its own.
KERNELS: dict[str, Callable[[], dict[str, str]]] = {"new": dict, "old": with_old_kernel}
if overlay.is_host():
    del KERNELS["new" if overlay.is_colab() else "old"]
OWN = next(iter(KERNELS))
EITHER = [OWN, *(pytest.param(name, marks=pytest.mark.long) for name in KERNELS if name != OWN)]


def with_tensorflow(*before: Path) -> dict[str, str]:
    return {"PYTHONPATH": overlay.python_path(*before)}


EITHER_TENSORFLOW: list[Any] = ["tensorflow"]
KERNELS["tensorflow"] = with_tensorflow
if "old" in KERNELS and OWN != "old":
    EITHER_TENSORFLOW.append(pytest.param("old tensorflow", marks=pytest.mark.long))
    KERNELS["old tensorflow"] = lambda: with_tensorflow(*overlay.old_kernel())


def without_colours(text: str) -> str:
    import re

    return re.sub(r"\x1b\[[0-9;]*m", "", text)


class Kernel:
    """A running ipykernel. `messages`: all that it sent on iopub, also outside of cells."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder = folder
        self.manager = KernelManager(kernel_name="python3", cache_ports=False, **ports_that_stay_free())
        self.environment = kernel_environment(environment)
        self.manager.start_kernel(cwd=str(folder), env=self.environment)
        self.client = self._connected()
        self.messages: list[dict[str, Any]] = []
        self.cells: dict[str, Cell] = {}
        self.pid = self._ask_pid()

    def _connected(self) -> Any:
        client = self.manager.blocking_client()
        client.start_channels()
        client.wait_for_ready(timeout=60)
        return client

    def _ask_pid(self) -> int:
        return int(self.run("import os; print(os.getpid())").printed)

    # -- cells --------------------------------------------------------------------------------------------------------
    def send(self, code: str) -> Cell:
        """Send a cell and return at once. An error of a cell before does not abort it, as it would in "run all"."""
        cell = Cell(self.client.execute(code, allow_stdin=False, stop_on_error=False), time.monotonic())
        self.cells[cell.id] = cell
        return cell

    def finish(self, cell: Cell, timeout: float = 120) -> Cell:
        """Wait until the cell has ended and all its output is here."""
        self._pump(lambda: cell.count is not None, timeout, f"the cell did not end within {timeout} s")
        return cell

    def run(self, code: str, timeout: float = 120) -> Cell:
        return self.finish(self.send(code), timeout)

    def wait_for(self, cell: Cell, text: str, timeout: float = 120) -> Cell:
        """Wait until the cell has printed or shown `text`."""
        self._pump(lambda: text in cell.shown, timeout, f"{text!r} was not shown within {timeout} s")
        return cell

    def wait_until(self, condition: Callable[[], bool], timeout: float = 30) -> None:
        """Take messages until the condition holds."""
        self._pump(condition, timeout, f"it did not come to pass within {timeout} s")

    def _pump(self, condition: Callable[[], bool], timeout: float, complaint: str) -> None:
        until = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > until:
                seen = "\n".join(cell.shown for cell in self.cells.values() if cell.count is None)
                raise AssertionError(f"{complaint}; seen so far:\n{seen}")
            try:
                self._take(self.client.get_iopub_msg(timeout=0.05))
            except queue.Empty:
                continue

    def _take(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        cell = self.cells.get(message["parent_header"].get("msg_id", ""))
        if cell is None:
            return
        kind, content, now = message["msg_type"], message["content"], time.monotonic()
        if kind == "status":
            if content["execution_state"] == "idle":
                cell.count, cell.seconds = self._reply(cell), now - cell.sent
        elif kind != "execute_input":
            output = Output(kind, now - cell.sent, content)
            kept = cell.comms if kind.startswith("comm_") else cell.outputs
            (cell.panel if output.display_id.startswith(PANEL) else kept).append(output)

    def _reply(self, cell: Cell) -> int:
        while True:
            reply = self.client.get_shell_msg(timeout=30)
            if reply["parent_header"].get("msg_id") == cell.id:
                cell.payloads = list(reply["content"].get("payload", []))
                return int(reply["content"].get("execution_count", 0))

    def value(self, expression: str) -> Any:
        """The value of an expression in the kernel, of the kinds that repr() shows in full."""
        import ast

        return ast.literal_eval(self.run(f"print(repr({expression}))").good().printed)

    def fresh(self, folder: Path) -> None:
        """As good as new for the next test: no names, no run, an empty folder for runs."""
        self.run(FRESH.format(folder=str(folder))).good()

    # -- life and death -----------------------------------------------------------------------------------------------
    def interrupt(self) -> None:
        """As the stop button does it: through the kernel's manager."""
        self.manager.interrupt_kernel()

    def subshell(self) -> dict[str, str]:
        """The header of a message to a new subshell, as JupyterLab 4.4 sends it to ipykernel 7."""
        self.client.control_channel.send(self.client.session.msg("create_subshell_request"))
        return {"subshell_id": self.client.get_control_msg(timeout=10)["content"]["subshell_id"]}

    def started(self) -> Cell:
        """A cell whose run trains until it is stopped."""
        return self.wait_for(self.send(FOREVER.format(options="")), "started")

    def stop(self, cell: Cell) -> float:
        """Interrupt; returns after how many seconds the cell has ended."""
        began = time.monotonic()
        self.interrupt()
        self.finish(cell, timeout=60)
        return time.monotonic() - began

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        until = time.monotonic() + 10
        while self.manager.is_alive() and time.monotonic() < until:
            time.sleep(0.05)

    def restart(self) -> None:
        """Restart on the same ports."""
        self.client.stop_channels()
        self.manager.restart_kernel(now=True)
        self.client = self._connected()
        self.pid = self._ask_pid()

    def descendants(self) -> list[psutil.Process]:
        """Living processes that the kernel, or a process of its, has started. Zombies count: none may stay."""
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def workers(self) -> list[psutil.Process]:
        """The same without the guard of a run (launch/descendants.py)."""
        return [process for process in self.descendants() if "descendants.py" not in " ".join(process.cmdline())]

    def close(self) -> None:
        """End the kernel and whatever it left behind."""
        left = self.descendants()
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        for process in left:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                pass


def ports_that_stay_free() -> dict[str, int]:
    """A kernel's ports, below those that the system gives to whoever asks for any (from 32768 on Linux): when a killed
    kernel is started again on them, no connection of another test has taken one."""
    names = ("shell_port", "iopub_port", "stdin_port", "control_port", "hb_port")
    ports: list[int] = []
    while len(ports) < len(names):
        port = SystemRandom().randrange(10_000, 32_768)
        with closing(socket.socket()) as trial:
            if port not in ports and trial.connect_ex(("127.0.0.1", port)):
                ports.append(port)
    return dict(zip(names, ports, strict=True))


def kernel_environment(more: dict[str, str]) -> dict[str, str]:
    """The tests' environment, without what would change where and how a kernel trains."""
    dropped = ("TPU_MAGICS_RUNS", "PJRT_DEVICE", "MPLBACKEND")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    path = os.pathsep.join([str(ROOT), *filter(None, [kept.get("PYTHONPATH")])])
    return {**kept, "JUPYTER_PREFER_ENV_PATH": "1", "PYTHONPATH": path, "NO_COLOR": "1", **more}


@contextmanager
def running_kernel(folder: Path, **environment: str) -> Iterator[Kernel]:
    """A kernel that is surely gone afterwards."""
    kernel = Kernel(folder, **environment)
    try:
        yield kernel
    finally:
        kernel.close()


def alive(pid: int) -> bool:
    """Whether a process is there and not a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def python(code: str, folder: Path, *options: str, timeout: float = 120, **environment: str) -> str:
    """What a Python process prints, stdout and stderr as one text; fails the test where it fails."""
    import subprocess

    done = subprocess.run(
        [sys.executable, *options, "-c", code],
        cwd=folder,
        env=kernel_environment(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
