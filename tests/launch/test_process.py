"""One worker process: forked safely, tied to its notebook, with nothing of the notebook's that it must not have."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch_xla

import tpu_magics
from tests.launch.launching import (
    alive,
    failed,
    forked_notebook,
    in_forked_notebook,
    interrupt_when,
    reap_orphans,
    run,
    said,
    wait_until,
    waits_for,
)
from tpu_magics.launch import descendants, process, session

LONG = pytest.mark.long
pytestmark = [pytest.mark.process, pytest.mark.usefixtures("fresh_session")]


# -- interrupts -------------------------------------------------------------------------------------------------------


def test_interrupts_are_held_in_a_process_with_threads() -> None:
    """A signal mask would not do: another thread takes the signal, and the main thread is interrupted all the same."""
    go, stop = threading.Event(), threading.Event()
    others = [threading.Thread(target=stop.wait) for _ in range(3)]
    sender = threading.Thread(target=lambda: (go.wait(), os.kill(os.getpid(), signal.SIGINT)))
    for thread in (*others, sender):
        thread.start()
    inside: list[str] = []
    try:
        with pytest.raises(KeyboardInterrupt):
            with process.interrupts_held() as late:
                go.set()
                assert wait_until(lambda: late)
                inside.append("went on")
    finally:
        stop.set()
        for thread in (*others, sender):
            thread.join()
    assert inside == ["went on"]


def test_interrupts_that_were_answered_are_not_raised_again() -> None:
    before = signal.getsignal(signal.SIGINT)
    with process.interrupts_held() as late:
        os.kill(os.getpid(), signal.SIGINT)
        assert late == [signal.SIGINT]
        late.clear()
    assert signal.getsignal(signal.SIGINT) is before


def test_nested_blocks_hand_an_interrupt_outwards() -> None:
    with process.interrupts_held() as outer:
        with process.interrupts_held():
            signal.raise_signal(signal.SIGINT)
        assert outer == [signal.SIGINT]
        outer.clear()


def test_held_interrupts_in_another_thread_do_nothing() -> None:
    found: list[Any] = []

    def body() -> None:
        with process.interrupts_held() as late:
            found.append(late)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert found == [[]]


# -- what a worker inherits -------------------------------------------------------------------------------------------


def descriptors() -> dict[str, Any]:
    links = {}
    for entry in os.listdir("/proc/self/fd"):
        try:
            links[int(entry)] = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:
            pass
    return {
        "sockets": [path for path in links.values() if path.startswith("socket:")],
        "standard": [links.get(number, "") for number in range(3)],
        "group": os.getpgid(0) == os.getpid(),
        "interrupt": signal.getsignal(signal.SIGINT),
        "terminate": signal.getsignal(signal.SIGTERM),
        "masked": list(signal.pthread_sigmask(signal.SIG_BLOCK, set())),
    }


def test_a_worker_has_its_own_group_and_signals_and_none_of_the_notebooks_sockets() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    left, right = socket.socketpair()
    try:
        result = run(descriptors)
    finally:
        for one in (server, left, right):
            one.close()
    value, log = result.value, str(result.run.log_path(0))
    assert value["sockets"] == [] and value["standard"] == ["/dev/null", log, log]
    assert value["group"] and value["masked"] == []
    assert value["interrupt"] == signal.SIG_IGN and value["terminate"] == signal.SIG_DFL


def test_a_socket_that_python_closes_later_closes_nothing_else() -> None:
    """The notebook's socket objects live on in the worker. What they close must not be what has their number now."""
    sockets = [socket.socketpair() for _ in range(20)]

    def trains() -> str:
        opened = [open(os.devnull) for _ in range(60)]
        sockets_of_mine = [one for pair in sockets for one in pair]
        for one in sockets_of_mine:
            one.close()
        for file in opened:
            os.fstat(file.fileno())
            file.close()
        os.write(1, b"the log is open\n")
        return "fine"

    try:
        result = run(trains)
    finally:
        for pair in sockets:
            for one in pair:
                one.close()
    assert result.value == "fine" and "the log is open" in result.run.log(0)


