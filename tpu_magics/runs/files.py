"""Where runs are kept and what the files of a run are called.

What lives here: the names, as the writers and the readers of a run share them. What does not: making a folder or
writing into it (see folder.py), and events (see writer.py and reader.py).
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from tpu_magics.errors import TpuMagicsError

ENVIRONMENT = "TPU_MAGICS_RUNS"
LIVE = frozenset({"starting", "running", "collecting"})


class RunFiles:
    """The names of the files of a run. Nothing is read or made here."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def info_path(self) -> Path:
        return self.path / "run.json"

    @property
    def supervisor_path(self) -> Path:
        """What the parent records (memory, warnings), because only one process may append to a file."""
        return self.path / "supervisor.jsonl"

    def events_path(self, rank: int) -> Path:
        return self.path / f"rank-{rank}.jsonl"

    def log_path(self, rank: int) -> Path:
        """Standard output and error of a rank."""
        return self.path / f"rank-{rank}.log"

    def stacks_path(self, rank: int) -> Path:
        """Where faulthandler writes the stacks of a rank that hangs."""
        return self.path / f"rank-{rank}.stacks"

    def metrics_path(self, rank: int, number: int) -> Path:
        """A report of the runtime's metrics that a rank made, by its number."""
        return self.path / f"rank-{rank}-metrics-{number}.txt"

    @property
    def scratch_path(self) -> Path:
        """What the workers need for a moment: not in the run folder, which may lie on a slow disk, and gone when the
        run has ended."""
        return _temporary(self.path, "scratch-")

    def value_path(self, rank: int) -> Path:
        """The pickled return value of a rank, while it travels home."""
        return self.path / f"result-value-{rank}.pkl"

    @property
    def weights_path(self) -> Path:
        """The folder of the weights, while they travel home."""
        return self.path / "result-weights"

    def display_path(self, number: int) -> Path:
        """What rank 0 displayed, by its number."""
        return self.path / f"display-{number}.json"


def runs_root(cwd: Path | str | None = None) -> Path:
    """Where runs are kept: $TPU_MAGICS_RUNS, else `.tpu_runs` under the working directory."""
    chosen = os.environ.get(ENVIRONMENT)
    if chosen:
        return _at_home(chosen)
    return (Path(cwd) if cwd is not None else _cwd()).absolute() / ".tpu_runs"


def _at_home(chosen: str) -> Path:
    try:
        return Path(chosen).expanduser().absolute()
    except RuntimeError as error:
        raise TpuMagicsError(
            f"{ENVIRONMENT}={chosen} names no folder.",
            "It begins with ~, and that account has no home folder here.",
            f"Set {ENVIRONMENT} to a whole path: %env {ENVIRONMENT}=/tmp/tpu_runs",
        ) from error


def _cwd() -> Path:
    try:
        return Path.cwd()
    except OSError:  # it was removed. Its old path must not come back into being, which mkdir(parents=True) would do
        return Path("/proc/self/cwd")


def fallback_root(root: Path | str) -> Path:
    """Where the runs of `root` go when it cannot be written: the same folder each time, to be found again."""
    return _temporary(Path(root))


def _temporary(path: Path, prefix: str = "") -> Path:
    """A folder of this account's in the temporary one that belongs to `path`."""
    digest = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"tpu_runs-{os.getuid()}" / f"{prefix}{digest}"


def read_info(path: Path) -> dict[str, Any]:
    """What a `run.json` holds; an empty dict where there is none or it is not one."""
    try:
        info = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return info if isinstance(info, dict) else {}
