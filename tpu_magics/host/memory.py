"""Host memory, processors and disk space that this process may use, from /proc and the control groups (v1 and v2),
whose small files may be missing, unreadable or gone a moment later."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


def read(path: Path) -> str | None:
    """The file's text without surrounding white space; None where it cannot be read."""
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return None


def names(folder: Path) -> list[str]:
    """Names in `folder`, sorted; none where it cannot be listed."""
    try:
        return sorted(entry.name for entry in folder.iterdir())
    except OSError:
        return []


@dataclass(frozen=True)
class HostMemory:
    """Bytes of host memory. `total`: what may be used at most; `available`: what is free now without swapping;
    `limited_by`: "machine" or "control group"; None and a `reason` where it could not be read."""

    total: int | None
    available: int | None
    limited_by: str = "machine"
    reason: str = ""


@dataclass(frozen=True)
class _Controller:
    """Where one version of the control groups keeps its numbers. `stat`: the line of memory.stat that counts cached
    pages the kernel takes back first; they are part of the usage but not lost."""

    mount: str
    limit: str
    usage: str
    stat: str


_V2 = _Controller("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file")
_V1 = _Controller("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def host_memory(root: Path) -> HostMemory:
    """What this process may use: the machine's memory, or less where a control group (a container) allows less."""
    info = dict(re.findall(r"^(\w+):\s+(\d+) kB", read(root / "proc/meminfo") or "", re.MULTILINE))
    if "MemTotal" not in info or "MemAvailable" not in info:
        return HostMemory(None, None, reason="/proc/meminfo could not be read")
    total, available = int(info["MemTotal"]) * 1024, int(info["MemAvailable"]) * 1024
    groups = [limit for limit in _group_limits(root) if limit[0] < total]
    return HostMemory(
        total=min([total, *(most for most, _ in groups)]),
        available=max(0, min([available, *(most - used for most, used in groups)])),
        limited_by="control group" if groups else "machine",
    )


def _group_limits(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, usage) in bytes of every control group with a limit that this process is in."""
    for controller, group in _groups(root):
        for folder in _up_to_mount(root / controller.mount, group):
            limit = read(folder / controller.limit) or ""
            if limit.isdigit():  # version 2 writes "max" where there is none
                yield int(limit), _usage(folder, controller)


def _groups(root: Path) -> Iterator[tuple[_Controller, str]]:
    for line in (read(root / "proc/self/cgroup") or "").splitlines():
        number, controllers, path = (*line.split(":", 2), "", "")[:3]
        if (number, controllers) == ("0", ""):
            yield _V2, path
        elif "memory" in controllers.split(","):
            yield _V1, path


def _up_to_mount(mount: Path, group: str) -> Iterator[Path]:
    """The group's folder and all above it: each limits the ones below. In a container the path in /proc may be that of
    the host while the mount shows only the container's own part; then the mount's root is the container's group."""
    parts = [part for part in group.split("/") if part not in ("", "..")]
    for count in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:count])


def _usage(folder: Path, controller: _Controller) -> int:
    used = read(folder / controller.usage) or "0"
    cached = re.search(rf"^{controller.stat} (\d+)$", read(folder / "memory.stat") or "", re.MULTILINE)
    return max(0, int(used) - int(cached[1] if cached else 0))


def cpu_count(root: Path) -> int | None:
    """Processors that this process may run on; None where that could not be read."""
    allowed = re.search(r"^Cpus_allowed_list:\s*([0-9,-]+)$", read(root / "proc/self/status") or "", re.MULTILINE)
    if allowed:
        return sum(_span(part) for part in allowed[1].split(","))
    return len(re.findall(r"^processor\s*:", read(root / "proc/cpuinfo") or "", re.MULTILINE)) or None


def _span(part: str) -> int:
    first, _, last = part.partition("-")
    return int(last or first) - int(first) + 1


def free_disk(path: Path) -> int | None:
    """Bytes that this account may still write where `path` is or would be made; None where that is unknown."""
    for folder in (path, *path.absolute().parents):
        try:
            return shutil.disk_usage(folder).free
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None
