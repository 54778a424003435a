"""`%tpu_runs --csv FILE`: a table of runs for spreadsheets and pandas."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import stat
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

from tpu_magics.errors import TpuMagicsError, plural
from tpu_magics.panel.run_lines import run_line
from tpu_magics.runs.events import plain_text
from tpu_magics.runs.reader import Run
from tpu_magics.runs.scan import RecordScan

COLUMNS = ("id", "name", "status", "created", "seconds", "ranks", "steps", "compiles", "recompiles")
LAST = "last_"  # before a logged name: the column of its last value
MOST_NAMES = 200  # columns of logged values
_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet runs a cell that begins so

Cell = float | int | str | None


def write_csv(runs: Sequence[Run], file: str, notes: Iterable[str] = ()) -> None:
    """Write a row for each run, in the order given, and print where; "-" prints the table.

    Columns: COLUMNS, then `last_NAME` for each logged name. `created` is in UTC; counts and values are those of rank
    0; what is not known is empty. Raises TpuMagicsError where the file cannot be written.
    """
    content = table_text(runs)
    if file == "-":
        print(content, end="", flush=True)
        return
    path = Path(file).expanduser()
    _replace(path, content)
    print(" ".join((f"tpu_magics: {plural(len(runs), 'run')} written to {path}.", *notes)), flush=True)


def table_text(runs: Sequence[Run]) -> str:
    """The table as CSV."""
    rows = [_row(run) for run in runs]
    names = list(dict.fromkeys(name for _facts, values in rows for name in values))[:MOST_NAMES]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*COLUMNS, *(_harmless(f"{LAST}{name}") for name in names)])
    for facts, values in rows:
        writer.writerow([_harmless(cell) for cell in (*facts, *(values.get(name) for name in names))])
    return out.getvalue().encode("utf-8", "replace").decode()


def _row(run: Run) -> tuple[Sequence[Cell], Mapping[str, Cell]]:
    line = run_line(run)
    facts = (line.id, line.name, line.status, _utc(line.created), line.seconds, len(run.ranks))
    return (*facts, line.steps, line.compiles, line.recompiles), RecordScan(run.events_path(0)).last_values()


def _utc(created: float | None) -> str:
    """A time in ISO 8601; "" where it is none."""
    try:
        return "" if created is None else datetime.fromtimestamp(created, timezone.utc).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return ""


def _harmless(cell: Cell) -> Cell:
    """A text without a terminal's escape codes. One that a spreadsheet would run as a formula gets an apostrophe, which
    shows it as text."""
    if not isinstance(cell, str):
        return cell
    text = plain_text(cell)
    return f"'{text}" if cell.startswith(_FORMULA) and not _is_number(cell) else text


def _is_number(text: str) -> bool:
    with contextlib.suppress(ValueError):
        return bool(float(text) or True)
    return False


def _replace(path: Path, content: str) -> None:
    """A reader sees the old file or the new one."""
    try:
        target = Path(os.path.realpath(path))  # what a link leads to: the link itself stays
        if target.exists() and not stat.S_ISREG(target.stat().st_mode):
            raise _not_writable(path, "It is a folder." if target.is_dir() else "It is not a regular file.")
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:100]}-")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
                file.write(content)
            Path(name).chmod(_mode(target))
            Path(name).replace(target)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(name).unlink()
            raise
    except (OSError, ValueError) as error:
        raise _not_writable(path, f"{getattr(error, 'strerror', None) or error}.") from error


def _mode(target: Path) -> int:
    """That of the file that is replaced, else what this process gives new files."""
    with contextlib.suppress(OSError):
        return stat.S_IMODE(target.stat().st_mode)
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _not_writable(path: Path, why: str) -> TpuMagicsError:
    return TpuMagicsError(
        f"The table of runs could not be written to {path}.", why, 'Give --csv the name of a file, or "-" to print it.'
    )
