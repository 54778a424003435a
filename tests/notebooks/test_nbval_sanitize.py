"""The sanitize file that ships with the package, through nbval's own sanitizer and on real records."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output
from nbval.plugin import IPyNbCell, get_sanitize_patterns

import tpu_magics
from tpu_magics.panel.compared import compare, compared_html, compared_text
from tpu_magics.panel.runs import plain_summary, runs_table, summary_table
from tpu_magics.panel.table import to_html, to_text
from tpu_magics.runs.events import End, Memory, Start, Steps, Value
from tpu_magics.runs.folder import RunFolder
from tpu_magics.runs.reader import Run
from tpu_magics.runs.writer import EventWriter

FILE = Path(tpu_magics.__file__).with_name("nbval_sanitize.cfg")
COMMAND = [sys.executable, "-m", "tpu_magics", "nbval-sanitize"]


def sanitize(text: str) -> str:
    """What nbval makes of a cell's text with our file."""
    patterns = OrderedDict(get_sanitize_patterns(FILE.read_text(encoding="utf-8")))
    return IPyNbCell.sanitize(SimpleNamespace(parent=SimpleNamespace(sanitize_patterns=patterns)), text)


def make_run(root: Path, *, created: float, seconds: float, memory: int, steps: int = 44, name: str = "digits") -> Run:
    """A finished run of one rank, written as the launcher and its workers write it."""
    folder = RunFolder.create(name, root=root)
    writer = EventWriter(folder.events_path(0), rank=0)
    for event in (
        Start(t=created, rank=0, pid=int(created) % 99991, device="xla:0"),
        Steps(t=created + 1, rank=0, total=steps, n=steps, seconds=seconds / 2),
        Value(t=created + 1, rank=0, name="loss", value=0.25, step=steps),
        Memory(t=created + 2, rank=0, rss=memory),
        End(t=created + 2, rank=0, seconds=seconds, steps=steps, compiles=3),
    ):
        writer.write(event)
    writer.close()
    workers = [
        {"rank": 0, "pid": int(created) % 99991, "exit": 0, "signal": None, "peak_rss": memory, "peak_pss": None}
    ]
    folder.update(status="done", created=created, seconds=seconds, workers=workers, models=["model"])
    return Run(folder.path)


@pytest.fixture
def monday(tmp_path: Path) -> Run:
    return make_run(tmp_path / "monday", created=1_790_000_000.1, seconds=8.94, memory=611 * 2**20)


@pytest.fixture
def friday(tmp_path: Path) -> Run:
    return make_run(
        tmp_path / "a" / "long" / "way" / ".tpu_runs", created=1_790_400_000.7, seconds=1234.56, memory=2**31
    )


TABLES: dict[str, Callable[[Run], str]] = {
    "table of runs": lambda run: to_text(runs_table([run])),
    "table of runs, html": lambda run: to_html(runs_table([run])),
    "table of one run": lambda run: to_text(summary_table(run)),
    "table of one run, html": lambda run: to_html(summary_table(run)),
    "two runs side by side": lambda run: to_text(compared_text(compare([run, run]))),
    "two runs side by side, html": lambda run: compared_html(compare([run, run])),
}


@pytest.mark.parametrize("shown", TABLES.values(), ids=TABLES)
def test_two_runs_of_the_same_cell_read_alike(monday: Run, friday: Run, shown: Callable[[Run], str]) -> None:
    assert shown(monday) != shown(friday)
    assert sanitize(shown(monday)) == sanitize(shown(friday))


@pytest.mark.parametrize("shown", TABLES.values(), ids=TABLES)
def test_what_the_run_did_still_counts(monday: Run, tmp_path: Path, shown: Callable[[Run], str]) -> None:
    shorter = make_run(tmp_path / "other", created=1_790_000_000.1, seconds=8.94, memory=611 * 2**20, steps=43)
    assert sanitize(shown(monday)) != sanitize(shown(shorter))


def test_the_plain_summary_needs_no_sanitizing(monday: Run, friday: Run) -> None:
    assert plain_summary(monday) == plain_summary(friday)
    assert sanitize(plain_summary(monday)) == plain_summary(monday)


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        ("Run 20260920T101112Z-digits-2 ended after 8.9 s.", "Run RUN-digits-2 ended after DURATION."),
        ("1 of 4 workers, 1,204 ms, 3 seconds, 12 min", "1 of 4 workers, DURATION, DURATION, DURATION"),
        ("The TPU is already in use by process with pid 4242.", "The TPU is already in use by process with pid PID."),
        ("process 4242: python -m ipykernel", "process PID: python -m ipykernel"),
        ("3.2 GiB free of 23.5 GiB", "SIZE free of SIZE"),
        ("peak 1,024 bytes, 12 KiB, 3.5 MB", "peak SIZE, SIZE, SIZE"),
        ('File "/tmp/ipykernel_4242/3051247.py", line 3', 'File "/tmp/PROCESS", line 3'),
        ("<Model object at 0x7f3a5c0b9d10>", "<Model object at ADDRESS>"),
        ('{"model_id": "0123456789abcdef0123456789abcdef"}', '{"model_id": "ID"}'),
        ("0b6f3c1e-7d0e-4b7e-9b52-8f3f6f0d8c11", "ID"),
        ("epoch 2: loss 0.096, accuracy 0.95", "epoch 2: loss 0.096, accuracy 0.95"),
        ("steps: 88\ncompiles: 3\nranks: 1", "steps: 88\ncompiles: 3\nranks: 1"),
        ("images of 8 x 8 pixels, 9,930 parameters", "images of 8 x 8 pixels, 9,930 parameters"),
    ],
)
def test_samples(sample: str, expected: str) -> None:
    assert sanitize(sample) == expected


def test_widgets_of_ipywidgets_read_alike() -> None:
    from ipywidgets import HTML

    one, two = HTML("x"), HTML("x")
    views = [str(widget._repr_mimebundle_()) for widget in (one, two)]
    assert views[0] != views[1]
    assert sanitize(views[0]) == sanitize(views[1])


@pytest.mark.process
def test_nbval_takes_the_file(monday: Run, friday: Run, tmp_path: Path) -> None:
    """A notebook saved on Monday and run on Friday: equal with the file, different without it."""
    source = "from tpu_magics.panel.runs import summary_table\nfrom tpu_magics.panel.table import to_text\n"
    source += f"from tpu_magics.runs.reader import Run\nprint(to_text(summary_table(Run({str(friday.path)!r}))))"
    saved = new_output("stream", name="stdout", text=to_text(summary_table(monday)) + "\n")
    notebook = new_notebook(cells=[new_code_cell(source, outputs=[saved], execution_count=1)])
    nbformat.write(notebook, tmp_path / "saved.ipynb")
    assert nbval(tmp_path, f"--nbval-sanitize-with={FILE}") == 0
    assert nbval(tmp_path) == 1


@pytest.mark.process
def test_the_command_line_tells_where_the_file_is() -> None:
    told = subprocess.run(COMMAND, capture_output=True, text=True, check=True).stdout.strip()
    assert Path(told).samefile(FILE)


def nbval(folder: Path, *options: str) -> int:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--nbval",
        "--nbval-current-env",
        *options,
    ]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    return subprocess.run([*command, "saved.ipynb"], cwd=folder, env=environment, capture_output=True).returncode
