"""Watching: deaths, interrupts, timeouts and retries. Real workers, real signals; after each nothing is left."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_xla

import tpu_magics
from tests.launch.launching import (
    alive,
    digest,
    failed,
    fake_notebook,
    interrupt_when,
    of,
    run,
    said,
    wait_until,
    waits_for,
)
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import descendants, process, session, supervisor, train
from tpu_magics.launch.descendants import Guard
from tpu_magics.launch.strategies import forked

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]

LONG = pytest.mark.long
STOPPED_WITHIN = 5.0  # seconds


def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Embedding(64, 16), torch.nn.LayerNorm(16))


def spoil(model: Any) -> None:
    """Change every weight of a worker's model."""
    model.to("xla")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(3)


def run_ranked(function: Callable[..., Any], *args: Any, workers: int = 3, **options: Any) -> Any:
    request = train.function_request(function, args, index_first=True)
    return train.start(request, train.Options(**{"hoist": "off", "timeout": 60.0, **options}), workers=workers)


def failed_ranked(function: Callable[..., Any], *args: Any, **options: Any) -> tpu_magics.TrainingFailed:
    with pytest.raises(tpu_magics.TrainingFailed) as caught:
        run_ranked(function, *args, **options)
    return caught.value


def pids_of(error: tpu_magics.TrainingFailed) -> list[int]:
    return [worker["pid"] for worker in of(error).info["workers"]]


def nothing_unusual(rank: int) -> int:
    return rank


# -- a worker dies ----------------------------------------------------------------------------------------------------


def dies(rank: int, model: Any, culprit: int, how: str, folder: Path) -> None:
    spoil(model)
    (folder / f"ready-{rank}").touch()
    if rank != culprit:
        time.sleep(60)
    while len(list(folder.glob("ready-*"))) < 3:
        time.sleep(0.01)
    (folder / "died").write_text(str(time.time()))
    if how == "native":
        ctypes.string_at(0)
    os.kill(os.getpid(), getattr(signal, how))
    time.sleep(60)


@pytest.mark.parametrize(
    ("how", "culprit"),
    [
        *(("SIGKILL", 2), ("native", 0)),
        *(pytest.param(how, rank, marks=LONG) for how, rank in (("SIGSEGV", 1), ("SIGABRT", 0), ("SIGTERM", 2))),
        pytest.param("SIGBUS", 1, marks=LONG),  # in the test of a library's handler, too
    ],
)
def test_a_rank_that_dies_is_named_and_the_others_go(tmp_path: Path, how: str, culprit: int) -> None:
    model = net()
    before = digest(model)
    error = failed_ranked(dies, model, culprit, how, tmp_path)
    name = "SIGSEGV" if how == "native" else how
    assert error.rank == culprit, said(error)
    seconds = time.time() - float((tmp_path / "died").read_text())
    assert f"Rank {culprit}" in error.what and name in error.what, said(error)
    assert seconds < STOPPED_WITHIN
    assert not any(alive(pid) for pid in pids_of(error))
    assert digest(model) == before
    info = of(error).info
    assert info["status"] == "failed" and info["workers"][culprit]["signal"] == getattr(signal, name)
    if how == "native":
        text = said(error)
        assert "ctypes.string_at(0)" in text and f"{Path(__file__).name}, line" in text and "in dies" in text
    assert run_ranked(nothing_unusual).values == [0, 1, 2]


@pytest.fixture
def a_crash_handler_of_a_library() -> Iterator[None]:
    """As Ray's stands in front of Python's, and crashes itself where two clusters were left; this one aborts."""
    libc = ctypes.CDLL(None)
    libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, [ctypes.c_int, ctypes.c_void_p]
    before = libc.signal(signal.SIGBUS, ctypes.cast(libc.abort, ctypes.c_void_p))
    yield
    libc.signal(signal.SIGBUS, before)


@pytest.mark.usefixtures("a_crash_handler_of_a_library")
def test_a_library_in_the_notebook_does_not_change_what_a_rank_died_of(tmp_path: Path) -> None:
    error = failed_ranked(dies, net(), 1, "SIGBUS", tmp_path)
    assert error.rank == 1 and "SIGBUS" in error.what and "in dies" in said(error), said(error)


def raises_after_another(rank: int, folder: Path) -> None:
    """Rank 0 sees the consequence first, as gloo tells it; rank 1 is the cause."""
    if rank == 1:
        while not (folder / "told").exists():
            time.sleep(0.01)
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 0:
        (folder / "told").touch()
        raise RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:544] Connection closed by peer")
    time.sleep(60)


def test_the_cause_is_blamed_and_not_its_consequence(tmp_path: Path) -> None:
    error = failed_ranked(raises_after_another, tmp_path)
    assert error.rank == 1 and "SIGKILL" in error.what
    assert "rank 0" in said(error) and "a consequence" in said(error)


