"""Programs and kernels that need a process of their own and import what takes seconds: forks of one that has it.

What those processes do stands in fork_server.py, where TensorFlow lies in overlay.py.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent


def run(
    modules: str,
    program: Path | str,
    *words: str | Path,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    path: str = "",
) -> str:
    """What a program, a file or its code, prints that must end well; shown with its errors where it does not.
    `modules` are there when it begins: names, with spaces between; `path` is the PYTHONPATH that they are found on."""
    is_file = isinstance(program, Path)
    with tempfile.TemporaryDirectory() as folder:
        output, errors = Path(folder, "output"), Path(folder, "errors")
        output.touch()
        errors.touch()
        request = {
            "file": str(program) if is_file else "",
            "code": program.read_text(encoding="utf-8") if is_file else program,
            "words": list(map(str, words)),
            "cwd": str(cwd or Path.cwd()),
            "environment": dict(os.environ if environment is None else environment),
            "output": str(output),
            "errors": str(errors),
            "wait": True,
        }
        status = _ask(server(modules, path), request)
        assert status == "0\n", f"exit status {status}{errors.read_text(errors='replace')}"
        return output.read_text()


def ended(pid: int) -> bool:
    """Whether nothing of a process is left. A zombie holds its ports until its last thread has ended."""
    try:
        process = psutil.Process(pid)
        return process.status() == psutil.STATUS_ZOMBIE and process.num_threads() == 1
    except psutil.NoSuchProcess:
        return True


class ForkedKernel(psutil.Process):
    """An ipykernel in a fork, with those methods of a Popen that jupyter_client needs."""

    stdin = stdout = stderr = None

    def poll(self) -> int | None:
        return 0 if ended(self.pid) or not self.is_running() else None

    def wait(self, timeout: float | None = None) -> int:
        while self.poll() is None:
            time.sleep(0.01)
        return 0


def kernel(modules: str, command: list[str], **options: Any) -> ForkedKernel:
    """In place of jupyter_client's `launch_kernel`: a kernel that begins with `modules` imported."""
    request = {
        "file": "",
        "code": "from ipykernel.kernelapp import launch_new_instance; launch_new_instance()",
        "words": command[command.index("-f") :],
        "cwd": options.get("cwd") or os.getcwd(),
        "environment": dict(options.get("env") or os.environ),
        "output": os.devnull,
        "errors": f"/proc/{os.getpid()}/fd/2",
        "wait": False,
    }
    return ForkedKernel(int(_ask(server(modules, ""), request)))


def _ask(process: subprocess.Popen[str], request: dict[str, Any]) -> str:
    """The exit status of a fork, or its pid."""
    sys.audit("os.fork")  # conftest.py is to see it
    assert process.stdin and process.stdout
    process.stdin.write(f"{json.dumps(request)}\n")
    process.stdin.flush()
    return process.stdout.readline()


@cache
def server(modules: str, path: str) -> subprocess.Popen[str]:
    """The import is most of what a small program takes, so it is done once for all of this process's tests."""
    variables = {**os.environ, **({"PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3"} if path else {})}
    variables.pop("PYTHONUNBUFFERED", None)  # C's stdout would be so in all forks; they have their own
    command = [sys.executable, "-m", "tests.fork_server", *modules.split()]
    process = subprocess.Popen(
        command, cwd=ROOT, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(process.terminate)
    return process
