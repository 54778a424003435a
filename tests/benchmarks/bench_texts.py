"""Long texts: errors of megabytes, and cells of megabytes, beside short ones and beside the cell without a magic."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from tests.benchmarks import fresh, report, timing

TITLE = "Long errors and long cells"
MORE = {5: 1.0, 50: 3.0}  # seconds that an error of so many MB may cost over a short one
TIMES = 2  # what a cell of 2 MB may cost, over the same without a magic

LINES = 60_000
LONG: Mapping[str, str] = {
    "60,000 assignments": "".join(f"value_{number} = {number}.5  # {'x' * 12}\n" for number in range(LINES)),
    "a list of 60,000": "values = [\n" + "".join(f"    {n}.5,  # {'x' * 20}\n" for n in range(LINES)) + "]\n",
    "a function": "def train():\n" + "".join(f"    value_{n} = {n}.5  # {'x' * 12}\n" for n in range(LINES)),
}


def measure(rounds: int = 5) -> list[dict[str, Any]]:
    """A row for each text; the first round is left out."""
    errors: dict[str, list[float]] = fresh.call(__name__, "take_errors", rounds + 1)
    cells: dict[str, list[list[float]]] = fresh.call(__name__, "take_cells", rounds)
    short = errors.pop("0")[1:]
    rows = [{"what": "a short error", "seconds": round(median(short), 2), "over": None, "times": None}]
    for size, times in errors.items():
        over = median(long - brief for long, brief in zip(times[1:], short, strict=True))
        rows.append({"what": f"{size} MB of error", "seconds": round(median(times[1:]), 2), "over": round(over, 2)})
    for what, pairs in cells.items():
        ratio = median(ours / plain for plain, ours in pairs)
        seconds = round(median(ours for _, ours in pairs), 2)
        rows.append({"what": f"2 MB of cell: {what}", "seconds": seconds, "times": round(ratio, 2)})
    columns = ("what", "seconds", "over", "times")
    return [{column: row.get(column) for column in columns} for row in rows]


def notes(rows: list[dict[str, Any]]) -> list[str]:
    """The targets. `over`: seconds more than the short error; `times`: the same cell without a magic."""
    lines = []
    for size, most in MORE.items():
        over = next(row["over"] for row in rows if row["what"] == f"{size} MB of error")
        lines.append(f"Target: {size} MB of error at most {most:.0f} s over a short one: {report.met(over <= most)}.")
    worst = max(row["times"] for row in rows if row["times"] is not None)
    lines.append(
        f"Target: a cell of 2 MB less than {TIMES} times plain: {report.met(worst < TIMES)} ({worst} at most)."
    )
    return lines


def _fail(shell: Any, cell: str) -> None:
    assert not shell.run_cell(cell, store_history=True).success


def take_errors(rounds: int) -> dict[str, list[float]]:
    """Seconds of a run that ends in an error of so many MB."""
    shell = timing.shell()
    taken: dict[str, list[float]] = {str(size): [] for size in (0, *MORE)}
    for _ in range(rounds):
        for size, times in taken.items():
            cell = f"%%tpu_train --plain\nraise ValueError('x' * {int(size)} * 10**6)"
            times.append(timing.seconds(lambda: _fail(shell, cell)))
    return taken


def take_cells(rounds: int) -> dict[str, list[list[float]]]:
    """Seconds of each cell without a magic, and with `%%tpu_train`."""
    shell = timing.shell()
    taken: dict[str, list[list[float]]] = {what: [] for what in LONG}
    for _ in range(rounds):
        for what, text in LONG.items():
            pair = []
            for magic in ("", "%%tpu_train --plain\n"):
                pair.append(timing.seconds(lambda: timing.run_cell(shell, magic + text)))
            taken[what].append(pair)
    return taken
