"""Fixtures that several rooms use, and the order of the files.

Tests of the launcher must leave nothing behind: no process, zombie, thread, file descriptor, environment variable or
signal handler, and no XLA runtime in this process, which stands for the notebook's.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.configuration import set_hypothesis_home_dir

from tests import framework
from tests.xla_flags import QUICK
from tpu_magics.launch import process as process_of_launch
from tpu_magics.launch import session

if not framework.TORCH_TPU:  # its XLA ends the process for a flag that it does not know
    os.environ.setdefault("XLA_FLAGS", QUICK)  # workers and fresh processes inherit it
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell starts what runs in the background so
    signal.signal(signal.SIGINT, signal.default_int_handler)
TESTS = Path(__file__).parent
REHEARSING = ("test_rehearse.py", "test_rehearse_accelerate.py", "test_rehearse_training.py")
TRACING = tuple(f"test_trace{part}.py" for part in ("", "_reads", "_world", "_spmd"))
OBSERVERS = tuple(f"observe/test_{part}.py" for part in ("observer", "monitoring", "recompile_cases"))
OBSERVING = ("test_worker.py", *OBSERVERS, *REHEARSING, *TRACING)
LAUNCHING = (TESTS / "launch", *(TESTS / "backends/torch_xla" / name for name in OBSERVING))
# One process runs all of such a group of folders, whose tests share a cluster, a JupyterLab, or kernels and processes
# that have imported torch_xla or TensorFlow. The largest begin: begun last, they would be waited for alone.
SHARING = (
    ("tests/backends/", "tests/launch/strategies/", "tests/padding/"),
    ("tests/magics/",),
    ("notebooks/",),
    ("tests/browser/",),
    ("tests/check/",),
    ("tests/launch/pods/",),
)
PATIENCE = 5.0  # seconds in which what was stopped must be gone
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
STARTS = {"os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"}  # audit events, PEP 578
ALL_START = re.compile(r"^pytestmark = .*\bmark\.process\b", re.MULTILINE)
_started: list[str] = []  # what the test that runs has started
_workers: set[int] = set()  # pids of what the launcher has forked

# Property tests: the same few examples at each run, so that a red test stays red; `make test-long` tries new ones.
set_hypothesis_home_dir(Path(tempfile.gettempdir(), "tpu_magics_hypothesis"))  # they leave nothing in this tree
settings.register_profile(
    "short", max_examples=30, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)
settings.register_profile("long", settings.get_profile("short"), max_examples=300, derandomize=False, print_blob=True)
settings.load_profile("short")


def pytest_configure(config: pytest.Config) -> None:
    if framework.TORCH_TPU:  # a backward() on the CPU hangs otherwise, where torch has imported torch_tpu
        framework.import_framework()
    fork = process_of_launch._fork  # not fork_worker: this one returns in the worker too, so it is on no worker's stack

    def recorded() -> int:
        pid = fork()
        if pid:
            _workers.add(pid)
        return pid

    process_of_launch._fork = recorded
    sys.addaudithook(lambda event, _: _started.append(_start(event)) if event in STARTS else None)


def _start(event: str) -> str:
    """Which code does it, for the message."""
    found = traceback.extract_stack(limit=12)[:-2]
    return f"{event}: {', '.join(f'{Path(one.filename).name}:{one.lineno}' for one in found)}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Samples of notebooks are none to run, and a file that starts processes need not be imported by `make check`."""
    if collection_path.suffix == ".ipynb":
        return True
    if "not process" not in config.option.markexpr or not collection_path.match("test_*.py"):
        return None
    text = collection_path.read_text(encoding="utf-8")
    return True if ALL_START.search(text) and "mark.smoke" not in text else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """pytest-xdist's "loadfile", with groups of folders taken for one file."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            group = group_of(nodeid)
            return SHARING[group][0] if group < len(SHARING) else super()._split_scope(nodeid)

    return Scheduling(config, log) if config.option.dist == "loadfile" else None


def group_of(nodeid: str) -> int:
    """The group's place in SHARING; of other tests, a number after them."""
    return next((place for place, group in enumerate(SHARING) if nodeid.startswith(group)), len(SHARING))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Groups first, then files that start processes; at the end the quick ones, which keep all test processes busy."""
    starting = {item.path for item in items if item.get_closest_marker("process")}
    items.sort(key=lambda item: (group_of(item.nodeid), item.path not in starting))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup() -> Iterator[None]:
    _started.clear()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test that starts a process says so, else `make check` would become slow without anyone noticing."""
    yield
    # matplotlib lists the machine's fonts once, and keeps the list.
    started = [text for text in _started if "font_manager.py" not in text]
    if started and item.get_closest_marker("process") is None:
        pytest.fail(
            f"It starts a process ({started[0]}) and has no pytest.mark.process (tests/README.md).", pytrace=False
        )


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the runs of this test are kept; the working directory is the folder around it."""
    folder = tmp_path / "runs"
    monkeypatch.setenv("TPU_MAGICS_RUNS", str(folder))
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def fresh_session(runs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[session.Session]:
    """A session that remembers nothing, on XLA:CPU; a background run that is left is stopped."""
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    fresh = session.Session()
    monkeypatch.setattr(session, "current", fresh)
    yield fresh
    if fresh.active_run is not None:
        fresh.active_run.stop()
    randomness = sys.modules.get("tpu_magics.backends.torch.randomness")
    if randomness is not None:
        randomness.undo_deferred_seeds()
    if framework.TORCH_TPU:  # there, torch.manual_seed seeds the device
        framework.import_framework()


@pytest.fixture(autouse=True)
def _launchers_leave_nothing(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test of the launcher leaves this process as it was, in which torch_xla was never initialised."""
    if not any(folder in (request.path, *request.path.parents) for folder in LAUNCHING):
        yield
        return
    if "fresh_session" in request.fixturenames:
        framework.import_framework()  # which sets environment variables
    with leaving_nothing():
        yield
    assert not framework.runtime_is_up(), "the runtime came up in the process that stands for the notebook's"


