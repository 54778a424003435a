"""Reading back what a crash, a full disk or another version left behind."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.runs.builders import made
from tpu_magics.errors import TpuMagicsError
from tpu_magics.runs.events import KINDS, End, Event, Frame, Memory, Start, Steps, Value, Warned, to_line
from tpu_magics.runs.files import read_regular
from tpu_magics.runs.folder import RunFolder
from tpu_magics.runs.owner import process_started
from tpu_magics.runs.reader import Run, Tail, find_run, list_runs
from tpu_magics.runs.writer import EventWriter

ONE_OF_EACH: tuple[Event, ...] = tuple(cls(t=10.0 + n, rank=0) for n, cls in enumerate(KINDS.values()))
FRAMES = (Frame("In [3]", 2, "f", "x = '\u2028ü'"),)
FAILED = End(30.0, 0, status="failed", steps=3, error_type="ValueError", error_text="line\n\x85two", frames=FRAMES)
EVENTS = (*ONE_OF_EACH, FAILED)


def record(path: Path, *events: Event) -> None:
    writer = EventWriter(path, events[0].rank)
    for event in events:
        assert writer.write(event)
    writer.close()


# -- record files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.kind)
def test_a_file_cut_at_any_byte_can_be_read(tmp_path: Path, event: Event) -> None:
    path, first, second = tmp_path / "rank-0.jsonl", to_line(event), to_line(event)
    for size in range(len(first) + len(second) + 1):
        path.write_bytes((first + second)[:size])
        whole = (size >= len(first)) + (size >= len(first) + len(second))
        assert Tail(path).read() == Run(tmp_path).events() == [event] * whole


def test_a_file_that_grows_byte_by_byte_gives_each_event_once(tmp_path: Path) -> None:
    path, content = tmp_path / "a", b"".join(map(to_line, EVENTS))
    tail, found = Tail(path), []
    assert tail.read() == []
    with path.open("wb", buffering=0) as file:
        for byte in content:
            file.write(bytes([byte]))
            found += tail.read()
    assert tuple(found) == EVENTS


@pytest.mark.parametrize(
    "garbage",
    [
        b"\n",
        b"\x00" * 4096 + b"\n",
        b"\xff\xfe\n",
        b"{}\n",
        b'{"v":1}\n',
        b'{"v":1,"kind":"teleport","t":1.0,"rank":0}\n',
        b'{"v":2,"kind":"steps","t":1.0,"rank":0,"total":5}\n',
        b'{"v":1,"kind":"steps","t":"soon","rank":0}\n',
        b'{"v":1,"kind":"st\n',
        b"[" * 50_000 + b"\n",
    ],
    ids=lambda garbage: repr(garbage[:20]),
)
def test_a_line_of_garbage_hides_nothing_else(tmp_path: Path, garbage: bytes) -> None:
    lines = list(map(to_line, EVENTS))
    (tmp_path / "rank-0.jsonl").write_bytes(garbage.join([b"", *lines, b""]))
    assert tuple(Run(tmp_path).events()) == EVENTS


def test_damaged_files_never_raise(tmp_path: Path) -> None:
    content = b"".join(map(to_line, EVENTS))
    info = json.dumps({"v": 1, "status": "running", "created": 5, "pid": 1, "workers": [{"rank": 0, "peak_rss": 7}]})
    chance = random.Random(1)
    for _ in range(400):
        for name, text in (("rank-0.jsonl", content), ("supervisor.jsonl", content), ("run.json", info.encode())):
            damaged = bytearray(text)
            for _ in range(chance.randrange(1, 8)):
                damaged[chance.randrange(len(damaged))] = chance.randrange(256)
            (tmp_path / name).write_bytes(damaged)
        run = Run(tmp_path)
        summary = run.summary()
        assert isinstance(summary.status, str) and isinstance(run.events(), list) and repr(run)


# -- one run ------------------------------------------------------------------------------------------------------


def test_events_of_all_ranks_by_time_and_of_one_file_in_its_order(tmp_path: Path) -> None:
    zero = (Start(1.0, 0), Steps(5.0, 0, total=1), Steps(2.0, 0, total=2), Steps(9.0, 0, total=3))
    one = (Start(1.0, 1), Steps(4.0, 1, total=1), End(6.0, 1))
    parent = (Memory(3.0, 0, rss=1), Memory(3.0, 1, rss=2), Memory(7.0, 0, rss=3))
    for name, events in (("rank-0", zero), ("rank-1", one), ("supervisor", parent)):
        record(tmp_path / f"{name}.jsonl", *events)
    run = Run(tmp_path)
    assert run.events() == [
        zero[0],
        one[0],
        parent[0],
        parent[1],
        one[1],
        zero[1],
        zero[2],  # the clock was set back: it still comes after the step before it
        one[2],
        parent[2],
        zero[3],
    ]
    assert run.events("memory", rank=0) == [parent[0], parent[2]]
    assert run.events(rank=1) == [one[0], parent[1], one[1], one[2]]
    assert run.events(kind="steps") == [one[1], zero[1], zero[2], zero[3]]
    assert run.events("no such kind") == run.events(rank=7) == []
    assert run.ranks == (0, 1)


def test_what_a_worker_wrote_before_it_knew_its_rank_is_found_by_its_rank(tmp_path: Path) -> None:
    (tmp_path / "rank-0.jsonl").write_bytes(to_line(Start(1.0, 0)) + to_line(Start(2.0, 1)))
    record(tmp_path / "rank-1.jsonl", End(3.0, 1))
    assert Run(tmp_path).events(rank=1) == [Start(2.0, 1), End(3.0, 1)]


def test_ten_ranks_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for rank in (10, 2, 0):
        record(tmp_path / f"rank-{rank}.jsonl", Start(1.0, rank))
    (tmp_path / "rank-x.jsonl").touch()
    (tmp_path / "rank-3.log").touch()
    assert Run(tmp_path).ranks == (0, 2, 10)
    assert [event.rank for event in Run(tmp_path).events()] == [0, 2, 10]


def test_the_log_of_a_rank(root: Path) -> None:
    run = RunFolder.create("a", root=root)
    run.log_path(0).write_bytes("Größe\n".encode() + b"\xff")
    assert Run(run.path).log(0) == "Größe\n\ufffd"
    assert Run(run.path).log(1) == ""


def test_a_run_tells_what_its_run_json_says(root: Path) -> None:
    folder = made(root, "first", 1790000000.0, status="failed", workers=[{"rank": 0}, {"rank": 1}])
    run = Run(folder.path)
    assert (run.id, run.name, run.status, run.created) == (folder.id, "first", "failed", 1790000000.0)
    assert run.ranks == (0, 1) and run.info["v"] == 1
    assert run == Run(str(folder.path)) and len({run, Run(folder.path)}) == 1
    assert repr(run) == f"Run({folder.id!r}, status='failed')"


@pytest.mark.parametrize("content", [None, b"", b'{"v": 1, "status": "run', b"[]", b"null", b"\xff", b"[" * 50_000])
def test_a_missing_or_half_run_json_is_no_error(root: Path, content: bytes | None) -> None:
    path = root / "20261121T053403Z-my run-2"
    path.mkdir(parents=True)
    if content is not None:
        (path / "run.json").write_bytes(content)
    record(path / "rank-0.jsonl", Start(1.0, 0), Steps(2.0, 0, total=3, n=3, seconds=1.0))
    (run,) = list_runs(root)
    assert (run.info, run.name, run.status, run.created) == ({}, "my run-2", "unknown", 1795239243.0)
    assert (run.summary().steps, run.summary().seconds) == (3, None)


def test_a_folder_that_is_not_there_is_an_empty_run(tmp_path: Path) -> None:
    run = Run(tmp_path / "gone")
    assert (run.events(), run.ranks, run.status, run.log(0)) == ([], (), "unknown", "")
    assert run.summary().steps is None


@pytest.mark.parametrize("status", ["starting", "running", "collecting"])
@pytest.mark.process
def test_a_running_run_whose_kernel_is_gone_is_lost(root: Path, status: str) -> None:
    kernel = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert kernel.stdin is not None
    folder = made(root, "a", 1.0, status=status, pid=kernel.pid, pid_started=process_started(kernel.pid))
    assert Run(folder.path).status == status
    kernel.stdin.close()
    kernel.wait()
    assert Run(folder.path).status == Run(folder.path).summary().status == "lost"


def test_another_process_with_the_kernels_pid_is_not_the_kernel(root: Path) -> None:
    folder = RunFolder.create("a", root=root)
    assert Run(folder.path).status == "starting"
    folder.update(pid_started=folder.info["pid_started"] - 1)
    assert Run(folder.path).status == "lost"


@pytest.mark.parametrize("pid", [None, "1", 10**30, -5, True])
def test_a_pid_that_is_none_is_lost_and_no_error(root: Path, pid: object) -> None:
    folder = RunFolder.create("a", root=root)
    folder.info_path.write_text(json.dumps({**folder.info, "pid": pid, "pid_started": 1}))
    assert Run(folder.path).status == "lost"


def test_what_has_ended_stays_as_it_ended(root: Path) -> None:
    folder = made(root, "a", 1.0, status="interrupted", pid=2**22, pid_started=1)
    assert Run(folder.path).status == "interrupted"


# -- the summary --------------------------------------------------------------------------------------------------


def test_the_summary_of_a_run(root: Path) -> None:
    folder = made(
        root,
        "first",
        100.0,
        seconds=12.5,
        workers=[{"rank": 0, "peak_rss": 500, "peak_pss": None}, {"rank": 1, "peak_rss": None}],
        models=["model", {"name": "head"}],
        warnings=["from run.json"],
    )
    record(
        folder.events_path(0),
        Start(101.0, 0),
        Value(102.0, 0, name="loss", value=0.5, step=1),
        Steps(103.0, 0, total=4, n=4, seconds=2.0),
        Value(104.0, 0, name="loss", value="nan", step=5),
        Value(104.0, 0, name="phase", value="warm", step=5),
        Warned(104.0, 0, code="x", text="from rank 0"),
        Steps(105.0, 0, total=5, n=1, seconds=0.5),
        End(106.0, 0, steps=5, compiles=3),
    )
    record(folder.events_path(1), Value(102.0, 1, name="of rank 1", value=9), Steps(110.0, 1, total=99, n=99))
    record(folder.supervisor_path, Memory(102.0, 0, rss=400), Memory(103.0, 1, rss=300), Memory(104.0, 1, rss=200))
    summary = Run(folder.path).summary()
    assert (summary.id, summary.name, summary.status) == (folder.id, "first", "done")
    assert (summary.created, summary.seconds, summary.ranks) == (100.0, 12.5, (0, 1))
    assert (summary.steps, summary.steps_per_second, summary.compiles, summary.complete) == (5, 2.0, 3, True)
    assert summary.values == {"loss": "nan", "phase": "warm"}
    assert summary.peak_memory == {0: 500, 1: 300}
    assert summary.models == ("model", "head")
    assert summary.warnings == ("from run.json", "from rank 0")
    assert summary.failure is None


def test_what_was_not_measured_is_none(root: Path) -> None:
    summary = Run(made(root, "a", 100.0).path).summary()
    assert summary.steps is summary.compiles is summary.steps_per_second is summary.seconds is None
    assert summary.complete is False and summary.peak_memory == {} and summary.ranks == ()


def test_a_killed_rank_0_without_a_record_did_not_do_zero_steps(root: Path) -> None:
    folder = made(root, "a", 100.0, status="failed")
    record(folder.events_path(0), Start(101.0, 0))
    assert Run(folder.path).summary().steps is None
    folder.update(status="running")
    assert Run(folder.path).summary().steps == 0, "it still runs and told of none so far"


def test_seconds_of_a_run_that_goes_on_and_of_one_that_was_lost(root: Path) -> None:
    folder = RunFolder.create("a", root=root)
    folder.update(created=time.time() - 50, status="running")
    record(folder.events_path(0), Start(folder.info["created"] + 20, 0))
    assert 50 <= (Run(folder.path).summary().seconds or 0) < 200
    folder.update(pid_started=1)
    assert Run(folder.path).summary().seconds == pytest.approx(20)


def test_the_failure_is_that_of_run_json_or_else_of_the_last_record(root: Path) -> None:
    folder = made(root, "a", 100.0, status="failed")
    record(folder.events_path(0), End(101.0, 0, status="failed", error_type="ValueError", error_text="no"))
    assert (Run(folder.path).summary().failure or {})["what"] == "ValueError: no"
    folder.update(failure={"what": "Rank 0 failed.", "why": "w", "todo": "t", "details": []})
    assert (Run(folder.path).summary().failure or {})["what"] == "Rank 0 failed."


@pytest.mark.parametrize(
    "strange",
    [
        {"workers": 3, "models": 3, "warnings": "x", "failure": "x", "created": "x", "seconds": "x", "name": 5},
        {"workers": [1, {"rank": "0"}, {"rank": 1, "peak_rss": "x"}], "models": {"m": 1}, "created": 10**400},
        {"workers": [{"rank": 0, "peak_rss": 10**400}], "seconds": float("nan"), "created": True},
    ],
)
def test_a_strange_run_json_is_no_error(root: Path, strange: dict[str, Any]) -> None:
    folder = RunFolder.create("a", root=root)
    folder.info_path.write_text(json.dumps({**folder.info, **strange}))
    summary = Run(folder.path).summary()
    assert summary.peak_memory == {}
    assert [run.id for run in list_runs(root)] == [folder.id]


# -- many runs ----------------------------------------------------------------------------------------------------


def test_runs_are_listed_newest_first(root: Path) -> None:
    for name, created in (("b", 200.0), ("c", 300.0), ("a", 100.0)):
        made(root, name, created)
    (root / "not a run").mkdir()
    (root / "20261121T053403Z-file").touch()
    (root / ".ipynb_checkpoints").mkdir()
    assert [run.name for run in list_runs(root)] == ["c", "b", "a"]


def test_no_folder_no_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert list_runs() == list_runs(tmp_path / "gone") == []


def test_runs_of_the_working_directory_are_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = RunFolder.create("a")
    assert [run.path for run in list_runs()] == [folder.path] == [find_run("a").path]


def test_runs_that_had_to_go_to_the_temporary_folder_are_found_too(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    root.touch()
    folder = RunFolder.create("a", root=root)
    assert folder.warning and [run.path for run in list_runs(root)] == [folder.path]
    assert list_runs(tmp_path / "another") == []


@pytest.fixture
def three(root: Path) -> dict[str, Run]:
    """Two runs of the name "mnist" and one of the name "bert base"."""
    for run_id, name, created in (
        ("20261121T053403Z-mnist", "mnist", 100.0),
        ("20261121T063403Z-mnist", "mnist", 200.0),
        ("20261122T053403Z-bert base", "bert base", 300.0),
    ):
        folder = made(root, name, created)
        os.rename(folder.path, root / run_id)
    return {run.id: run for run in list_runs(root)}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("20261121T053403Z-mnist", "20261121T053403Z-mnist"),
        ("mnist", "20261121T063403Z-mnist"),
        ("bert base", "20261122T053403Z-bert base"),
        ("last", "20261122T053403Z-bert base"),
        ("20261122", "20261122T053403Z-bert base"),
        ("20261121T05", "20261121T053403Z-mnist"),
        ("base", "20261122T053403Z-bert base"),
        ("T063403Z-mnist", "20261121T063403Z-mnist"),
    ],
)
def test_a_run_is_found(root: Path, three: dict[str, Run], text: str, found: str) -> None:
    assert find_run(text, root) == three[found]


def test_a_typo_is_answered_with_the_nearest(root: Path, three: dict[str, Run]) -> None:
    with pytest.raises(TpuMagicsError) as caught:
        find_run("mnits", root)
    assert caught.value.lines() == [
        "There is no run 'mnits'.",
        "Why: None of the 3 runs here has this name or folder.",
        "What to do: Did you mean mnist? %tpu_runs lists all; `last` is the newest.",
    ]


def test_nothing_near_offers_the_list_only(root: Path, three: dict[str, Run]) -> None:
    for text in ("", "zzzz"):
        with pytest.raises(TpuMagicsError) as caught:
            find_run(text, root)
        assert caught.value.todo == "%tpu_runs lists all; `last` is the newest."


def test_a_beginning_that_fits_several_is_not_guessed(root: Path, three: dict[str, Run]) -> None:
    with pytest.raises(TpuMagicsError, match="'20261121T' matches 2 runs") as caught:
        find_run("20261121T", root)
    assert "20261121T063403Z-mnist, 20261121T053403Z-mnist" in caught.value.why


def test_without_any_run_the_error_says_how_to_make_one(root: Path) -> None:
    with pytest.raises(TpuMagicsError) as caught:
        find_run("last", root)
    assert caught.value.lines() == [
        "There is no run yet.",
        f"Why: {root} has none.",
        "What to do: Train something with %%tpu_train.",
    ]


# -- what is no record --------------------------------------------------------------------------------------------


def _link(path: Path) -> None:
    (path.parent / "elsewhere").write_bytes(b"secret")
    path.symlink_to(path.parent / "elsewhere")


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")  # a device itself takes root's rights


@pytest.mark.parametrize(
    ("make", "kind"), [(os.mkfifo, "a named pipe"), (_link, "a symbolic link"), (_device, "a symbolic link")]
)
def test_what_is_no_file_is_refused_and_named(root: Path, make: Callable[[Path], None], kind: str) -> None:
    """A pipe would block its reader for ever."""
    path = made(root, "a", 100.0).path
    run = Run(path)
    for file in (run.info_path, run.events_path(0), run.supervisor_path, run.log_path(0)):
        file.unlink(missing_ok=True)
        make(file)
    assert run.info == {} and run.events() == [] and run.log(0) == ""
    assert Tail(run.events_path(0)).read() == []
    assert run.summary().warnings == tuple(
        f"{name} was not read: it is {kind}, not a file." for name in ("run.json", "rank-0.jsonl", "supervisor.jsonl")
    )
    assert [one.id for one in list_runs(root)] == [path.name] and find_run("a", root).status == "unknown"


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (os.mkfifo, "it is a named pipe, not a file"),
        (_device, "it is a device, not a file"),
        (_socket, "it is a socket, not a file"),
        (Path.mkdir, "Is a directory"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
        (lambda path: path.write_bytes(bytes(1_000_001)), "it has 1 MB, and at most 1 MB are read"),
    ],
)
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, make: Callable[[Path], None], why: str) -> None:
    make(tmp_path / "x")
    with pytest.raises(OSError) as caught:
        read_regular(tmp_path / "x", 1_000_000)
    assert caught.value.strerror == why


def test_a_file_is_read_also_through_a_link_and_from_proc(tmp_path: Path) -> None:
    _link(tmp_path / "x")
    assert read_regular(tmp_path / "x") == b"secret" == read_regular(str(tmp_path / "x"), 6)
    assert read_regular("/proc/self/stat").startswith(str(os.getpid()).encode())


# -- files of any size --------------------------------------------------------------------------------------------


def test_of_a_file_that_is_too_long_both_ends_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rank-0.jsonl"
    record(path, *(Steps(float(at), 0, total=at) for at in range(1_000)))
    tail = Tail(path, 10_000)
    totals = [event.total for event in tail.read() if isinstance(event, Steps)]
    assert totals == sorted(totals) and (totals[0], totals[-1]) == (0, 999) and 100 < len(totals) < 300
    with path.open("ab") as file:
        file.write(to_line(Steps(1e3, 0, total=1_000)))
    assert [event.total for event in tail.read() if isinstance(event, Steps)] == [1_000]
    monkeypatch.setattr("tpu_magics.runs.reader.MOST_READ", 10_000)
    run = Run(tmp_path)
    size = f"{path.stat().st_size / 1e6:,.0f}"
    assert run.summary().warnings == (f"rank-0.jsonl was read in part: 0.005 MB at each end of {size} MB.",)
    assert run.summary().steps == 1_000 and len(run.events()) < 300


def test_a_file_without_an_end_of_a_line_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    path.write_bytes(b"x" * 100_000)
    assert Tail(path, 10_000).read() == []


def test_a_file_that_was_written_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    record(path, *(Steps(1.0, 0, total=at) for at in range(9)))
    tail = Tail(path)
    assert len(tail.read()) == 9
    path.unlink()
    record(path, Steps(1.0, 0, total=5))
    assert tail.read() == [Steps(1.0, 0, total=5)]


def test_many_ranks_share_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpu_magics.runs.reader.MOST_READ_OF_ALL", 50_000)
    monkeypatch.setattr("tpu_magics.runs.reader.MOST_FILES", 10)
    for rank in range(12):
        record(tmp_path / f"rank-{rank}.jsonl", *(Steps(float(at), rank, total=at) for at in range(200)))
    run = Run(tmp_path)
    assert len(run.ranks) == 12 and {event.rank for event in run.events()} == set(range(10))
    assert len(run.events()) < 1_000
    assert run.refused()[-1] == "The records of 2 more ranks were not read." and len(run.refused()) == 11


def test_a_run_json_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"v":1,"name":"' + "x" * 4_100_000 + '"}')
    run = Run(tmp_path)
    assert run.info == {} and run.summary().warnings == (
        "run.json was not read: it has 4.1 MB and at most 4 MB are read.",
    )


def test_names_of_any_length_are_cut_in_what_is_told(tmp_path: Path) -> None:
    made(tmp_path, "a", 1.0)
    with pytest.raises(TpuMagicsError) as refused:
        find_run("x" * 50_000, tmp_path)
    assert len(str(refused.value)) < 500
    assert len(Run(made(tmp_path, "b", 1.0, status="s" * 9_000).path).status) == 200


def test_many_warnings_are_counted(tmp_path: Path) -> None:
    run = Run(made(tmp_path, "a", 1.0, warnings=[f"w{at}" for at in range(300)]).path)
    assert run.summary().warnings[-1] == "200 more warnings are in its records." and len(run.summary().warnings) == 101
