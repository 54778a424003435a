"""Errors of transformers' Trainer and Accelerate about batch sizes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tpu_magics.launch.errors import base
from tpu_magics.launch.errors.base import Explanation

if TYPE_CHECKING:
    from tpu_magics.launch.errors.failure import Failure, WorkerOutcome

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
    found = _SPLIT.search(base.error_text(outcome))
    if not found:
        return None
    size, ranks = found[1], int(found[2])
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


EXPLAINERS = (split_batches, no_batch_fits, evaluation_does_not_fit)
