"""A run as TensorBoard's event files, while it goes on and afterwards."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path

from tpu_magics.backends.summary_writer import SummaryWriter, open_writer, require_writer
from tpu_magics.errors import TpuMagicsError
from tpu_magics.panel.runs import summary_table
from tpu_magics.panel.table import printable
from tpu_magics.runs.events import MOST_NAMES, Compile, Event, Steps, Value, as_number
from tpu_magics.runs.files import LIVE, RunFiles, read_info
from tpu_magics.runs.reader import Run, Tail, find_run, share_of_bytes
from tpu_magics.runs.summary import run_status

EVERY = 1.0  # seconds between looks at a run that goes on
AT_ONCE = 200  # events that one look writes, each takes a tenth of a millisecond
MOST_RANKS = 64  # that are compared with rank 0
OWN = "tpu_magics"  # before the tags that are not the person's
EVENT_FILES = "events.out.tfevents.*"
_MARKS = "\\`*_{}[]()#+-.!|~"  # that Markdown reads as more than themselves

_Series = tuple[int, str]  # a rank and a name


class EventFiles:
    """The event files of one run, in `folder`/<id of the run>; a rank whose values differ from those of rank 0 has a
    folder `rank-N` in it. An observer of a run (launch/notebook.py)."""

    def __init__(self, run: RunFiles, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder = folder / run.id
        self._run = Run(run.path)
        self._clock = clock
        self._next = 0.0
        self._closed = False
        self._tails: dict[int, Tail] = {}
        self._waiting: deque[Event] = deque()
        self._writers: dict[int, SummaryWriter] = {}
        self._counts: dict[str, int] = defaultdict(int)
        self._others = _OtherRanks()

    # -- as an observer ------------------------------------------------------------------------------------------
    def look(self) -> None:
        """Write what is new, once a second."""
        if not self._closed and self._clock() >= self._next:
            self._write(AT_ONCE)
            self._next = self._clock() + EVERY

    def settle(self) -> None:
        """All workers have ended: write the rest; once the run has ended, its summary too."""
        if self._closed:
            return
        self._write()
        if run_status(read_info(self._run.info_path)) not in LIVE:
            self.finish()

    def finish(self) -> None:
        """Write what was held back and the summary, and close the files."""
        if self._closed:
            return
        for value in self._others.undecided():
            self._value(value)
        step = self._run.summary().steps or 0
        self._writer(0).add_text(f"{OWN}/run", _summary_text(self._run), step, time.time())
        self.close("")

    def close(self, why: str) -> None:  # noqa: ARG002
        """Write nothing more."""
        self._closed = True
        for writer in self._writers.values():
            writer.close()

    # -- writing -------------------------------------------------------------------------------------------------
    def _write(self, most: int | None = None) -> None:
        self._waiting.extend(self._new())
        for _ in range(len(self._waiting) if most is None else min(most, len(self._waiting))):
            self._take(self._waiting.popleft())
        for writer in self._writers.values():
            writer.flush()

    def _new(self) -> Iterator[Event]:
        ranks = sorted({0, *self._run.recorded()})[:MOST_RANKS]  # rank 0 first: the others are compared with it
        most = share_of_bytes(len(ranks))
        for rank in ranks:
            yield from self._tails.setdefault(rank, Tail(self._run.events_path(rank), most)).read()

    def _take(self, event: Event) -> None:
        if isinstance(event, Value):
            for value in self._others.to_write(event):
                self._value(value)
        elif event.rank == 0 and isinstance(event, Steps):
            self._steps(event)
        elif event.rank == 0 and isinstance(event, Compile):
            self._compile(event)

    def _writer(self, rank: int) -> SummaryWriter:
        """Opened when there is something to write, which is after the workers were forked: a writer has a thread."""
        if rank not in self._writers:
            self._writers[rank] = open_writer(self.folder / f"rank-{rank}" if rank else self.folder)
        return self._writers[rank]

    # -- one function for each kind ------------------------------------------------------------------------------
    def _value(self, event: Value) -> None:
        number = as_number(event.value)
        writer = self._writer(event.rank)
        if number is None:
            writer.add_text(event.name, _markdown(str(event.value)), event.step, event.t)
        else:
            writer.add_scalar(event.name or "value", number, event.step, event.t)

    def _steps(self, event: Steps) -> None:
        clean, seconds = event.clean
        if clean:
            self._writer(0).add_scalar(f"{OWN}/step_seconds", seconds / clean, event.total, event.t)

    def _compile(self, event: Compile) -> None:
        self._count(f"{OWN}/compiles", event)
        if event.recompile and not event.expected:
            self._count(f"{OWN}/recompiles", event)
        if event.seconds is not None:
            self._writer(0).add_scalar(f"{OWN}/compile_seconds", event.seconds, event.step, event.t)

    def _count(self, tag: str, event: Compile) -> None:
        self._counts[tag] += 1
        self._writer(0).add_scalar(tag, self._counts[tag], event.step, event.t)


class _OtherRanks:
    """Which ranks have values of their own. Those of a rank are held back until one differs from what rank 0 logged
    under that name at that step: a loss that was averaged over all ranks is one curve."""

    def __init__(self) -> None:
        self._lead: dict[str, dict[int, list[object]]] = defaultdict(dict)
        self._held: dict[_Series, list[Value]] = defaultdict(list)
        self._compared: dict[_Series, int] = defaultdict(int)  # of those that are held back
        self._equal: set[_Series] = set()
        self._different: set[_Series] = set()
        self._names: dict[int, set[str]] = defaultdict(set)

    def to_write(self, event: Value) -> list[Value]:
        """What can be written now that this value is known."""
        series = event.rank, event.name
        if not self._known(*series):
            return []
        if event.rank == 0:
            self._lead[event.name].setdefault(event.step, []).append(event.value)
            return [event]
        self._held[series].append(event)
        if series not in self._different:
            self._compare(series)
        return self._held.pop(series) if series in self._different else []

    def undecided(self) -> Iterator[Value]:
        """At the end: values that rank 0 has none for at the same steps."""
        for series, held in self._held.items():
            self._compare(series)
            if series in self._different or series not in self._equal:
                yield from held

    def _known(self, rank: int, name: str) -> bool:
        """Whether it is one of the first names of its rank."""
        names = self._names[rank]
        if len(names) < MOST_NAMES:
            names.add(name)
        return name in names

    def _compare(self, series: _Series) -> None:
        """Compare this rank's values with rank 0's, as far as rank 0 has come."""
        lead, held = self._lead[series[1]], self._held[series]
        newest = next(reversed(lead), -1)
        for value in held[self._compared[series] :]:
            if value.step > newest:
                return
            self._compared[series] += 1
            if value.step in lead:
                found = self._equal if value.value in lead[value.step] else self._different
                found.add(series)


# -- functions --------------------------------------------------------------------------------------------------------


def to_tensorboard(run: Run | str, folder: str | Path) -> Path:
    """Write a run for TensorBoard, and return the folder of its event files: `folder`/<id of the run>.

    Logged values keep their names; the time of a step, compiles and recompiles are tags of `tpu_magics`. Each has its
    step and its time. A rank whose values differ from those of rank 0 is a run of its own, `rank-N`. The summary of the
    run is a text.

    Args:
        run: a run (`result.run`), or the name of one.
        folder: `tensorboard --logdir` takes it; several runs go into the same one.

    Raises:
        TpuMagicsError: neither tensorboardX nor tensorboard is installed, or the folder cannot be used.
    """
    found = find_run(run) if isinstance(run, str) else run
    files = event_files(found, folder)
    with writing_to(files.folder):
        files.settle()
        files.finish()
    return files.folder


def event_files(run: RunFiles, folder: str | Path) -> EventFiles:
    """The event files of a run, before anything is written. Raises TpuMagicsError where they cannot be made."""
    place = check_folder(folder)
    files = EventFiles(run, place)
    if any(files.folder.glob(EVENT_FILES)):
        raise TpuMagicsError(
            f"The run {run.id} is in {place} already.",
            "TensorBoard would show each of its points twice.",
            f"Give another folder, or delete {files.folder} first.",
        )
    return files


def check_folder(folder: str | Path) -> Path:
    """The folder for event files. Raises TpuMagicsError where it is none, or nothing here writes them."""
    require_writer()
    place = Path(folder).expanduser()
    why = ""
    if "://" in str(folder):
        why = "It is an address, and event files are written to a folder of this machine."
    elif not str(folder).strip() or any(part.exists() and not part.is_dir() for part in (place, *place.parents)):
        why = "It is not a folder."
    if why:
        raise TpuMagicsError(f"Event files cannot be written to {str(folder)!r}.", why, "Give the name of a folder.")
    return place.absolute()


@contextmanager
def writing_to(folder: Path) -> Iterator[None]:
    """An error of the disk with the folder's name."""
    try:
        yield
    except OSError as error:
        why = f"{error.strerror or error}."
        raise TpuMagicsError(f"Event files cannot be written to {folder}.", why, "Give another folder.") from error


def _summary_text(run: Run) -> str:
    """The summary as a table of Markdown, which TensorBoard shows."""
    rows = [tuple(map(_markdown, row.cells)) for row in summary_table(run).rows]
    return "\n".join(["| | |", "|---|---|", *(f"| {label} | {text} |" for label, text in rows)])


def _markdown(text: str) -> str:
    """A text of any origin as it stands."""
    return "".join(f"\\{char}" if char in _MARKS else char for char in escape(printable(text))).replace("\n", "<br>")
