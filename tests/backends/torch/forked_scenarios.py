"""Runs scenarios that need a process of their own: they start an XLA runtime, or fork after tensor work.

A test file defines functions named `scenario_*`; its test takes the fixtures `scenario` and `outcomes` (conftest.py). A
fork of a process that has imported torch_xla (forks.py) imports the file; each scenario runs in a fork of that one, in
place of a notebook, and `in_worker` forks from there.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests import forks, framework

SECONDS = 120


def outcomes(file: str) -> dict[str, str]:
    """Run the scenarios of a test file; {name: "" or what went wrong}."""
    room = Path(file).parent.name
    program = "from tests.backends.torch import forked_scenarios\n"
    program += f"from tests.backends.{room} import {Path(file).stem} as scenarios\n"
    program += "forked_scenarios.run_scenarios(vars(scenarios))"
    environment = {**os.environ, "PJRT_DEVICE": "CPU"}
    told = forks.run(framework.MODULES, program, cwd=forks.ROOT, environment=environment)
    lines = [line for line in told.splitlines() if line.startswith("OUTCOME ")]
    return dict(json.loads(line.removeprefix("OUTCOME ")) for line in lines)


def names(namespace: Mapping[str, Any]) -> list[str]:
    """The scenarios that a test file defines."""
    return [name for name in namespace if name.startswith("scenario_")]


def run_scenarios(namespace: Mapping[str, Any]) -> None:
    """Run each scenario in a fork and print its outcome."""
    framework.import_framework()
    for name in names(namespace):
        outcome = _in_fork(lambda name=name: namespace[name]())
        if framework.runtime_is_up():
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
            framework.begin_worker()
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
            framework.begin_notebook()
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