def raises_on_one(rank: int) -> None:
    if rank == 2:
        raise KeyError("label")
    time.sleep(60)


def test_an_exception_on_a_later_rank_is_named() -> None:
    error = failed_ranked(raises_on_one)
    assert error.rank == 2 and "KeyError" in error.what and 'raise KeyError("label")' in said(error)


def test_two_that_fail_within_a_second_are_both_told() -> None:
    def both(rank: int) -> None:
        if rank == 2:
            time.sleep(0.2)
        if rank:
            raise ValueError(f"bad {rank}")
        time.sleep(60)

    error = failed_ranked(both)
    assert error.rank == 1 and "Also failed: rank 2" in said(error)


# -- ranks -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def gives(monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[int, int]], None]:
    """A fake runtime that gives workers these ranks, by index; they do not find each other."""
    from tpu_magics.backends.torch_xla import worker
    from tpu_magics.backends.torch_xla.rehearse import join

    def arrange(ordinals: dict[int, int]) -> None:
        monkeypatch.setattr(join, "join", lambda *_: None)
        monkeypatch.setattr(worker, "_ordinal", lambda spec, _replica: ordinals[spec.index])

    return arrange


def spoils(rank: int, model: Any, culprit: int = -1) -> None:
    spoil(model)
    if rank == culprit:
        raise KeyError("the failing one")


def test_workers_with_one_rank_are_no_run(gives: Callable[[dict[int, int]], None]) -> None:
    gives({0: 0, 1: 0})
    model = net()
    before = digest(model)
    error = failed_ranked(spoils, model, workers=2)
    assert error.what == "The workers do not agree on their ranks: of 2 that began, 2 have rank 0."
    assert digest(model) == before and of(error).status == "failed"


@pytest.mark.long
def test_their_own_failure_does_not_hide_it(gives: Callable[[dict[int, int]], None]) -> None:
    gives({0: 0, 1: 0, 2: 1, 3: 1})
    error = failed_ranked(spoils, net(), 1, workers=4)
    assert error.what.endswith("2 have rank 0 and 2 have rank 1.")
    assert "A worker also raised KeyError: 'the failing one'" in error.details


