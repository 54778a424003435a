"""Runs with a given run.json, and work that is done in other threads and in a forked child."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tpu_magics.runs.folder import RunFolder


def made(root: Path, name: str, created: float, **fields: Any) -> RunFolder:
    """A run that is done, unless `fields` say otherwise."""
    folder = RunFolder.create(name, root=root)
    folder.update(**{"created": created, "order": created, "status": "done", **fields})
    return folder


def in_threads(*work: Callable[[], object]) -> None:
    """Do all of these at once."""
    threads = [threading.Thread(target=each) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def in_child(work: Callable[[], int]) -> int:
    """The exit code of a forked child that did `work`; 99 where it raised."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = work()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