def test_what_is_written_to_a_pipe_of_the_notebook_is_not_lost_without_a_word() -> None:
    """A two-way pipe is a socket, which workers have not."""
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        error = failed(lambda: theirs.send(1))
    assert "used a pipe that is closed" in error.what and "Open it in the training function" in error.todo


def test_the_port_is_free_while_a_worker_lives(tmp_path: Path) -> None:
    """A kernel that is restarted binds its old ports again, while workers may still be dying."""
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]

    result = run(waits_for, tmp_path / "go", background=True)
    assert wait_until(lambda: result.run.events("start"))
    server.close()
    again = socket.socket()
    again.bind(("127.0.0.1", port))  # no SO_REUSEADDR
    again.listen()
    again.close()
    (tmp_path / "go").touch()
    result.wait()


def test_fork_from_the_main_thread_only() -> None:
    """The death signal follows the forking thread: a subshell's ends before the run does."""
    process.require_main_thread()
    caught: list[BaseException] = []

    def body() -> None:
        try:
            run(int)
        except BaseException as error:
            caught.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    text = said(caught[0])  # type: ignore[arg-type]
    assert "Training can only be started from the main thread." in text and "Run %%tpu_train in a normal cell" in text
    assert session.current.active_run is None


@pytest.mark.parametrize("raised", [SystemExit(0), KeyboardInterrupt(), RuntimeError("x")], ids=repr)
def test_what_passes_the_fork_never_returns(tmp_path: Path, raised: BaseException) -> None:
    """Whatever a worker's main raises, the child ends there and not in the notebook's code."""

    def explodes() -> int:
        raise raised

    here, pid = os.getpid(), process.fork_worker(explodes, tmp_path / "stacks")
    assert os.getpid() == here
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == process.CRASHED


# -- text that is buffered at the fork --------------------------------------------------------------------------------


def say_and_train() -> None:
    print("before, in Python,", end=" ")
    ctypes.CDLL(None).printf(b"and in C; ")
    result = run(print, "in the worker", workers=2)
    print("after")
    assert "before" not in result.run.log(0) + result.run.log(1)
    assert "in C" not in result.run.log(0) + result.run.log(1)
    ctypes.CDLL(None).fflush(None)


def test_unflushed_text_appears_once(tmp_path: Path) -> None:
    out = in_forked_notebook(say_and_train, tmp_path / "out")
    for text in ("before, in Python", "and in C", "after", "in the worker"):
        assert out.count(text) == 1, out


# -- the notebook dies ------------------------------------------------------------------------------------------------


