"""Chips come from /sys, never from the environment; device files are asked for permission, not opened."""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
from pathlib import Path

import pytest

from tpu_magics.host.chips import (
    GENERATIONS,
    V3,
    V5E,
    Chip,
    DeviceFile,
    common_generation,
    find_chips,
    find_device_files,
    generation_name,
    judge_chips,
    replicas_per_worker,
)

from . import fake_hosts


def as_nobody(function):
    """Call `function` in a process that is not root and give back what it returns."""
    if os.geteuid() != 0:
        return function()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            os.write(writing, pickle.dumps(function()))
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    return pickle.loads(data)


@pytest.mark.parametrize(
    ("build", "name", "count", "replicas", "type_string", "hbm", "tflops"),
    [
        (fake_hosts.tpu_vm_v2, "v2", 4, 2, "v2-8", 16, 45),
        (fake_hosts.tpu_vm_v3, "v3", 4, 2, "v3-8", 32, 123),
        (fake_hosts.tpu_vm_v4, "v4", 4, 1, "v4-8", 32, 275),
        (fake_hosts.tpu_vm_v5p, "v5p", 4, 1, "v5p-8", 95, 459),
        (fake_hosts.tpu_vm_v5e, "v5e", 4, 1, "v5litepod-4", 16, 197),
        (fake_hosts.kaggle_v5e_8, "v5e", 8, 1, "v5litepod-8", 16, 197),
        (fake_hosts.colab_v5e_1, "v5e", 1, 1, "v5litepod-1", 16, 197),
        (fake_hosts.tpu_vm_v6e, "v6e", 4, 1, "v6e-4", 32, 918),
        (fake_hosts.tpu_vm_7x, "7x", 4, 1, "tpu7x-8", 192, 2307),
    ],
)
def test_generation_and_count_of_recorded_hosts(tmp_path, build, name, count, replicas, type_string, hbm, tflops):
    chips = find_chips(build(tmp_path).root)
    generation = common_generation(chips)
    assert generation is not None
    assert (generation.name, len(chips), replicas_per_worker(chips)) == (name, count, replicas)
    assert (generation.type_string(count), generation.hbm_gib, generation.tflops) == (type_string, hbm, tflops)
    assert generation_name(chips) == name


def test_every_generation_is_told_apart():
    assert len({generation.name for generation in GENERATIONS}) == len(GENERATIONS) == 7


@pytest.mark.parametrize("build", [fake_hosts.plain, fake_hosts.cloud_machine, fake_hosts.colab_gpu])
def test_a_network_card_or_disk_of_google_is_no_tpu(tmp_path, build):
    assert find_chips(build(tmp_path).root) == ()


def test_a_device_of_another_vendor_with_a_tpu_id_is_no_tpu(tmp_path):
    root = fake_hosts.base(tmp_path)
    fake_hosts.add_pci(root, 4, "0x0063")
    fake_hosts.write(root / "sys/bus/pci/devices/0000:00:04.0/vendor", "0x8086\n")
    assert find_chips(root) == ()


@pytest.mark.parametrize("kind", ["0xff0000", "0x120000"])
def test_an_unknown_device_is_called_unknown_with_its_id(tmp_path, kind):
    root = fake_hosts.base(tmp_path)
    fake_hosts.add_pci(root, 4, "0x00aa", kind=kind)
    chips = find_chips(root)
    assert [chip.device_id for chip in chips] == ["0x00aa"]
    assert common_generation(chips) is None
    assert generation_name(chips) == "unknown generation (0x00aa)"
    assert replicas_per_worker(chips) == 1


@pytest.mark.parametrize(
    ("subsystem", "name"),
    [
        ("0x0050", "unknown generation (0x0027, subsystem 0x0050)"),
        (None, "unknown generation (0x0027, subsystem not readable)"),
    ],
)
def test_v2_or_v3_without_a_known_subsystem_is_not_guessed(tmp_path, subsystem, name):
    root = fake_hosts.base(tmp_path)
    fake_hosts.add_pci(root, 4, "0x0027", subsystem or "")
    if subsystem is None:
        (root / "sys/bus/pci/devices/0000:00:04.0/subsystem_device").unlink()
    chips = find_chips(root)
    assert generation_name(chips) == name
    assert replicas_per_worker(chips) == 2  # both have two


def test_two_generations_on_one_host_have_no_common_one():
    chips = (Chip("0x0063", "", V5E), Chip("0x0027", "0x004f", V3))
    assert common_generation(chips) is None
    assert generation_name(chips) == "v5e and v3"


@pytest.mark.parametrize(
    ("build", "paths"),
    [
        (fake_hosts.tpu_vm_v4, ["dev/accel0", "dev/accel1", "dev/accel2", "dev/accel3"]),
        (fake_hosts.colab_v5e_1, ["dev/vfio/0"]),
        (fake_hosts.plain, []),
    ],
)
def test_device_files_of_recorded_hosts(tmp_path, build, paths):
    root = build(tmp_path).root
    assert find_device_files(root) == tuple(DeviceFile(str(root / path), True) for path in paths)


def test_device_files_are_in_order_of_number(tmp_path):
    fake_hosts.add_vfio(tmp_path, 12)
    assert [Path(file.path).name for file in find_device_files(tmp_path)] == [str(n) for n in range(12)]


def test_asking_for_permission_opens_nothing(tmp_path):
    os.mkfifo(fake_hosts.write(tmp_path / "dev/x", "").parent / "accel0")  # opening it would wait for ever
    assert find_device_files(tmp_path) == (DeviceFile(str(tmp_path / "dev/accel0"), True),)


@pytest.mark.process
def test_a_file_that_this_account_may_not_open():
    root = Path(tempfile.mkdtemp())
    try:
        root.chmod(0o755)
        for number, mode in enumerate((0o000, 0o666, 0o444)):
            fake_hosts.write(root / f"dev/accel{number}", "").chmod(mode)
        files = as_nobody(lambda: find_device_files(root))
    finally:
        shutil.rmtree(root)
    assert [file.usable for file in files] == [False, True, False]
    (problem,) = judge_chips((Chip("0x005e", "", V5E),), files)
    assert problem.what == f"This account has no permission to open {root}/dev/accel0, {root}/dev/accel2."
    assert "Operation not permitted" in problem.why
    assert problem.command == f"!sudo chmod a+rw {root}/dev/accel0 {root}/dev/accel2"
    assert (problem.state, problem.about) == ("broken", "tpu")


def test_chips_without_device_files_are_a_problem(tmp_path):
    fake_hosts.add_chips(tmp_path, 8, "0x006f")
    (problem,) = judge_chips(find_chips(tmp_path), find_device_files(tmp_path))
    assert problem.what == "The TPU has no device file: there is neither /dev/accelN nor /dev/vfio/N."
    assert problem.why.startswith("/sys shows 8 chips, but no driver has created device files")
    assert "--privileged" in problem.todo


def test_an_unknown_generation_is_a_warning(tmp_path):
    root = fake_hosts.tpu_vm_unknown(tmp_path).root
    (problem,) = judge_chips(find_chips(root), find_device_files(root))
    assert problem.what == "The TPU is of an unknown generation (0x00aa)."
    assert problem.state == "warning"


def test_a_host_without_chips_has_no_problem_with_them():
    assert judge_chips((), ()) == []
