"""Runs in a line each: what is told of them, and that one that has ended is read once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.panel import recorded
from tpu_magics.panel import run_lines
from tpu_magics.panel.json_values import plain
from tpu_magics.panel.run_lines import run_line
from tpu_magics.runs.events import Compile, End, Steps, Value
from tpu_magics.runs.reader import Run


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The records that were read."""
    found: list[Path] = []
    really = run_lines.RecordScan

    def noted(path: Path) -> Any:
        found.append(path)
        return really(path)

    monkeypatch.setattr(run_lines, "RecordScan", noted)
    monkeypatch.setattr(run_lines, "_kept", {})
    return found


def test_a_run_that_has_ended_is_read_once(tmp_path: Path, read: list[Path]) -> None:
    run = Run(recorded.done(tmp_path).files.path)
    first = run_line(run)
    assert first.status == "done" and first.compiles
    assert [run_line(Run(run.path)) for _ in range(3)] == [first] * 3 and len(read) == 1


def test_it_is_read_again_when_it_was_written_again(tmp_path: Path, read: list[Path]) -> None:
    kept = recorded.done(tmp_path)
    run = Run(kept.files.path)
    run_line(run)
    kept.update(status="failed", seconds=61.0)
    assert (run_line(run).status, run_line(run).seconds) == ("failed", 61.0) and len(read) == 2


def test_a_run_that_goes_on_is_read_each_time(tmp_path: Path, read: list[Path]) -> None:
    going = recorded.running(tmp_path)
    run = Run(going.files.path)
    assert [run_line(run).status for _ in range(3)] == ["running"] * 3 and len(read) == 3
    going.update(status="done", seconds=60.0)
    assert run_line(run).status == "done"


def test_a_long_list_of_runs_is_not_kept_for_ever(
    tmp_path: Path, read: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lines, "MOST_KEPT", 2)
    for place in range(5):
        assert run_line(Run(recorded.done(tmp_path / str(place)).files.path)).status == "done"
    assert len(run_lines._kept) <= 2


def test_a_line_has_the_last_loss_and_a_small_curve(tmp_path: Path) -> None:
    """Evenly over the steps: the first thousand values have a record each, later records stand for many."""
    run = recorded.Recorded(tmp_path, "long")
    steps = [*range(1_000), *range(1_000, 100_000, 500)]
    run.write(*(Value(recorded.CREATED, 0, "loss", 1 - step / 100_000, step) for step in steps))
    run.write(*(Value(recorded.CREATED, 0, "lr", 0.1, step) for step in steps))
    line = run_line(Run(run.files.path))
    assert line.value == "loss 0.005" and len(line.curve) == 30 and list(line.curve) == sorted(line.curve, reverse=True)
    assert line.curve[0] == 1.0 and line.curve[-1] == 0.005 and abs(line.curve[15] - 0.48) < 0.05
    logged = recorded.Recorded(tmp_path, "no loss").write(Value(recorded.CREATED, 0, "phase", "warm-up", 3))
    assert (run_line(Run(logged.files.path)).value, run_line(Run(logged.files.path)).curve) == ("phase warm-up", ())
    silent = run_line(Run(recorded.Recorded(tmp_path, "silent").files.path))
    assert (silent.value, silent.curve, silent.steps) == ("", (), None)


def test_a_loss_that_is_no_number_is_sent_as_a_text(tmp_path: Path) -> None:
    run = recorded.Recorded(tmp_path, "diverged")
    run.write(*(Value(recorded.CREATED, 0, "loss", value, at) for at, value in enumerate((2.5, "inf", "nan"))))
    assert plain(run_line(Run(run.files.path)))["curve"] == [2.5, "inf", "nan"]


def test_counts_are_those_of_the_end_else_those_that_were_recorded(tmp_path: Path) -> None:
    run = recorded.Recorded(tmp_path, "a", **recorded.myself())
    run.write(Steps(recorded.CREATED, 0, total=7, n=7), Compile(recorded.CREATED, 0))
    run.write(Compile(recorded.CREATED, 0, recompile=True, text='{"recompile":true}'), Compile(recorded.CREATED, 0))
    run.write(recorded.optimizer_state(recorded.CREATED, 1))
    line = run_line(Run(run.files.path))
    assert (line.steps, line.compiles, line.recompiles) == (7, 4, 1), "the optimizer's state is expected"
    run.write(End(recorded.CREATED, 0, steps=9, compiles=5, recompiles=None))
    line = run_line(Run(run.files.path))
    assert (line.steps, line.compiles, line.recompiles) == (9, 5, None)


def test_what_a_foreign_file_holds_costs_little(tmp_path: Path) -> None:
    run = recorded.Recorded(tmp_path, "strange")
    run.write(Value(recorded.CREATED, 0, "loss", 1.0, 1))
    with run.files.events_path(0).open("ab") as file:
        file.write(b"x" * 9_000_000 + b"\n" + b'{"v":1,"kind":"value","name":"loss","step":' + b"9" * 5_000 + b"}\n")
        file.write(b"".join(b'{"v":1,"kind":"value","t":1.0,"rank":0,"name":"n%d"}\n' % at for at in range(10_000)))
    run.write(Value(recorded.CREATED, 0, "loss", 0.5, 2))
    line = run_line(Run(run.files.path))
    assert line.value == "loss 0.5" and len(plain(line)["name"]) <= 200
    run.files.info_path.write_text('{"v":1,"name":"' + "n" * 100_000 + '","status":"' + "s" * 100_000 + '"}')
    line = run_line(Run(run.files.path))
    assert (len(line.name), len(line.status)) == (200, 200)
