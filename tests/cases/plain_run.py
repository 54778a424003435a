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
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.cases.programs import read_program

PRINTED = "printed"


def main(arguments: list[str]) -> None:
    import accelerate  # noqa: F401 - imported once, for all programs
    import torch_xla  # noqa: F401
    import transformers  # noqa: F401

    why = "--why" in arguments
    for name in arguments:
        if not name.startswith("--"):
            print(json.dumps(_run(Path(name), why)), flush=True)


def _run(path: Path, why: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"

        def body() -> dict[str, int]:
            if why:
                os.environ.update(PT_XLA_DEBUG_LEVEL="1", PT_XLA_DEBUG_FILE=str(log))
            return _counted(path)

        found = in_fork(body, Path(folder))
        if why:
            _tell(path, log, Path(folder) / PRINTED)
        return {"path": str(path), **found}


def in_fork(body: Callable[[], Mapping[str, Any]], folder: Path) -> dict[str, Any]:
    """What `body` returns in a fork of this process, and `error`; `folder` gets what it prints."""
    answer = folder / "answer"
    pid = os.fork()
    if pid == 0:
        try:
            file = os.open(folder / PRINTED, os.O_WRONLY | os.O_CREAT, 0o600)
            os.dup2(file, 1)
            os.dup2(file, 2)
            answer.write_text(json.dumps(_in_thread(body)))
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    found: dict[str, Any] = json.loads(answer.read_text()) if answer.exists() else {"error": "the process died"}
    return found


def _in_thread(body: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """A new thread, because the pool of GNU OpenMP does not survive a fork."""
    answer: dict[str, Any] = {"error": ""}

    def work() -> None:
        try:
            answer.update(body())
        except BaseException:
            answer["error"] = traceback.format_exc()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return answer


def _counted(path: Path) -> dict[str, int]:
    import torch_xla

    read_program(path).train()()
    counted = compiles()
    torch_xla.sync()
    return {"compiles": counted, "after": compiles()}


def compiles() -> int:
    """What torch_xla has counted in this process; 0 where it is not imported."""
    extension = getattr(sys.modules.get("torch_xla"), "_XLAC", None)
    return 0 if extension is None else int(extension._xla_counter_value("UncachedCompile") or 0)


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
