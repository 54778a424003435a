"""A store of checkpoints never has half of one, never loses its only one, and notices what was changed."""

from __future__ import annotations

import errno
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tpu_magics.checkpoints import store
from tpu_magics.checkpoints.store import (
    CheckpointManifest,
    CheckpointPlace,
    CheckpointStore,
    DiskPlace,
    RemotePlace,
    open_place,
)
from tpu_magics.errors import TpuMagicsError

KILLS = 40


@pytest.fixture(params=["disk", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CheckpointPlace]:
    if request.param == "disk":
        yield open_place(str(tmp_path / "run"))
        return
    fsspec = pytest.importorskip("fsspec")
    yield open_place("memory://bucket/run")
    fsspec.filesystem("memory").rm("/bucket", recursive=True)


def files(folder: Path, step: int, size: int = 1000) -> dict[str, Path]:
    """Two files whose content follows from the step."""
    folder.mkdir(parents=True, exist_ok=True)
    content = random.Random(step).randbytes(size)
    (folder / "weights").write_bytes(content)
    (folder / "state").write_bytes(str(step).encode())
    return {"weights": folder / "weights", "rank-0/state": folder / "state"}


def newest(place: CheckpointPlace, folder: Path) -> tuple[int, list[str]]:
    """Step of the newest, whose content is checked, 0 if there is none; and what was told."""
    told: list[str] = []
    found = CheckpointStore(place).newest(folder / f"read-{time.time_ns()}", told.append)
    if found is None:
        return 0, told
    checkpoint, paths = found
    step = checkpoint.manifest.step
    assert paths["rank-0/state"].read_bytes() == str(step).encode()
    content = paths["weights"].read_bytes()
    assert content == random.Random(step).randbytes(len(content))
    return step, told


def test_the_newest_is_found_and_the_oldest_are_removed(place: CheckpointPlace, tmp_path: Path) -> None:
    assert newest(place, tmp_path) == (0, [])
    kept = CheckpointStore(place)
    for step in (10, 20, 5):  # a run that went on from an older one
        kept.save(step, files(tmp_path / "new", step), {"lr": 0.1})
        kept.keep(2)
    assert newest(place, tmp_path) == (5, []) and len(place.names()) == 2
    found = kept.newest(tmp_path / "read", pytest.fail)
    assert found is not None and found[0].manifest.about == {"lr": 0.1}


@pytest.mark.parametrize("file", ["weights", "rank-0/state", store.MANIFEST])
@pytest.mark.parametrize("how", ["changed", "shorter", "missing"])
def test_a_damaged_one_is_passed_over(tmp_path: Path, file: str, how: str) -> None:
    place = DiskPlace(tmp_path / "run")
    kept = CheckpointStore(place)
    kept.save(1, files(tmp_path / "new", 1), {})
    last = kept.save(2, files(tmp_path / "new", 2), {})
    path = place.folder / last.name / file
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    else:
        path.write_bytes(content[:-1] + (bytes([content[-1] ^ 1]) if how == "changed" else b""))
    step, told = newest(place, tmp_path)
    assert step == 1
    # without its manifest it is no checkpoint, but what a broken save has left
    assert [last.name in one and "was passed over" in one for one in told] == [True] * (
        (file, how) != (store.MANIFEST, "missing")
    )


def test_all_damaged_is_none(tmp_path: Path) -> None:
    place = DiskPlace(tmp_path / "run")
    last = CheckpointStore(place).save(1, files(tmp_path / "new", 1), {})
    (place.folder / last.name / "weights").write_bytes(b"")
    step, told = newest(place, tmp_path)
    assert step == 0 and "0 bytes instead of 1,000" in told[0]


def test_a_changed_manifest_is_noticed() -> None:
    data = CheckpointManifest(3, 1.0).to_bytes()
    assert CheckpointManifest.from_bytes(data).step == 3
    for wrong in (data.replace(b"3", b"4"), data[:-3], b"", b"[]", b'{"manifest": 1, "sha256": ""}'):
        with pytest.raises(store.Damaged):
            CheckpointManifest.from_bytes(wrong)


@pytest.mark.parametrize("name", ["../weights", "/etc/passwd", "rank-0/../../weights", ""])
def test_a_manifest_cannot_name_files_elsewhere(name: str) -> None:
    """Whoever can write to a bucket can write a manifest with a right checksum."""
    with pytest.raises(store.Damaged, match="outside"):
        CheckpointManifest.from_bytes(CheckpointManifest(1, 1.0, {name: store.SavedFile("", 0)}).to_bytes())


# -- broken saves ------------------------------------------------------------------------------------------------------


def saves_on(root: Path, folder: Path, size: int) -> None:
    kept = CheckpointStore(DiskPlace(root))
    for step in range(1, 1000):
        kept.save(step, files(folder / "new", step, size), {})
        with (folder / "saved").open("a") as file:  # a line is there whole or not at all
            file.write(f"{step}\n")
        kept.keep(2)


@pytest.mark.process
def test_a_kill_at_any_moment_leaves_a_whole_one(tmp_path: Path) -> None:
    """A checkpoint that was saved is never lost, and none is ever half there."""
    moments = random.Random(7)
    for number in range(KILLS):
        folder = tmp_path / str(number)
        folder.mkdir()
        pid = os.fork()
        if not pid:
            saves_on(folder / "run", folder, 200_000)
            os._exit(0)
        time.sleep(moments.uniform(0.0, 0.04))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        saved = len((folder / "saved").read_text().splitlines()) if (folder / "saved").exists() else 0
        place = DiskPlace(folder / "run")
        step, told = newest(place, folder)
        assert step in (saved, saved + 1) and not told, (step, saved, told)
        CheckpointStore(place).keep(2)
        assert all(store._is_name(one.name) for one in place.folder.iterdir())


@pytest.mark.process
def test_a_full_disk_raises_and_leaves_what_was(tmp_path: Path) -> None:
    """RLIMIT_FSIZE stands for the disk, which is another one than that of the files: a write above it fails."""
    rename = Path.rename

    def across(path: Path, target: Path) -> Path:
        if path.parent.name == "large":
            raise OSError(errno.EXDEV, "Invalid cross-device link")
        return rename(path, target)

    place = DiskPlace(tmp_path / "run")
    kept = CheckpointStore(place)
    kept.save(1, files(tmp_path / "new", 1), {})
    large = files(tmp_path / "large", 2, 100_000)
    pid = os.fork()
    if not pid:
        Path.rename = across  # type: ignore[method-assign, assignment]
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        try:
            kept.save(2, large, {})
        except OSError as error:
            os._exit(error.errno or 1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == errno.EFBIG
    assert newest(place, tmp_path) == (1, []) and len(list(place.folder.iterdir())) == 1


@pytest.mark.parametrize("failing", ["put_file", "pipe_file"])
def test_a_lost_network_raises_and_leaves_what_was(failing: str, tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("fsspec")
    place = open_place("memory://bucket/run")
    assert isinstance(place, RemotePlace)
    kept = CheckpointStore(place)
    kept.save(1, files(tmp_path / "new", 1), {})
    original: Callable[..., Any] = getattr(place.system, failing)
    calls = []

    def breaks(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        if len(calls) == (2 if failing == "put_file" else 1):
            raise ConnectionError("the network is gone")
        return original(*args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(place.system, failing, breaks)
        with pytest.raises(ConnectionError):
            kept.save(2, files(tmp_path / "new", 2), {})
    assert newest(place, tmp_path) == (1, []) and len(place.names()) == 1
    kept.keep(1)
    kept.save(3, files(tmp_path / "new", 3), {})
    assert newest(place, tmp_path) == (3, [])
    place.system.rm("/bucket", recursive=True)


def test_a_save_that_was_killed_in_a_store_is_none(tmp_path: Path) -> None:
    """Its files are there, its manifest is not."""
    pytest.importorskip("fsspec")
    place = open_place("memory://bucket/run")
    assert isinstance(place, RemotePlace)
    kept = CheckpointStore(place)
    kept.save(1, files(tmp_path / "new", 1), {})
    last = kept.save(2, files(tmp_path / "new", 2), {})
    place.system.rm_file(f"{place.root}/{last.name}/{store.MANIFEST}")
    assert newest(place, tmp_path) == (1, [])
    kept.keep(2)
    assert len(place.names()) == 1
    place.system.rm("/bucket", recursive=True)


# -- places ------------------------------------------------------------------------------------------------------------


def test_ranks_leave_notes_and_files_for_each_other(place: CheckpointPlace, tmp_path: Path) -> None:
    """A save of the run does not touch them, the next run removes them."""
    board, other = place.board("run-1"), place.board("run-1")
    assert board.read("at") is None
    board.write("at", "5")
    board.write("at", "6")
    (tmp_path / "part").write_bytes(b"content")
    board.put("part", tmp_path / "part")
    other.take("part", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"content"
    with pytest.raises(FileNotFoundError):
        other.take("part", tmp_path / "again")
    kept = CheckpointStore(place)
    kept.save(1, files(tmp_path / "new", 1), {})
    kept.keep(1)
    assert other.read("at") == "6"
    place.remove_boards()
    assert other.read("at") is None and newest(place, tmp_path) == (1, [])


def test_a_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o777)
    with pytest.raises(TpuMagicsError, match="another account can write") as error:
        open_place(str(tmp_path / "run"))
    assert "chmod go-w" in error.value.todo


def test_a_place_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TpuMagicsError, match="cannot be written"):
        open_place(str(tmp_path / "file" / "run"))
    with pytest.raises(TpuMagicsError, match="cannot be written"):
        open_place("nowhere://bucket/run")
