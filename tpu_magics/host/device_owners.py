"""Who holds the TPU: open device files in /proc, and libtpu's lock file.

What lives here: finding the processes, and what the lock file says. What does not: stopping a process. Processes of
other accounts cannot be looked into; they are counted, so that "nobody" is never said of what was not seen.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tpu_magics.host.problem import IN_USE, Problem
from tpu_magics.host.system_files import names, read

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
    """`/tmp/libtpu_lockfile`. `state`: "absent", "held" (a holder was seen) or "stale" (none was seen);
    `owner`: its account; `ours`: whether that is this account; `locked_by`: the process that has it locked, if any."""

    path: str
    state: str = "absent"
    owner: str = ""
    ours: bool = True
    locked_by: int | None = None


@dataclass(frozen=True)
class DeviceOwners:
    """All that was seen. `unseen`: processes of other accounts that could not be looked into."""

    owners: tuple[DeviceOwner, ...]
    unseen: int
    lock: LockFile


def find_owners(root: Path, proc: Path | None = None, pid: int | None = None) -> DeviceOwners:
    """Who holds the TPU of the host under `root`.

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
    """The device files that each process has open, and how many processes could not be looked into."""
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
    # Threads of the kernel have no command line, and hold no device file.
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


def judge_owners(found: DeviceOwners, in_workers: bool = True) -> list[Problem]:
    """What is wrong: the TPU is taken, or a lock file was left over that this account cannot use.

    `in_workers`: cells are trained in processes of their own, so that this one must not hold it.
    """
    return [*judge_in_use(found, in_workers), *judge_lock(found.lock)]


def judge_in_use(found: DeviceOwners, in_workers: bool = True) -> list[Problem]:
    """Who holds the TPU that must not (see `judge_owners`)."""
    return [_in_use(one) for one in found.owners if not one.child and (in_workers or not one.own)]


def _in_use(owner: DeviceOwner) -> Problem:
    if owner.own:
        return Problem(
            about=IN_USE,
            what=f"This notebook's own kernel (process {owner.pid}) holds the TPU.",
            why="A chip is used by one process at a time, and workers need it.",
            then="restart the kernel, and do not use the XLA device outside of %%tpu_train",
        )
    devices = ", ".join(Path(device).name for device in owner.devices)
    return Problem(
        about=IN_USE,
        what=f"The TPU is held by process {owner.pid}{f' ({devices})' if devices else ''}"
        f"{f' of {owner.account}' if owner.account else ''}: {owner.command}",
        why="A chip is used by one process at a time.",
        command=f"!{'sudo ' if owner.account else ''}kill {owner.pid}",
        then="run %tpu_init again; or wait until it has ended. In another notebook: shut its kernel down",
    )


def judge_lock(lock: LockFile) -> list[Problem]:
    """A lock file that was left over, and that this account cannot use."""
    if lock.state != "stale" or lock.ours:
        return []
    return [
        Problem(
            about=IN_USE,
            what=f"{lock.path} belongs to {lock.owner} and was left over: nobody was seen that holds the TPU.",
            why="libtpu opens it for writing, and another account's file may stop it with "
            '"Internal error when accessing libtpu multi-process lockfile".',
            command=f"!sudo rm {lock.path}",
            then="run the cell again",
            state="warning",
        )
    ]
