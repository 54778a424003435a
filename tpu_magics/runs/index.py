"""The index of a folder of runs: what finding a run needs of each, so that not every run.json is read.

The index is a cache: an entry counts only while its `run.json` is the same file, and a folder without an entry is read.
So it may be missing, torn, or written by another kernel at any moment.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tpu_magics.runs.files import fallback_root, read_info, read_record
from tpu_magics.runs.owner import Owner, owner_of
from tpu_magics.runs.summary import ID_PATTERN, run_name, run_order
from tpu_magics.runs.temporary_folders import make_private, was_left

VERSION = 2
TOLERATED = 20  # runs that are read each time rather than written down: the one that goes on changes all the time
_AFTER = 0.001  # seconds
_FILE = ".index.json"
_ELSEWHERE = ".index-of-another-folder.json"  # in the temporary folder, of one that cannot be written

Mark = tuple[int, int, int]
"""When a `run.json` was written (ns), how long it is, and its inode: another whenever the file is."""


class Entry(NamedTuple):
    """One run. `order`: unix seconds, or more where the clock was set back (`RunFolder.create`); None where neither
    `run.json` nor the folder's name has it."""

    place: str
    id: str
    name: str
    order: float | None
    owner: Owner

    @property
    def path(self) -> Path:
        return Path(self.place) / self.id


Known = Mapping[str, tuple[Mark, Entry]]


def entries(place: Path) -> list[Entry]:
    """The runs of a folder, in no order; none where it cannot be read."""
    known, current, found = _load(place), {}, []
    changed = 0
    for name in _folders(place):
        mark = _mark(f"{place}/{name}/run.json")
        entry = known.get(name)
        if mark is None or entry is None or entry[0] != mark:
            changed += mark is not None
            read = _read(place, name)
            if read is None:
                continue
            entry = (mark or (0, 0, 0), read)
        found.append(entry[1])
        if mark is not None:
            current[name] = entry
    if changed + len(known.keys() - current.keys()) > TOLERATED:
        _write(place, current)
    return found


def _folders(place: Path) -> list[str]:
    try:
        with os.scandir(place) as items:
            return [item.name for item in items if _is_folder(item)]
    except OSError:
        return []


def _is_folder(item: os.DirEntry[str]) -> bool:
    try:
        return item.is_dir()
    except OSError:
        return False


def _mark(path: str) -> Mark | None:
    """None where there is no file."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino) if stat.S_ISREG(found.st_mode) else None


def _read(place: Path, name: str) -> Entry | None:
    """None where this is no run: neither its name looks like one, nor does it hold a run.json."""
    info = read_info(place / name / "run.json")
    if "v" not in info and ID_PATTERN.fullmatch(name) is None:
        return None
    return Entry(str(place), name, run_name(info, name), run_order(info, name), owner_of(info))


# -- the file -----------------------------------------------------------------------------------------------------


def _files(place: Path) -> Iterator[Path]:
    """Where the index of a folder may be: in it, else in the temporary folder."""
    yield place / _FILE
    with contextlib.suppress(OSError):  # a machine without any temporary folder
        yield fallback_root(place) / _ELSEWHERE


def _load(place: Path) -> Known:
    for path in sorted(_files(place), key=_written, reverse=True):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, IndexError, RecursionError):
            return _parsed(str(place), json.loads(read_record(path)))
    return {}


def _written(path: Path) -> int:
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return 0


def _parsed(place: str, found: Any) -> Known:
    """Raises one of the errors above where anything in it is not as `_content` writes it."""
    if found["v"] != VERSION:
        raise ValueError("of another version")
    owners = [owner_of(dict(zip(_OWNER, each, strict=True))) for each in found["owners"]]
    known = {}
    for name, written, size, inode, title, order, owner in found["runs"]:
        if type(name) is not str or type(title) is not str or type(order) not in (float, type(None)):
            raise TypeError("not an entry")
        known[name] = ((written, size, inode), Entry(place, name, title, order, owners[owner]))
    return known


_OWNER = ("notebook", "kernel", "pid", "pid_started")


def _content(current: Known) -> bytes:
    owners: dict[Owner, int] = {}
    rows = [
        [name, *mark, entry.name, entry.order, owners.setdefault(entry.owner, len(owners))]
        for name, (mark, entry) in current.items()
    ]
    return json.dumps({"v": VERSION, "owners": list(owners), "runs": rows}, separators=(",", ":")).encode()


def _write(place: Path, current: Known) -> None:
    """Where neither folder can be written, there is no index."""
    content = _content(current)
    for path in _files(place):
        with contextlib.suppress(OSError):
            if path.name == _ELSEWHERE:
                make_private(path.parent)
            _replace(path, content)
            return


def _replace(path: Path, content: bytes) -> None:
    """Through a temporary file of mode 0600: two kernels may do this at once."""
    _remove_left(path)
    opened, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}-")
    try:
        with os.fdopen(opened, "wb") as file:
            file.write(content)
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def _remove_left(path: Path) -> None:
    """Temporary files of processes that were killed."""
    for left in path.parent.glob(f"{path.name}-*"):
        with contextlib.suppress(OSError):
            if was_left(left.stat()):
                left.unlink()


def newest_first(found: Sequence[Entry]) -> list[Entry]:
    """In the order in which they were made, whatever the clock said."""
    return sorted(found, key=lambda entry: (entry.order or 0.0, entry.id), reverse=True)


def next_order(place: Path, now: float) -> float:
    """The order of a new run: the time, and after all that are there."""
    return max([now, *(entry.order + _AFTER for entry in entries(place) if entry.order is not None)])
