"""Runs in a line each: what is told of them, and that one that has ended is read once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.panel import recorded
from tpu_magics.panel import run_lines
from tpu_magics.panel.run_lines import run_line
from tpu_magics.runs.reader import Run


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The records that were read."""
    found: list[Path] = []
    really = run_lines._last_events

    def noted(path: Path) -> Any:
        found.append(path)
        return really(path)

    monkeypatch.setattr(run_lines, "_last_events", noted)
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
