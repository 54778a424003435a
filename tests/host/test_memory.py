"""Memory, processors and disk, with limits of both versions of control groups."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tpu_magics.host.memory import HostMemory, cpu_count, free_disk, host_memory

from .fake_hosts import add_cpus, add_memory, write

GIB = 2**30
GROUP = "control group"
UNLIMITED_V1 = "9223372036854771712"


@pytest.fixture
def root(tmp_path):
    add_memory(tmp_path, 16 * 2**20, 12 * 2**20)
    return tmp_path


def group_v2(root: Path, path: str, limit: object, used: int, cached: int = 0) -> None:
    folder = root / "sys/fs/cgroup" / path
    write(folder / "memory.max", f"{limit}\n")
    write(folder / "memory.current", f"{used}\n")
    write(folder / "memory.stat", f"anon 5\nfile 7\ninactive_file {cached}\nactive_file 3\n")


def group_v1(root: Path, path: str, limit: object, used: int, cached: int = 0) -> None:
    folder = root / "sys/fs/cgroup/memory" / path
    write(folder / "memory.limit_in_bytes", f"{limit}\n")
    write(folder / "memory.usage_in_bytes", f"{used}\n")
    write(folder / "memory.stat", f"inactive_file 1\ntotal_inactive_file {cached}\n")


def test_a_machine_without_limits(root):
    assert host_memory(root) == HostMemory(16 * GIB, 12 * GIB, "machine")


def test_no_meminfo_is_not_available_with_the_reason(tmp_path):
    assert host_memory(tmp_path) == HostMemory(None, None, "machine", "/proc/meminfo could not be read")


SESSION, SLICE = "user.slice/session-1.scope", "user.slice"
MACHINE = (16 * GIB, 12 * GIB, "machine")


@pytest.mark.parametrize(
    ("own", "groups", "expected"),
    [
        ("0::/", [(group_v2, "", 8 * GIB, 3 * GIB)], (8 * GIB, 5 * GIB, GROUP)),
        # Cached pages can be taken back.
        ("0::/", [(group_v2, "", 8 * GIB, 7 * GIB, 4 * GIB)], (8 * GIB, 5 * GIB, GROUP)),
        (f"0::/{SESSION}", [(group_v2, SESSION, "max", 3 * GIB)], MACHINE),
        # The group above limits too.
        (
            f"0::/{SESSION}",
            [(group_v2, SESSION, 9 * GIB, 1 * GIB), (group_v2, SLICE, 10 * GIB, 8 * GIB)],
            (9 * GIB, 2 * GIB, GROUP),
        ),
        # In a container the path is the host's.
        (
            "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc",
            [(group_v1, "", 4 * GIB, 3 * GIB, 1 * GIB)],
            (4 * GIB, 2 * GIB, GROUP),
        ),
        ("4:memory:/", [(group_v1, "", UNLIMITED_V1, 3 * GIB)], MACHINE),
        ("4:memory:/job\n0::/job", [(group_v1, "job", 6 * GIB, 1 * GIB)], (6 * GIB, 5 * GIB, GROUP)),
        # More is used than allowed: nothing is left, not less.
        ("0::/", [(group_v2, "", 2 * GIB, 3 * GIB)], (2 * GIB, 0, GROUP)),
    ],
)
def test_limits_of_control_groups(root, own, groups, expected):
    write(root / "proc/self/cgroup", f"{own}\n")
    for add, *values in groups:
        add(root, *values)
    assert host_memory(root) == HostMemory(*expected)


def test_the_machine_can_be_fuller_than_the_group(root):
    write(root / "proc/self/cgroup", "0::/\n")
    add_memory(root, 16 * 2**20, 1 * 2**20)
    group_v2(root, "", 8 * GIB, 1 * GIB)
    assert host_memory(root) == HostMemory(8 * GIB, 1 * GIB, GROUP)


@pytest.mark.parametrize("text", ["", "nonsense\n", "0:\n", "4:memory\n"])
def test_an_odd_list_of_groups_is_no_limit(root, text):
    write(root / "proc/self/cgroup", text)
    assert host_memory(root) == HostMemory(16 * GIB, 12 * GIB, "machine")


def test_this_machine():
    memory = host_memory(Path("/"))
    assert memory.total is not None and memory.available is not None
    assert 0 < memory.available <= memory.total <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(("allowed", "count"), [("0", 1), ("0-1", 2), ("0-95,120", 97), ("1,3,5-7", 5)])
def test_processors_that_may_be_used(tmp_path, allowed, count):
    add_cpus(tmp_path, allowed)
    assert cpu_count(tmp_path) == count


def test_processors_by_their_list(tmp_path):
    write(tmp_path / "proc/cpuinfo", "processor\t: 0\nmodel name\t: x\n\nprocessor\t: 1\nmodel name\t: x\n")
    assert cpu_count(tmp_path) == 2


def test_processors_that_cannot_be_known(tmp_path):
    assert cpu_count(tmp_path) is None


def test_processors_of_this_machine():
    assert cpu_count(Path("/")) == len(os.sched_getaffinity(os.getpid()))


def test_free_disk_where_a_folder_is_or_would_be(tmp_path):
    free = shutil.disk_usage(tmp_path).free
    for path in (tmp_path, tmp_path / "runs" / "not" / "there"):
        found = free_disk(path)
        assert found is not None
        assert abs(found - free) < 2**30  # others write here meanwhile


def test_free_disk_of_a_relative_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert free_disk(Path("runs/x")) is not None


def test_free_disk_below_a_file_is_not_available(tmp_path):
    assert free_disk(write(tmp_path / "file", "") / "below") is None
