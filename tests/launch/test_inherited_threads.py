"""A worker is a fork without the notebook's threads: what can works there, what cannot is named, no wait is endless."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import logging.handlers
import multiprocessing
import multiprocessing.managers
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.pool import Pool, ThreadPool
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboardX import SummaryWriter

from tests.launch.launching import FakeNotebook, failed, fake_notebook, run, said
from tests.panel.event_files import read_back
from tpu_magics.launch import endless_waits, inherited_threads

pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]


@contextmanager
def serving(work: Callable[[], Any], end: Callable[[], Any]) -> Iterator[None]:
    """A thread of the notebook runs `work` until `end` is called."""
    thread = threading.Thread(target=work, name="server", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end()
        thread.join()


# -- what works in a worker -------------------------------------------------------------------------------------------


def test_executors_and_pools_of_the_notebook_work_in_each_rank() -> None:
    threads = concurrent.futures.ThreadPoolExecutor(2)
    processes = concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("fork"))
    pool, many = ThreadPool(2), Pool(1)
    everything: list[Any] = [threads, processes, pool, many]
    assert [list(one.map(abs, [-1])) for one in everything] == [[1]] * 4

    def trains() -> list[list[int]]:
        return [list(one.map(abs, [-2, 3])) for one in (threads, processes, pool, many)]

    notebook = fake_notebook()
    result = run(trains, workers=2)
    assert result.values == [[[2, 3]] * 4] * 2
    assert notebook.lines == []
    assert [list(one.map(abs, [-1])) for one in everything] == [[1]] * 4, "the notebook's own go on"
    threads.shutdown()
    processes.shutdown()
    for one in (pool, many):
        one.terminate()


def test_a_call_that_was_made_in_the_notebook_is_made_once(tmp_path: Path) -> None:
    """And its result is there: the notebook computes it before the fork."""
    executor = concurrent.futures.ThreadPoolExecutor(1)
    calls = tmp_path / "calls"

    def compute(number: int) -> int:
        with calls.open("a") as file:
            file.write(f"{number}\n")
        return number

    gate = threading.Event()
    executor.submit(gate.wait)
    futures = [executor.submit(compute, number) for number in range(2)]

    def trains() -> list[int]:
        return [one.result() for one in futures]

    notebook = fake_notebook()
    notebook.say = lambda line: (notebook.lines.append(line), gate.set())  # type: ignore[method-assign]
    assert run(trains, workers=2).values == [[0, 1], [0, 1]]
    assert calls.read_text() == "0\n1\n"
    assert notebook.lines[0].startswith("Waiting for `futures[0]`, which is being computed in the notebook.")
    executor.shutdown()


def test_a_result_that_does_not_come_is_an_error_and_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tpu_magics.launch.inherited_threads.COMPUTES", 0.1)
    late: concurrent.futures.Future[int] = concurrent.futures.Future()

    def trains() -> int:
        return late.result()

    fake_notebook()
    assert "`late` was still being computed in the notebook" in said(failed(trains))
    late.set_result(1)


def test_a_log_queue_is_written_once_by_each_rank(tmp_path: Path) -> None:
    waiting: queue.Queue[Any] = queue.Queue()
    handler = logging.FileHandler(tmp_path / "log")
    listener = logging.handlers.QueueListener(waiting, handler)
    logger = logging.getLogger("with.a.queue")
    logger.propagate = False
    logger.addHandler(logging.handlers.QueueHandler(waiting))
    listener.start()
    logger.warning("before")

    def trains() -> None:
        logger.warning("in a rank")

    notebook = fake_notebook()
    run(trains, workers=2)
    logger.warning("after")
    listener.stop()
    handler.close()
    logger.handlers.clear()
    assert (tmp_path / "log").read_text().split("\n") == ["before", "in a rank", "in a rank", "after", ""]
    assert notebook.lines == []


class FakeMlflowQueue:
    """What mlflow 3.17 does with asynchronous logging (mlflow/utils/async_logging/async_logging_queue.py): a thread
    hands what was logged to an executor, which sends it."""

    def __init__(self, path: Path) -> None:
        self._queue: queue.Queue[str] = queue.Queue()
        self._ends = threading.Event()
        self._executor = concurrent.futures.ThreadPoolExecutor(2)
        self._path = path
        self._thread = threading.Thread(target=self._logging_loop, daemon=True)
        self._thread.start()

    def _logging_loop(self) -> None:
        while not self._ends.is_set() or not self._queue.empty():
            with suppress(queue.Empty):
                self._executor.submit(self._send, self._queue.get(timeout=0.05))

    _logging_loop.__module__ = "mlflow.utils.async_logging.async_logging_queue"
    _logging_loop.__qualname__ = "AsyncLoggingQueue._logging_loop"

    def _send(self, text: str) -> None:
        with self._path.open("a") as file:
            file.write(text)

    def shut_down_async_logging(self) -> None:
        self._ends.set()
        self._thread.join()
        self._executor.shutdown()


def test_what_mlflow_was_given_is_sent_and_belongs_to_the_notebooks_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = FakeMlflowQueue(tmp_path / "log")
    stack: list[str] = []  # of this thread, as mlflow.tracking.fluent has one
    fluent = SimpleNamespace(_active_run_stack=SimpleNamespace(get=lambda: stack))
    module = SimpleNamespace(active_run=lambda: "the notebook's", tracking=SimpleNamespace(fluent=fluent))
    monkeypatch.setitem(sys.modules, "mlflow", module)
    log._queue.put("before ")

    def trains() -> list[str]:
        for step in range(3):
            log._queue.put(f"{step} ")
        return list(fluent._active_run_stack.get())

    notebook = fake_notebook()
    assert run(trains).value == ["the notebook's"]
    log._queue.put("after")
    log.shut_down_async_logging()
    assert sorted((tmp_path / "log").read_text().split()) == ["0", "1", "2", "after", "before"]
    assert notebook.lines == []


def test_an_event_writer_of_the_notebook_goes_on(tmp_path: Path) -> None:
    writer = SummaryWriter(str(tmp_path))
    writer.add_scalar("before", 1.0, 0)

    def trains() -> None:
        for step in range(3):
            writer.add_scalar("loss", float(step), step)
        writer.flush()

    fake_notebook()
    run(trains)
    writer.add_scalar("after", 2.0, 9)
    writer.close()
    found = {tag: [(step, value) for step, _, value in points] for tag, points in read_back(tmp_path).items()}
    assert found == {"before": [(0, 1.0)], "loss": [(0, 0.0), (1, 1.0), (2, 2.0)], "after": [(9, 2.0)]}


class Numbers:
    """A dataset of numbers."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        return index