# -- what is left ---------------------------------------------------------------------------------------------------


@contextmanager
def leaving_nothing() -> Iterator[None]:
    """Assert that the block leaves this process and its children as they were. Orphans of orphans are seen too: they
    are given to this process while the block runs."""
    _adopt_orphans(True)
    before = _State.now()
    try:
        yield
        problems = _wait_for_the_same(before)
    finally:
        _reap_orphans(before.processes)
        _adopt_orphans(False)
    assert not problems, "\n".join(problems)


@dataclass(frozen=True)
class _State:
    """What a launcher's test may not change. `processes`: pid -> description of every descendant."""

    processes: dict[int, str]
    threads: dict[int, str]
    environment: dict[str, str]
    handlers: dict[str, Any]
    masked: set[int]
    sockets_and_files: dict[str, int]

    @classmethod
    def now(cls) -> _State:
        return cls(
            processes=_descendants(),
            threads={thread.ident or 0: thread.name for thread in threading.enumerate()},
            environment={name: text for name, text in os.environ.items() if name != "PYTEST_CURRENT_TEST"},
            handlers={str(n): signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)},
            masked={int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, set())},
            sockets_and_files=_run_files(),
        )

    def differences(self, now: _State) -> list[str]:
        found = [f"process left: {now.processes[pid]}" for pid in now.processes.keys() - self.processes.keys()]
        found += [f"thread left: {now.threads[ident]}" for ident in now.threads.keys() - self.threads.keys()]
        found += [f"open file left: {path}" for path in now.sockets_and_files.keys() - self.sockets_and_files.keys()]
        for name in ("environment", "handlers", "masked"):
            old, new = getattr(self, name), getattr(now, name)
            if old != new:
                found.append(f"{name} changed: {_changes(old, new)}")
        return found


def _changes(old: Any, new: Any) -> str:
    if isinstance(old, dict):
        return ", ".join(f"{k}: {old.get(k)!r} -> {new.get(k)!r}" for k in {**old, **new} if old.get(k) != new.get(k))
    return f"{old} -> {new}"


def _wait_for_the_same(before: _State) -> list[str]:
    """What is still different after the patience; orphans that were killed are reaped as init would."""
    until = time.monotonic() + PATIENCE
    while True:
        _reap_orphans(before.processes, zombies_only=True)
        problems = before.differences(_State.now())
        if not problems or time.monotonic() > until:
            return problems
        time.sleep(0.05)


def _descendants() -> dict[int, str]:
    """Without the pool of processes that torch 2.8 starts as torch._inductor is imported in this process: it ends with
    it. (A worker's is in the worker's group, and is looked for.)"""
    found, own = {}, os.getpgid(0)
    for process in psutil.Process().children(recursive=True):
        try:
            words = " ".join(process.cmdline())
            if "torch/_inductor/compile_worker" not in words or os.getpgid(process.pid) != own:
                found[process.pid] = f"{process.pid} {process.status()} {words[:80]}"
        except (psutil.NoSuchProcess, ProcessLookupError):
            pass
    return found


def _run_files() -> dict[str, int]:
    """Files of run folders that this process has open."""
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            path = str(entry.readlink())
        except OSError:
            continue
        if "/runs/" in path or ".tpu_runs" in path:
            found[path] = int(entry.name)
    return found


def _adopt_orphans(on: bool) -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0)


def _reap_orphans(known: dict[int, str], zombies_only: bool = False) -> None:
    """Reap dead orphans, and end living ones. A worker must have been reaped by the launcher, so a zombie of one is
    left where it is, to be complained of; at the end it goes, too."""
    for process in psutil.Process().children():
        if process.pid in known:
            continue
        try:
            dead = process.status() == psutil.STATUS_ZOMBIE
            if zombies_only and (process.pid in _workers or not dead):
                continue
            if not dead:
                process.kill()
            os.waitpid(process.pid, 0)
        except (psutil.NoSuchProcess, ChildProcessError, ProcessLookupError):
            pass
