"""Memory, processors and disk, with limits of both versions of control groups."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tpu_magics.host.memory import HostMemory, cpu_count, free_disk, host_memory

from .fake_hosts import add_cpus, add_memory, write

GIB = 2**30
UNLIMITED_V1 = "9223372036854771712"


@pytest.fixture
def root(tmp_path):
    add_memory(tmp_path, 16 * 2**20, 12 * 2**20)
    return tmp_path


def group_v2(root: Path, path: str, limit: str, used: int, cached: int = 0) -> None:
    folder = root / "sys/fs/cgroup" / path
    write(folder / "memory.max", f"{limit}\n")
    write(folder / "memory.current", f"{used}\n")
    write(folder / "memory.stat", f"anon 5\nfile 7\ninactive_file {cached}\nactive_file 3\n")


def group_v1(root: Path, path: str, limit: str, used: int, cached: int = 0) -> None:
    folder = root / "sys/fs/cgroup/memory" / path
    write(folder / "memory.limit_in_bytes", f"{limit}\n")
    write(folder / "memory.usage_in_bytes", f"{used}\n")
    write(folder / "memory.stat", f"inactive_file 1\ntotal_inactive_file {cached}\n")


def test_a_machine_without_limits(root):
    assert host_memory(root) == HostMemory(16 * GIB, 12 * GIB, "machine")


def test_no_meminfo_is_not_available_with_the_reason(tmp_path):
    assert host_memory(tmp_path) == HostMemory(None, None, "machine", "/proc/meminfo could not be read")


def test_version_2_in_a_container(root):
    write(root / "proc/self/cgroup", "0::/\n")
    group_v2(root, "", str(8 * GIB), 3 * GIB)
    assert host_memory(root) == HostMemory(8 * GIB, 5 * GIB, "control group")


def test_cached_pages_that_can_be_taken_back_count_as_free(root):
    write(root / "proc/self/cgroup", "0::/\n")
    group_v2(root, "", str(8 * GIB), 7 * GIB, cached=4 * GIB)
    assert host_memory(root) == HostMemory(8 * GIB, 5 * GIB, "control group")


def test_version_2_without_a_limit(root):
    write(root / "proc/self/cgroup", "0::/user.slice/session-1.scope\n")
    group_v2(root, "user.slice/session-1.scope", "max", 3 * GIB)
    assert host_memory(root) == HostMemory(16 * GIB, 12 * GIB, "machine")


def test_the_group_above_limits_too(root):
    write(root / "proc/self/cgroup", "0::/user.slice/session-1.scope\n")
    group_v2(root, "user.slice/session-1.scope", str(9 * GIB), 1 * GIB)
    group_v2(root, "user.slice", str(10 * GIB), 8 * GIB)
    assert host_memory(root) == HostMemory(9 * GIB, 2 * GIB, "control group")


def test_version_1_in_a_container_whose_path_is_the_hosts(root):
    write(root / "proc/self/cgroup", "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n")
    group_v1(root, "", str(4 * GIB), 3 * GIB, cached=1 * GIB)
    assert host_memory(root) == HostMemory(4 * GIB, 2 * GIB, "control group")


def test_version_1_without_a_limit(root):
    write(root / "proc/self/cgroup", "4:memory:/\n")
    group_v1(root, "", UNLIMITED_V1, 3 * GIB)
    assert host_memory(root) == HostMemory(16 * GIB, 12 * GIB, "machine")


def test_both_versions_at_once(root):
    write(root / "proc/self/cgroup", "4:memory:/job\n0::/job\n")
    group_v1(root, "job", str(6 * GIB), 1 * GIB)
    assert host_memory(root) == HostMemory(6 * GIB, 5 * GIB, "control group")


def test_more_used_than_allowed_leaves_nothing_rather_than_less(root):
    write(root / "proc/self/cgroup", "0::/\n")
    group_v2(root, "", str(2 * GIB), 3 * GIB)
    assert host_memory(root).available == 0


def test_the_machine_can_be_fuller_than_the_group(root):
    write(root / "proc/self/cgroup", "0::/\n")
    add_memory(root, 16 * 2**20, 1 * 2**20)
    group_v2(root, "", str(8 * GIB), 1 * GIB)
    assert host_memory(root) == HostMemory(8 * GIB, 1 * GIB, "control group")


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
