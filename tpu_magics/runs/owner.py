"""Which notebook made a run, by its path, its kernel or its process; processes are known by pid and start time."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


def process_started(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None where it is gone or /proc is not available.

    Field 22 of /proc/<pid>/stat (man 5 proc). The command's name, field 2, may hold blanks and brackets.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def same_process(pid: int, started: int | None) -> bool:
    """Whether the process that had this pid and start time is still there (not: another that got its pid)."""
    found = process_started(pid)
    if found is not None:
        return started is None or found == started
    return not Path("/proc/self/stat").exists() and _answers(pid)


def _answers(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return True


class Owner(NamedTuple):
    """Who made a run. `notebook`: path of the notebook or script, "" where the front end does not provide it; `kernel`:
    the kernel's id, which a restart keeps; `pid`, `started`: of its process."""

    notebook: str = ""
    kernel: str = ""
    pid: int | None = None
    started: int | None = None

    def same(self, other: Owner) -> bool:
        """Whether both are one notebook."""
        process = self.pid is not None and (self.pid, self.started) == (other.pid, other.started)
        kernel = self.kernel != "" and self.kernel == other.kernel
        return process or kernel or (self.notebook != "" and self.notebook == other.notebook)


def this_owner() -> Owner:
    """The notebook that this process runs."""
    pid = os.getpid()
    return Owner(_notebook(), _kernel(), pid, process_started(pid))


def owner_fields(owner: Owner) -> dict[str, Any]:
    """The owner's fields of `run.json`."""
    return {"notebook": owner.notebook, "kernel": owner.kernel, "pid": owner.pid, "pid_started": owner.started}


def owner_of(info: Mapping[str, Any]) -> Owner:
    """The owner in a `run.json`."""
    texts = [value if isinstance(value, str) else "" for value in (info.get("notebook"), info.get("kernel"))]
    numbers = [value if type(value) is int else None for value in (info.get("pid"), info.get("pid_started"))]
    return Owner(*texts, *numbers)  # type: ignore[arg-type]


def foreign_text(owner: Owner) -> str:
    """ "of another notebook, eval.ipynb" for a run that this notebook did not make; "" for its own."""
    mine = this_owner()
    if mine.same(owner):
        return ""
    if owner.notebook and owner.notebook != mine.notebook:
        return f"of another notebook, {Path(owner.notebook).name}"
    return "of another kernel"


def _notebook() -> str:
    """jupyter_server 2 sets JPY_SESSION_NAME, VS Code a variable of the notebook; a script is a file."""
    main = sys.modules.get("__main__")
    told = os.environ.get("JPY_SESSION_NAME") or getattr(main, "__vsc_ipynb_file__", None)
    told = told or (getattr(main, "__file__", None) if "ipykernel" not in sys.modules else None)
    return os.path.abspath(told) if isinstance(told, str) and told else ""  # noqa: PTH100 (links stay as they are)


def _kernel() -> str:
    """The part of the connection file's name that is the kernel's id."""
    application = getattr(sys.modules.get("ipykernel.kernelapp"), "IPKernelApp", None)
    if application is None or not application.initialized():
        return ""
    return Path(str(application.instance().connection_file)).stem.removeprefix("kernel-")