def test_a_loader_with_workers_in_the_notebook_has_its_own_in_a_rank() -> None:
    from torch.utils.data import DataLoader

    before = signal.getsignal(signal.SIGCHLD)
    loader: Any = DataLoader(Numbers(), num_workers=1, persistent_workers=True)  # type: ignore[arg-type]
    assert [int(one) for one in loader] == [0, 1, 2, 3]
    iterator: Any = iter(DataLoader(Numbers(), num_workers=1))  # type: ignore[arg-type]

    def trains() -> list[int]:
        assert iterator is not None
        return [int(one) for one in loader]

    notebook = fake_notebook()
    assert run(trains).value == [0, 1, 2, 3]
    (line,) = notebook.lines
    assert line.startswith("`iterator` reads from processes of the notebook")
    assert [int(one) for one in loader] == [0, 1, 2, 3]
    for one in (iterator, loader._iterator):
        one._shutdown_workers()
    signal.signal(signal.SIGCHLD, before)


def test_queues_of_multiprocessing_work() -> None:
    used: Any = multiprocessing.get_context("fork").Queue()
    used.put(0)
    assert used.get() == 0

    def trains() -> int:
        used.put(5)
        found: int = used.get()
        return found

    fake_notebook()
    assert run(trains).value == 5
    used.close()
    used.join_thread()


def test_a_file_is_written_once_and_to_its_end(tmp_path: Path) -> None:
    file = (tmp_path / "metrics.csv").open("w")
    file.write("step,loss\n")

    def trains() -> None:
        file.write("0,1.0\n")

    fake_notebook()
    run(trains)
    assert (tmp_path / "metrics.csv").read_text() == "step,loss\n0,1.0\n"
    file.close()


def test_threads_and_processes_of_the_function_end_before_their_worker(tmp_path: Path) -> None:
    """As Python does at its end: a checkpoint that a thread writes is whole."""

    def trains() -> None:
        def save(name: str) -> None:
            time.sleep(1.0)
            (tmp_path / name).write_text("whole")

        kept: list[Any] = []
        threading.Thread(target=save, args=("thread",)).start()
        context = multiprocessing.get_context("fork")
        context.Process(target=save, args=("process",)).start()
        context.Process(target=time.sleep, args=(600,), daemon=True).start()
        kept.append(multiprocessing.managers.SyncManager(ctx=context))
        kept[0].start()
        concurrent.futures.ThreadPoolExecutor(1).submit(save, "executor")
        kept.append(concurrent.futures.ProcessPoolExecutor(1, context))
        kept[1].submit((tmp_path / "of a process").write_text, "whole")
        kept[1].submit(time.sleep, 1.0)

    fake_notebook()
    run(trains)
    assert {path.name: path.read_text() for path in tmp_path.iterdir() if path.name != "runs"} == {
        "thread": "whole",
        "process": "whole",
        "of a process": "whole",
        "executor": "whole",
    }


def test_that_files_take_long_to_close_is_not_told_as_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    closed, told = threading.Event(), []
    monkeypatch.setattr(inherited_threads, "UNUSED", -1.0)
    monkeypatch.setattr(inherited_threads, "_own_threads", list)
    monkeypatch.setattr(inherited_threads, "_shut_down", lambda _: closed.wait())
    monkeypatch.setattr(inherited_threads.time, "sleep", lambda _: closed.set())
    inherited_threads.finish_threads([], 60.0, lambda _: False, told.append)
    assert closed.is_set() and told == []


