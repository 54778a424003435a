"""How ranks end: those that end themselves, and those that have used up what their end needs."""

from __future__ import annotations

import builtins
import concurrent.futures
import contextlib
import ctypes
import os
import queue
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests import framework
from tests.launch.launching import alive, digest, failed, fake_notebook, interrupt_when, of, run, said, wait_until
from tpu_magics.errors import TrainingFailed, TrainingInterrupted
from tpu_magics.launch import endless_waits, process, supervisor
from tpu_magics.runs.events import End, Warned

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]


def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Linear(4, 2)


def sgd(model: Any, steps: int = 3) -> None:
    device = framework.device()
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4, device=device)).sum().backward()
        optimizer.step()
        framework.sync()


# -- ranks that end themselves ----------------------------------------------------------------------------------------


class Leaves(Exception):
    def __str__(self) -> str:
        os._exit(0)


class Stops(Exception):
    def __str__(self) -> str:
        sys.exit(0)


def leaves_in_str(model: Any) -> None:
    sgd(model)
    raise Leaves


def leaves_in_c(model: Any) -> None:
    sgd(model)
    ctypes.CDLL(None).exit(0)


def leaves_as_second(model: Any) -> None:
    sgd(model)
    if framework.rank():
        os._exit(0)


_an_hour = (ctypes.c_long * 2)(0, 0)  # a timespec; lives until this process has ended


@pytest.fixture
def library_that_waits_at_exit() -> Iterator[None]:
    """As those do that join their threads at exit."""
    libc = ctypes.CDLL(None)
    libc.__cxa_atexit(libc.nanosleep, ctypes.byref(_an_hour), None)
    _an_hour[0] = 3600
    yield
    _an_hour[0] = 0


@pytest.mark.usefixtures("library_that_waits_at_exit")
@pytest.mark.parametrize(
    ("function", "workers", "rank"), [(leaves_in_str, 1, 0), (leaves_in_c, 1, 0), (leaves_as_second, 2, 1)]
)
def test_a_rank_without_its_last_record_has_failed(function: Callable[..., Any], workers: int, rank: int) -> None:
    model = net()
    before = digest(model)
    error = failed(function, model, processes=workers)
    assert error.what == f"Rank {rank} exited before it finished (exit code 0)."
    assert "disk" not in said(error) and "TPU_MAGICS_RUNS" not in said(error)
    assert (error.rank, of(error).status, digest(model)) == (rank, "failed", before)


def stops_in_str() -> None:
    raise Stops


def test_an_exception_whose_text_stops_the_program_is_told() -> None:
    assert failed(stops_in_str).what == "Rank 0 raised Stops: (no text: SystemExit in __str__)"


# -- ranks that have used up what their end needs ---------------------------------------------------------------------

_open: list[int] = []


def opens_all(model: Any = None) -> None:
    if model is not None:
        sgd(model)
    try:
        while True:
            _open.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass


def closes_the_first(model: Any) -> None:
    sgd(model)
    os.closerange(0, 3)


def closes_the_others(model: Any) -> None:
    sgd(model)
    os.closerange(3, 1000)
    _open.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(200))


def limits_memory(model: Any) -> None:
    sgd(model)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (2**28, hard))


def refuses(*_arguments: Any, **_named: Any) -> Any:
    raise RuntimeError("replaced")


def replaces_builtins(model: Any) -> None:
    sgd(model)
    vars(builtins).update(dict.fromkeys(("len", "isinstance", "print", "getattr", "min"), refuses))


def replaces_and_raises() -> None:
    replaces_builtins(net())
    raise ValueError("boom")


@pytest.mark.parametrize("function", [opens_all, closes_the_first, closes_the_others, limits_memory, replaces_builtins])
def test_what_was_trained_comes_home_all_the_same(function: Callable[..., Any]) -> None:
    model, alone = net(), net()
    result = run(function, model)
    run(sgd, alone)
    assert result.status == "done" and torch.equal(model.weight, alone.weight)
    assert [end.status for end in result.run.events() if isinstance(end, End)] == ["done"]
    replaced = ("len", "isinstance", "print", "getattr", "min") if function is replaces_builtins else ()
    assert set(result.left) == {f"builtins: {name}" for name in replaced}


