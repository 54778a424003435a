"""Reading runs back: one run, the new lines of a record file, all runs of a folder.

What lives here: everything that is read from a run folder. What does not: what the records say of a run (see
summary.py) and how it is shown (see panel/).
Reading never raises because of what a file holds: a torn last line, garbage, a kind or version that is not known and
a missing or half `run.json` are skipped.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tpu_magics.errors import TpuMagicsError
from tpu_magics.runs.events import Event, from_line
from tpu_magics.runs.files import RunFiles, fallback_root, read_info, runs_root
from tpu_magics.runs.summary import (
    ID_PATTERN,
    RunSummary,
    run_created,
    run_name,
    run_status,
    run_workers,
    summarize,
)

_RANK = re.compile(r"rank-(\d+)\.jsonl")


class Tail:
    """The new events of one record file, as they come."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._offset = 0

    def read(self) -> list[Event]:
        """The events of the lines that were completed since the last call. A torn last line waits for its rest."""
        found = (from_line(line) for line in self._lines())
        return [event for event in found if event is not None]

    def _lines(self) -> list[bytes]:
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
        except OSError:
            return []
        complete, newline, _torn = new.rpartition(b"\n")
        self._offset += len(complete) + len(newline)
        return complete.split(b"\n") if newline else []


class Run(RunFiles):
    """A run as its folder tells it, now: each property reads the disk again."""

    def __repr__(self) -> str:
        return f"Run({self.id!r}, status={self.status!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and self.path == other.path

    def __hash__(self) -> int:
        return hash(self.path)

    @property
    def info(self) -> dict[str, Any]:
        """What `run.json` holds; an empty dict where there is none."""
        return read_info(self.info_path)

    @property
    def name(self) -> str:
        return run_name(self.info, self.id)

    @property
    def status(self) -> str:
        """See `run_status`: what `run.json` says, or "lost", or "unknown"."""
        return run_status(self.info)

    @property
    def created(self) -> float | None:
        """Unix seconds; from the folder's name where `run.json` does not tell."""
        return run_created(self.info, self.id)

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that `run.json` names or that wrote records."""
        return tuple(sorted({*run_workers(self.info), *self._recorded()}))

    def events(self, kind: str | None = None, rank: int | None = None) -> list[Event]:
        """The events of all ranks and of the supervisor, in the order of their time, optionally of one kind or about
        one rank. The events of one file stay in its order, even where the clock was set back."""
        # All files, also for one rank: a worker writes under its index until it knows its rank.
        paths = map(self.events_path, self._recorded())
        merged = _merge(Tail(path).read() for path in (*paths, self.supervisor_path))
        return [event for event in merged if kind in (None, event.kind) and rank in (None, event.rank)]

    def log(self, rank: int) -> str:
        """What a rank printed; "" where it printed nothing."""
        try:
            return self.log_path(rank).read_bytes().decode("utf-8", "replace")
        except OSError:
            return ""

    def summary(self) -> RunSummary:
        """What can be said of the run in a few lines."""
        events = _merge(Tail(path).read() for path in (self.events_path(0), self.supervisor_path))
        return summarize(self.info, self.id, self.ranks, events)

    def _recorded(self) -> list[int]:
        found: list[int] = []
        with contextlib.suppress(OSError):
            found = [int(match[1]) for path in self.path.iterdir() if (match := _RANK.fullmatch(path.name))]
        return sorted(found)


def list_runs(root: Path | str | None = None) -> list[Run]:
    """The runs under `root` (by default `runs_root()`), newest first; those that had to be kept in the temporary
    folder because `root` could not be written are among them."""
    wanted = Path(root).absolute() if root is not None else runs_root()
    runs = [Run(path) for place in _places(wanted) for path in _folders(place)]
    return sorted(runs, key=lambda run: (run.created or 0.0, run.id), reverse=True)


def find_run(text: str, root: Path | str | None = None) -> Run:
    """The run that `text` means: its id, "last", a name (the newest of that name), or the beginning or end of one id.

    Raises TpuMagicsError where there is none, or where the beginning or end fits several.
    """
    runs = list_runs(root)
    if not runs:
        place = Path(root).absolute() if root is not None else runs_root()
        raise TpuMagicsError("There is no run yet.", f"{place} holds none.", "Train something with %%tpu_train.")
    named = [run for run in runs if run.id == text] or [run for run in runs if text == "last" or run.name == text]
    if named:
        return named[0]
    near = [run for run in runs if text and (run.id.startswith(text) or run.id.endswith(text))]
    if len(near) != 1:
        raise _not_found(text, runs, near)
    return near[0]


def _not_found(text: str, runs: list[Run], near: list[Run]) -> TpuMagicsError:
    if near:
        fits = ", ".join(run.id for run in near[:5]) + (", ..." if len(near) > 5 else "")
        todo = "Write more of it, or its name, or `last`; %tpu_runs lists all."
        return TpuMagicsError(f"{text!r} fits {len(near)} runs.", f"These begin or end so: {fits}.", todo)
    words = {word: None for run in runs for word in (run.name, run.id)}
    offered = difflib.get_close_matches(text, words, n=3, cutoff=0.4)
    hint = f"Did you mean {' or '.join(offered)}? " if offered else ""
    why = f"None of the {len(runs)} runs here has this name or folder."
    return TpuMagicsError(f"There is no run {text!r}.", why, f"{hint}%tpu_runs lists all; `last` is the newest.")


def _places(root: Path) -> list[Path]:
    places = [root]
    with contextlib.suppress(OSError):  # a machine without any temporary folder
        places.append(fallback_root(root))
    return places


def _folders(place: Path) -> list[Path]:
    try:
        return [path for path in place.iterdir() if _is_run(path)]
    except OSError:
        return []


def _is_run(path: Path) -> bool:
    """Whether this is a folder that looks like a run: by its name, or because it holds a run.json."""
    try:
        return path.is_dir() and (ID_PATTERN.fullmatch(path.name) is not None or "v" in read_info(path / "run.json"))
    except OSError:
        return False


def _merge(files: Iterable[list[Event]]) -> list[Event]:
    """All events by time. The key never falls within a file, so the stable sort keeps each file's order."""
    keyed: list[tuple[float, Event]] = []
    for events in files:
        latest = float("-inf")
        for event in events:
            latest = max(latest, event.t)
            keyed.append((latest, event))
    return [event for _key, event in sorted(keyed, key=lambda pair: pair[0])]