@pytest.mark.parametrize(
    ("said", "words"),
    [(0.0, "for the processes that it started: sleeper"), (60.0, "the function has ended. Its results")],
)
def test_a_timeout_says_that_what_the_function_started_was_waited_for(
    said: float, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tpu_magics.launch.inherited_threads.SAID", said)

    def trains() -> None:
        context = multiprocessing.get_context("fork")
        context.Process(target=time.sleep, args=(600,), name="sleeper").start()

    error = failed(trains, timeout=2.0)
    assert "after 2 s (--timeout)" in error.what and words in error.why, error.why
    assert "End the threads and processes" in error.todo


def test_a_lock_that_a_thread_holds_for_a_moment_is_free_in_a_worker() -> None:
    lock, end = threading.Lock(), threading.Event()

    def works() -> None:
        while not end.is_set():
            with lock:
                time.sleep(0.05)
            time.sleep(0.001)

    def trains() -> int:
        with lock:
            return 1

    notebook = fake_notebook()
    with serving(works, end.set):
        assert run(trains, workers=2).values == [1, 1]
    assert notebook.lines == []


# -- what does not ----------------------------------------------------------------------------------------------------


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Endless waits are told after a second."""
    monkeypatch.setattr(endless_waits, "LASTS", 0.5)
    monkeypatch.setattr(endless_waits, "EVERY", 0.1)


Served = tuple[
    Callable[[], None], Callable[[], Any], Callable[[], None]
]  # by a thread, until a call ends it; a function


def joins_a_queue() -> Served:
    waiting: queue.Queue[int | None] = queue.Queue()

    def consume() -> None:
        while waiting.get() is not None:
            waiting.task_done()

    def trains() -> None:
        waiting.put(1)
        waiting.join()  # endless

    return consume, lambda: waiting.put(None), trains


def waits_for_an_event() -> Served:
    asked, done = threading.Event(), threading.Event()

    def answer() -> None:
        asked.wait()
        done.set()

    def trains() -> None:
        asked.set()
        done.wait()  # endless

    return answer, asked.set, trains


def gets_from_a_prefetcher() -> Served:
    batches: queue.SimpleQueue[int] = queue.SimpleQueue()
    wanted, ended = threading.Semaphore(0), threading.Event()

    def prefetch() -> None:
        while wanted.acquire() and not ended.is_set():
            batches.put(1)

    def trains() -> None:
        wanted.release()
        batches.get()  # endless

    return prefetch, lambda: (ended.set(), wanted.release()), trains


def acquires_a_lock() -> Served:
    lock, end = threading.Lock(), threading.Event()

    def holds() -> None:
        with lock:
            end.wait()

    def trains() -> None:
        with lock:  # endless
            pass

    return holds, end.set, trains


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("kind", [joins_a_queue, waits_for_an_event, gets_from_a_prefetcher, acquires_a_lock])
def test_a_wait_for_a_thread_of_the_notebook_is_named_and_ended(kind: Callable[[], Served]) -> None:
    works, end, trains = kind()
    notebook = fake_notebook()
    with serving(works, end):
        error = failed(trains)
    assert error.what.startswith("Rank 0 waits forever at `") and "# endless`" in error.what, said(error)
    if kind is acquires_a_lock:
        assert notebook.lines == [
            "`lock` is locked, and stays locked in a worker: what acquires it there waits forever. Release it before "
            "the run."
        ]
        return
    place = f"(server: `{works.__name__}`, {Path(__file__).name}, line {works.__code__.co_firstlineno})"
    (line,) = notebook.lines
    assert f"is used by a thread of the notebook {place}, which does not run in a worker" in line
    assert f"of a thread that only the notebook has {place}" in error.why
    assert "in the training function" in error.todo


def test_an_event_loop_of_another_thread_is_named() -> None:
    loop = asyncio.new_event_loop()

    def trains() -> bool:
        return loop.is_closed()

    notebook = fake_notebook()
    with serving(loop.run_forever, lambda: loop.call_soon_threadsafe(loop.stop)):
        while not loop.is_running():
            time.sleep(0.01)
        assert run(trains).value is False
    loop.close()
    assert notebook.lines[0].startswith("`loop` is an event loop that runs in a thread of the notebook")


@pytest.mark.usefixtures("soon")
def test_waits_that_something_can_end_are_none_of_these() -> None:
    """Another thread works or waits with a limit, or it is another process that answers."""

    def trains() -> list[Any]:
        done, results = threading.Event(), []
        threading.Thread(target=lambda: (time.sleep(1.2), done.set())).start()
        done.wait()
        threading.Timer(1.2, done.set).start()
        done.clear()
        results.append(done.wait())
        context = multiprocessing.get_context("fork")
        answers: Any = context.Queue()
        child = context.Process(target=lambda: (time.sleep(1.2), answers.put(2)))
        child.start()
        results.append(answers.get())
        child.join()
        results.append(time.sleep(1.2))
        return results

    notebook = fake_notebook()
    assert run(trains).value == [True, 2, None]
    assert isinstance(notebook, FakeNotebook) and notebook.lines == []
