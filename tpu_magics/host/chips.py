"""The TPU chips of this host, read from /sys and /dev without opening a device (an open would take the TPU).

The environment's bounds variables are not used: Colab's v5e-1 has TPU_CHIPS_PER_HOST_BOUNDS=2,2,1 and one chip.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from tpu_magics.errors import TPU, HostProblem, plural
from tpu_magics.host.memory import names, read

GOOGLE = "0x1ae0"
V2_OR_V3 = "0x0027"


@dataclass(frozen=True)
class Generation:
    """One generation of TPU.

    `cores`: TensorCores in a chip; `devices`: devices that torch_xla makes of a chip (its replicas in one worker);
    `hbm_gib`: memory of a chip in GiB; `tflops`: peak of a chip in bf16, TFLOP/s; `prefix` and `counts`: Google's type
    string is `<prefix>-<n>`, where n counts "cores" or "chips".
    """

    name: str
    cores: int
    devices: int
    hbm_gib: int
    tflops: int
    prefix: str
    counts: str

    def type_string(self, chips: int) -> str:
        """Google's name for a slice of so many chips, e.g. "v5litepod-8"."""
        return f"{self.prefix}-{chips * self.cores if self.counts == 'cores' else chips}"


# Devices per chip as torch_xla 2.9.0 counts them (_internal/tpu.py: two on v2 and v3, one on all later ones).
V2 = Generation("v2", 2, 2, 16, 45, "v2", "cores")  # 45 TFLOP/s: not confirmed by a source of Google's own
V3 = Generation("v3", 2, 2, 32, 123, "v3", "cores")
V4 = Generation("v4", 2, 1, 32, 275, "v4", "cores")
V5P = Generation("v5p", 2, 1, 95, 459, "v5p", "cores")
V5E = Generation("v5e", 1, 1, 16, 197, "v5litepod", "chips")
V6E = Generation("v6e", 1, 1, 32, 918, "v6e", "chips")
TPU7X = Generation("7x", 2, 1, 192, 2307, "tpu7x", "cores")

GENERATIONS = (V2, V3, V4, V5P, V5E, V6E, TPU7X)

_BY_SUBSYSTEM = {(V2_OR_V3, "0x004e"): V2, (V2_OR_V3, "0x004f"): V3}
_BY_DEVICE = {"0x005e": V4, "0x0062": V5P, "0x0063": V5E, "0x006f": V6E, "0x0076": TPU7X}

# Google's vendor id is also that of its virtual network card (0x0042, class 0x02) and disks (class 0x01), which every
# machine of its cloud may have. TPUs show class 0xff (vendor specific); 0x12 is PCI's class for accelerators.
_ACCELERATOR_CLASSES = ("0xff", "0x12")


@dataclass(frozen=True)
class Chip:
    """One chip as PCI shows it. `generation` is None where the ids are not known."""

    device_id: str
    subsystem_id: str
    generation: Generation | None


@dataclass(frozen=True)
class DeviceFile:
    """A device file of the TPU. `usable`: whether this account may read and write it, by its owner and mode."""

    path: str
    usable: bool


def find_chips(root: Path) -> tuple[Chip, ...]:
    """The TPU chips in `/sys/bus/pci/devices`, by PCI address."""
    folder = root / "sys/bus/pci/devices"
    found = (_chip(folder / address) for address in names(folder))
    return tuple(chip for chip in found if chip is not None)


def _chip(folder: Path) -> Chip | None:
    if read(folder / "vendor") != GOOGLE:
        return None
    device, subsystem = read(folder / "device") or "", read(folder / "subsystem_device") or ""
    generation = _BY_DEVICE.get(device) or _BY_SUBSYSTEM.get((device, subsystem))
    if generation is None and device != V2_OR_V3 and not _is_accelerator(folder):
        return None
    return Chip(device, subsystem, generation)


def _is_accelerator(folder: Path) -> bool:
    return (read(folder / "class") or "").startswith(_ACCELERATOR_CLASSES)


def common_generation(chips: tuple[Chip, ...]) -> Generation | None:
    """The one generation of all chips; None where there is no chip, an unknown one, or more than one generation."""
    kinds = {chip.generation for chip in chips}
    return kinds.pop() if len(kinds) == 1 else None


