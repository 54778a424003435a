"""SPMD: meshes, axes and batches that do not go together.

What lives here: one small function for each text that torch_xla has for it. What does not: a device's memory
(memory.py), and tensors on the wrong device (usercode.py).

Texts were read and recorded with torch_xla 2.9.0.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tpu_magics.launch.errors import base
from tpu_magics.launch.errors.base import Explanation

if TYPE_CHECKING:
    from tpu_magics.launch.errors.failure import Failure, WorkerOutcome

_NO_MESH = re.compile(
    r"'NoneType' object has no attribute '(?:get_op_sharding|get_axis_name_idx)'"
    r"|No mesh is provided and no global mesh is set"
    r"|Please enable SPMD via"
)
_UNEVEN = re.compile(
    r"per-host batch size must be divisible by local runtime device count\. "
    r"Per host input data shape = torch\.Size\(\[(\d+)[^\]]*\]\), local_runtime_device_count = (\d+)"
)
_AXIS = re.compile(r"Axis name (\S+) is not defined in the given mesh|mesh must have an axis named '(fsdp)'")
_FSDP_MESH = 'n = xr.global_runtime_device_count(); xs.set_global_mesh(xs.Mesh(range(n), (n, 1), ("fsdp", "tensor")))'


def no_mesh(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """A tensor was to be split over a mesh in a run that has none."""
    if not _NO_MESH.search(base.error_text(outcome)):
        return None
    return Explanation(
        f"Rank {outcome.rank} splits a tensor over a mesh{base.at(failure, outcome)}, and this run is not an SPMD one.",
        "A mesh joins all devices in one process. Only %%tpu_train --spmd starts such a worker and puts a mesh where "
        "xs.get_global_mesh() finds it; transformers' fsdp_config with xla_fsdp_v2 needs it, too.",
        "Train with %%tpu_train --spmd (on a machine without a TPU: %tpu_init --spmd 8 for 8 virtual devices).",
    )


def uneven_minibatch(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """A loader's batch that cannot be cut into equal parts."""
    found = _UNEVEN.search(base.error_text(outcome))
    if not found:
        return None
    batch, devices = int(found[1]), int(found[2])
    larger = -(-batch // devices) * devices
    return Explanation(
        f"Rank {outcome.rank} has a batch of {batch}, which {devices} devices do not divide"
        f"{base.at(failure, outcome)}.",
        "With ShardingSpec(..., minibatch=True) each device is sent its own part of the batch, and the parts must be "
        "equal. A last batch that is short has this effect as well.",
        f"Use a batch size that {devices} divides, e.g. {larger}, with drop_last=True in the DataLoader; or leave out "
        "minibatch=True: torch_xla then pads what is missing.",
    )


def unknown_axis(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """An axis of a mesh under a name that the mesh does not have."""
    found = _AXIS.search(base.error_text(outcome))
    if not found:
        return None
    return Explanation(
        f"Rank {outcome.rank} names the mesh's axis {(found[1] or found[2])!r}, which its mesh does not have"
        f"{base.at(failure, outcome)}.",
        'The mesh of --spmd has the axes "data" and "model"; transformers\' Trainer with xla_fsdp_v2 puts one with '
        '"fsdp" and "tensor" in its place.',
        f"Use one of the mesh's own names, or set another mesh first: {_FSDP_MESH}",
    )


def spmd_process_group(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """A process group of XLA devices where one process has them all."""
    if "XLA backend is not supported with SPMD" not in base.error_text(outcome):
        return None
    return Explanation(
        f"Rank {outcome.rank} made a process group with the backend xla in an SPMD run{base.at(failure, outcome)}.",
        "An SPMD run is one process with all devices: there are no ranks to join. XLA puts the collectives into the "
        "graph by itself, where tensors are split.",
        "Leave dist.init_process_group out (Accelerator() and Trainer need none). Code that must have a group gets "
        'one with dist.init_process_group("gloo", init_method="xla://"). For ranks use -n instead of --spmd.',
    )


EXPLAINERS = (no_mesh, uneven_minibatch, unknown_axis, spmd_process_group)
