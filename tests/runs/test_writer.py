"""The writer: whole lines from many threads and processes, and a disk that fills up."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.runs.builders import in_child, in_threads
from tpu_magics.runs.events import Event, Steps, Value, Warned, to_line
from tpu_magics.runs.reader import Tail
from tpu_magics.runs.writer import EventWriter


def test_events_are_appended_in_order(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    writer = EventWriter(path, 0)
    assert not path.exists(), "opened by the first write"
    events: list[Event] = [Steps(float(n), 0, total=n, n=1) for n in range(5)]
    assert [writer.write(event) for event in events] == [len(to_line(event)) for event in events]
    writer.close()
    again = EventWriter(path, 0)
    again.write(Warned(9.0, 0, code="x"))
    assert Tail(path).read() == [*events, Warned(9.0, 0, code="x")]
    assert path.stat().st_mode & 0o777 == 0o600


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _link(path: Path) -> None:
    path.symlink_to(path.parent / "elsewhere")


@pytest.mark.parametrize("make", [_pipe, _link])
def test_what_is_in_its_place_is_not_written_to(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """A pipe would block the training, and a link lead out of the folder."""
    make(tmp_path / "a")
    writer = EventWriter(tmp_path / "a", 0)
    assert writer.write(Steps(1.0, 0)) == 0 and writer.failed is not None
    assert not (tmp_path / "elsewhere").exists()


def test_after_close_nothing_is_written_and_nothing_raises(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "a", 0)
    writer.write(Steps(1.0, 0))
    writer.close()
    writer.close()
    assert writer.write(Steps(2.0, 0)) == 0 and writer.failed is None
    assert len(Tail(writer.path).read()) == 1


def test_threads_write_whole_lines(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "a", 0)

    def work(number: int) -> None:
        for turn in range(300):
            writer.write(Value(float(turn), number, name="x" * (turn % 97), value=turn, step=turn))

    in_threads(*(partial(work, number) for number in range(8)))
    events = Tail(writer.path).read()
    assert len(events) == 2400
    for number in range(8):
        assert [event.t for event in events if event.rank == number] == [float(turn) for turn in range(300)]


@pytest.mark.process
def test_a_writer_made_before_the_fork_works_in_the_child(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "a", 0)
    assert in_child(lambda: 0 if writer.write(Steps(1.0, 0)) else 1) == 0
    assert Tail(writer.path).read() == [Steps(1.0, 0)]


@pytest.mark.process
def test_a_child_of_the_writing_process_writes_nothing_and_never_waits(tmp_path: Path) -> None:
    """As in a DataLoader's worker: forked while another thread held the writer's lock."""
    writer = EventWriter(tmp_path / "a", 0)
    writer.write(Steps(1.0, 0))
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with writer._lock:
            held.set()
            release.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()

    def work() -> int:
        signal.alarm(10)
        writer.close()
        return writer.write(Steps(2.0, 0))

    assert in_child(work) == 0
    release.set()
    thread.join()
    assert writer.write(Steps(3.0, 0)) > 0, "close() in the child left the parent's file open"
    assert Tail(writer.path).read() == [Steps(1.0, 0), Steps(3.0, 0)]


@pytest.mark.process
def test_a_signal_handler_may_write_while_a_write_is_under_way(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "a", 0)

    def work() -> int:
        signal.alarm(20)
        signal.signal(signal.SIGUSR1, lambda *_: writer.write(Warned(0.0, 0)) and None)
        signal.setitimer(signal.ITIMER_REAL, 20)
        with writer._lock:
            os.kill(os.getpid(), signal.SIGUSR1)
            writer.write(Steps(1.0, 0))
        return 0

    assert in_child(work) == 0
    assert len(Tail(writer.path).read()) == 2


def test_the_file_is_not_handed_to_programs_that_the_training_starts(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "a", 0)
    writer.write(Steps(1.0, 0))
    assert writer._fd is not None
    assert fcntl.fcntl(writer._fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    assert fcntl.fcntl(writer._fd, fcntl.F_GETFL) & os.O_APPEND


def test_the_training_may_change_the_directory(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    writer = EventWriter("rank-0.jsonl", 0)
    monkeypatch.chdir("/")
    assert writer.write(Steps(1.0, 0)) > 0
    assert (tmp_path / "rank-0.jsonl").exists()


def test_a_folder_that_is_gone_stops_the_writer(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "gone" / "rank-0.jsonl", 0)
    assert writer.write(Steps(1.0, 0)) == 0
    assert writer.failed == "rank-0.jsonl could not be written: No such file or directory"


@pytest.mark.process
def test_a_line_torn_by_a_full_disk_is_the_last_one(tmp_path: Path) -> None:
    """The kernel itself cuts the write: a limit on the file's size in a real child."""
    path = tmp_path / "a"
    line = len(to_line(Steps(1.0, 0)))

    def work() -> int:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        writer = EventWriter(path, 0)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * line + 10, resource.RLIM_INFINITY))
        written = [writer.write(Steps(1.0, 0)) for _ in range(3)]
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        written.append(writer.write(Steps(1.0, 0)))  # there is room again, but the torn line must stay the last
        return 0 if written == [line, line, 0, 0] and writer.failed else 1

    assert in_child(work) == 0
    assert path.stat().st_size == 2 * line + 10
    assert Tail(path).read() == [Steps(1.0, 0)] * 2


def test_an_event_that_cannot_be_written_is_lost_alone(tmp_path: Path) -> None:
    class Sly:
        def __str__(self) -> str:
            raise RuntimeError("no text for you")

    writer = EventWriter(tmp_path / "a", 0)
    endless: list[object] = []
    endless.append(endless)
    for bad in (Sly(), endless, 10**5000):
        assert writer.write(Value(1.0, 0, name="x", value=bad)) == 0  # type: ignore[arg-type]
    assert writer.failed is None and writer.write(Steps(1.0, 0)) > 0
