"""TPU in use by: with a written /proc, and with real processes that hold real files and locks."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tpu_magics.host.device_owners import (
    DeviceOwner,
    DeviceOwners,
    LockFile,
    command_line,
    find_owners,
    judge_owners,
)

from . import fake_hosts
from .test_chips import as_nobody

PROC = Path("/proc")
HOLD = "import sys, time; f = open(sys.argv[1], 'r+'); print('open', flush=True); time.sleep(60)"
LOCK = (
    "import fcntl, sys, time; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX); "
    "print('locked', flush=True); time.sleep(60)"
)


@contextmanager
def running(code, *arguments):
    """A real process that has said its first line."""
    with subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def root(tmp_path):
    return fake_hosts.tpu_vm_v4(tmp_path).root


# -- a written /proc -----------------------------------------------------------------------------------------------


def test_nobody_holds_it(root):
    fake_hosts.add_process(root, 100, ("bash",))
    assert find_owners(root) == DeviceOwners((), 0, LockFile(str(root / "tmp/libtpu_lockfile")))


@pytest.mark.parametrize(
    ("opened", "devices"),
    [
        *(([path], [path]) for path in ("dev/accel0", "dev/accel12", "dev/vfio/0", "dev/vfio/17")),
        (["dev/accel1", "dev/accel0", "dev/accel1"], ["dev/accel0", "dev/accel1"]),  # once each
        *(
            ([path], [])
            for path in ("dev/vfio/vfio", "dev/accel", "dev/accelerated0", "dev/vfio/0/x", "dev/accel/accel0")
        ),
    ],
)
def test_the_device_files_of_a_process(root, opened, devices):
    fake_hosts.add_process(root, 100, ("bash",))
    fake_hosts.add_process(root, 4321, ("python3", "train.py", "--epochs", "3"), tuple(opened))
    owner = DeviceOwner(4321, "python3 train.py --epochs 3", tuple(str(root / path) for path in devices))
    assert find_owners(root).owners == ((owner,) if devices else ())


def test_ourselves_our_child_and_a_stranger(root):
    fake_hosts.add_process(root, 50, ("jupyter",))
    fake_hosts.add_process(root, 60, ("ipykernel",), ("dev/accel0",), parent=50)
    fake_hosts.add_process(root, 70, ("launcher",), parent=60)
    fake_hosts.add_process(root, 80, ("worker",), ("dev/accel1",), parent=70, name="a) (b")
    fake_hosts.add_process(root, 90, ("stranger",), ("dev/accel2",), parent=50)
    seen = {owner.pid: (owner.own, owner.child) for owner in find_owners(root, pid=60).owners}
    assert seen == {60: (True, False), 80: (False, True), 90: (False, False)}


def test_a_process_without_a_command_has_its_name_in_brackets(root):
    fake_hosts.add_process(root, 7, (), ("dev/accel0",), name="tpu-runtime")
    assert find_owners(root).owners[0].command == "[tpu-runtime]"


def test_a_process_that_is_gone_has_no_command():
    assert command_line(Path("/nowhere"), 7) == "[not available: the process is gone or hidden]"


def test_a_long_command_is_cut(root):
    fake_hosts.add_process(root, 7, ("python3", "x" * 5000), ("dev/accel0",))
    command = find_owners(root).owners[0].command
    assert len(command) == 200
    assert command.startswith("python3 xxx")
    assert command.endswith("…")


def test_a_process_that_vanished_is_passed_over(root):
    (root / "proc/99").mkdir()  # listed, but its files are gone
    fake_hosts.add_process(root, 7, ("python3",), ("dev/accel0",))
    found = find_owners(root)
    assert [owner.pid for owner in found.owners] == [7]
    assert found.unseen == 0


def test_no_proc_at_all(tmp_path):
    assert find_owners(tmp_path).owners == ()


# -- real processes ------------------------------------------------------------------------------------------------


@pytest.mark.process
def test_a_real_process_that_holds_a_device_file(root):
    with running(HOLD, root / "dev/accel2") as process:
        (owner,) = find_owners(root, proc=PROC).owners
    assert (owner.pid, owner.devices) == (process.pid, (str(root / "dev/accel2"),))
    assert (owner.own, owner.child) == (False, True)
    assert owner.command.startswith(f"{sys.executable} -c import sys, time;")
    assert find_owners(root, proc=PROC).owners == ()


@pytest.mark.process
def test_a_real_process_that_nobody_here_started(root):
    # The shell ends at once, so that its child gets another parent.
    script = f'"{sys.executable}" -c "$1" "$2" >"$3" 2>&1 & echo $!'
    said = root / "said"
    out = subprocess.run(
        ["sh", "-c", script, "sh", HOLD, str(root / "dev/accel0"), str(said)], capture_output=True, check=True
    )
    pid = int(out.stdout)
    try:
        for _ in range(1000):
            if said.exists() and said.read_text():
                break
            time.sleep(0.01)
        (owner,) = find_owners(root, proc=PROC).owners
    finally:
        os.kill(pid, signal.SIGKILL)
    assert (owner.pid, owner.own, owner.child) == (pid, False, False)


def test_this_very_process(root):
    with open(root / "dev/accel1"):
        (owner,) = find_owners(root, proc=PROC).owners
    assert (owner.pid, owner.own, owner.child) == (os.getpid(), True, False)


@pytest.mark.process
def test_processes_and_files_that_come_and_go_meanwhile(root):
    stop = threading.Event()

    def churn():
        while not stop.is_set():
            subprocess.run(["true"], check=True)
            with open(root / "dev/null2", "w"):
                pass

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        for _ in range(20):
            assert find_owners(root, proc=PROC).owners == ()
    finally:
        stop.set()
        thread.join()


@pytest.mark.process
def test_processes_of_other_accounts_are_counted_not_ignored(root):
    if not PROC.joinpath("1/cmdline").read_bytes():
        pytest.skip("process 1 has no command line here")
    # Process 1 belongs to root, so an account that is not root cannot look into it.
    assert as_nobody(lambda: find_owners(root, proc=PROC)).unseen > 0


# -- the lock file -------------------------------------------------------------------------------------------------


def lock(root: Path) -> Path:
    return fake_hosts.write(root / "tmp/libtpu_lockfile", "")


def test_a_lock_file_of_our_own_that_was_left_over(root):
    lock(root)
    found = find_owners(root).lock
    assert (found.state, found.ours, found.locked_by) == ("stale", True, None)
    assert judge_owners(find_owners(root)) == []


def test_a_lock_file_of_another_account_that_was_left_over(root, monkeypatch):
    path = lock(root)
    if os.geteuid() == 0:
        os.chown(path, 54321, 54321)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 54321)
    found = find_owners(root)
    assert (found.lock.state, found.lock.ours) == ("stale", False)
    (problem,) = judge_owners(found)
    owner = found.lock.owner
    assert problem.what == f"{path} belongs to {owner}, and no process was found that uses the TPU."
    assert "Internal error when accessing libtpu multi-process lockfile" in problem.why
    assert (problem.command, problem.state) == (f"!sudo rm {path}", "warning")


def test_an_account_without_a_name_is_its_number(root):
    path = lock(root)
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, 54321, 54321)
    assert find_owners(root).lock.owner == "uid 54321"


def test_a_lock_file_while_somebody_holds_a_device(root):
    lock(root)
    fake_hosts.add_process(root, 7, ("python3",), ("dev/accel0",))
    assert find_owners(root).lock.state == "held"


@pytest.mark.process
def test_a_real_lock_names_its_process(root):
    with running(LOCK, lock(root)) as process:
        found = find_owners(root, proc=PROC)
    if not (PROC / "locks").exists():
        pytest.skip("this kernel has no /proc/locks")
    assert found.lock.locked_by == process.pid
    assert found.lock.state == "held"
    assert [(owner.pid, owner.devices) for owner in found.owners] == [(process.pid, ())]


def test_a_process_that_only_waits_for_the_lock_is_not_its_holder(root):
    path = lock(root)
    info = path.stat()
    file_id = f"{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}:{info.st_ino}"
    fake_hosts.write(
        root / "proc/locks",
        f"1: POSIX  ADVISORY  WRITE 41 {file_id} 0 EOF\n1: -> POSIX  ADVISORY  WRITE 40 {file_id} 0 EOF\n"
        "2: FLOCK  ADVISORY  WRITE 39 00:00:1 0 EOF\n",
    )
    assert find_owners(root).lock.locked_by == 41


def test_looking_takes_no_lock(root):
    path = lock(root)
    find_owners(root, proc=PROC)
    with open(path, "r+") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


# -- what is told --------------------------------------------------------------------------------------------------


def test_a_stranger_is_named_with_the_way_to_stop_it(root):
    fake_hosts.add_process(root, 4321, ("python3", "train.py"), ("dev/accel0",))
    (problem,) = judge_owners(find_owners(root))
    assert problem.what == "The TPU is in use by process 4321 (accel0): python3 train.py"
    assert problem.command == "!kill 4321"
    assert (problem.about, problem.state) == ("in use", "broken")


def test_our_own_kernel_is_told_to_restart_and_our_own_workers_are_no_problem(root):
    fake_hosts.add_process(root, 60, ("ipykernel",), ("dev/accel0",))
    fake_hosts.add_process(root, 80, ("worker",), ("dev/accel1",), parent=60)
    (problem,) = judge_owners(find_owners(root, pid=60))
    assert problem.what == "This notebook's own kernel (process 60) uses the TPU."
    assert problem.command == ""
    assert problem.todo.startswith("restart the kernel")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another account")
@pytest.mark.process
def test_a_process_of_another_account_is_ended_by_sudo() -> None:
    """/proc/locks names the processes of all accounts, and kill alone is refused there."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        file = fake_hosts.write(root / "tmp/libtpu_lockfile", "")
        fake_hosts.add_process(root, 77, ("python3", "train.py"), ())
        info = file.stat()
        line = (
            f"1: POSIX  ADVISORY  WRITE 77 {os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}:{info.st_ino} 0 EOF"
        )
        fake_hosts.write(root / "proc/locks", line)
        [taken] = as_nobody(lambda: judge_owners(find_owners(root)))
        assert (taken.what, taken.command) == (
            "The TPU is in use by process 77 of root: python3 train.py",
            "!sudo kill 77",
        )
        assert judge_owners(find_owners(root))[0].command == "!kill 77"
