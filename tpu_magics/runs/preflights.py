"""The newest preflight results of this folder, for `%tpu_check --ready`, and beside the steps of a run on that TPU."""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tpu_magics.runs.events import from_json
from tpu_magics.runs.files import read_record, runs_root

_FILE = "preflights.json"
_KEPT = 50
LATEST = 1e11  # unix seconds: later is no time


@dataclass(frozen=True)
class Record:
    """`function`: its name; `target`: as Google writes it; `status`: "fits", "too-large", "refused" or "failed";
    `needed`, `available`: bytes of HBM of one device, None where not known; `t`: unix seconds, the same for all targets
    of one preflight; `least`, `estimate`: seconds of a step, the bound and the compiler's estimate, None where not
    known."""

    function: str
    target: str
    status: str
    needed: int | None
    available: int | None
    t: float = field(default_factory=time.time)
    least: float | None = None
    estimate: float | None = None


def note(record: Record, root: Path | None = None) -> None:
    """Store it as the newest. If the folder cannot be written, nothing is stored: a preflight does not fail because of
    it."""
    folder = runs_root() if root is None else root
    found = [asdict(one) for one in (*_read(folder), record)][-_KEPT:]
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=folder, prefix=f".{_FILE}-") as own:  # two notebooks may write at once
            temporary = Path(own) / _FILE
            temporary.write_text(json.dumps(found))
            temporary.replace(folder / _FILE)


def newest(root: Path | None = None) -> list[Record]:
    """The newest record of each function and target, the newest first."""
    found: dict[tuple[str, str], Record] = {}
    for one in reversed(_read(runs_root() if root is None else root)):
        found.setdefault((one.function, one.target), one)
    return list(found.values())


def _read(folder: Path) -> list[Record]:
    try:
        return [one for each in from_json(read_record(folder / _FILE)) if _is_told(one := Record(**each))]
    except (OSError, ValueError, TypeError, RecursionError):
        return []


def _is_told(one: Record) -> bool:
    """Whether its fields are what they should be: the file may hold anything."""
    texts = all(isinstance(text, str) for text in (one.function, one.target, one.status))
    sizes = all(type(size) in (int, type(None)) for size in (one.needed, one.available))
    times = all(one is None or (type(one) in (int, float) and 0 <= one < LATEST) for one in (one.least, one.estimate))
    return texts and sizes and times and type(one.t) in (int, float) and 0 <= one.t < LATEST
