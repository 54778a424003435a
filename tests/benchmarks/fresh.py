"""Calls a function in a process of its own.

Every benchmark needs fresh processes: what a process imported or allocated before would be in its figures, and none may
have started a runtime.

`python -m tests.benchmarks.fresh MODULE FUNCTION ARGS RESULT` is the other end: ARGS are JSON, RESULT is a file.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
SCRATCH = ROOT / ".bench"  # on a disk: /tmp can lie in memory
TAIL = 3000  # characters of a failed process's output that are shown
PR_SET_PDEATHSIG = 1  # linux/prctl.h


@contextmanager
def scratch_folder(prefix: str = "bench-") -> Iterator[Path]:
    """A folder on the disk that is thrown away."""
    SCRATCH.mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=SCRATCH))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Fresh:
    """A running call of `module.function(*args)`; arguments and result travel as JSON. Use it in a `with` block.
    `python`: the interpreter, this one by default."""

    def __init__(self, module: str, function: str, *args: Any, python: str | Path = sys.executable) -> None:
        self._scratch = scratch_folder(f"{function}-")
        self.folder = self._scratch.__enter__()
        self._result = self.folder / "result.json"
        self._log = self.folder / "output.txt"
        self.name = f"{module}.{function}"
        command = [
            python,
            "-m",
            "tests.benchmarks.fresh",
            module,
            function,
            json.dumps(args),
            str(self._result),
        ]
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=_environment(self.folder),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Fresh:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._scratch.__exit__(kind, error, at)

    def result(self, timeout: float) -> Any:
        """What the function returned. Raises RuntimeError with the end of its output where it failed."""
        try:
            code = self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{self.name} did not end within {timeout:g} s:\n{self.output()}") from None
        if code != 0:
            raise RuntimeError(f"{self.name} ended with exit code {code}:\n{self.output()}")
        return json.loads(self._result.read_text())

    def output(self) -> str:
        """The end of what the process printed."""
        return self._log.read_text(errors="replace")[-TAIL:]


def call(module: str, function: str, *args: Any, timeout: float = 600) -> Any:
    """Call `module.function(*args)` in a fresh process and return its result."""
    with Fresh(module, function, *args) as running:
        return running.result(timeout)


def _environment(folder: Path) -> dict[str, str]:
    """A notebook's on a machine without a TPU; run folders and IPython's own files go where they are thrown away."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PJRT_DEVICE": "CPU",
        "TPU_MAGICS_RUNS": str(folder / "runs"),
        "IPYTHONDIR": str(folder / "ipython"),
    }


def main(module: str, function: str, args: str, result: str) -> None:
    """The other end. It dies with its caller: a benchmark that was stopped leaves nothing running."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    value = getattr(importlib.import_module(module), function)(*json.loads(args))
    Path(result).write_text(json.dumps(value))


if __name__ == "__main__":
    main(*sys.argv[1:])