def generation_name(chips: tuple[Chip, ...]) -> str:
    """What to call the chips: "v5e", "unknown generation (0x00aa)", several joined by " and "; "" without chips."""
    return " and ".join(dict.fromkeys(_name(chip) for chip in chips))


def _name(chip: Chip) -> str:
    if chip.generation is not None:
        return chip.generation.name
    ids = f"{chip.device_id}, subsystem {chip.subsystem_id or 'not readable'}"
    return f"unknown generation ({ids if chip.device_id == V2_OR_V3 else chip.device_id})"


def replicas_per_worker(chips: tuple[Chip, ...]) -> int:
    """Devices that torch_xla makes of one chip; 1 on a host without a TPU.

    Known for unknown ids too: torch_xla makes two on v2 and v3 only, which share one PCI device id.
    """
    if not chips:
        return 1
    generation = chips[0].generation
    return generation.devices if generation else 2 if chips[0].device_id == V2_OR_V3 else 1


def find_device_files(root: Path) -> tuple[DeviceFile, ...]:
    """`/dev/accelN` (v2 to v4) and `/dev/vfio/N` (later ones), by number. Asks for permission, opens nothing.

    A container may still forbid the device by its device rules, which only an open shows.
    """
    dev = root / "dev"
    accel = [dev / name for name in _numbered(names(dev), "accel")]
    vfio = [dev / "vfio" / name for name in _numbered(names(dev / "vfio"), "")]
    return tuple(DeviceFile(str(path), os.access(path, os.R_OK | os.W_OK)) for path in accel + vfio)


def _numbered(candidates: list[str], prefix: str) -> list[str]:
    numbered = [name for name in candidates if re.fullmatch(rf"{prefix}[0-9]+", name)]
    return sorted(numbered, key=lambda name: int(name[len(prefix) :]))


def judge_chips(chips: tuple[Chip, ...], files: tuple[DeviceFile, ...]) -> list[HostProblem]:
    """Problems of the chips and their device files."""
    return [*judge_chip_kinds(chips), *judge_files(chips, files)] if chips else []


def judge_chip_kinds(chips: tuple[Chip, ...]) -> list[HostProblem]:
    """The problem of chips whose generation is unknown."""
    return [problem for problem in (_unknown(chips),) if problem is not None]


def judge_files(chips: tuple[Chip, ...], files: tuple[DeviceFile, ...]) -> list[HostProblem]:
    """Problems of the device files of these chips."""
    return [problem for problem in (_no_files(chips, files), _closed(files)) if problem is not None]


def _unknown(chips: tuple[Chip, ...]) -> HostProblem | None:
    if all(chip.generation for chip in chips):
        return None
    return HostProblem(
        about=TPU,
        what=f"The TPU is of an {generation_name(tuple(c for c in chips if c.generation is None))}.",
        why="This version does not know its PCI id, so its memory, cores and replicas are unknown; "
        "torch_xla counts only the chips whose ids it knows.",
        command="%pip install -U tpu-magics",
        then="restart the kernel; if the chip is still unknown, torch_xla may not know it either",
        state="warning",
    )


def _no_files(chips: tuple[Chip, ...], files: tuple[DeviceFile, ...]) -> HostProblem | None:
    if files:
        return None
    return HostProblem(
        about=TPU,
        what="The TPU has no device file: there is neither /dev/accelN nor /dev/vfio/N.",
        why=f"/sys shows {plural(len(chips), 'chip')}, but no driver has created device files, "
        "or this container did not get them.",
        then="start the container with --privileged, or restart the host to load its driver",
    )


def _closed(files: tuple[DeviceFile, ...]) -> HostProblem | None:
    closed = [file.path for file in files if not file.usable]
    if not closed:
        return None
    return HostProblem(
        about=TPU,
        what=f"This account has no permission to open {', '.join(closed)}.",
        why="libtpu reads and writes the device files. Without permission it stops with "
        f'"open({closed[0]}): Operation not permitted" or "Permission denied".',
        command=f"!sudo chmod a+rw {' '.join(closed)}",
        then="run %tpu_init again",
    )
