"""Read runs back: one run, the new lines of a record file, all runs of a folder.

Reading never raises because of a file's content: a torn last line, garbage, an unknown kind or version, and a missing
or partial `run.json` are skipped.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from tpu_magics.errors import TpuMagicsError
from tpu_magics.runs.events import Event, from_line
from tpu_magics.runs.files import (
    RunFiles,
    fallback_root,
    open_record,
    read_info,
    read_record,
    refused_info,
    refused_record,
    runs_root,
)
from tpu_magics.runs.index import Entry, entries, newest_first
from tpu_magics.runs.owner import foreign_text, owner_of, this_owner
from tpu_magics.runs.summary import RunSummary, run_created, run_name, run_status, run_workers, summarize

if TYPE_CHECKING:
    from tpu_magics.runs.dataframes import RunFrames

COMPARED = 500  # runs whose names are offered for one that is not there
# Bytes that are read of one record file, and of all files of a run together: no run of ours writes so much, so that a
# file of another origin costs seconds, not minutes.
MOST_READ, MOST_READ_OF_ALL = 8_000_000, 32_000_000
MOST_ECHOED = 100  # characters of a name that was not found
MOST_FILES = 1_024  # record files of a run that are read
_RANK = re.compile(r"rank-(\d+)\.jsonl")


class Tail:
    """The new events of one record file, as they come. Of more than `most` new bytes, the first and the last half are
    read."""

    def __init__(self, path: Path | str, most: int = MOST_READ) -> None:
        self.path = Path(path)
        self._offset = 0
        self._most = most

    def read(self) -> list[Event]:
        """The events of the lines that were completed since the last call. A torn last line waits for its rest."""
        found = (from_line(line) for line in self.lines())
        return [event for event in found if event is not None]

    def lines(self) -> list[bytes]:
        """These lines as they stand in the file."""
        try:
            with open_record(self.path) as file:
                size, half = file.seek(0, 2), self._most // 2
                if size < self._offset:  # it was written anew
                    self._offset = 0
                if size - self._offset <= self._most:
                    return self._part(file, size)
                first = self._part(file, self._offset + half)
                self._offset = size - half
                return [*first, *self._part(file, size)[1:]]  # without the rest of a line
        except OSError:
            return []

    def _part(self, file: BinaryIO, end: int) -> list[bytes]:
        file.seek(self._offset)
        complete, newline, _torn = file.read(end - self._offset).rpartition(b"\n")
        self._offset += len(complete) + len(newline)
        return complete.split(b"\n") if newline else []


class Run(RunFiles):
    """A run, read from its folder: each property reads the disk again."""

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
        """See `run_status`: the status in `run.json`, "lost" or "unknown"."""
        return run_status(self.info)

    @property
    def created(self) -> float | None:
        """Unix seconds; from the folder's name where `run.json` has none."""
        return run_created(self.info, self.id)

    @property
    def foreign(self) -> str:
        """Whose run it is, if not this notebook's ("of another notebook, eval.ipynb"), else ""."""
        return foreign_text(owner_of(self.info))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks that `run.json` names or that wrote records."""
        return tuple(sorted({*run_workers(self.info), *self.recorded()}))

    def events(self, kind: str | None = None, rank: int | None = None) -> list[Event]:
        """The events of all ranks and of the supervisor, in the order of their time, optionally of one kind or about
        one rank. The events of one file stay in its order, even where the clock was set back."""
        # All files, also for one rank: a worker writes under its index until it knows its rank.
        paths = (*map(self.events_path, self.recorded()[:MOST_FILES]), self.supervisor_path)
        merged = _merge(Tail(path, share_of_bytes(len(paths))).read() for path in paths)
        return [event for event in merged if kind in (None, event.kind) and rank in (None, event.rank)]

    def log(self, rank: int) -> str:
        """The output of a rank; "" where it printed nothing."""
        try:
            return read_record(self.log_path(rank)).decode("utf-8", "replace")
        except OSError:
            return ""

    def summary(self) -> RunSummary:
        """The summary of the run."""
        return self.summary_of(self.lead_events())

    def summary_of(self, events: list[Event]) -> RunSummary:
        """The summary by these `lead_events`, which are read only once then."""
        return summarize(self.info, self.id, self.ranks, events, self.refused())

    def lead_events(self) -> list[Event]:
        """The events of rank 0 and of the supervisor, in the order of their time."""
        return _merge(Tail(path).read() for path in (self.events_path(0), self.supervisor_path))

    def to_pandas(self, rank: int | Sequence[int] | None = 0) -> RunFrames:
        """Steps, logged values and compiles as DataFrames: see `TrainResult.to_pandas`."""
        from tpu_magics.runs.dataframes import to_frames

        ranks = self._chosen(rank)
        paths, most = {each: self.events_path(each) for each in ranks}, share_of_bytes(len(ranks))
        found = {each: Tail(path, most).read() for each, path in paths.items()}
        events = {each: [event for event in read if event.rank == each] for each, read in found.items()}
        notes = (refused_record(path) or partly_read(path, most) for path in paths.values())
        return to_frames(events, isinstance(rank, int), tuple(filter(None, notes)))

    def _chosen(self, rank: int | Sequence[int] | None) -> list[int]:
        """Raises TpuMagicsError for a rank that the run does not have."""
        known = self.ranks
        if rank is None:
            return list(known[:MOST_FILES])
        chosen = [rank] if isinstance(rank, int) else list(rank)
        strange = [each for each in chosen if each not in known]
        if strange and (known or strange != [0]):
            raise no_such_rank(self.name, strange[0], known)
        return chosen[:MOST_FILES]

    def refused(self) -> tuple[str, ...]:
        """Why records were not read, or not all of them, although their paths exist, as sentences."""
        recorded = self.recorded()
        paths = (*map(self.events_path, recorded[:MOST_FILES]), self.supervisor_path)
        most = share_of_bytes(len(paths))
        told = (refused_info(self.info_path), *(refused_record(path) or partly_read(path, most) for path in paths))
        more = len(recorded) - MOST_FILES
        return (*filter(None, told), *([f"The records of {more:,} more ranks were not read."] if more > 0 else []))

    def recorded(self) -> list[int]:
        """The ranks, or indices of workers, that have a file of records."""
        found: list[int] = []
        with contextlib.suppress(OSError):
            found = [int(match[1]) for path in self.path.iterdir() if (match := _RANK.fullmatch(path.name))]
        return sorted(found)


def no_such_rank(name: str, rank: int, known: Sequence[int]) -> TpuMagicsError:
    """The error for a rank that a run does not have."""
    listed = ", ".join(map(str, known[:20])) + (f", ... ({len(known):,} in all)" if len(known) > 20 else "")
    return TpuMagicsError(
        f"The run {name!r} has no rank {rank}.", f"Its ranks are {listed or 'none'}.", "Choose one of them."
    )


def share_of_bytes(files: int) -> int:
    """Bytes that are read of each of so many files."""
    return min(MOST_READ, MOST_READ_OF_ALL // max(files, 1))


def partly_read(path: Path, most: int) -> str:
    """That a record file is longer than what is read of it, as a sentence; "" where it is not."""
    try:
        size = path.lstat().st_size
    except OSError:
        return ""
    mb = most / 2e6
    return f"{path.name} was read in part: {mb:.2g} MB at each end of {size / 1e6:,.0f} MB." if size > most else ""


def list_runs(root: Path | str | None = None) -> list[Run]:
    """The runs under `root` (by default `runs_root()`), newest first; also those in the temporary
    folder because `root` could not be written."""
    return newest_runs(None, root)[0]


def newest_runs(most: int | None, root: Path | str | None = None) -> tuple[list[Run], int]:
    """The newest runs, at most so many (None: all), and how many there are."""
    found = _entries(root)
    return [Run(entry.path) for entry in found[:most]], len(found)


def names_and_ids() -> tuple[list[str], list[str]]:
    """The names and ids of all runs, each once, newest first. No run's records are read for it."""
    found = _entries(None)
    return list(dict.fromkeys(entry.name for entry in found)), [entry.id for entry in found]


