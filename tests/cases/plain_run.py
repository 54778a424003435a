"""Runs programs without tpu_magics, and prints what torch_xla itself counted.

Each program runs in a fork, because the import of torch_xla takes seconds.

    python -m tests.cases.plain_run [--why] FILE...

prints one JSON line for each file: its path, `compiles` (torch_xla's `UncachedCompile` when the program is over),
`after` (the same after one more sync, which the launcher does to collect weights), and `error`. With --why, torch_xla's
own account of each compile (`PT_XLA_DEBUG_LEVEL=1`) goes to stderr.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from typing import Any

from tests.cases.programs import read_program


def main(arguments: list[str]) -> None:
    import accelerate  # noqa: F401 - imported once, for all programs
    import torch_xla  # noqa: F401
    import transformers  # noqa: F401

    why = "--why" in arguments
    for name in arguments:
        if not name.startswith("--"):
            print(json.dumps(_in_fork(Path(name), why)), flush=True)


def _in_fork(path: Path, why: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        answer, log, said = (Path(folder) / name for name in ("answer", "log", "said"))
        pid = os.fork()
        if pid == 0:
            try:
                _redirect(said)
                if why:
                    os.environ.update(PT_XLA_DEBUG_LEVEL="1", PT_XLA_DEBUG_FILE=str(log))
                answer.write_text(json.dumps(_in_thread(path)))
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        if why:
            _tell(path, log, said)
        found = json.loads(answer.read_text()) if answer.exists() else {"error": "the process died"}
        return {"path": str(path), **found}


def _redirect(said: Path) -> None:
    file = os.open(said, os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)


def _in_thread(path: Path) -> dict[str, Any]:
    """A new thread, because the pool of GNU OpenMP does not survive a fork."""
    answer: dict[str, Any] = {"error": ""}

    def body() -> None:
        try:
            answer.update(_counted(path))
        except BaseException:
            answer["error"] = traceback.format_exc()

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    return answer


def _counted(path: Path) -> dict[str, int]:
    import torch_xla

    def compiles() -> int:
        return torch_xla._XLAC._xla_counter_value("UncachedCompile") or 0

    read_program(path).train()()
    counted = compiles()
    torch_xla.sync()
    return {"compiles": counted, "after": compiles()}


def _tell(path: Path, log: Path, said: Path) -> None:
    print("#", path.name, file=sys.stderr)
    for block in log.read_text().split("\n\n") if log.exists() else ():
        cause = re.search(r"Compilation Cause\n.*?\s{2,}(\S.*)", block)
        graph = re.search(r"Graph Hash: (\w+)", block)
        frames = re.findall(r"Compilation Analysis:\s+(\S.*\(.*:\d+\))", block)
        user = [frame for frame in frames if path.name in frame]
        if cause:
            print("   ", cause[1], graph[1] if graph else "", (user or frames)[:1], file=sys.stderr)
    print("   ", said.read_text()[-1500:].replace("\n", "\n    "), file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:])
