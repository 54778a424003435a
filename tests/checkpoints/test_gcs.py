"""Checkpoints in a bucket of Google Cloud Storage: an emulator of it on this machine (gcp-storage-emulator)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests.checkpoints.test_store import files, newest
from tpu_magics.checkpoints.lock import acquire, require
from tpu_magics.checkpoints.store import CheckpointStore, RemotePlace, open_place
from tpu_magics.errors import TpuMagicsError

pytestmark = pytest.mark.process

server = pytest.importorskip("gcp_storage_emulator.server")
BUCKET = "bucket"


@pytest.fixture(scope="module")
def emulator() -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        # Else gcsfs asks through gRPC, which the emulator does not speak, what kind of bucket it is, for a minute.
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        import_module("gcsfs")
    running = server.create_server("127.0.0.1", 0, in_memory=True, default_bucket=BUCKET)
    running.start()
    yield f"http://127.0.0.1:{running._api._httpd.server_address[1]}"
    running.stop()


@pytest.fixture
def place(emulator: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[RemotePlace]:
    monkeypatch.setitem(fsspec.config.conf, "gs", {"endpoint_url": emulator, "token": "anon"})
    fsspec.filesystem("gs").clear_instance_cache()
    found = open_place(f"gs://{BUCKET}/run-{time.time_ns()}")
    assert isinstance(found, RemotePlace)
    yield found
    fsspec.filesystem("gs").clear_instance_cache()


def test_the_newest_are_kept_and_read_back(place: RemotePlace, tmp_path: Path) -> None:
    store = CheckpointStore(place)
    assert newest(place, tmp_path) == (0, [])
    for step in (10, 20, 30):
        store.save(step, files(tmp_path / str(step), step, 300_000), {"name": "run"})
        store.keep(2)
    assert newest(place, tmp_path) == (30, [])
    assert len(place.names()) == 2


def test_one_without_a_manifest_is_none(place: RemotePlace, tmp_path: Path) -> None:
    store = CheckpointStore(place)
    store.save(10, files(tmp_path / "10", 10), {})
    last = store.save(20, files(tmp_path / "20", 20), {})
    place.system.rm_file(f"{place.root}/{last.name}/manifest.json")
    assert newest(place, tmp_path) == (10, [])
    place.remove_unfinished()
    assert len(place.names()) == 1


def test_a_damaged_file_is_passed_over_with_a_word(place: RemotePlace, tmp_path: Path) -> None:
    store = CheckpointStore(place)
    store.save(10, files(tmp_path / "10", 10), {})
    last = store.save(20, files(tmp_path / "20", 20), {})
    place.system.pipe_file(f"{place.root}/{last.name}/weights", b"x" * 1000)
    step, told = newest(place, tmp_path)
    assert step == 10
    assert "damaged" in told[0] and last.name in told[0]


def test_a_lock_is_made_by_a_precondition_of_the_store(place: RemotePlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator knows none, so this asks for what it is asked, and answers as the store does: with 412."""
    asked: list[str | None] = []
    original = place.system._call

    async def call(method: str, path: str, *args: Any, **more: Any) -> Any:
        if method == "POST":
            asked.append(more.pop("ifGenerationMatch", None))
            if len(asked) == 3:
                retry.validate_response(412, b"", path)
        return await original(method, path, *args, **more)

    retry = import_module("gcsfs.retry")
    monkeypatch.setattr(place.system, "_call", call)
    mine = acquire(place, "mine", pytest.fail)
    assert mine.beat() and place.notes(".lock-") == [".lock-1"]
    assert not place.write_note(".lock-1", "other", new=True)
    assert asked == ["0", None, "0"]
    require(place, mine.token)
    mine.release()
    assert place.notes(".lock-") == []


def test_errors_of_the_store_leave_the_checkpoints_before(
    place: RemotePlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(place)
    store.save(10, files(tmp_path / "10", 10), {})
    original = place.system.put_file

    def slow_then_lost(path: str, where: str, **more: Any) -> None:
        time.sleep(0.1)
        if where.endswith("state"):
            raise OSError("the connection was reset")
        original(path, where, **more)

    monkeypatch.setattr(place.system, "put_file", slow_then_lost)
    with pytest.raises(OSError, match="reset"):
        store.save(20, files(tmp_path / "20", 20), {})
    monkeypatch.undo()
    assert newest(place, tmp_path) == (10, [])


def test_an_address_that_no_package_knows() -> None:
    with pytest.raises(TpuMagicsError) as caught:
        open_place("nosuch://bucket/run")
    assert "cannot be written" in caught.value.what