def own_runs_first(name: str | None = None, root: Path | str | None = None) -> tuple[list[Run], list[Run]]:
    """The runs that this notebook made, and the others, those of one name only if it is given; newest first."""
    mine = this_owner()
    found: tuple[list[Run], list[Run]] = ([], [])
    for entry in _entries(root):
        if name in (None, entry.name):
            found[not mine.same(entry.owner)].append(Run(entry.path))
    return found


def find_run(text: str, root: Path | str | None = None) -> Run:
    """The run of that `text`: its id, "last", a name, or the beginning or end of one id.

    Of several of that name, and for "last", it is the newest that this notebook made; the newest of all where it made
    none. Raises TpuMagicsError where there is none, or where the beginning or end matches several.
    """
    found = _entries(root)
    if not found:
        place = Path(root).absolute() if root is not None else runs_root()
        raise TpuMagicsError("There is no run yet.", f"{place} has none.", "Train something with %%tpu_train.")
    exact = [one for one in found if one.id == text]
    named = exact or [one for one in found if text == "last" or one.name == text]
    if named:
        mine = this_owner()
        return Run(next((one for one in named if mine.same(one.owner)), named[0]).path)
    near = [one for one in found if text and (one.id.startswith(text) or one.id.endswith(text))]
    if len(near) != 1:
        raise _not_found(text, found, near)
    return Run(near[0].path)


def _entries(root: Path | str | None) -> list[Entry]:
    wanted = Path(root).absolute() if root is not None else runs_root()
    return newest_first([entry for place in _places(wanted) for entry in entries(place)])


def _not_found(text: str, runs: Sequence[Entry], near: Sequence[Entry]) -> TpuMagicsError:
    shown = text if len(text) <= MOST_ECHOED else f"{text[:MOST_ECHOED]}…"
    if near:
        fits = ", ".join(run.id for run in near[:5]) + (", ..." if len(near) > 5 else "")
        todo = "Type more of it, the run's name, or `last`; %tpu_runs lists all."
        return TpuMagicsError(f"{shown!r} matches {len(near)} runs.", f"They begin or end with it: {fits}.", todo)
    words = {word: None for run in runs[:COMPARED] for word in (run.name, run.id)}
    offered = difflib.get_close_matches(shown, words, n=3, cutoff=0.4)
    hint = f"Did you mean {' or '.join(offered)}? " if offered else ""
    why = f"None of the {len(runs)} runs here has this name or folder."
    return TpuMagicsError(f"There is no run {shown!r}.", why, f"{hint}%tpu_runs lists all; `last` is the newest.")


def _places(root: Path) -> list[Path]:
    places = [root]
    with contextlib.suppress(OSError):  # a machine without any temporary folder
        places.append(fallback_root(root))
    return places


def _merge(files: Iterable[list[Event]]) -> list[Event]:
    """All events by time. The key never falls within a file, so the stable sort keeps each file's order."""
    keyed: list[tuple[float, Event]] = []
    for events in files:
        latest = float("-inf")
        for event in events:
            latest = max(latest, event.t)
            keyed.append((latest, event))
    return [event for _key, event in sorted(keyed, key=lambda pair: pair[0])]
