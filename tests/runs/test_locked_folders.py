"""Temporary folders: held as long as their process lives, removed by the next one after that."""

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

from tpu_magics.runs import locked_folders

ROOT = Path(__file__).resolve().parents[2]


def test_it_is_of_this_account_alone_and_gone_with_all_that_is_in_it(temporary: Path) -> None:
    folder = locked_folders.make()
    assert folder.path.stat().st_mode & 0o777 == 0o700
    (folder.path / "inner").mkdir()
    (folder.path / "inner" / "file").write_text("text")
    folder.remove()
    assert list(temporary.iterdir()) == []
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(folder.lock)


def test_others_leave_what_is_held(temporary: Path) -> None:
    first, second = locked_folders.make(), locked_folders.make()
    locked_folders.remove_orphans()
    assert set(temporary.iterdir()) == {first.path, second.path}
    first.remove()
    second.remove()


@pytest.mark.process
def test_what_a_killed_process_left_goes_with_the_next(temporary: Path) -> None:
    code = f"""if True:
        import os, tempfile
        from tpu_magics.runs import locked_folders
        tempfile.tempdir = {str(temporary)!r}
        (locked_folders.make().path / "graph").write_text("text")
        os.kill(os.getpid(), {int(signal.SIGKILL)})
    """
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert [(one / "graph").is_file() for one in temporary.iterdir()] == [True]
    folder = locked_folders.make()
    assert list(temporary.iterdir()) == [folder.path]
    folder.remove()


def test_one_that_is_taken_for_an_orphan_before_it_is_locked_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its open and its lock, another process comes along."""
    real, calls = fcntl.flock, []

    def flock(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_EX and not calls:
            calls.append(descriptor)
            locked_folders.remove_orphans()
        real(descriptor, operation)

    monkeypatch.setattr(locked_folders.fcntl, "flock", flock)
    folder = locked_folders.make()
    assert calls and (folder.path / "lock").is_file()
    locked_folders.remove_orphans()
    assert folder.path.is_dir()
    folder.remove()


def test_a_file_system_without_locks_is_no_error(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locked_folders.fcntl, "flock", flock)
    first, second = locked_folders.make(), locked_folders.make()
    assert set(temporary.iterdir()) == {first.path, second.path}
    first.remove()
    second.remove()


def test_without_descriptors_nothing_is_left(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_left(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(locked_folders.os, "open", none_left)
    with pytest.raises(OSError, match="Too many open files"):
        locked_folders.make()
    monkeypatch.undo()
    assert list(temporary.iterdir()) == []


def test_what_is_still_written_while_it_is_removed_goes_too(temporary: Path) -> None:
    """As by the children of a compiler that has just been killed."""
    folder = locked_folders.make()
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


@pytest.mark.parametrize(("age", "left"), [(3600, False), (0, True)])
def test_one_without_its_lock_is_removed_when_it_cannot_be_in_the_making(temporary: Path, age: int, left: bool) -> None:
    half = temporary / f"{locked_folders.PREFIX}half"
    half.mkdir()
    os.utime(half, (time.time() - age,) * 2)
    locked_folders.make().remove()
    assert half.exists() == left
