"""Folders in the temporary one: only ours, and gone with their process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tpu_magics.runs import private_folders
from tpu_magics.runs.files import RunFiles, private_root
from tpu_magics.runs.folder import RunFolder
from tpu_magics.runs.private_folders import make_private, make_scratch, note_owner, remove_scratch


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    path = tmp_path / "run"
    path.mkdir()
    return RunFiles(path)


def mode(path: Path) -> int:
    return path.lstat().st_mode & 0o777


def test_a_scratch_folder_is_private_and_empty(files: RunFiles) -> None:
    path = make_scratch(files)
    assert path.parent == private_root() and mode(path) == mode(path.parent) == 0o700
    (path / "left").touch()
    assert [one.name for one in make_scratch(files).iterdir()] == [private_folders.OWNER]
    remove_scratch(files)
    assert list(private_root().iterdir()) == []


def test_the_fallback_of_the_run_folder_accepts_its_place(files: RunFiles, tmp_path: Path) -> None:
    """Also one that was made with its parents, to whom mkdir's mode does not go."""
    private_root().mkdir(mode=0o755)
    make_scratch(files)
    (tmp_path / "a file").touch()
    run = RunFolder.create("a", root=tmp_path / "a file" / "runs")
    assert run.path.parent.parent == private_root() and mode(private_root()) == 0o700


@pytest.mark.parametrize("taken", ["by a link", "for all to write", "by a file"])
def test_what_others_could_change_is_not_used(files: RunFiles, tmp_path: Path, taken: str) -> None:
    if taken == "by a link":
        (tmp_path / "theirs").mkdir(mode=0o700)
        private_root().symlink_to(tmp_path / "theirs")
    elif taken == "by a file":
        private_root().touch()
    else:
        private_root().mkdir()
        private_root().chmod(0o777)
    path = make_scratch(files)
    assert path == files.path / "scratch" and mode(path) == 0o700
    assert not (tmp_path / "theirs").exists() or not list((tmp_path / "theirs").iterdir())
    with pytest.raises(OSError):
        make_private(private_root() / "x")
    remove_scratch(files)
    assert list(files.path.iterdir()) == []


@pytest.mark.process
def test_those_of_dead_processes_go_at_the_next_start(files: RunFiles, tmp_path: Path) -> None:
    """Not those of living ones, nor of another machine, nor what is no folder, nor what lies behind a link."""
    program = (
        "import sys; from tpu_magics.runs import files, private_folders as folders; "
        "folders.make_scratch(files.RunFiles(sys.argv[1]))"
    )
    environment = {**os.environ, "TMPDIR": str(private_root().parent)}
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "dead")], check=True, env=environment)
    dead = RunFiles(tmp_path / "dead").scratch_path
    living, far, half = (RunFiles(tmp_path / name).scratch_path for name in ("living", "far", "half"))
    for path in (living, far, half):
        make_private(path)
        note_owner(path)
    (far / private_folders.OWNER).write_text(f"{os.getpid()} 1 another/pid:[1]")
    (half / private_folders.OWNER).write_text("")
    link = private_root() / "scratch-link"
    link.symlink_to(tmp_path)
    assert dead.exists()
    make_scratch(files)
    assert not dead.exists() and living.exists() and far.exists() and half.exists() and link.is_symlink()


def test_one_that_was_being_made_when_its_process_was_killed_goes_later(files: RunFiles, tmp_path: Path) -> None:
    path = RunFiles(tmp_path / "killed").scratch_path
    make_private(path)
    make_scratch(files)
    assert path.exists()
    os.utime(path, (1e9, 1e9))
    make_scratch(files)
    assert not path.exists()
