"""How long it takes to list runs, and to find one, in a folder of ten thousand runs with real records."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.benchmarks import fresh, report, timing
from tests.panel import recorded
from tpu_magics.magics.lab_requests import MOST_RUNS
from tpu_magics.magics.runs_commands import bundle
from tpu_magics.panel import run_lines
from tpu_magics.panel.runs import runs_table
from tpu_magics.panel.table import to_html, to_text
from tpu_magics.runs.reader import find_run, newest_runs

TITLE = "Ten thousand old runs"
RUNS = 10_000
TARGET = 0.5  # seconds
NOTEBOOKS = 50  # that made them, in turn


def fill(folder: Path, runs: int) -> None:
    """So many copies of a run that went well, a minute apart."""
    pattern = recorded.done(folder)
    files, info = {path.name: path.read_bytes() for path in pattern.files.path.iterdir()}, pattern.folder.info
    shutil.rmtree(pattern.files.path)
    for number in range(runs):
        created = recorded.CREATED + 60 * number
        name = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(created))}-run{number % 100}"
        owner = {"notebook": f"/home/me/{number % NOTEBOOKS}.ipynb", "pid": 1_000 + number, "pid_started": 1}
        told = {**info, "id": name, "name": f"run{number % 100}", "created": created, **owner}
        (folder / name).mkdir()
        for file, content in {**files, "run.json": json.dumps(told, indent=1).encode()}.items():
            (folder / name / file).write_bytes(content)


def listing(runs: int, rounds: int) -> list[dict[str, Any]]:
    """In a fresh process: the first time, when the index is made, and then each of those who read it."""
    with fresh.scratch_folder() as folder:
        fill(folder, runs)
        kinds: dict[str, Callable[[], object]] = {
            "%tpu_runs": lambda: _table(folder),
            "%tpu_panel last": lambda: bundle(find_run("last", folder)),
            "the side panel's list": lambda: _lines(folder),
        }
        rows = [timing.row("%tpu_runs, where the index is missing", [timing.seconds(kinds["%tpu_runs"])])]
        return rows + [timing.row(what, [timing.seconds(done) for _ in range(rounds)]) for what, done in kinds.items()]


def _table(folder: Path) -> None:
    table = runs_table(*newest_runs(20, folder))
    assert to_html(table) and to_text(table)


def _lines(folder: Path) -> None:
    run_lines._kept.clear()
    assert [run_lines.run_line(run) for run in newest_runs(MOST_RUNS, folder)[0]]


def measure(rounds: int = 11, runs: int = RUNS) -> list[dict[str, Any]]:
    """Four rows."""
    rows: list[dict[str, Any]] = fresh.call(__name__, "listing", runs, rounds)
    return rows


def notes(rows: list[dict[str, Any]]) -> list[str]:
    """The target, and whether it is met."""
    slowest = max(row["s, slowest"] for row in rows[1:])
    return [
        f"{RUNS:,} runs that went well, of {NOTEBOOKS} notebooks, in one folder; the side panel lists {MOST_RUNS}.",
        f"Target where the index is there: less than {TARGET:g} s: {report.met(slowest < TARGET)} ({slowest:.2f} s).",
    ]
