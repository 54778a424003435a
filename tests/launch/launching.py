"""What the tests of the launcher share: starting a run in this process, waiting, and looking at models."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from tpu_magics.errors import TpuMagicsError, TrainingFailed
from tpu_magics.launch import session, train
from tpu_magics.launch.notebook import PlainProgram
from tpu_magics.launch.options import Options
from tpu_magics.launch.results import TrainResult
from tpu_magics.runs.reader import Run

ROOT = Path(__file__).parents[2]


def run(function: Callable[..., Any], *args: Any, workers: int | None = None, **options: Any) -> TrainResult:
    """Train in this process. Hoisting is off: other tests are about it."""
    kwargs = options.pop("kwargs", None)
    return train.start(
        train.function_request(function, args, kwargs),
        Options(**{"hoist": "off", "timeout": 60.0, **options}),
        workers=workers,
    )


def failed(function: Callable[..., Any], *args: Any, **options: Any) -> TrainingFailed:
    """Train, and give the error of a run that failed."""
    with pytest.raises(TrainingFailed) as caught:
        run(function, *args, **options)
    return caught.value


def error_of(function: Callable[..., Any], *args: Any, **options: Any) -> TpuMagicsError:
    """Call a function, and give the error that it raises."""
    with pytest.raises(TpuMagicsError) as caught:
        function(*args, **options)
    return caught.value


def refused(function: Callable[..., Any], *args: Any, **options: Any) -> TpuMagicsError:
    """Train, and give the error of a run that was refused before anything forked."""
    error = error_of(run, function, *args, **options)
    assert not isinstance(error, TrainingFailed)
    return error


def said(error: TpuMagicsError) -> str:
    """The whole text of an error."""
    return "\n".join(error.lines())


def place_of(comment: str, file: str) -> str:
    """The line of a file that ends with this comment, as an error names it."""
    lines = Path(file).read_text().splitlines()
    number = next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {comment}"))
    return f"{Path(file).name}, line {number}"


def of(error: TrainingFailed) -> Run:
    """The records of the run that failed."""
    return Run(error.run)


class FakeNotebook(PlainProgram):
    """A notebook with names of its own that notes what is shown, with the time."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.lines: list[str] = []
        self.shown: list[tuple[float, str, Any]] = []

    @property
    def namespace(self) -> dict[str, Any]:
        return self.names

    def screen(self) -> FakeNotebook:
        return self

    def background_screen(self, title: str) -> FakeNotebook:
        return self

    def say(self, line: str) -> None:
        self.lines.append(line)

    # -- the screen
    def text(self, text: str) -> None:
        if text:
            self.shown.append((time.time(), "text", text))

    def display(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str, update: bool) -> None:
        self.shown.append((time.time(), "update" if update else "display", data))

    def clear(self, wait: bool) -> None:
        self.shown.append((time.time(), "clear", wait))

    def newest_only(self, log: Path) -> FakeNotebook:
        self.shown.append((time.time(), "newest only", str(log)))
        return self

    @property
    def printed(self) -> str:
        return "".join(text for _, kind, text in self.shown if kind == "text")


def fake_notebook() -> FakeNotebook:
    """Make the session's notebook one that notes what is shown."""
    notebook = FakeNotebook()
    session.current.notebook = notebook
    return notebook


# -- models -----------------------------------------------------------------------------------------------------------


def digest(*models: Any) -> str:
    """What a model holds, byte for byte, its tied weights and modes included."""
    import torch

    found = hashlib.sha256()
    for model in models:
        for name, tensor in model.state_dict(keep_vars=True).items():
            found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {id(tensor)} {tensor.requires_grad}".encode())
            found.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        found.update(str(model.training).encode())
    return found.hexdigest()


# -- time -------------------------------------------------------------------------------------------------------------


def wait_until(true: Callable[[], Any], seconds: float = 20.0) -> bool:
    """Whether something became true in time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if true():
            return True
        time.sleep(0.02)
    return bool(true())


def waits_for(path: Path) -> str:
    """What a worker does that goes on until a file is there."""
    while not path.exists():
        time.sleep(0.02)
    return "home"


@contextlib.contextmanager
def interrupt_when(ready: Callable[[], Any], times: int = 1, apart: float = 0.0) -> Iterator[dict[str, float]]:
    """Send SIGINT to this process, as the stop button does, as soon as something is so. Gives {"at": when}."""
    when: dict[str, float] = {}

    def send() -> None:
        if wait_until(ready, 60.0):
            when["at"] = time.monotonic()
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(apart)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield when
    finally:
        thread.join()


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state not in (b"Z", b"X")


def reap_orphans(patience: float = 5.0) -> None:
    """The dead workers of a notebook that was killed: they come to this process (see tests/conftest.py), which does for
    them what init does for a person's. psutil 5.9, as on Colab, counts those that nobody reaps."""

    def one_is_reaped() -> bool:
        dead = [child for child in psutil.Process().children() if child.status() == psutil.STATUS_ZOMBIE]
        for child in dead:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child.pid, os.WNOHANG)
        return bool(dead)

    wait_until(one_is_reaped, patience)
    while one_is_reaped():
        pass


# -- a process of its own ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def forked_notebook(cells: Callable[[], Any], output: Path) -> Iterator[int]:
    """A fork of this process that plays the notebook and may be killed; what it prints goes to `output`. Gives its pid.

    It is forked because a fresh Python imports torch_xla for many seconds. CPU work with many threads may hang in it.
    """
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            os.dup2(file, 1)
            os.dup2(file, 2)
            sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
            sys.stderr = sys.__stderr__ = os.fdopen(2, "w", closefd=False)
            cells()
            sys.stdout.flush()
            code = 0
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(code)
    try:
        yield pid
    finally:
        with contextlib.suppress(ChildProcessError):  # who gave its exit code has reaped it
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def in_forked_notebook(cells: Callable[[], Any], output: Path) -> str:
    """What such a notebook prints; it must end well."""
    with forked_notebook(cells, output) as pid:
        assert wait_until(lambda: not alive(pid), 60)
        _, status = os.waitpid(pid, 0)
    text = output.read_text()
    assert os.waitstatus_to_exitcode(status) == 0, text
    return text


def python(code: str, cwd: Path, environment: Mapping[str, str] | None = None, seconds: int = 120) -> str:
    """What a fresh Python prints that plays a notebook; it must end well."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={
            **os.environ,
            "PJRT_DEVICE": "CPU",
            "PYTHONPATH": str(ROOT),
            "TPU_MAGICS_RUNS": str(cwd / "runs"),
            **(environment or {}),
        },
        timeout=seconds,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-6000:]}"
    return done.stdout
