"""The whole host, on recorded ones and on this machine."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from tpu_magics.host import Host, inspect_host, notebook_environment

from . import fake_hosts


def inspect(host: fake_hosts.FakeHost) -> Host:
    return inspect_host(**host.arguments())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("build", "place", "tpu", "device", "workers", "replicas", "cpus"),
    [
        (fake_hosts.plain, "plain", "", "CPU", 1, 1, 2),
        (fake_hosts.cloud_machine, "plain", "", "CPU", 1, 1, 2),
        (fake_hosts.colab_cpu, "colab", "", "CPU", 1, 1, 2),
        (fake_hosts.colab_gpu, "colab", "", "CPU", 1, 1, 2),
        (fake_hosts.colab_v5e_1, "colab", "v5e", "TPU", 1, 1, 24),
        (fake_hosts.kaggle_cpu, "kaggle", "", "CPU", 1, 1, 2),
        (fake_hosts.kaggle_v5e_8, "kaggle", "v5e", "TPU", 8, 1, 224),
        (fake_hosts.tpu_vm_v2, "tpu-vm", "v2", "TPU", 4, 2, 97),
        (fake_hosts.tpu_vm_v3, "tpu-vm", "v3", "TPU", 4, 2, 97),
        (fake_hosts.tpu_vm_v4, "tpu-vm", "v4", "TPU", 4, 1, 97),
        (fake_hosts.tpu_vm_v5e, "tpu-vm", "v5e", "TPU", 4, 1, 97),
        (fake_hosts.gke, "gke", "v5e", "TPU", 4, 1, 97),
    ],
)
def test_recorded_hosts(tmp_path, build, place, tpu, device, workers, replicas, cpus):
    host = inspect(build(tmp_path))
    assert (host.environment.key, host.tpu, host.device) == (place, tpu, device)
    assert (host.workers, host.replicas, host.cpus) == (workers, replicas, cpus)
    assert len(host.chips) == len(host.devices) == (workers if device == "TPU" else 0)
    assert (host.framework, host.problems) == ("torch", ())


@pytest.mark.parametrize("bounds", ["2,2,1", "1,1,1", "4,4,1", "nonsense"])
def test_bounds_never_count_chips(tmp_path, bounds):
    host = fake_hosts.colab_v5e_1(tmp_path)
    for name in ("TPU_CHIPS_PER_HOST_BOUNDS", "TPU_CHIPS_PER_PROCESS_BOUNDS", "TPU_HOST_BOUNDS"):
        host.environ[name] = bounds
    assert inspect(host).workers == 1


def test_an_unknown_generation_starts_its_workers_and_says_so(tmp_path):
    host = inspect(fake_hosts.tpu_vm_unknown(tmp_path))
    assert (host.generation, host.tpu) == (None, "unknown generation (0x00aa)")
    assert (host.device, host.workers, host.replicas) == ("TPU", 4, 1)
    assert [problem.what for problem in host.problems] == ["The TPU is of an unknown generation (0x00aa)."]


def test_a_rehearsal_on_a_tpu_host(tmp_path):
    fake = fake_hosts.tpu_vm_v3(tmp_path)
    fake.environ["PJRT_DEVICE"] = "CPU"
    host = inspect(fake)
    assert (host.device, host.workers, host.replicas, len(host.chips)) == ("CPU", 1, 1, 4)
    assert [problem.state for problem in host.problems] == ["warning"]


def test_vfio_files_of_a_host_without_tpu_are_not_its_devices(tmp_path):
    fake = fake_hosts.plain(tmp_path)
    fake_hosts.add_vfio(fake.root, 2)
    fake_hosts.add_process(fake.root, 7, ("qemu-system-x86_64",), ("dev/vfio/0",))
    host = inspect(fake)
    assert (host.devices, host.owners, host.problems) == ((), (), ())


def test_a_holder_is_found_and_stops_training(tmp_path):
    fake = fake_hosts.tpu_vm_v4(tmp_path)
    fake_hosts.add_process(fake.root, 999_999, ("python3", "other.py"), ("dev/accel3",))
    host = inspect(fake)
    assert [(holder.pid, holder.command) for holder in host.owners] == [(999_999, "python3 other.py")]
    assert [problem.about for problem in host.problems] == ["in use"]


@pytest.mark.parametrize(
    ("build", "what", "todo"),
    [
        (
            fake_hosts.colab_v5e_1,
            "Colab reports a TPU on this host (COLAB_TPU_1VM=1), but /sys shows no TPU chip.",
            "Runtime > Disconnect and delete runtime, and connect again",
        ),
        (
            fake_hosts.kaggle_v5e_8,
            "Kaggle reports a TPU on this host (ISTPUVM=1), but /sys shows no TPU chip.",
            "stop the session and start it again",
        ),
        (
            fake_hosts.gke,
            "Google Kubernetes Engine reports a TPU on this host (TPU_TOPOLOGY=2x4), but /sys shows no TPU chip.",
            "give the pod the resource google.com/tpu and a node pool that has TPUs",
        ),
    ],
)
def test_a_promised_tpu_that_is_not_there(tmp_path, build, what, todo):
    fake = build(tmp_path)
    for vendor in fake.root.glob("sys/bus/pci/devices/*/vendor"):
        vendor.unlink()
    host = inspect(fake)
    assert (host.device, host.workers) == ("CPU", 1)
    assert [(problem.what, problem.todo) for problem in host.problems] == [(what, todo)]


def test_what_stops_training_comes_first(tmp_path):
    fake = fake_hosts.tpu_vm_v4(tmp_path)
    fake.versions.update(ipywidgets=None, torch="2.8.0", tensorflow="2.20.0")
    fake.environ["PJRT_DEVICE"] = "CUDA"
    assert [problem.state for problem in inspect(fake).problems] == ["broken", "broken", "warning", "warning"]


def test_one_of_several_hosts_is_told(tmp_path):
    fake = fake_hosts.gke(tmp_path)
    (note,), (other,) = inspect(fake).notes, inspect_tensorflow(fake).notes
    assert note.startswith("This is one of 2 hosts of a slice: workers start on this host only")
    assert other.startswith("This is one of 2 hosts of a slice: TensorFlow runs in this notebook's process only")


def test_a_left_over_lock_of_our_own_is_a_note(tmp_path):
    fake = fake_hosts.tpu_vm_v4(tmp_path)
    path = fake_hosts.write(fake.root / "tmp/libtpu_lockfile", "")
    host = inspect(fake)
    assert host.problems == ()
    assert host.notes == (f"{path} was left by an earlier process of this account. It does no harm.",)


def test_a_root_with_nothing_in_it(tmp_path):
    host = inspect_host({}, tmp_path / "nowhere", (), {})
    assert (host.environment.key, host.chips, host.cpus) == ("plain", (), None)
    assert host.memory.reason == "/proc/meminfo could not be read"


@pytest.mark.parametrize("build", [fake_hosts.plain, fake_hosts.kaggle_v5e_8, fake_hosts.gke])
def test_a_host_can_be_kept_as_json(tmp_path, build):
    record = json.loads(json.dumps(dataclasses.asdict(inspect(build(tmp_path)))))
    assert record["environment"]["key"] in ("plain", "kaggle", "gke")
    assert len(record["chips"]) == {"plain": 0, "kaggle": 8, "gke": 4}[record["environment"]["key"]]


@pytest.mark.process
def test_this_machine_without_touching_anything():
    """In a process of its own: nothing heavy is imported, nothing is set, no runtime comes up, and the network is not
    used: the socket layer reports every connection to audit hooks."""
    code = """if True:
        import os, sys
        seen = []
        sys.addaudithook(lambda name, _: seen.append(name) if name.startswith("socket.") else None)
        from tpu_magics.host import inspect_host
        before = dict(os.environ)
        host = inspect_host()
        heavy = ("torch", "torch_xla", "jax", "tensorflow", "accelerate", "transformers", "psutil", "ipywidgets")
        print([name for name in heavy if name in sys.modules], dict(os.environ) == before, host.cpus, seen)
    """
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == f"[] True {len(os.sched_getaffinity(0))} []"


# -- TensorFlow, which has one process and no workers --------------------------------------------------------------


def inspect_tensorflow(host: fake_hosts.FakeHost, **versions: str | None) -> Host:
    packages = {"tensorflow-tpu": "2.20.0", "keras": "3.15.1", "tensorflow-cpu": None, **versions}
    known = {**host.versions, **{name.replace("__", "-"): version for name, version in packages.items()}}
    return inspect_host(host.environ, host.root, host.modules, known, framework="tensorflow")


@pytest.mark.parametrize("build", [fake_hosts.colab_v5e_1, fake_hosts.kaggle_v5e_8, fake_hosts.tpu_vm_v3])
def test_tensorflow_on_a_tpu_has_no_workers_and_changes_no_environment(tmp_path, build):
    host = inspect_tensorflow(build(tmp_path))
    assert (host.framework, host.device, host.workers, host.replicas) == ("tensorflow", "TPU", 1, 1)
    assert (host.variable_changes, notebook_environment(host), host.problems) == ((), {}, ())


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (fake_hosts.colab_v5e_1, "Colab's TPU image has no TensorFlow since March 2025"),
        (fake_hosts.kaggle_v5e_8, "Kaggle's TPU image has tensorflow-cpu"),
    ],
)
def test_where_tensorflow_finds_no_tpu_it_is_told_and_nothing_is_to_be_installed(tmp_path, build, why):
    fake = build(tmp_path)
    (problem,) = inspect_host(**fake.arguments(), framework="tensorflow").problems  # type: ignore[arg-type]
    assert problem.what == "TensorFlow does not find a TPU on this host." and problem.why.startswith(why)
    assert "install" not in problem.todo and "TPU VM" in problem.todo and "JAX" in problem.todo
    fake.environ["PJRT_DEVICE"] = "CPU"
    on_cpu = inspect_host(**fake.arguments(), framework="tensorflow").problems  # type: ignore[arg-type]
    assert problem not in on_cpu


def test_a_rehearsal_on_a_tpu_host_is_one_for_tensorflow_too(tmp_path):
    fake = fake_hosts.tpu_vm_v3(tmp_path)
    fake.environ["PJRT_DEVICE"] = "CPU"
    for package in ("tensorflow-tpu", "tensorflow-cpu"):
        host = inspect_tensorflow(fake, **{"tensorflow-tpu": None, package: "2.20.0"})
        assert (host.device, [problem.about for problem in host.problems]) == ("CPU", ["environment"])


def test_this_kernel_may_hold_the_tpu_and_another_process_may_not(tmp_path):
    fake = fake_hosts.tpu_vm_v4(tmp_path)
    fake_hosts.add_process(fake.root, os.getpid(), ("ipykernel",), ("dev/accel0",))
    assert inspect_tensorflow(fake).problems == ()
    fake_hosts.add_process(fake.root, 999_999, ("python3", "other.py"), ("dev/accel3",))
    assert [problem.about for problem in inspect_tensorflow(fake).problems] == ["in use"]


def test_tensorflow_does_not_read_pjrt_device(tmp_path):
    fake = fake_hosts.plain(tmp_path)
    fake.environ["PJRT_DEVICE"] = "TPU"
    host = inspect_tensorflow(fake)
    assert (host.notes, host.problems) == ((), ())
