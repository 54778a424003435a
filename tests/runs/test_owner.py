"""Whose a run is: this notebook's are found first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.runs.builders import made
from tpu_magics.errors import TpuMagicsError
from tpu_magics.runs.owner import Owner, foreign_text, owner_of, this_owner
from tpu_magics.runs.reader import find_run, list_runs, own_runs_first

THEIRS = {"notebook": "/home/me/eval.ipynb", "kernel": "k2", "pid": 1, "pid_started": 5}


@pytest.fixture(autouse=True)
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "train.ipynb"))


def test_a_run_knows_its_notebook(root: Path, tmp_path: Path) -> None:
    info = made(root, "a", 1.0).info
    assert info["notebook"] == str(tmp_path / "train.ipynb")
    assert owner_of(info) == this_owner() and this_owner().pid == os.getpid()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (Owner("a", "k", 1, 5), Owner("a", "", 2, 6), True),  # another kernel of the same notebook
        (Owner("a", "k", 1, 5), Owner("b", "k", 2, 6), True),  # restarted, and renamed
        (Owner("", "", 1, 5), Owner("", "", 1, 5), True),  # no front end tells
        (Owner("a", "k", 1, 5), Owner("b", "l", 1, 6), False),  # the pid was given out again
        (Owner("", "", 1, 5), Owner("", "", 2, 5), False),
        (Owner(), Owner(), False),  # nothing is known
    ],
)
def test_path_kernel_or_process_make_it_the_same(one: Owner, other: Owner, same: bool) -> None:
    assert one.same(other) is other.same(one) is same


def test_what_is_told_of_anothers() -> None:
    assert foreign_text(this_owner()) == ""
    assert foreign_text(owner_of(THEIRS)) == "of another notebook, eval.ipynb"
    assert foreign_text(owner_of({})) == "of another kernel"
    assert owner_of({"notebook": 5, "kernel": None, "pid": "x", "pid_started": True}) == Owner()


def test_this_notebooks_come_first(root: Path) -> None:
    mine, _theirs = made(root, "a", 1.0), made(root, "a", 2.0, **THEIRS)
    other = made(root, "b", 3.0, **THEIRS)
    assert [run.name for run in list_runs(root)] == ["b", "a", "a"], "the list has all, by time"
    assert find_run("last", root).id == find_run("a", root).id == mine.id
    assert find_run("b", root).id == other.id and find_run("b", root).foreign == "of another notebook, eval.ipynb"
    own, others = own_runs_first(root=root)
    assert [run.id for run in own] == [mine.id] and [run.name for run in others] == ["b", "a"]
    assert [len(runs) for runs in own_runs_first("b", root)] == [0, 1]


def test_without_one_of_its_own_the_newest_is_meant(root: Path) -> None:
    made(root, "a", 1.0, **THEIRS)
    newest = made(root, "b", 2.0, **THEIRS)
    assert find_run("last", root).id == newest.id
    with pytest.raises(TpuMagicsError, match="There is no run 'c'"):
        find_run("c", root)
