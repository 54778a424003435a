"""Programs that need a process of their own and import what takes seconds: each runs in a fork of one that has it.

What lives here: the processes to fork, one for each set of modules, and a program that is run in such a fork. What does
not: what those processes do (fork_server.py), and where TensorFlow lies (overlay.py).
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

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
        }
        status = _ask(server(modules, path), json.dumps(request))
        assert status == "0\n", f"exit status {status}{errors.read_text(errors='replace')}"
        return output.read_text()


def _ask(process: subprocess.Popen[str], request: str) -> str:
    """The exit status of a fork."""
    sys.audit("os.fork")  # conftest.py is to see it
    assert process.stdin and process.stdout
    process.stdin.write(f"{request}\n")
    process.stdin.flush()
    return process.stdout.readline()


@cache
def server(modules: str, path: str) -> subprocess.Popen[str]:
    """The import is most of what a small program takes, so it is done once for all of this process's tests."""
    variables = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **({"PYTHONPATH": path} if path else {})}
    variables.pop("PYTHONUNBUFFERED", None)  # C's stdout would be so in all forks; they have their own
    command = [sys.executable, "-m", "tests.fork_server", *modules.split()]
    process = subprocess.Popen(
        command, cwd=ROOT, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(process.terminate)
    return process
