"""A store of checkpoints never has half of one, never loses its only one, and notices what was changed."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import resource
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tpu_magics.checkpoints import lock, store
from tpu_magics.checkpoints.store import (
    CheckpointManifest,
    CheckpointPlace,
    CheckpointStore,
    DiskPlace,
    RemotePlace,
    open_place,
    tried_place,
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


def test_the_newest_is_the_last_saved_whatever_the_clock(
    place: CheckpointPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = CheckpointStore(place)
    for step, now in ((10, 2e9), (20, 1.0), (30, 1e9), (5, 0.5)):
        monkeypatch.setattr(store.time, "time", lambda now=now: now)
        monkeypatch.setattr(store.time, "time_ns", lambda now=now: int(now * 1e9))
        kept.save(step, files(tmp_path / "new", step), {})
        kept.keep(2)
        assert newest(place, tmp_path)[0] == step
    assert {kept.opened(name).manifest.step for name in place.names()} == {30, 5}


@pytest.mark.parametrize("file", ["weights", "rank-0/state", store.MANIFEST])
@pytest.mark.parametrize("how", ["changed", "shorter", "missing", "a pipe", "a folder"])
def test_a_damaged_one_is_passed_over(tmp_path: Path, file: str, how: str) -> None:
    place = DiskPlace(tmp_path / "run")
    kept = CheckpointStore(place)
    kept.save(1, files(tmp_path / "new", 1), {})
    last = kept.save(2, files(tmp_path / "new", 2), {})
    path = place.folder / last.name / file
    content = path.read_bytes()
    if how in ("missing", "a pipe", "a folder"):
        path.unlink()
        {"missing": lambda _: None, "a pipe": os.mkfifo, "a folder": Path.mkdir}[how](path)  # type: ignore[operator]
    else:
        path.write_bytes(content[:-1] + (bytes([content[-1] ^ 1]) if how == "changed" else b""))
    step, told = newest(place, tmp_path)
    assert step == 1
    # without its manifest it is no checkpoint, but what a broken save has left
    assert [last.name in one and "was passed over" in one for one in told] == [True] * (
        (file, how) != (store.MANIFEST, "missing")
    )


def file_entry(path: Path) -> None:
    path.write_text("")


def looped_links(path: Path) -> None:
    path.symlink_to(path)


def looped_manifest(path: Path) -> None:
    path.mkdir()
    looped_links(path / store.MANIFEST)


def fifo_manifest(path: Path) -> None:
    path.mkdir()
    os.mkfifo(path / store.MANIFEST)


def folder_manifest(path: Path) -> None:
    (path / store.MANIFEST).mkdir(parents=True)


def nested_manifest(path: Path) -> None:
    """With a right checksum around it."""
    path.mkdir()
    body = "[" * 100_000
    outer = {"sha256": hashlib.sha256(body.encode()).hexdigest(), "manifest": body}
    (path / store.MANIFEST).write_text(json.dumps(outer))


def nested_outside(path: Path) -> None:
    path.mkdir()
    (path / store.MANIFEST).write_text("[" * 100_000)


ODD = (file_entry, looped_links, looped_manifest, fifo_manifest, folder_manifest, nested_manifest, nested_outside)


@pytest.mark.parametrize("odd", ODD)
def test_what_is_no_checkpoint_is_passed_over(odd: Callable[[Path], None], tmp_path: Path) -> None:
    place = DiskPlace(tmp_path / "run")
    kept = CheckpointStore(place)
    kept.save(1, files(tmp_path / "new", 1), {})
    name = "step-000000009-ffffffff"
    odd(place.folder / name)
    step, told = newest(place, tmp_path)
    assert step == 1 and len(told) == 1 and name in told[0]
    found = kept.look()
    assert found is not None and found.manifest.step == 1
    kept.save(2, files(tmp_path / "new", 2), {})
    kept.keep(1)
    assert newest(place, tmp_path) == (2, []) and len(os.listdir(place.folder)) == 1


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


@pytest.mark.parametrize(
    "fields",
    [
        *({"step": "3"}, {"step": -1}, {"saved": float("nan")}, {"about": []}),
        *({"files": {"a": {"sha256": text, "size": size}}} for text, size in (("x", 1), ("0" * 64, "1"))),
    ],
)
def test_a_manifest_of_another_form_is_damaged(fields: dict[str, Any]) -> None:
    body = json.dumps({"step": 1, "saved": 1.0, "files": {}, "about": {}, "format": store.FORMAT, **fields})
    data = json.dumps({"sha256": hashlib.sha256(body.encode()).hexdigest(), "manifest": body}).encode()
    with pytest.raises(store.Damaged):
        CheckpointManifest.from_bytes(data)


@pytest.mark.parametrize(("form", "age"), [(99, "a newer"), (1, "an older")])
def test_another_versions_checkpoint_is_not_read(form: int, age: str, place: CheckpointPlace, tmp_path: Path) -> None:
    kept = CheckpointStore(place)
    kept.save(1, files(tmp_path / "new", 1), {})
    manifest = CheckpointManifest(7, 1.0, format=form).to_bytes()
    place.put("step-000000007-ffffffff", {}, manifest)
    with pytest.raises(store.OtherFormat, match=f"{age} version of tpu-magics saved it, in format {form}"):
        newest(place, tmp_path)


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


@pytest.mark.parametrize("broken", ["write_note", "read_note"])
def test_a_place_is_tried(broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = str(tmp_path / "run")
    assert tried_place(place).name == place and not os.listdir(place)

    def fails(*_: Any, **_more: Any) -> Any:
        raise ConnectionError("403: no access")

    monkeypatch.setattr(DiskPlace, broken, fails)
    with pytest.raises(TpuMagicsError, match="cannot be written") as caught:
        tried_place(place)
    assert "403: no access" in caught.value.why
    monkeypatch.setattr(DiskPlace, broken, lambda *_: "other")
    if broken == "read_note":
        with pytest.raises(TpuMagicsError, match="cannot be written") as caught:
            tried_place(place)
        assert "not what is read" in caught.value.why


# -- one run at a time -------------------------------------------------------------------------------------------------


class FakeTime:
    """A clock that only waiting moves; `during`: called at each second, with the time."""

    def __init__(self, during: Callable[[float], Any] = lambda now: None) -> None:
        self.now = 1000.0
        self.during = during

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.during(self.now)


def elsewhere(place: CheckpointPlace) -> lock.PlaceLock:
    """A lock of a run on another machine."""
    taken = lock.acquire(place, "theirs", pytest.fail)
    taken.owner = replace(taken.owner, machine="elsewhere", host="other-host", since=4e9)
    place.write_note(f"{lock.PREFIX}{taken.number}", taken.owner.text())
    return taken


def test_a_place_has_one_run_at_a_time(place: CheckpointPlace, tmp_path: Path) -> None:
    """Whoever writes its note is there, whatever the clocks say."""
    theirs = elsewhere(place)
    kept = CheckpointStore(place, theirs.token)
    kept.save(1, files(tmp_path / "new", 1), {})
    told: list[str] = []
    fake = FakeTime(lambda _: theirs.beat())
    with pytest.raises(TpuMagicsError, match="Another run saves its checkpoints") as caught:
        lock.acquire(place, "mine", told.append, fake.sleep, fake.clock)
    assert "the run theirs on other-host" in caught.value.why and "other-host" in told[0]
    kept.save(2, files(tmp_path / "new", 2), {})
    fake = FakeTime(lambda now: theirs.release() if now > 1002 else theirs.beat() if now < 1001 else None)
    mine = lock.acquire(place, "mine", told.append, fake.sleep, fake.clock)
    assert fake.now < 1000 + lock.PATIENCE and newest(place, tmp_path)[0] == 2
    mine.release()
    assert place.notes(lock.PREFIX) == []


def test_a_run_that_is_gone_loses_its_place_and_learns_that(place: CheckpointPlace, tmp_path: Path) -> None:
    theirs, fake, told = elsewhere(place), FakeTime(), []
    old = CheckpointStore(place, theirs.token)
    old.save(1, files(tmp_path / "new", 1), {})
    mine = lock.acquire(place, "mine", told.append, fake.sleep, fake.clock)
    assert fake.now == 1000 + lock.PATIENCE and "gone" in told[-1]
    CheckpointStore(place, mine.token).save(2, files(tmp_path / "new", 2), {})
    for late in (lambda: old.save(3, files(tmp_path / "new", 3), {}), lambda: old.keep(1)):
        with pytest.raises(lock.PlaceLost, match=r"the run mine on .* has taken the place over"):
            late()
    assert not theirs.beat()  # nor does it come back
    theirs.release()
    assert mine.beat() and place.notes(lock.PREFIX) == [f"{lock.PREFIX}{mine.number}"]
    assert newest(place, tmp_path) == (2, []) and len(place.names()) == 2


@pytest.mark.parametrize("text", ["", "{}", "[" * 100_000, '{"token": 1}'])
def test_a_lock_that_cannot_be_read_is_watched(text: str, place: CheckpointPlace) -> None:
    place.write_note(f"{lock.PREFIX}4", text)
    fake = FakeTime()
    mine = lock.acquire(place, "mine", lambda _: None, fake.sleep, fake.clock)
    assert mine.number == 5 and fake.now == 1000 + lock.PATIENCE


def test_of_two_that_begin_at_once_one_gets_the_place(place: CheckpointPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    original, others = place.write_note, []

    def slower(name: str, text: str, new: bool = False) -> bool:
        if new and not others:
            others.append(
                lock.PlaceLock(place, 1, replace(lock.PlaceOwner.of_this_process("other"), machine="elsewhere"))
            )
            assert original(name, others[0].owner.text(), new)
        return original(name, text, new)

    monkeypatch.setattr(place, "write_note", slower)
    fake = FakeTime(lambda _: others[0].beat())
    with pytest.raises(TpuMagicsError, match="Another run"):
        lock.acquire(place, "mine", lambda _: None, fake.sleep, fake.clock)


def test_a_disk_without_hard_links_has_locks_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Google Drive, where it is mounted."""

    def refuses(*_: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(Path, "hardlink_to", refuses)
    place = DiskPlace(tmp_path / "run")
    assert place.write_note(".lock-1", "a", new=True) and not place.write_note(".lock-1", "b", new=True)
    assert place.read_note(".lock-1") == "a"


def test_a_place_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(TpuMagicsError, match="cannot be written"):
        open_place(str(tmp_path / "file" / "run"))
    with pytest.raises(TpuMagicsError, match="cannot be written"):
        open_place("nowhere://bucket/run")