class Slow(torch.utils.data.Dataset[Any]):
    """Data whose loaders tell that they are there, and then take their time."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self.folder = folder
        self.seconds = seconds

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> Any:
        (self.folder / f"loader-{os.getpid()}").touch()
        time.sleep(self.seconds)
        return torch.zeros(2)


def loads_for_long(folder: Path, on_device: bool, seconds: float) -> None:
    from torch_xla.distributed.parallel_loader import MpDeviceLoader

    loader: Any = torch.utils.data.DataLoader(Slow(folder, seconds), batch_size=2, num_workers=2)
    if on_device:
        loader = MpDeviceLoader(loader, torch_xla.device())
    (folder / f"worker-{os.getpid()}").touch()
    for _ in loader:
        torch_xla.sync()


@pytest.mark.parametrize(("on_device", "seconds"), [(False, 0.01), (False, 1000), (True, 1000)])
def test_workers_and_their_loaders_die_with_the_notebook(tmp_path: Path, on_device: bool, seconds: float) -> None:
    """Killed by SIGKILL the notebook can do nothing any more; also loaders that are busy must go."""

    def pids(kind: str) -> list[int]:
        return [int(path.name.partition("-")[2]) for path in tmp_path.glob(f"{kind}-*")]

    def train() -> None:
        run(loads_for_long, tmp_path, on_device, seconds, workers=2)

    with forked_notebook(train, tmp_path / "out"):
        ready = wait_until(lambda: len(pids("worker")) == 2 and len(pids("loader")) == 4, 60)
        assert ready, (tmp_path / "out").read_text()
        born = pids("worker") + pids("loader")
        assert all(alive(pid) for pid in born)
    assert wait_until(lambda: not any(alive(pid) for pid in born), 5), [pid for pid in born if alive(pid)]
    reap_orphans()


def loads(model: Any, folder: Path, how: str) -> int:
    """Train from DataLoader workers that are still there at the end."""
    model.to("xla")
    data = torch.utils.data.TensorDataset(torch.arange(64.0).reshape(32, 2))
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, persistent_workers=True)
    seen = 0
    for (batch,) in loader:
        model(batch.to("xla")).sum().backward()
        torch_xla.sync()
        seen += len(batch)
        if seen == 8:
            children = psutil.Process().children()
            (folder / "loaders").write_text(" ".join(str(child.pid) for child in children))
            if how == "raise":
                raise ValueError("half-way")
            if how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if how == "hang":
                time.sleep(1000)
    return seen


@pytest.mark.parametrize("how", ["succeed", "raise", "kill", "hang", "interrupt"])
def test_loader_workers_go_with_their_rank(tmp_path: Path, how: str) -> None:
    model = torch.nn.Linear(2, 2)
    if how == "succeed":
        assert run(loads, model, tmp_path, how).value == 32
    elif how == "interrupt":
        with interrupt_when((tmp_path / "loaders").exists), pytest.raises(tpu_magics.TrainingInterrupted):
            run(loads, model, tmp_path, "hang")
    else:
        failed(loads, model, tmp_path, how, timeout=4.0 if how == "hang" else 60.0)
    pids = [int(pid) for pid in (tmp_path / "loaders").read_text().split()]
    assert len(pids) == 2
    assert wait_until(lambda: not any(alive(pid) for pid in pids), 5)


def loads_from_a_short_thread() -> list[int]:
    """Loader workers that a thread started which has ended: the death signal follows threads, they must live on."""
    data = torch.utils.data.TensorDataset(torch.arange(64.0).reshape(32, 2))
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, persistent_workers=True)
    counts: list[int] = []
    for _ in range(2):
        thread = threading.Thread(target=lambda: counts.append(sum(len(batch) for (batch,) in loader)))
        thread.start()
        thread.join()
        time.sleep(0.3)
    return counts


def test_loader_workers_outlive_the_thread_that_started_them() -> None:
    assert run(loads_from_a_short_thread).value == [32, 32]


def starts_programs() -> str:
    done = subprocess.run(["sh", "-c", "echo said by a program; exit 3"], capture_output=True, text=True)
    subprocess.run(["sh", "-c", "echo to the log"], check=True)
    return f"{done.returncode} {done.stdout.strip()}"


def test_programs_can_be_started_in_a_worker() -> None:
    result = run(starts_programs)
    assert result.value == "3 said by a program" and "to the log" in result.run.log(0)


# -- processes that leave the worker's group and session ---------------------------------------------------------------


def is_noted(folder: Path, pid: int) -> None:
    """Tell the test of a process."""
    (folder / f"{pid}.new").touch()
    (folder / f"{pid}.new").rename(folder / f"{pid}.pid")


def noted(folder: Path) -> list[int]:
    return [int(path.stem) for path in folder.glob("*.pid")]


def leaves_programs(folder: Path, how: str) -> list[bool]:
    """Programs and daemons: in other sessions, with another environment, without a parent, deaf to SIGTERM."""
    is_noted(folder, subprocess.Popen(["sleep", "1000"]).pid)
    is_noted(folder, subprocess.Popen(["/bin/sleep", "1000"], env={}, start_new_session=True).pid)
    for program in (("/bin/sh", "-c", "trap '' TERM; while :; do /bin/sleep 1000; done"), ()):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                is_noted(folder, os.getpid())
                os.closerange(0, 4096)
                if program:
                    os.execve(program[0], program, {})
                time.sleep(1000)
            os._exit(0)
    assert wait_until(lambda: len(noted(folder)) == 4)
    living = [alive(pid) for pid in noted(folder)]
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "raise":
        raise KeyError(how)
    if how == "hang":
        (folder / "hangs").touch()
        time.sleep(1000)
    return living


@pytest.mark.parametrize("how", ["return", "kill", *(pytest.param(how, marks=LONG) for how in ("raise", "hang"))])
def test_what_a_worker_leaves_goes_with_it(tmp_path: Path, how: str) -> None:
    if how == "return":
        assert run(leaves_programs, tmp_path, how).value == [True] * 4, "also daemons live as long as their run"
    else:
        failed(leaves_programs, tmp_path, how, timeout=4.0 if how == "hang" else 60.0)
    assert not any(map(alive, noted(tmp_path)))


def test_what_a_worker_leaves_goes_with_the_notebook(tmp_path: Path) -> None:
    with forked_notebook(lambda: run(leaves_programs, tmp_path, "hang"), tmp_path / "out") as pid:
        assert wait_until((tmp_path / "hangs").exists, 60), (tmp_path / "out").read_text()
        os.kill(pid, signal.SIGKILL)
        assert wait_until(lambda: not any(map(alive, noted(tmp_path))))
    reap_orphans()


def test_a_mark_is_of_one_worker_of_one_run(tmp_path: Path) -> None:
    """Nothing else is ended: not what another worker of the run has started, nor that of another run."""

    def starts(run: Path) -> subprocess.Popen[bytes]:
        def marks() -> None:
            descendants.set_mark(run)

        return subprocess.Popen(["sleep", "1000"], preexec_fn=marks)

    first, second, other = starts(tmp_path / "run"), starts(tmp_path / "run"), starts(tmp_path / "other")
    try:
        descendants.end_marked(descendants.mark_of(tmp_path / "run", first.pid))
        assert (first.wait(), second.poll(), other.poll()) == (-signal.SIGTERM, None, None)
        descendants.end_marked(descendants.mark_of(tmp_path / "run"))
        assert (second.wait(), other.poll()) == (-signal.SIGTERM, None)
    finally:
        for program in (first, second, other):
            program.kill()
            program.wait()


def test_where_the_limit_cannot_be_set_the_environment_has_the_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*_: object) -> None:
        raise ValueError

    monkeypatch.setenv(descendants.VARIABLE, "")
    monkeypatch.setattr(resource, "setrlimit", refuses)
    descendants.set_mark(tmp_path)
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as program:
        environment = Path(f"/proc/{program.pid}/environ")  # empty while the kernel still begins the program
        wait_until(lambda: descendants.VARIABLE in environment.read_text(errors="replace"))
        descendants.end_marked(descendants.mark_of(tmp_path, os.getpid()))
        assert program.wait() == -signal.SIGTERM


def leaves_its_group(folder: Path) -> None:
    is_noted(folder, os.getpid())
    os.setpgid(0, os.getpgid(os.getppid()))
    time.sleep(1000)


def test_a_worker_that_leaves_its_group_is_stopped(tmp_path: Path) -> None:
    failed(leaves_its_group, tmp_path, timeout=1.0)
    assert noted(tmp_path) and not any(map(alive, noted(tmp_path)))


# -- forks of the function's own -------------------------------------------------------------------------------------


def forks(model: Any) -> list[int]:
    """Bare forks that end as the function does, by an exception, and by their own exit code."""
    codes = []
    for how in ("return", "raise", "exit"):
        pid = os.fork()
        if pid:
            codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        elif how == "return":
            return ["a fork's"]  # type: ignore[list-item]
        elif how == "raise":
            raise KeyError("of a fork")
        else:
            exit(7)
    torch.nn.init.ones_(model.weight)
    return codes


def test_a_fork_ends_where_the_function_ends() -> None:
    model = torch.nn.Linear(2, 2)
    result = run(forks, model)
    assert result.value == [0, 1, 7] and model.weight.eq(1).all()
    assert "KeyError: 'of a fork'" in result.run.log(0)
    assert [event.kind for event in result.run.events(rank=0)].count("end") == 1