# -- threads that outlive the function --------------------------------------------------------------------------------

changed_later: list[str] = []


def leaves_threads(model: Any) -> None:
    """One that is at work, one that begins later, one of an executor, and one that waits for what never comes."""

    def change() -> None:
        time.sleep(0.5)
        changed_later.append("thread")
        with torch.no_grad():
            model.weight.fill_(7)

    threading.Thread(target=change).start()
    threading.Timer(0.3, changed_later.append, ["timer"]).start()
    concurrent.futures.ThreadPoolExecutor(2).submit(lambda: (time.sleep(0.1), changed_later.append("executor")))
    threading.Thread(target=queue.Queue().get).start()


def test_what_a_thread_changes_after_the_function_has_returned_comes_home() -> None:
    model = net()
    changed_later.clear()
    assert run(leaves_threads, model).status == "done"
    assert sorted(changed_later) == ["executor", "thread", "timer"] and bool((model.weight == 7).all())


def fails_in_threads() -> None:
    def fail(number: int) -> None:
        raise ValueError(f"{number}\nand a second line")

    threading.excepthook = lambda ended, before=threading.excepthook: (print("the function's own"), before(ended))  # type: ignore[misc]
    for number in range(9):
        thread = threading.Thread(target=fail, args=[number], name=f"number {number}")
        thread.start()
        thread.join()


def test_threads_that_end_with_an_exception_are_named_and_the_notebooks_hook_is_called(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: print("the notebook's own"))
    result = run(fails_in_threads)
    said = [one.text for one in result.run.events("warning") if isinstance(one, Warned)]
    assert [text.partition(" at ")[0] for text in said] == [
        f"The thread number {number} ended with ValueError: {number}" for number in range(3)
    ]
    log = result.run.log(0)
    assert log.count("the function's own") == log.count("the notebook's own") == 9


def waits_for_a_thread_that_fails() -> None:
    results: Any = queue.Queue()

    def compute() -> None:
        raise ValueError("in the thread")

    threading.Thread(target=compute, name="computing").start()
    results.get()


def test_a_thread_that_failed_is_named_where_the_function_waits_for_it() -> None:
    text = said(failed(waits_for_a_thread_that_fails))
    assert "waits forever at `results.get()`" in text
    assert " In rank 0: The thread computing ended with ValueError: in the thread at `raise ValueError" in text
    assert "What to do: Fix the thread's exception, and run the cell again." in text


def closes_and_raises() -> None:
    os.closerange(0, 3)
    raise ValueError("boom")


def is_refused_memory() -> Any:
    limits_memory(net())
    return bytearray(2**29)


def is_refused_memory_for_good() -> Any:
    sgd(net())
    resource.setrlimit(resource.RLIMIT_AS, (2**28, 2**28))
    return bytearray(2**29)


def is_refused_memory_in_c() -> None:
    """As glibc ends a process that has none for what a thread is to have of its own (elf/dl-tls.c, oom)."""
    limits_memory(net())
    os.write(2, b"cannot allocate memory for thread-local data: ABORT\n")
    os._exit(127)


def writes_nothing() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (closes_and_raises, ("Rank 0 raised ValueError: boom",)),
        (replaces_and_raises, ("Rank 0 raised ValueError: boom",)),
        (is_refused_memory, ("address space is limited to 256 MiB (RLIMIT_AS)",)),
        (is_refused_memory_for_good, ("address space is limited to 256 MiB (RLIMIT_AS)",)),
        (is_refused_memory_in_c, ("address space is limited to 256 MiB (RLIMIT_AS)",)),
        (writes_nothing, ("Rank 0 ended, but its last record could not be written", "RLIMIT_FSIZE")),
    ],
)
@pytest.mark.smoke
def test_what_it_lacked_is_said(function: Callable[..., Any], words: tuple[str, ...]) -> None:
    text = said(failed(function))
    assert all(word in text for word in words) and "os._exit" not in text, text


