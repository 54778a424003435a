"""Hosts that are not here, built as a root folder and an environment.

PCI ids, variables, device files and versions are as recorded on the real ones; sizes of memory and process ids are
examples. Every host of Google's cloud also shows the virtual network card, which has Google's vendor id and is no TPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

NETWORK_CARD = ("0x0042", "0x0058", "0x020000")
DISK = ("0x001f", "0x0000", "0x010802")
TPU_CLASS = "0xff0000"

COLAB_TPU_VERSIONS = {
    "python": "3.13.5",
    "ipython": "7.34.0",
    "ipykernel": "6.17.1",
    "ipywidgets": "7.7.1",
    "torch": "2.9.0",
    "torch_xla": "2.9.0",
    "accelerate": "1.14.0",
    "transformers": "5.15.0",
    "libtpu": "0.0.21.1",
    "jax": "0.7.2",
    "tensorflow": None,
}
KAGGLE_TPU_VERSIONS = {
    "python": "3.12.11",
    "ipython": "9.4.0",
    "ipykernel": "6.29.5",
    "ipywidgets": "8.1.7",
    "torch": "2.8.0",
    "torch_xla": "2.8.0",
    "accelerate": "1.10.0",
    "transformers": "4.55.0",
    "libtpu": "0.0.17",
    "tensorflow": None,
    "tensorflow-cpu": "2.20.0",
}
LOCAL_VERSIONS = {
    "python": "3.11.7",
    "ipython": "9.18.1",
    "ipykernel": "7.4.0",
    "ipywidgets": "8.1.9",
    "torch": "2.9.0",
    "torch_xla": "2.9.0",
    "accelerate": "1.15.0",
    "transformers": "5.23.0",
}
TPU_VM_VERSIONS = {**LOCAL_VERSIONS, "libtpu": "0.0.21"}


@dataclass(frozen=True)
class FakeHost:
    """What inspect_host takes."""

    root: Path
    environ: dict[str, str] = field(default_factory=dict)
    modules: tuple[str, ...] = ("sys", "os")
    versions: dict[str, str | None] = field(default_factory=lambda: dict(LOCAL_VERSIONS))

    def arguments(self) -> dict[str, object]:
        return {"environ": self.environ, "root": self.root, "modules": self.modules, "versions": self.versions}


# -- the parts of a root folder ------------------------------------------------------------------------------------


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def add_pci(root: Path, slot: int, device: str, subsystem: str = "0x0000", kind: str = TPU_CLASS) -> None:
    folder = root / f"sys/bus/pci/devices/0000:00:{slot:02x}.0"
    for name, text in {"vendor": "0x1ae0", "device": device, "subsystem_device": subsystem, "class": kind}.items():
        write(folder / name, text + "\n")


def add_chips(root: Path, count: int, device: str, subsystem: str = "0x0000") -> None:
    for number in range(count):
        add_pci(root, 4 + number, device, subsystem)


def add_accel(root: Path, count: int) -> None:
    for number in range(count):
        write(root / f"dev/accel{number}", "")


def add_vfio(root: Path, count: int) -> None:
    write(root / "dev/vfio/vfio", "")  # vfio's own control file, held by nobody in particular
    for number in range(count):
        write(root / f"dev/vfio/{number}", "")


def add_memory(root: Path, total_kb: int = 13_289_416, available_kb: int = 12_100_000) -> None:
    write(root / "proc/meminfo", f"MemTotal: {total_kb} kB\nMemFree: 1000 kB\nMemAvailable: {available_kb} kB\n")


def add_cpus(root: Path, allowed: str) -> None:
    write(root / "proc/self/status", f"Name:\tpython3\nCpus_allowed_list:\t{allowed}\n")


def add_process(
    root: Path, pid: int, command: tuple[str, ...], files: tuple[str, ...] = (), parent: int = 1, name: str = "python3"
) -> None:
    """A process in /proc; `files` are paths under `root` that it has open."""
    folder = root / "proc" / str(pid)
    (folder / "fd").mkdir(parents=True)
    write(folder / "cmdline", "".join(word + "\0" for word in command))
    write(folder / "comm", name + "\n")
    write(folder / "stat", f"{pid} ({name}) S {parent} {pid} {pid} 0 -1\n")
    for number, path in enumerate(("dev/null", *files)):
        (folder / "fd" / str(number)).symlink_to(root / path)


def base(tmp_path: Path, *, memory_kb: int = 13_289_416, cpus: str = "0-1", google: bool = True) -> Path:
    root = tmp_path / "root"
    (root / "tmp").mkdir(parents=True)
    (root / "dev").mkdir()
    add_memory(root, memory_kb, memory_kb - 1_000_000)
    add_cpus(root, cpus)
    if google:
        add_pci(root, 3, *NETWORK_CARD)
        add_pci(root, 30, *DISK)
    return root


# -- the hosts -----------------------------------------------------------------------------------------------------


def plain(tmp_path: Path) -> FakeHost:
    return FakeHost(base(tmp_path, google=False))


def cloud_machine(tmp_path: Path) -> FakeHost:
    """A machine of Google's cloud without a TPU."""
    return FakeHost(base(tmp_path))


