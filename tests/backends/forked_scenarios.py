"""Scenarios that need a process of their own: they start an XLA runtime, or fork after tensor work.

What lives here: running them. A test file defines functions named `scenario_*`, calls `run_scenarios` at its end when
it is run as a script, and asks for the outcomes through `outcomes`. The script imports torch_xla once; each scenario
runs in a fork of it and plays the notebook, and `in_worker` forks from there.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

SECONDS = 120
ROOT = Path(__file__).parents[2]


def outcomes(file: str) -> dict[str, str]:
    """Run the scenarios of a test file; {name: "" or what went wrong}."""
    script = [sys.executable, "-m", f"tests.backends.{Path(file).stem}"]
    environment = {**os.environ, "PJRT_DEVICE": "CPU"}
    done = subprocess.run(script, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=280)
    lines = [line for line in done.stdout.splitlines() if line.startswith("OUTCOME ")]
    found = dict(json.loads(line.removeprefix("OUTCOME ")) for line in lines)
    assert done.returncode == 0, done.stderr[-4000:]
    return found


def names(namespace: Mapping[str, Any]) -> list[str]:
    """The scenarios that a test file defines."""
    return [name for name in namespace if name.startswith("scenario_")]


def run_scenarios(namespace: Mapping[str, Any]) -> None:
    """Run each scenario in a fork and print its outcome."""
    import torch_xla

    for name in names(namespace):
        outcome = _in_fork(lambda name=name: namespace[name]())
        if torch_xla._XLAC._xla_runtime_is_initialized():
            outcome += "the runtime came up in the script"
        print("OUTCOME", json.dumps([name, outcome]), flush=True)


def in_worker(function: Callable[[], Any]) -> None:
    """Run `function` in a forked process, in a new thread, as a worker does. Raises AssertionError if it fails."""
    outcome = _in_fork(lambda: _in_thread(function))
    assert not outcome, outcome


def _in_thread(function: Callable[[], Any]) -> None:
    caught: list[BaseException] = []

    def body() -> None:
        try:
            function()
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    if caught:
        raise caught[0]


def _in_fork(function: Callable[[], Any]) -> str:
    """ "", or the traceback or exit status of a fork that called `function`."""
    read, write = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.alarm(SECONDS)
            function()
            status = 0
        except BaseException:
            os.write(write, traceback.format_exc()[-30000:].encode())
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        text = pipe.read().decode()
    _, status = os.waitpid(pid, 0)
    return text if status == 0 or text else f"ended with wait status {status}"
