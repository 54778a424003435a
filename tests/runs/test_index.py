"""The index of a folder of runs: it saves reading them, and is never believed where they say otherwise."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.runs.builders import in_threads
from tpu_magics.__main__ import main
from tpu_magics.runs import folder as run_folder
from tpu_magics.runs import index, temporary_folders
from tpu_magics.runs.files import fallback_root
from tpu_magics.runs.folder import RunFolder
from tpu_magics.runs.index import TOLERATED
from tpu_magics.runs.reader import find_run, list_runs, newest_runs

MANY = TOLERATED + 5


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with so many runs that an index is worth it: "r0" is the oldest."""
    folder = tmp_path / "runs"
    for number in range(MANY):
        written(folder, f"20260101T0000{number:02}Z-r{number}", created=1e9 + number, name=f"r{number}")
    return folder


def written(root: Path, folder: str, **info: Any) -> Path:
    path = root / folder
    path.mkdir(parents=True)
    (path / "run.json").write_text(json.dumps({"v": 1, "status": "done", **info}))
    return path


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders whose run.json was read for the index."""
    seen: list[str] = []

    def noted(place: Path, name: str) -> index.Entry | None:
        seen.append(name)
        return really(place, name)

    really = index._read
    monkeypatch.setattr(index, "_read", noted)
    return seen


def names(root: Path) -> list[str]:
    return [entry.name for entry in index.newest_first(index.entries(root))]


def test_the_newest_is_the_last_made_whatever_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "runs"
    for name, now in (("a", 1.9e9), ("b", 1e9), ("c", 1.5e9), ("d", 1.95e9)):
        monkeypatch.setattr(run_folder.time, "time", lambda now=now: now)
        assert RunFolder.create(name, root=root).info["created"] == now
        assert names(root)[0] == name
        assert list_runs(root)[0].name == find_run("last", root).name == name
    assert names(root) == ["d", "c", "b", "a"]


ALL = [f"r{number}" for number in reversed(range(MANY))]


def test_runs_are_read_once_and_the_index_is_private(root: Path, read: list[str]) -> None:
    assert names(root) == ALL and len(read) == MANY
    file = root / ".index.json"
    assert file.stat().st_mode & 0o777 == 0o600
    assert names(root) == ALL and len(read) == MANY
    assert newest_runs(2, root)[0] == list_runs(root)[:2] and newest_runs(2, root)[1] == MANY
    assert find_run("r3", root).name == "r3" and find_run("last", root).name == ALL[0] and len(read) == MANY
    assert [path.name for path in root.iterdir() if path.name.startswith(".")] == [".index.json"]


def test_what_changed_is_read_again_and_what_is_gone_is_not_shown(root: Path, read: list[str]) -> None:
    names(root)
    read.clear()
    first, second = sorted(path for path in root.iterdir() if path.is_dir())[:2]
    (first / "run.json").write_text(json.dumps({"v": 1, "name": "edited", "created": 2e9}))
    (second / "run.json").unlink()
    second.rmdir()
    written(root, "new", name="new", created=1e8)
    assert names(root) == ["edited", *ALL[:-2], "new"]
    assert sorted(read) == [first.name, "new"]
    assert names(root)[0] == "edited"  # a few that change all the time are not worth another index


def test_a_run_that_loses_its_run_json_is_known_by_its_name(root: Path) -> None:
    names(root)
    next(path for path in root.iterdir() if path.name.endswith("-r7")).joinpath("run.json").unlink()
    assert "r7" in names(root)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\x00",
        b"[" * 100_000,
        b'{"v":1}',
        b'{"v":2,"owners":[],"runs":[]}',
        b'{"v":1,"owners":[],"runs":[["20260101T000000Z-r0",1,1,1,"x",1.0,0]]}',
        b'{"v":1,"owners":[["","",null,null]],"runs":[[5,1,1,1,[],NaN,0]]}',
        b'{"v":1,"owners":5,"runs":[[]]}',
        b'{"v":1,"owners":[],"runs":' + b"1" * 5_000 + b"}",
    ],
    ids=lambda content: repr(content[:30]),
)
def test_an_index_that_is_none_is_made_again(root: Path, content: bytes, read: list[str]) -> None:
    (root / ".index.json").write_bytes(content)
    assert names(root) == ALL and len(read) == MANY
    assert names(root) == ALL and len(read) == MANY


def test_one_that_is_cut_at_any_byte_hides_no_run(root: Path) -> None:
    names(root)
    content = (root / ".index.json").read_bytes()
    for size in range(0, len(content), 97):
        (root / ".index.json").write_bytes(content[:size])
        assert names(root) == ALL


def _links(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [os.mkfifo, _links, Path.mkdir])
def test_what_is_no_file_in_its_place_does_not_block(root: Path, make: Callable[[Path], None]) -> None:
    make(root / ".index.json")
    assert names(root) == ALL == names(root)


def test_a_folder_that_cannot_be_written_has_its_index_elsewhere(
    root: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root nothing is unwritable: the folder's own file is refused here."""
    really = index._replace

    def refuse(path: Path, content: bytes) -> None:
        if path.parent == root:
            raise PermissionError(13, "Permission denied", str(path))
        really(path, content)

    monkeypatch.setattr(index, "_replace", refuse)
    assert names(root) == ALL == names(root) and len(read) == MANY
    place = fallback_root(root)
    assert place.stat().st_mode & 0o777 == place.parent.stat().st_mode & 0o777 == 0o700
    assert [run.id for run in list_runs(root)] == [run.id for run in list_runs(root)] and len(list_runs(root)) == MANY
    monkeypatch.setattr(index, "make_private", lambda path: refuse(root / path.name, b""))
    (place / index._ELSEWHERE).unlink()
    assert names(root) == ALL  # nowhere to keep one


def test_kernels_that_write_at_once_leave_a_whole_one(root: Path) -> None:
    found: list[list[str]] = []

    def list_often() -> None:
        for _ in range(10):
            (root / ".index.json").unlink(missing_ok=True)
            found.append(names(root))

    in_threads(*[list_often] * 4)
    assert found == [ALL] * 40
    names(root)
    assert len(json.loads((root / ".index.json").read_bytes())["runs"]) == MANY
    assert [path.name for path in root.iterdir() if path.name.startswith(".")] == [".index.json"]


def test_what_a_killed_kernel_left_of_one_goes(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = root / ".index.json-abc"
    left.touch()
    names(root)
    assert left.exists(), "it may be another kernel's, which writes it now"
    monkeypatch.setattr(temporary_folders, "LEFT", -1.0)
    (root / ".index.json").unlink()
    names(root)
    assert not left.exists()


def test_a_run_that_goes_on_stays_true(root: Path) -> None:
    folder = RunFolder.create("mine", root=root)
    assert names(root)[0] == "mine"
    for status in ("running", "done"):
        folder.update(status=status)
        assert find_run("last", root).status == status


def test_the_command_line_lists_the_newest(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--runs", str(root)]) == 0
    shown = capsys.readouterr().out
    assert f"The newest 20 of {MANY} runs." in shown and f"r{MANY - 20} " in shown and f"r{MANY - 21} " not in shown
    assert main(["runs", "--runs", str(root), "--all"]) == main(["runs", "--runs", str(root), "-n", "99"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("r0 ") == 2 and "The newest" not in shown