def test_a_rank_whose_thread_ends_without_a_result_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endless_waits, "EVERY", 0.1)
    monkeypatch.setattr(endless_waits, "GONE", 0.3)

    def trains() -> None:
        concurrent.futures.Future.set_result = refuses  # type: ignore[method-assign]

    text = said(failed(trains))
    assert "Rank 0 raised ThreadEnded" in text and "without a result and without an error" in text


def test_a_worker_that_cannot_begin_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    become = process.become_worker

    def without_room(parent: int, stack_file: Any) -> None:
        opens_all()
        become(parent, stack_file)

    monkeypatch.setattr(process, "become_worker", without_room)
    text = said(failed(net))
    assert "Rank 0 failed outside of the training function: OSError: [Errno 24] Too many open files" in text
    assert "os._exit" not in text and "RLIMIT_NOFILE" in text


# -- weights that are not finite --------------------------------------------------------------------------------------


class Masked(torch.nn.Module):
    """With a buffer that holds -inf and no NaN, as causal masks do."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 2), torch.nn.Linear(2, 2)
        self.register_buffer("mask", torch.full((2, 2), float("-inf")).triu(1))

    def forward(self, x: Any) -> Any:
        return self.second(self.first(x))


def diverges(model: Any, at: int) -> None:

    import tpu_magics

    device = framework.device()
    model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(5):
        loss = model(torch.ones(2, 4, device=device)).sum() * (float("nan") if step == at else 1.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tpu_magics.log(loss=loss)
        framework.sync()


def test_weights_with_nan_are_told_with_the_first_step() -> None:
    notebook = fake_notebook()
    good = run(diverges, Masked(), -1)
    assert good.run.info["warnings"] == [] and not any("finite" in line for line in notebook.lines)
    bad = run(diverges, Masked(), 2)
    told = (
        "The trained weights are not finite: parameter `first.weight` of `model` contains NaN, and 3 more contain "
        "such values. The logged `loss` was first not finite at step 2."
    )
    assert bad.status == "done" and bad.run.info["warnings"] == [told] and notebook.lines[-1] == told


def test_a_loss_that_is_not_finite_at_the_end_is_told() -> None:
    def logs(*losses: float) -> None:
        import tpu_magics

        for loss in losses:
            tpu_magics.log(loss=loss, gap=float("nan"))
            framework.sync()

    notebook = fake_notebook()
    assert run(logs, float("inf"), 0.5).run.info["warnings"] == [] and notebook.lines == []
    told = "The logged `loss` is nan at the end. Look at the labels and the inputs."
    bad = run(logs, 0.5, float("nan"))
    assert bad.status == "done" and bad.run.info["warnings"] == [told] and notebook.lines == [told]


# -- what was learned until a failure ---------------------------------------------------------------------------------


def learns(model: Any, optimizer: Any, seen: list[int], steps: int, how: str) -> None:
    device = framework.device()
    model.to(device)
    for step in range(10**6):
        if step == steps and how == "raises":
            raise ValueError("enough")
        if step == steps and how == "hangs":
            time.sleep(100)
        if step == steps and how == "second leaves" and framework.rank():
            os._exit(0)
        optimizer.zero_grad()
        model(torch.ones(2, 4, device=device)).sum().backward()
        optimizer.step()
        seen.append(step)
        framework.sync()
        if step > 2:
            time.sleep(0.01)


def state() -> tuple[Any, Any, list[int]]:
    model = net()
    return model, torch.optim.Adam(model.parameters(), lr=0.1), []


def plain(steps: int) -> Any:
    model, optimizer, _ = state()
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    return model.weight


def require_kept(error: Any, model: Any, optimizer: Any, seen: list[int]) -> None:
    step = int(of(error).info["kept"].removeprefix("weights and state of step "))
    assert f"Kept in the notebook: weights and state of step {step} (--keep-partial)." in said(error)
    assert "models are unchanged" not in said(error)
    assert seen == list(range(step)) and {int(one["step"]) for one in optimizer.state.values()} == {step}
    assert torch.allclose(model.weight, plain(step), rtol=1e-5)


@pytest.mark.parametrize(
    ("how", "options", "status"),
    [
        ("raises", {}, "failed"),
        ("goes on", {"timeout": 2.0}, "timeout"),
        ("second leaves", {"processes": 2}, "failed"),
    ],
)
def test_what_was_learned_until_a_failure_is_kept(how: str, options: dict[str, Any], status: str) -> None:
    model, optimizer, seen = state()
    error = failed(learns, model, optimizer, seen, 4, how, keep_partial=True, **options)
    require_kept(error, model, optimizer, seen)
    assert of(error).status == status


@pytest.mark.smoke
def test_what_was_learned_until_an_interrupt_is_kept(runs: Path) -> None:
    model, optimizer, seen = state()

    def trains() -> bool:
        return any(b'"name":"training"' in one.read_bytes() for one in runs.glob("*/rank-0.jsonl"))

    with interrupt_when(trains), pytest.raises(TrainingInterrupted) as caught:
        run(learns, model, optimizer, seen, 4, "goes on", keep_partial=True)
    if seen:
        require_kept(caught.value, model, optimizer, seen)
    else:  # it was asked before the first step had ended
        assert "Nothing was kept (--keep-partial)" in said(caught.value)


def test_a_rank_that_hangs_leaves_all_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "KEEPS", 0.5)
    model, optimizer, seen = state()
    before = digest(model)
    error = failed(learns, model, optimizer, seen, 2, "hangs", keep_partial=True, timeout=2.0)
    assert (digest(model), seen, dict(optimizer.state), of(error).status) == (before, [], {}, "timeout")
    told = "Nothing was kept (--keep-partial): rank 0 did not finish its step in time. The notebook's models"
    assert told in said(error)


# -- long texts -------------------------------------------------------------------------------------------------------


def raises_much(length: int) -> None:
    raise ValueError("a line\n" * (length // 7))


def test_a_long_error_is_cut_with_its_length() -> None:
    records = of(failed(raises_much, 700_000))
    (end,) = (one for one in records.events() if isinstance(one, End))
    assert len(end.error_text) <= 65_536 and end.error_text.endswith("... (700,000 characters in all)")
    assert len(records.log(0)) < 71_000 and "characters in all" in records.log(0)


# -- processes in sessions of their own -------------------------------------------------------------------------------


def starts_others(where: str, how: str) -> None:
    found = [subprocess.Popen(["sleep", "1000"], start_new_session=True).pid for _ in range(2)]
    found.append(int(subprocess.check_output(["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 & echo $!"])))
    # With an environment of their own, one of them left by its parent.
    found.append(subprocess.Popen(["sleep", "1000"], start_new_session=True, env={}).pid)
    hidden = ["sh", "-c", "env -i setsid sleep 1000 >/dev/null 2>&1 & echo $!"]
    found.append(int(subprocess.check_output(hidden)))
    Path(where).write_text(" ".join(map(str, found)))
    if how == "killed":
        time.sleep(3 * supervisor.MEMORY_EVERY)  # until the supervisor has looked
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("how", ["done", "killed"])
def test_processes_in_sessions_of_their_own_end_with_the_run(tmp_path: Path, how: str) -> None:
    others = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        where = tmp_path / "pids"
        with contextlib.suppress(TrainingFailed):
            run(starts_others, str(where), how)
        pids = [int(text) for text in where.read_text().split()]
        assert len(pids) == 5 and wait_until(lambda: not any(map(alive, pids)))
        assert others.poll() is None  # the notebook's own
        for pid in pids:  # as init does: this process takes orphans while a test of the launcher runs
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)
    finally:
        others.kill()
        others.wait()
