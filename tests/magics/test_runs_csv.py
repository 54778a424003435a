"""The table of runs for spreadsheets: what a file holds, and how it is replaced."""

from __future__ import annotations

import csv
import os
import stat
from pathlib import Path

import pytest

from tests.panel import recorded
from tpu_magics.__main__ import main
from tpu_magics.errors import TpuMagicsError
from tpu_magics.magics.runs_csv import COLUMNS, table_text, write_csv
from tpu_magics.runs.events import End, Value
from tpu_magics.runs.reader import Run


def a_run(root: Path, name: str, *values: Value, **fields: object) -> Run:
    made = recorded.Recorded(root, name)
    made.update(status="done", **fields)
    return Run(made.write(*values, End(recorded.CREATED, 0, steps=3, compiles=2, recompiles=1)).files.path)


def value(name: str, number: float | str) -> Value:
    return Value(recorded.CREATED, 0, name, number, 1)


def test_a_row_for_each_run_and_a_column_for_each_name(tmp_path: Path) -> None:
    first = a_run(tmp_path, "a, b", value("loss", 0.25), value("note", 'say "no"\nor yes'), seconds=61.5)
    second = a_run(tmp_path, "second", value("lr", "nan"), value("loss", -0.5))
    head, *rows = csv.reader(table_text([first, second]).splitlines(keepends=True))
    assert head == [*COLUMNS, "last_loss", "last_note", "last_lr"]
    created = "2026-11-21T05:34:03+00:00"
    assert rows[0] == [first.id, "a, b", "done", created, "61.5", "1", "3", "2", "1", "0.25", 'say "no"\nor yes', ""]
    assert rows[1] == [second.id, "second", "done", created, "", "1", "3", "2", "1", "-0.5", "", "nan"]
    assert table_text([]).splitlines() == [",".join(COLUMNS)]


def test_no_cell_is_a_formula(tmp_path: Path) -> None:
    run = a_run(tmp_path, "=HYPERLINK(1)", value("@sum", "+1+cmd|' /C calc'!A0"), value("-inf", "-inf"))
    head, row = csv.reader(table_text([run]).splitlines())
    assert row[1] == "'=HYPERLINK(1)" and row[-2:] == ["'+1+cmd|' /C calc'!A0", "-inf"]
    assert head[-2:] == ["last_@sum", "last_-inf"]


def test_half_characters_and_times_that_are_none_are_no_error(tmp_path: Path) -> None:
    run = a_run(tmp_path, "a", value("x", "\ud800"), created=1e17)
    assert csv.DictReader(table_text([run]).splitlines()).__next__()["created"] == ""
    write_csv([run], str(tmp_path / "out.csv"))


def test_a_file_is_replaced_at_once_and_keeps_its_mode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, path, link = a_run(tmp_path / "runs", "a"), tmp_path / "mine.csv", tmp_path / "link.csv"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    old = path.open()
    write_csv([run], str(link), ["And more."])
    assert capsys.readouterr().out == f"tpu_magics: 1 run written to {link}. And more.\n"
    assert link.is_symlink() and path.read_text().startswith("id,name,") and old.read() == "old"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640 and sorted(os.listdir(tmp_path)) == [
        "link.csv",
        "mine.csv",
        "runs",
    ]
    old.close()


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ("{}", "It is a folder."),
        ("{}/no/such.csv", "No such file or directory."),
        ("/dev/null", "It is not a regular"),
        ("a\0b", "embedded null"),
    ],
)
def test_what_cannot_be_written_is_refused(tmp_path: Path, file: str, why: str) -> None:
    with pytest.raises(TpuMagicsError) as refused:
        write_csv([], file.format(tmp_path))
    assert refused.value.what.startswith("The table of runs could not be written to ") and why in refused.value.why
    assert os.listdir(tmp_path) == []


def test_a_disk_that_fills_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("old")

    def full(_self: Path, _target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(TpuMagicsError, match="No space left on device"):
        write_csv([], str(path))
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["mine.csv"]


def test_the_command_line_writes_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        a_run(tmp_path / "runs", name)
    assert main(["runs", "--runs", str(tmp_path / "runs"), "--csv", "-", "-n", "1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main(["runs", "--runs", str(tmp_path / "runs"), "--csv", str(tmp_path)]) == 1
    assert "It is a folder." in capsys.readouterr().err
    assert main(["runs", "--runs", str(tmp_path / "runs"), "a", "b"]) == 0
    assert "Runs side by side: nothing differs" in capsys.readouterr().out