def test_a_rank_that_the_run_does_not_have(
    gives: Callable[[dict[int, int]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TPU_WORKER_ID", "50")
    gives({0: 100, 1: 101})
    error = failed_ranked(spoils, net(), workers=2)
    assert ": The runtime gave this worker rank 10" in error.what and "the run has ranks 0 to 1" in error.what
    assert "TPU_WORKER_ID=50" in error.why and "Unset TPU_WORKER_ID" in error.todo


# -- interrupts -------------------------------------------------------------------------------------------------------


def sleeps(model: Any, folder: Path, stubborn: bool) -> None:
    if stubborn:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # In the worker's own thread nobody may set a handler; the C library may.
            ctypes.CDLL(None).signal(number, ctypes.c_void_p(1))  # SIG_IGN
    spoil(model)
    (folder / f"ready-{os.getpid()}").touch()
    while True:
        time.sleep(1)


@pytest.mark.parametrize(("stubborn", "times"), [(False, 1), pytest.param(True, 1, marks=LONG), (True, 5)])
def test_an_interrupt_stops_all(tmp_path: Path, stubborn: bool, times: int) -> None:
    model = net()
    before = digest(model)

    def ready() -> bool:
        return len(list(tmp_path.glob("ready-*"))) == 2

    with interrupt_when(ready, times, apart=0.2) as when:
        with pytest.raises(tpu_magics.TrainingInterrupted) as caught:
            run(sleeps, model, tmp_path, stubborn, workers=2)
        seconds = time.monotonic() - when["at"]
    assert isinstance(caught.value, KeyboardInterrupt)
    assert seconds < STOPPED_WITHIN
    assert not any(alive(pid) for pid in pids_of(caught.value))
    assert "The run was interrupted." in caught.value.what
    assert "time.sleep(1)" in said(caught.value)
    assert digest(model) == before and of(caught.value).status == "interrupted"
    assert run(nothing_unusual, 7).value == 7


def test_an_interrupt_while_the_workers_fork_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fork = process.fork_worker

    def interrupted(*args: Any) -> int:
        pid = fork(*args)
        os.kill(os.getpid(), signal.SIGINT)
        return pid

    with monkeypatch.context() as patch:
        patch.setattr(process, "fork_worker", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(sleeps, net(), tmp_path, False, workers=3)
    assert session.current.last is not None and session.current.last.status == "interrupted"
    assert run(nothing_unusual, 2).value == 2


def test_a_worker_that_cannot_be_forked_is_told_and_the_next_cell_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*args: Any) -> int:
        raise OSError(11, "Resource temporarily unavailable")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fork", no_room)
        with pytest.raises(TpuMagicsError, match="could not be forked: Resource temporarily unavailable"):
            run(nothing_unusual, 1)
    assert session.current.last is not None and session.current.last.status == "failed"
    assert "could not be forked" in session.current.last.run.info["failure"]["what"]
    assert run(nothing_unusual, 1).value == 1


def test_a_second_worker_that_cannot_be_forked_takes_the_first_with_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fork, count = os.fork, [0]

    def one_only() -> int:
        count[0] += 1
        if count[0] == 2:
            raise OSError(11, "Resource temporarily unavailable")
        return fork()

    with monkeypatch.context() as patch:
        patch.setattr(os, "fork", one_only)
        with pytest.raises(TpuMagicsError, match="could not be forked"):
            run(sleeps, net(), tmp_path, True, workers=2)
    assert session.current.active_run is None


def test_interrupts_of_other_cells_do_not_reach_background_workers(tmp_path: Path) -> None:
    """Jupyter signals the kernel's whole process group."""
    result = run(waits_for, tmp_path / "go", background=True)
    going = session.current.active_run
    assert going is not None and isinstance(going.strategy, forked.ForkedStrategy) and going.strategy.watch
    pid = going.strategy.watch.workers[0].pid
    assert wait_until(lambda: os.getpgid(pid) == pid)
    assert wait_until(lambda: result.run.events("start"))
    os.kill(pid, signal.SIGINT)
    assert os.getpgid(pid) != os.getpgid(0)
    (tmp_path / "go").touch()
    assert result.wait().value == "home"


def test_an_interrupt_ends_the_waiting_and_not_the_run(tmp_path: Path) -> None:
    result = run(waits_for, tmp_path / "go", background=True)
    started = threading.Event()

    with interrupt_when(started.is_set):
        started.set()
        with pytest.raises(KeyboardInterrupt):
            result.wait()
    assert result.status == "running"
    (tmp_path / "go").touch()
    assert result.wait().value == "home"


# -- timeouts ---------------------------------------------------------------------------------------------------------


def hangs(rank: int, how: str) -> str:
    if rank == 1:
        if how == "sleep":
            time.sleep(1000)
        elif how == "event":
            threading.Event().wait()
        else:
            while how:
                how = "loop"  # two lines: the stack may show either
    return "done"


@pytest.mark.parametrize(
    ("how", "line"),
    [
        pytest.param("sleep", "time.sleep(1000)", marks=LONG),
        ("event", "threading.Event().wait()"),
        pytest.param("loop", "while how:", marks=LONG),
    ],
)
def test_a_rank_that_hangs_is_named_with_its_line(how: str, line: str) -> None:
    start = time.monotonic()
    error = failed_ranked(hangs, how, timeout=3.0)
    assert time.monotonic() - start < 3 + STOPPED_WITHIN + 5
    text = said(error)
    assert "after 3 s (--timeout)" in error.what
    assert "Ranks 0 and 2: had already returned." in text or "rank 1" in text.lower(), text
    assert line in text or 'how = "loop"' in text, text
    assert "in hangs" in text and Path(__file__).name in text
    assert of(error).status == "timeout"
    assert run_ranked(nothing_unusual, workers=2).values == [0, 1]


def waits_in_a_collective(rank: int) -> None:
    def all_reduce() -> None:
        time.sleep(1000)

    if rank == 2:
        time.sleep(999)
    all_reduce()


def test_the_one_that_is_elsewhere_is_named() -> None:
    error = failed_ranked(waits_in_a_collective, timeout=3.0)
    assert error.rank == 2 and "rank 2 hangs while the others wait" in error.what, said(error)
    assert "time.sleep(999)" in said(error)


# -- a device that is still busy --------------------------------------------------------------------------------------


def busy_at_first(folder: Path, times: int) -> Any:
    """A run_worker whose device is busy so many times, with the text that libtpu gives."""
    from tpu_magics.backends.torch_xla import worker

    original = worker.run_worker

    def run_worker(*args: Any) -> Any:
        count = len(list(folder.glob("attempt-*")))
        (folder / f"attempt-{count}").touch()
        if count < times:
            print("libtpu complains", flush=True)
            raise RuntimeError("TPU initialization failed: open(/dev/vfio/1): Device or resource busy: ...")
        return original(*args)

    return run_worker


def steps(model: Any) -> str:
    model.to("xla")
    for _ in range(2):
        model(torch.zeros(2, dtype=torch.long, device="xla")).sum().backward()
        torch_xla.sync()
    print("trained")
    return "trained"


def test_a_busy_device_is_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tpu_magics.backends.torch_xla.worker.run_worker", busy_at_first(tmp_path, 2))
    monkeypatch.setattr(forked, "BUSY_PAUSE", 0.05)
    notebook = fake_notebook()
    result = run(steps, net())
    assert result.value == "trained" and result.status == "done" and result.steps == 2
    assert len([line for line in notebook.lines if "still busy" in line]) == 2
    assert notebook.printed.count("trained") == 1
    assert [event.status for event in result.run.events("end")] == ["done"]


def test_a_device_that_stays_busy_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tpu_magics.backends.torch_xla.worker.run_worker", busy_at_first(tmp_path, 1000))
    monkeypatch.setattr(forked, "BUSY_PAUSE", 0.05)
    monkeypatch.setattr(forked, "BUSY_PATIENCE", 1.0)
    error = failed(steps, net())
    assert "Rank 0 could not open /dev/vfio/1: the device is busy." in error.what
    assert "10 to 30 seconds" in error.why
    assert len(list(tmp_path.glob("attempt-*"))) > 1


def busy_text_of_the_user() -> None:
    kept = torch.ones(1, device="xla") + 1
    torch_xla.sync()
    del kept
    raise RuntimeError("open(/dev/vfio/1): Device or resource busy")


def test_what_failed_after_a_step_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "BUSY_PATIENCE", 60.0)
    notebook = fake_notebook()
    failed(busy_text_of_the_user)
    assert not [line for line in notebook.lines if "busy" in line]


# -- the notebook's own troubles --------------------------------------------------------------------------------------


def prints_for_ever() -> None:
    while True:
        print("more")
        time.sleep(0.001)


@pytest.mark.parametrize("background", [False, True])
def test_a_screen_that_breaks_leaves_no_worker(background: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed pipe behind `print`, a front end that has gone."""
    notebook = fake_notebook()
    monkeypatch.setattr(threading, "excepthook", lambda _: None)

    def gone(text: str) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    notebook.text = gone  # type: ignore[method-assign]
    with pytest.raises((BrokenPipeError, tpu_magics.TrainingFailed)):
        run(prints_for_ever, background=background, workers=2).wait()
    assert session.current.last is not None and session.current.last.status == "failed"
    fake_notebook()
    assert run(nothing_unusual, 4).value == 4


# -- what the watch measures and keeps --------------------------------------------------------------------------------


def takes_memory() -> None:
    held = bytearray(200 << 20)
    held[::4096] = b"x" * len(held[::4096])
    time.sleep(1.3)


def test_memory_of_each_worker_is_measured() -> None:
    result = run(takes_memory, workers=2)
    for entry in result.run.info["workers"]:
        assert entry["peak_rss"] > 200 << 20
        assert entry["peak_pss"] is None or 200 << 20 < entry["peak_pss"] <= entry["peak_rss"]
    assert {event.rank for event in result.run.events("memory")} == {0, 1}
    assert set(result.run.summary().peak_memory) == {0, 1}


def stops_itself(rank: int, how: int) -> int:
    if rank == 1:
        for _ in range(2):
            os.kill(os.getpid(), how)
    return rank


@pytest.mark.parametrize(("how", "more"), [(signal.SIGSTOP, False), (signal.SIGTTIN, True)])
def test_a_stopped_rank_is_continued_which_is_said_once(how: signal.Signals, more: bool) -> None:
    result = run_ranked(stops_itself, int(how), workers=2)
    assert result.values == [0, 1]
    texts = [event.text for event in result.run.events("warning") if getattr(event, "code", "") == "continued"]
    assert len(texts) == 1 and f"Rank 1 was stopped by a signal ({how.name}) and was continued" in texts[0]
    assert ("the terminal" in texts[0]) is more


def test_memory_of_a_process() -> None:
    measured = supervisor.process_memory(os.getpid())
    assert measured is not None and measured[0] > 1 << 20
    assert supervisor.process_memory(2**22 + 1) is None


def test_only_our_own_groups_are_signalled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    signalled: list[tuple[str, int]] = []
    killpg, kill = os.killpg, os.kill
    monkeypatch.setattr(os, "killpg", lambda pid, number: (signalled.append(("group", pid)), killpg(pid, number)))
    monkeypatch.setattr(os, "kill", lambda pid, number: (signalled.append(("process", pid)), kill(pid, number)))
    guards: list[Any] = []
    monkeypatch.setattr(descendants, "Guard", lambda run: guards.append(Guard(run)) or guards[-1])
    error = failed(sleeps, net(), tmp_path, True, timeout=2.0, workers=2)
    assert {pid for _, pid in signalled} == {*pids_of(error), *(guard.process.pid for guard in guards)}


def kills_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_workers_that_somebody_else_reaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """With SIGCHLD ignored the kernel reaps children itself, and waiting for them fails."""
    old = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert run(nothing_unusual, 5).value == 5
        error = failed(raises_on_one, 2)
        assert "KeyError" in error.what
        error = failed(kills_itself)
        assert "exit status is unknown" in error.what and "SIGCHLD" in error.why
    finally:
        signal.signal(signal.SIGCHLD, old)
