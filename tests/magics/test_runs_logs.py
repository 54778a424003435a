"""`%tpu_runs` and `%tpu_logs` on runs that have really been made."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path

import pytest

from tpu_magics.magics.runs_csv import COLUMNS

from .kernel import Kernel
from .samples import MODEL, TRAIN

pytestmark = pytest.mark.process


@pytest.fixture
def notebook(kernel: Kernel) -> Kernel:
    """A notebook with two runs: one that ended well and logged values, and one that failed."""
    kernel.run(MODEL + TRAIN).good()
    kernel.run(
        """%%tpu_train model --run-name well
import tpu_magics
def logs(model):
    for step in range(3):
        tpu_magics.log(loss=train(model, 1), note="a <b>note</b>")
    print("well done")
"""
    ).good()
    assert "boom" in kernel.run("%%tpu_train model\ndef broken(model):\n    print('so far')\n    boom").error
    return kernel


def table(kernel: Kernel, line: str) -> dict[str, str]:
    [display] = kernel.run(line).good().displays
    return display


def test_the_table_of_all_runs(notebook: Kernel) -> None:
    shown = table(notebook, "%tpu_runs")
    rows = shown["text/plain"].splitlines()
    assert rows[1].split() == ["when", "name", "status", "steps", "seconds", "ranks", "last", "value", "curve"]
    broken, well = (row.split() for row in rows[-2:])
    assert broken[2:4] == ["broken", "failed"] and well[2:5] == ["well", "done", "3"]
    assert "<b>note</b>" not in shown["text/html"], "what the person wrote is shown as html"


def test_one_run_and_two_side_by_side(notebook: Kernel) -> None:
    one = table(notebook, "%tpu_runs well")["text/plain"]
    assert "Run well: done" in one and "updated in the notebook" in one and "loss" in one
    last = table(notebook, "%tpu_runs last")["text/plain"]
    assert "NameError: name 'boom' is not defined" in last and "what to do" in last
    both = table(notebook, "%tpu_runs well broken")["text/plain"]
    assert [word in both for word in ("well", "broken", "done", "failed")] == [True] * 4


def test_runs_are_written_as_a_table_of_commas(notebook: Kernel, tmp_path: Path) -> None:
    told = notebook.run("%tpu_runs --csv mine.csv").good()
    assert told.printed == "tpu_magics: 2 runs written to mine.csv.\n" and not told.displays
    broken, well = list(csv.DictReader((tmp_path / "mine.csv").read_text().splitlines()))
    assert list(well) == [*COLUMNS, "last_loss", "last_note"]
    assert (well["name"], well["status"], well["steps"], well["ranks"]) == ("well", "done", "3", "1")
    assert well["last_note"] == "a <b>note</b>" and float(well["last_loss"]) and int(well["compiles"]) >= 1
    assert (broken["status"], broken["last_loss"]) == ("failed", "") and broken["created"].endswith("+00:00")
    printed = notebook.run("%tpu_runs -n 1 --csv -").good().printed
    assert len(printed.splitlines()) == 2 and printed.startswith("id,name,status,created")
    one = notebook.run("%tpu_runs -n 1 --csv mine.csv").good().printed
    assert one == "tpu_magics: 1 run written to mine.csv. The newest 1 of 2 runs. --all shows all, -n N the newest N.\n"
    refused = notebook.run(f"%tpu_runs --csv {tmp_path}")
    assert refused.error_type == "TpuMagicsError" and "It is a folder." in refused.said


def test_plain_has_no_times_or_ids(notebook: Kernel) -> None:
    told = notebook.run("%tpu_runs well --plain").good()
    assert not told.displays and told.printed.startswith("status: done\nranks: 1\nsteps: 3\n")
    assert notebook.run("%tpu_runs --plain").good().printed.count("status: ") == 2


def test_logs_of_a_run_and_a_rank(notebook: Kernel) -> None:
    assert notebook.run("%tpu_logs well").good().printed == "well done\n\n"
    newest = notebook.run("%tpu_logs").good().printed
    assert newest.startswith("so far\n") and "NameError: name 'boom'" in newest
    refused = notebook.run("%tpu_logs -r 3 well")
    assert "The run 'well' has no rank 3." in refused.said and "Its ranks are 0." in refused.said
    assert "is not a whole number" in notebook.run("%tpu_logs -r one").said
    unknown = notebook.run("%tpu_logs wel")
    assert unknown.error_type == "TpuMagicsError" and "well" in unknown.said


def test_an_unwritable_folder_is_told_and_the_run_is_kept_elsewhere(notebook: Kernel, tmp_path: Path) -> None:
    """As root nothing is unwritable; a file where the folder should be is, for everyone."""
    blocked = tmp_path / "a file"
    blocked.write_text("")
    notebook.run(f"import os; os.environ['TPU_MAGICS_RUNS'] = {str(blocked / 'runs')!r}").good()
    try:
        cell = notebook.run("%tpu_train train model").good()
        assert "cannot be written" in cell.printed and "train: done" in cell.printed
        assert "train" in table(notebook, "%tpu_runs")["text/plain"]
    finally:
        notebook.run("del os.environ['TPU_MAGICS_RUNS']").good()


def test_run_folders_are_private(notebook: Kernel, tmp_path: Path) -> None:
    folders = list((tmp_path / ".tpu_runs").iterdir())
    assert len(folders) == 2
    assert {os.stat(path).st_mode & 0o777 for path in folders} == {0o700}
    assert not list((tmp_path / ".tpu_runs").glob("*/result-*")), "results stay on the disk"


def test_the_newest_are_listed_and_anothers_run_is_named(notebook: Kernel, tmp_path: Path) -> None:
    newest = notebook.run("%tpu_runs -n 1 --plain").good().printed
    assert newest.count("status: ") == 1 and "The newest 1 of 2 runs. --all shows all" in newest
    assert notebook.run("%tpu_runs --all --plain").good().printed.count("status: ") == 2
    assert "is not a number above 0" in notebook.run("%tpu_runs -n 0").said
    assert "not allowed with argument" in notebook.run("%tpu_runs -n 1 --all").said
    for path in (tmp_path / ".tpu_runs").glob("*/run.json"):
        info = json.loads(path.read_text())
        path.write_text(json.dumps({**info, "notebook": "/x/eval.ipynb", "kernel": "k", "pid": 1}))
    for line in ("%tpu_logs", "%tpu_panel last", "%tpu_runs last --plain"):
        said = "tpu_magics: This notebook has made no run here. Showing "
        assert said in notebook.run(line).good().printed, line
    well = notebook.run("%tpu_logs well").good().printed
    assert "This notebook has made no run named 'well' here." in well and "of another notebook, eval.ipynb." in well
    notebook.run("%tpu_train train model").good()
    assert "another notebook" not in notebook.run("%tpu_runs last --plain").good().printed
    log = next((tmp_path / ".tpu_runs").glob("*-well")) / "rank-0.log"
    log.unlink()
    os.mkfifo(log)
    assert "rank-0.log was not read: it is a named pipe, not a file." in notebook.run("%tpu_logs well").good().printed
