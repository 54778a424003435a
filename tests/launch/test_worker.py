"""What a worker writes between its fork and its exit: ranks, events, results, exit codes."""

from __future__ import annotations

import os
import pickle
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.launch.launching import failed, of, run, said
from tpu_magics.backends.base import ObserverConfig, StepLimit, WorkerSpec
from tpu_magics.launch import process, worker
from tpu_magics.launch.work import FunctionWork
from tpu_magics.runs.events import End, Phase, Start, only
from tpu_magics.runs.files import RunFiles, private_root
from tpu_magics.runs.reader import Run
from tpu_magics.runs.writer import EventWriter

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]


class FakeBackend:
    """A runtime that gives the ranks it is told. `refuses`: raised instead of coming up."""

    def __init__(self, ordinals: tuple[int, ...] = (0,), refuses: BaseException | None = None) -> None:
        self.ordinals = ordinals
        self.refuses = refuses
        self.results = self

    def run_worker(
        self, spec: WorkerSpec, on_ready: Callable[[int, int, str], None], function: Callable[[int, int], Any]
    ) -> Mapping[int, Any]:
        print("coming up")
        if self.refuses is not None:
            raise self.refuses
        on_ready(self.ordinals[0], 8, "TPU:0")
        return {ordinal: function(ordinal, replica) for replica, ordinal in enumerate(self.ordinals)}

    @contextmanager
    def observing(self, writer: EventWriter, watching: ObserverConfig) -> Iterator[Any]:
        assert (watching.device, watching.ranks) == ("TPU", 8)
        counts = {"total_steps": 7, "compiles": 3, "recompiles": 1, "unsynced": 0}
        told = {"ended": lambda: None, "close": lambda read=True: None, "trained_on_host": lambda: ""}
        yield types.SimpleNamespace(**counts, **told)

    def finish(self) -> bool:
        return False

    def failed_collective(self) -> None:
        return None

    def structure(self, model: Any) -> Any:
        return None

    def trained_elsewhere(self, models: Any) -> dict[str, Any]:
        return {}

    def dumps(self, value: Any) -> bytes:
        return pickle.dumps(value)


def be(tmp_path: Path, backend: FakeBackend, function: Callable[..., Any], index: int = 0, replicas: int = 1) -> int:
    """Fork one worker; its exit code."""
    work = FunctionWork(function, index_first=True)
    task = worker.WorkerTask(backend, work, RunFiles(tmp_path), {__file__: "In [4]"})  # type: ignore[arg-type]
    spec = WorkerSpec(index, 4, "TPU", replicas=replicas, world=8)
    with process.interrupts_held():
        process.flush_everything()
        pid = process.fork_worker(lambda: worker.main(task, spec), tmp_path / f"rank-{index}.stacks")
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def says(rank: int) -> int:
    print(f"rank {rank}")
    return rank * 10


def test_a_worker_takes_the_rank_that_the_runtime_gives(tmp_path: Path) -> None:
    """On a TPU it need not be the number of the process."""
    assert be(tmp_path, FakeBackend((6,)), says, index=1) == worker.DONE
    found = Run(tmp_path)
    assert found.log(1) == "coming up\n" and found.log(6) == "rank 6\n"
    assert [type(event) for event in found.events()] == [Start, Phase, Phase, Phase, End]
    assert {event.rank for event in found.events()} == {6} and not RunFiles(tmp_path).events_path(1).exists()
    start, end = found.events("start")[0], found.events("end")[0]
    assert isinstance(start, Start) and (start.device, start.world_size) == ("TPU:0", 8)
    assert isinstance(end, End) and (end.status, end.steps, end.compiles, end.log_end) == ("done", 7, 3, 7)
    assert [phase.name for phase in only(found.events(), Phase)] == ["training", "finishing", "collecting"]


def test_every_device_writes_its_result(tmp_path: Path) -> None:
    assert be(tmp_path, FakeBackend((4, 5)), says, index=2, replicas=2) == worker.DONE
    files = RunFiles(tmp_path)
    packs = [pickle.loads(files.value_path(rank).read_bytes()) for rank in (4, 5)]
    assert [pickle.loads(pack["value"]) for pack in packs] == [40, 50]


def raises(rank: int) -> None:
    print("before")
    raise ValueError(f"on {rank}")


def test_a_failure_is_told_with_its_stack(tmp_path: Path) -> None:
    assert be(tmp_path, FakeBackend((2,)), raises) == worker.FAILED
    end = Run(tmp_path).events("end")[0]
    assert isinstance(end, End) and (end.status, end.error_type, end.error_text) == ("failed", "ValueError", "on 2")
    assert end.log_end == len("before\n") and end.steps == 7
    assert end.frames[-1].path == "In [4]" and end.frames[-1].function == "raises"
    assert Run(tmp_path).log(2).startswith("before\nTraceback (most recent call last):")
    assert not RunFiles(tmp_path).value_path(2).exists()


def test_a_runtime_that_does_not_come_up_is_told_under_the_index(tmp_path: Path) -> None:
    error = RuntimeError("open(/dev/vfio/1): Device or resource busy")
    assert be(tmp_path, FakeBackend(refuses=error), says, index=3) == worker.FAILED
    end = Run(tmp_path).events("end")[0]
    assert isinstance(end, End) and (end.rank, end.steps, end.compiles) == (3, 0, None)
    assert "resource busy" in end.error_text and "coming up" in Run(tmp_path).log(3)


def limits(rank: int) -> None:
    raise StepLimit


def test_the_limit_is_no_failure_and_leaves_no_result(tmp_path: Path) -> None:
    assert be(tmp_path, FakeBackend(), limits) == worker.DONE
    assert [end.status for end in only(Run(tmp_path).events(), End)] == ["limit"]
    assert not RunFiles(tmp_path).value_path(0).exists()


def test_a_result_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = RunFiles(tmp_path)

    def full(path: Path, content: bytes) -> int:
        with open(path, "wb") as file:
            file.write(content[:3])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(OSError, match="No space"):
            worker._write_whole(files, 0, b"whole")
    assert list(tmp_path.iterdir()) == []
    worker._write_whole(files, 0, b"whole")
    assert files.value_path(0).read_bytes() == b"whole" and len(list(tmp_path.iterdir())) == 1


def returns_much() -> bytes:
    return b"x" * 2_000_000


def test_a_disk_that_fills_up_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake_full_disk(files: RunFiles, ordinal: int, content: bytes) -> None:
        raise OSError(28, "No space left on device", str(files.value_path(ordinal)))

    with monkeypatch.context() as patch:
        patch.setattr(worker, "_write_whole", fake_full_disk)
        error = failed(returns_much)
    assert "the disk is full" in error.what and "TPU_MAGICS_RUNS" in error.todo, said(error)
    assert of(error).status == "failed"
    assert len(run(returns_much).value) == 2_000_000


def scratch_modes() -> list[int]:
    return [path.stat().st_mode & 0o777 for path in (private_root(), *private_root().glob("scratch-*"))]


def test_what_workers_write_for_a_moment_is_private_and_gone_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run(scratch_modes).value == [0o700, 0o700]
    assert list(private_root().iterdir()) == []
