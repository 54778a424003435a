"""The processes that use the TPU (open device files in /proc) and libtpu's lock file.

Processes of other accounts cannot be inspected; they are counted, so that nothing is claimed about them.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tpu_magics.errors import IN_USE, HostProblem
from tpu_magics.host.memory import names, read

LOCK = "tmp/libtpu_lockfile"
COMMAND_LIMIT = 200


@dataclass(frozen=True)
class DeviceOwner:
    """A process that has a device file of the TPU open, or libtpu's lock.

    `devices`: its open device files (none: only the lock); `own`: it is this process; `child`: it descends from it;
    `account`: whose it is, where this account may not end it.
    """

    pid: int
    command: str
    devices: tuple[str, ...]
    own: bool = False
    child: bool = False
    account: str = ""


@dataclass(frozen=True)
class LockFile:
    """`/tmp/libtpu_lockfile`. `state`: "absent", "held" (a process uses the TPU) or "stale" (none was found);
    `owner`: its account; `ours`: whether that is this account; `locked_by`: the process that has it locked, if any."""

    path: str
    state: str = "absent"
    owner: str = ""
    ours: bool = True
    locked_by: int | None = None


@dataclass(frozen=True)
class DeviceOwners:
    """The processes that use the TPU. `unseen`: how many processes of other accounts could not be inspected."""

    owners: tuple[DeviceOwner, ...]
    unseen: int
    lock: LockFile


def find_owners(root: Path, proc: Path | None = None, pid: int | None = None) -> DeviceOwners:
    """The processes that use the TPU of the host under `root`.

    Args:
        root: where /dev and /tmp are.
        proc: where the processes are listed (default: `root`/proc).
        pid: this process (default: the calling one).
    """
    proc, me = proc or root / "proc", os.getpid() if pid is None else pid
    open_files, unseen = _scan(proc, _device_pattern(root))
    locked_by = _locked_by(root / LOCK, proc)
    if locked_by is not None:
        open_files.setdefault(locked_by, ())
    owners = tuple(_owner(proc, other, devices, me) for other, devices in sorted(open_files.items()))
    return DeviceOwners(owners, unseen, _lock_file(root / LOCK, bool(owners), locked_by))


def _scan(proc: Path, device: re.Pattern[str]) -> tuple[dict[int, tuple[str, ...]], int]:
    """The device files that each process has open, and how many processes could not be inspected."""
    open_files: dict[int, tuple[str, ...]] = {}
    unseen = 0
    for pid in _pids(proc):
        try:
            devices = tuple(sorted(set(_links(proc / str(pid) / "fd", device))))
        except PermissionError:
            unseen += _has_command(proc, pid)
            continue
        except OSError:
            continue  # gone since it was listed
        if devices:
            open_files[pid] = devices
    return open_files, unseen


def _device_pattern(root: Path) -> re.Pattern[str]:
    return re.compile(re.escape(str(root / "dev")) + r"/(?:accel|vfio/)[0-9]+")


def _pids(proc: Path) -> list[int]:
    return sorted(int(name) for name in names(proc) if name.isdigit())


def _links(folder: Path, device: re.Pattern[str]) -> Iterator[str]:
    for link in list(folder.iterdir()):
        try:
            target = str(link.readlink())
        except FileNotFoundError:
            continue
        if device.fullmatch(target):
            yield target


def _has_command(proc: Path, pid: int) -> bool:
    # Kernel threads have no command line, and open no device file.
    return bool(read(proc / str(pid) / "cmdline"))


def _owner(proc: Path, pid: int, devices: tuple[str, ...], me: int) -> DeviceOwner:
    child = pid != me and me in _ancestors(proc, pid)
    return DeviceOwner(pid, command_line(proc, pid), devices, pid == me, child, _foreign(proc / str(pid)))


def _foreign(process: Path) -> str:
    """The account of a process that only that account and root may end: /proc/locks names all accounts' processes."""
    try:
        uid = process.stat().st_uid
    except OSError:
        return ""
    return "" if os.geteuid() in (0, uid) else _account(uid)