COLAB = {"COLAB_RELEASE_TAG": "release-colab_20260801", "COLAB_JUPYTER_TRANSPORT": "ipc"}


def colab_cpu(tmp_path: Path) -> FakeHost:
    return FakeHost(base(tmp_path), {**COLAB, "COLAB_TPU_1VM": ""}, ("sys", "google", "google.colab"))


def colab_gpu(tmp_path: Path) -> FakeHost:
    environ = {**COLAB, "COLAB_TPU_1VM": "", "NVIDIA_VISIBLE_DEVICES": "all", "COLAB_GPU": "1"}
    return FakeHost(base(tmp_path), environ, ("sys", "google", "google.colab"))


def colab_v5e_1(tmp_path: Path) -> FakeHost:
    root = base(tmp_path, memory_kb=49_400_000, cpus="0-23")
    add_chips(root, 1, "0x0063")
    add_vfio(root, 1)
    environ = {
        **COLAB,
        "COLAB_TPU_1VM": "1",
        "TPU_ACCELERATOR_TYPE": "v5e-1",
        "TPU_CHIPS_PER_HOST_BOUNDS": "2,2,1",
        "TPU_HOST_BOUNDS": "1,1,1",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "TPU_WORKER_ID": "0",
    }
    return FakeHost(root, environ, ("sys", "google", "google.colab"), dict(COLAB_TPU_VERSIONS))


def kaggle_cpu(tmp_path: Path) -> FakeHost:
    # Built on Colab's image, so Colab's release tag is there as well.
    return FakeHost(base(tmp_path), {"KAGGLE_KERNEL_RUN_TYPE": "Interactive", **COLAB})


def kaggle_v5e_8(tmp_path: Path) -> FakeHost:
    root = base(tmp_path, memory_kb=396_000_000, cpus="0-223")
    add_chips(root, 8, "0x0063")
    add_vfio(root, 8)
    environ = {
        "KAGGLE_KERNEL_RUN_TYPE": "Batch",
        "ISTPUVM": "1",
        "TPU_ACCELERATOR_TYPE": "v5e-8",
        "TPU_PROCESS_ADDRESSES": "local",
        "CLOUD_TPU_TASK_ID": "0",
    }
    return FakeHost(root, environ, versions=dict(KAGGLE_TPU_VERSIONS))


def _tpu_vm(
    name: str, device: str, subsystem: str, add_files: Callable[[Path, int], None]
) -> Callable[[Path], FakeHost]:
    """Makes TPU VMs with four chips."""

    def build(tmp_path: Path) -> FakeHost:
        root = base(tmp_path, memory_kb=400_000_000, cpus="0-95,120")
        add_chips(root, 4, device, subsystem)
        add_files(root, 4)
        return FakeHost(root, versions=dict(TPU_VM_VERSIONS))

    build.__name__ = f"tpu_vm_{name}"  # as a test's id has it
    return build


tpu_vm_v2 = _tpu_vm("v2", "0x0027", "0x004e", add_accel)
tpu_vm_v3 = _tpu_vm("v3", "0x0027", "0x004f", add_accel)
tpu_vm_v4 = _tpu_vm("v4", "0x005e", "0x0000", add_accel)
tpu_vm_v5p = _tpu_vm("v5p", "0x0062", "0x0000", add_vfio)
tpu_vm_v5e = _tpu_vm("v5e", "0x0063", "0x0000", add_vfio)
tpu_vm_v6e = _tpu_vm("v6e", "0x006f", "0x0000", add_vfio)
tpu_vm_7x = _tpu_vm("7x", "0x0076", "0x0000", add_vfio)
tpu_vm_unknown = _tpu_vm("unknown", "0x00aa", "0x0000", add_vfio)


def gke(tmp_path: Path) -> FakeHost:
    host = tpu_vm_v5e(tmp_path)
    environ = {
        "TPU_WORKER_ID": "1",
        "TPU_WORKER_HOSTNAMES": "job-0.svc,job-1.svc",
        "TPU_TOPOLOGY": "2x4",
        "TPU_SKIP_MDS_QUERY": "true",
    }
    return FakeHost(host.root, environ, versions=host.versions)
