"""Errors of libraries: batch sizes in transformers' Trainer and Accelerate, SPMD and versions of torch_xla."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tpu_magics.launch.errors import base
from tpu_magics.launch.errors.base import Explanation

if TYPE_CHECKING:
    from tpu_magics.launch.errors.failure import Failure, WorkerOutcome


# -- Trainer and Accelerate -------------------------------------------------------------------------------------------

# As in accelerate 1.15.0 (data_loader.py: DataLoader, BatchSamplerShard and IterableDatasetShard have the same text;
# utils/memory.py) and transformers 5.23.0 (trainer.py).
_SPLIT = re.compile(
    r"in `split_batches` mode, the batch size \((\d+|None)\) needs to be a round multiple of the number of processes "
    r"\((\d+)\)"
)
_NONE_FITS = "No executable batch size found, reached zero."
_EVALUATION = "Evaluation hit an out-of-memory error."


def split_batches(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """A batch that cannot be split evenly over the ranks."""
    match = _SPLIT.search(base.error_text(outcome))
    if not match:
        return None
    size, ranks = match[1], int(match[2])
    return Explanation(
        f"Rank {outcome.rank}: a batch size of {size} cannot be split over {ranks} ranks{base.at(failure, outcome)}.",
        "With split_batches=True every batch of the loader is split into equal parts, one for each rank.",
        f"Use a batch size that is a multiple of {ranks}{_nearest(size, ranks)}; or set split_batches=False: each rank "
        f"then takes full batches (the effective batch size is {ranks} times that of the loader).",
    )


def _nearest(size: str, ranks: int) -> str:
    """` (6 or 9)`: the multiples around a size."""
    if not size.isdigit():
        return ""
    below = int(size) // ranks * ranks
    return f" ({below} or {below + ranks})" if below else f" ({ranks})"


def no_batch_fits(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """auto_find_batch_size found no batch size."""
    if _NONE_FITS not in base.error_text(outcome):
        return None
    return Explanation(
        f"Rank {outcome.rank} found no batch size that fits into memory{base.at(failure, outcome)}.",
        "auto_find_batch_size (find_executable_batch_size) tried all sizes down to 1: the model, its gradients and the "
        "optimizer state alone take too much.",
        "Use bf16 (--precision bf16), shorten the sequences, recompute activations (gradient checkpointing), or shard "
        'the model (fsdp="full_shard" with fsdp_config={"xla": True}).',
    )


def evaluation_does_not_fit(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """The evaluation batch is too large; auto_find_batch_size only searches the training batch size."""
    if _EVALUATION not in base.error_text(outcome):
        return None
    return Explanation(
        f"Rank {outcome.rank} ran out of memory during evaluation{base.at(failure, outcome)}.",
        "auto_find_batch_size only searches the batch size for training.",
        "Set a smaller per_device_eval_batch_size (with the batch size found for training, one compile less is "
        "needed).",
    )


TRAINER = (split_batches, no_batch_fits, evaluation_does_not_fit)


# -- SPMD; texts of torch_xla 2.9.0 -----------------------------------------------------------------------------------

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
    match = _UNEVEN.search(base.error_text(outcome))
    if not match:
        return None
    batch, devices = int(match[1]), int(match[2])
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
    match = _AXIS.search(base.error_text(outcome))
    if not match:
        return None
    return Explanation(
        f"Rank {outcome.rank} uses the mesh axis {(match[1] or match[2])!r}, which its mesh does not have"
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


SPMD = (no_mesh, uneven_minibatch, unknown_axis, spmd_process_group)


# -- versions ---------------------------------------------------------------------------------------------------------

_SYMBOL = re.compile(r"_XLAC[\w.\-]*\.so: undefined symbol: ?(\S*)|_XLAC[\w.\-]*\.so: undefined symbol")


def undefined_symbol(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """torch_xla's extension was built for another version of torch."""
    if not _SYMBOL.search(base.evidence(outcome)):
        return None
    installed = base.with_versions(failure, "torch", "torch_xla")
    return Explanation(
        f"Rank {outcome.rank} could not load torch_xla: it was built for another version of torch.",
        f"Installed: {installed or 'unknown'}. torch_xla needs the torch of the same version.",
        f"{_install(failure)}, then restart the kernel.",
    )


def _install(failure: Failure) -> str:
    known = re.match(r"\d+\.\d+\.\d+", failure.versions.get("torch_xla") or failure.versions.get("torch-xla") or "")
    return (
        f"Run `%pip install torch=={known[0]} torch_xla=={known[0]}`" if known else "Install the same version of both"
    )


VERSIONS = (undefined_symbol,)