def command_line(proc: Path, pid: int) -> str:
    """The command as it was typed, cut at COMMAND_LIMIT characters; the name in brackets where it has no command."""
    words = (read(proc / str(pid) / "cmdline") or "").replace("\0", " ").strip()
    if not words:
        return f"[{read(proc / str(pid) / 'comm') or 'not available: the process is gone or hidden'}]"
    return words if len(words) <= COMMAND_LIMIT else words[: COMMAND_LIMIT - 1] + "…"


def _ancestors(proc: Path, pid: int) -> Iterator[int]:
    seen: set[int] = set()
    while pid > 1 and pid not in seen:
        seen.add(pid)
        # The name in parentheses may itself hold parentheses and spaces; the parent is the second field after it.
        fields = (read(proc / str(pid) / "stat") or "").rpartition(")")[2].split()
        pid = int(fields[1]) if len(fields) > 1 else 0
        yield pid


def _locked_by(path: Path, proc: Path) -> int | None:
    """The process that has locked the file, by /proc/locks: libtpu keeps its lock for as long as it is loaded."""
    try:
        info = path.stat()
    except OSError:
        return None
    file_id = f"{os.major(info.st_dev):02x}:{os.minor(info.st_dev):02x}:{info.st_ino}"
    fields = (line.split() for line in (read(proc / "locks") or "").splitlines())
    # A line of a process that still waits has one field more, "->".
    pids = (int(f[4]) for f in fields if len(f) == 8 and f[5] == file_id)
    return next((pid for pid in pids if pid > 0), None)


def _lock_file(path: Path, held: bool, locked_by: int | None) -> LockFile:
    try:
        uid = path.lstat().st_uid
    except OSError:
        return LockFile(str(path))
    return LockFile(str(path), "held" if held else "stale", _account(uid), uid == os.geteuid(), locked_by)


def _account(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"


def judge_owners(found: DeviceOwners, in_workers: bool = True) -> list[HostProblem]:
    """Problems: the TPU is in use, or a stale lock file that this account cannot use.

    `in_workers`: cells train in their own processes, so this one must not use the TPU.
    """
    return [*judge_in_use(found, in_workers), *judge_lock(found.lock)]


def judge_in_use(found: DeviceOwners, in_workers: bool = True) -> list[HostProblem]:
    """A problem for each process that must not use the TPU (see `judge_owners`)."""
    return [_in_use(one) for one in found.owners if not one.child and (in_workers or not one.own)]


def _in_use(owner: DeviceOwner) -> HostProblem:
    if owner.own:
        return HostProblem(
            about=IN_USE,
            what=f"This notebook's own kernel (process {owner.pid}) uses the TPU.",
            why="Only one process at a time can use a chip, and the workers need it.",
            then="restart the kernel, and use the XLA device in %%tpu_train cells only",
        )
    devices = ", ".join(Path(device).name for device in owner.devices)
    return HostProblem(
        about=IN_USE,
        what=f"The TPU is in use by process {owner.pid}{f' ({devices})' if devices else ''}"
        f"{f' of {owner.account}' if owner.account else ''}: {owner.command}",
        why="Only one process at a time can use a chip.",
        command=f"!{'sudo ' if owner.account else ''}kill {owner.pid}",
        then="run %tpu_init again; or wait until the process ends. If it is another notebook, shut down its kernel",
    )


def judge_lock(lock: LockFile) -> list[HostProblem]:
    """The problem of a stale lock file that this account cannot use."""
    if lock.state != "stale" or lock.ours:
        return []
    return [
        HostProblem(
            about=IN_USE,
            what=f"{lock.path} belongs to {lock.owner}, and no process was found that uses the TPU.",
            why="libtpu opens it for writing. With a file of another account it can stop with "
            '"Internal error when accessing libtpu multi-process lockfile".',
            command=f"!sudo rm {lock.path}",
            then="run the cell again",
            state="warning",
        )
    ]
