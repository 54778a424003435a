"""The host that the notebook runs on: environment, TPU, versions, memory, processes that use the TPU.

Reads files, package metadata and environment variables only; starts no runtime and changes nothing. All functions take
the environment variables and the root of the file system, so that recorded hosts can be inspected too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from tpu_magics.backends.torch.versions import has_other_libtpu
from tpu_magics.backends.version_checks import Versions
from tpu_magics.errors import BROKEN, ENVIRONMENT, IN_USE, TPU, VERSIONS, WARNING, HostProblem
from tpu_magics.host.chips import (
    Chip,
    DeviceFile,
    Generation,
    common_generation,
    find_chips,
    find_device_files,
    generation_name,
    judge_chips,
    replicas_per_worker,
)
from tpu_magics.host.device_owners import DeviceOwner, DeviceOwners, LockFile, find_owners, judge_owners
from tpu_magics.host.environments import (
    PJRT,
    Environment,
    VariableChange,
    choose_device,
    find_environment,
    judge_pjrt,
    notebook_environment,
    worker_changes,
)
from tpu_magics.host.memory import HostMemory, cpu_count, free_disk, host_memory
from tpu_magics.host.versions import installed, judge

__all__ = [
    "BROKEN",
    "ENVIRONMENT",
    "IN_USE",
    "TPU",
    "VERSIONS",
    "WARNING",
    "Chip",
    "DeviceFile",
    "DeviceOwner",
    "Environment",
    "Generation",
    "Host",
    "HostMemory",
    "HostProblem",
    "LockFile",
    "VariableChange",
    "free_disk",
    "inspect_host",
    "notebook_environment",
]


@dataclass(frozen=True)
class Host:
    """The host, before anything runs on it.

    `generation`: None without a TPU or where it is unknown; then `tpu` names what is known ("" without a TPU);
    `chips`: as PCI shows them; `devices`: their device files; `device`: "TPU" or "CPU", what cells train on;
    `branch`: what libraries take it for ("": what it is; WorkerSpec.branch); `workers`: processes to start; `replicas`:
    devices in each; `pjrt_device`: PJRT_DEVICE as it was found; `unseen`: processes of other accounts that could not be
    inspected; `cpus`: None: not available; `framework`: what cells are trained with, "torch" or "tensorflow", which has
    one process and no workers; `problems`: those that stop training first; `notes`: sentences that need no action.
    """

    environment: Environment
    generation: Generation | None
    tpu: str
    chips: tuple[Chip, ...]
    devices: tuple[DeviceFile, ...]
    device: str
    workers: int
    replicas: int
    pjrt_device: str
    owners: tuple[DeviceOwner, ...]
    unseen: int
    lock: LockFile
    memory: HostMemory
    cpus: int | None
    versions: Versions
    variable_changes: tuple[VariableChange, ...]
    problems: tuple[HostProblem, ...]
    notes: tuple[str, ...]
    framework: str = "torch"
    branch: str = ""

    @property
    def worker_environment(self) -> dict[str, str | None]:
        """The variable changes as WorkerSpec.environment takes them: None unsets."""
        return {change.name: change.value for change in self.variable_changes}


def inspect_host(
    environ: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
    modules: Collection[str] = sys.modules,
    versions: Versions | None = None,
    framework: str = "torch",
) -> Host:
    """Inspect the host. Reads files only; initialises nothing, changes nothing.

    Args:
        environ: the notebook's environment variables.
        root: where /sys, /proc, /dev and /tmp are.
        modules: names of the modules that the notebook has imported.
        versions: installed versions (default: those of this Python).
        framework: what cells are trained with, "torch" or "tensorflow".
    """
    torch = framework == "torch"
    chips, files = find_chips(root), find_device_files(root)
    environment = find_environment(environ, modules, len(chips))
    versions = installed() if versions is None else versions
    # Without chips, /dev/vfio/N belongs to something else: any device handed to a virtual machine.
    devices = files if chips else ()
    found = find_owners(root) if chips else DeviceOwners((), 0, LockFile(""))
    pjrt = environ.get(PJRT, "")
    device = choose_device(pjrt, len(chips))
    problems = [
        *judge(
            versions, bool(chips) if torch else device == "TPU", has_other_libtpu(environ), framework, environment.key
        ),
        *judge_chips(chips, devices),
        *judge_pjrt(pjrt, len(chips), torch),
        *judge_owners(found, in_workers=torch),
        *_judge_promise(environment, chips),
    ]
    return Host(
        environment=environment,
        generation=common_generation(chips),
        tpu=generation_name(chips),
        chips=chips,
        devices=devices,
        device=device,
        workers=len(chips) if torch and device == "TPU" else 1,
        replicas=replicas_per_worker(chips) if torch and device == "TPU" else 1,
        pjrt_device=pjrt,
        owners=found.owners,
        unseen=found.unseen,
        lock=found.lock,
        memory=host_memory(root),
        cpus=cpu_count(root),
        versions=versions,
        # Kaggle's variables are made for one process, as TensorFlow's is.
        variable_changes=worker_changes(environ, environment, len(chips)) if torch else (),
        problems=tuple(sorted(problems, key=lambda problem: problem.state != BROKEN)),
        notes=_notes(environment, found.lock, torch),
        framework=framework,
    )


def _judge_promise(environment: Environment, chips: tuple[Chip, ...]) -> list[HostProblem]:
    if chips or not environment.promise:
        return []
    return [
        HostProblem(
            about=TPU,
            what=f"{environment.name} reports a TPU on this host ({environment.promise}), but /sys shows no TPU chip.",
            why="Without a chip, cells train on the CPU.",
            then=environment.restart,
            state=WARNING,
        )
    ]


def _notes(environment: Environment, lock: LockFile, torch: bool) -> tuple[str, ...]:
    notes = []
    if len(environment.hosts) > 1:
        here = "workers start on this host only" if torch else "TensorFlow runs in this notebook's process only"
        notes.append(
            f"This is one of {len(environment.hosts)} hosts of a slice: {here}, but a TPU slice works only when all "
            "of its hosts take part."
        )
    if lock.state == "stale" and lock.ours:
        notes.append(f"{lock.path} was left by an earlier process of this account. It does no harm.")
    return tuple(notes)
