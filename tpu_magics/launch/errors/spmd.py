"""SPMD errors: no mesh, unknown axes, batches that cannot be split. The patterns match texts of torch_xla 2.9.0."""

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
    """A tensor is to be sharded over a mesh, but the run has none."""
    if not _NO_MESH.search(base.error_text(outcome)):
        return None
    return Explanation(
        f"Rank {outcome.rank} shards a tensor over a mesh{base.at(failure, outcome)}, but this run does not use SPMD.",
        "A mesh needs one process with all devices. Only %%tpu_train --spmd starts such a worker and sets the mesh "
        "that xs.get_global_mesh() returns. transformers' fsdp_config with xla_fsdp_v2 needs it too.",
        "Train with %%tpu_train --spmd (on a machine without a TPU: %tpu_init --spmd 8 for 8 virtual devices).",
    )


def uneven_minibatch(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """A batch that cannot be split into equal parts."""
    found = _UNEVEN.search(base.error_text(outcome))
    if not found:
        return None
    batch, devices = int(found[1]), int(found[2])
    larger = -(-batch // devices) * devices
    return Explanation(
        f"Rank {outcome.rank} has a batch of {batch}, which cannot be split evenly over {devices} devices"
        f"{base.at(failure, outcome)}.",
        "With ShardingSpec(..., minibatch=True) each device gets an equal part of the batch. A shorter last batch also "
        "causes this error.",
        f"Use a batch size that is a multiple of {devices}, e.g. {larger}, with drop_last=True in the DataLoader; or "
        "omit minibatch=True: torch_xla then pads the batch.",
    )


def unknown_axis(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """An axis name that the mesh does not have."""
    found = _AXIS.search(base.error_text(outcome))
    if not found:
        return None
    return Explanation(
        f"Rank {outcome.rank} uses the mesh axis {(found[1] or found[2])!r}, which its mesh does not have"
        f"{base.at(failure, outcome)}.",
        'The mesh of --spmd has the axes "data" and "model". transformers\' Trainer with xla_fsdp_v2 sets a mesh with '
        '"fsdp" and "tensor" instead.',
        f"Use an axis of the mesh, or set another mesh first: {_FSDP_MESH}",
    )


def spmd_process_group(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """A process group in a run with a single process."""
    if "XLA backend is not supported with SPMD" not in base.error_text(outcome):
        return None
    return Explanation(
        f"Rank {outcome.rank} created a process group with the backend xla in an SPMD run{base.at(failure, outcome)}.",
        "An SPMD run is one process with all devices, so it has no ranks to connect. XLA adds the collectives to the "
        "graph where tensors are sharded.",
        "Remove dist.init_process_group (Accelerator() and Trainer do not need it). If your code needs a group, use "
        'dist.init_process_group("gloo", init_method="xla://"). To get ranks, use -n instead of --spmd.',
    )


EXPLAINERS = (no_mesh, uneven_minibatch, unknown_axis, spmd_process_group)
