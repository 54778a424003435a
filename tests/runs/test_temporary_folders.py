"""Folders in the temporary one: only ours, and gone with their process; held as long as it lives."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tpu_magics.runs import temporary_folders
from tpu_magics.runs.files import RunFiles, private_root
from tpu_magics.runs.folder import RunFolder
from tpu_magics.runs.temporary_folders import make_private, make_scratch, note_owner, remove_scratch


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
    assert [one.name for one in make_scratch(files).iterdir()] == [temporary_folders.OWNER]
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
        "import sys; from tpu_magics.runs import files, temporary_folders as folders; "
        "folders.make_scratch(files.RunFiles(sys.argv[1]))"
    )
    environment = {**os.environ, "TMPDIR": str(private_root().parent)}
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "dead")], check=True, env=environment)
    dead = RunFiles(tmp_path / "dead").scratch_path
    living, far, half = (RunFiles(tmp_path / name).scratch_path for name in ("living", "far", "half"))
    for path in (living, far, half):
        make_private(path)
        note_owner(path)
    (far / temporary_folders.OWNER).write_text(f"{os.getpid()} 1 another/pid:[1]")
    (half / temporary_folders.OWNER).write_text("")
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


ROOT = Path(__file__).resolve().parents[2]


def test_it_is_of_this_account_alone_and_gone_with_all_that_is_in_it(temporary: Path) -> None:
    folder = temporary_folders.make_locked()
    assert folder.path.stat().st_mode & 0o777 == 0o700
    (folder.path / "inner").mkdir()
    (folder.path / "inner" / "file").write_text("text")
    folder.remove()
    assert list(temporary.iterdir()) == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(folder.lock)


def test_others_leave_what_is_held(temporary: Path) -> None:
    first, second = temporary_folders.make_locked(), temporary_folders.make_locked()
    temporary_folders.remove_unlocked()
    assert set(temporary.iterdir()) == {first.path, second.path}
    first.remove()
    second.remove()


@pytest.mark.process
def test_what_a_killed_process_left_goes_with_the_next(temporary: Path) -> None:
    code = f"""if True:
        import os, tempfile
        from tpu_magics.runs import temporary_folders
        tempfile.tempdir = {str(temporary)!r}
        (temporary_folders.make_locked().path / "graph").write_text("text")
        os.kill(os.getpid(), {int(signal.SIGKILL)})
    """
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert [(one / "graph").is_file() for one in temporary.iterdir()] == [True]
    folder = temporary_folders.make_locked()
    assert list(temporary.iterdir()) == [folder.path]
    folder.remove()


def test_one_that_is_taken_for_an_orphan_before_it_is_locked_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its open and its lock, another process comes along."""
    real, calls = fcntl.flock, []

    def flock(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX and not calls:
            calls.append(descriptor)
            temporary_folders.remove_unlocked()
        real(descriptor, operation)

    monkeypatch.setattr(temporary_folders.fcntl, "flock", flock)
    folder = temporary_folders.make_locked()
    assert calls and (folder.path / "lock").is_file()
    temporary_folders.remove_unlocked()
    assert folder.path.is_dir()
    folder.remove()


def test_a_file_system_without_locks_is_no_error(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(temporary_folders.fcntl, "flock", flock)
    first, second = temporary_folders.make_locked(), temporary_folders.make_locked()
    assert set(temporary.iterdir()) == {first.path, second.path}
    first.remove()
    second.remove()


def test_without_descriptors_nothing_is_left(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(temporary_folders.os, "open", none_left)
    with pytest.raises(OSError, match="Too many open files"):
        temporary_folders.make_locked()
    monkeypatch.undo()
    assert list(temporary.iterdir()) == []


def test_what_is_still_written_while_it_is_removed_goes_too(temporary: Path) -> None:
    """As by the children of a compiler that has just been killed."""
    folder = temporary_folders.make_locked()
    until = time.monotonic() + 0.2

    def writes() -> None:
        number = 0
        while time.monotonic() < until:
            number += 1
            with contextlib.suppress(OSError):
                (folder.path / f"file-{number}").touch()

    writer = threading.Thread(target=writes)
    writer.start()
    folder.remove()
    writer.join()
    assert list(temporary.iterdir()) == []


def test_what_was_left_is_known_without_the_time_of_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(temporary_folders.time, "monotonic", lambda: now[0])
    for seconds in (0.0, 4e9):  # of before the clock was set back
        os.utime(tmp_path, (time.time() + seconds,) * 2)
        assert not temporary_folders.was_left(tmp_path.stat())
        now[0] += temporary_folders.LEFT + 1
        assert temporary_folders.was_left(tmp_path.stat())


@pytest.mark.parametrize(("age", "left"), [(3600, False), (0, True)])
def test_one_without_its_lock_is_removed_when_it_cannot_be_in_the_making(temporary: Path, age: int, left: bool) -> None:
    half = temporary / f"{temporary_folders.LOCKED_PREFIX}half"
    half.mkdir()
    os.utime(half, (time.time() - age,) * 2)
    temporary_folders.make_locked().remove()
    assert half.exists() == left
