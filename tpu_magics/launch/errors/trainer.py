"""What transformers' Trainer and accelerate refuse: batch sizes that do not fit the ranks, or fit no memory.

What lives here: one small function for each of their texts. What does not: fp16 (usercode.py, which also knows it from
other code), and the device's memory (device.py).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tpu_magics.launch.errors import base
from tpu_magics.launch.errors.base import Explanation

if TYPE_CHECKING:
    from tpu_magics.launch.errors.failure import Failure, WorkerOutcome

# Read in accelerate 1.15.0 (data_loader.py: DataLoader, BatchSamplerShard and IterableDatasetShard say the same;
# utils/memory.py) and transformers 5.23.0 (trainer.py).
_SPLIT = re.compile(
    r"in `split_batches` mode, the batch size \((\d+|None)\) needs to be a round multiple of the number of processes "
    r"\((\d+)\)"
)
_NONE_FITS = "No executable batch size found, reached zero."
_EVALUATION = "Evaluation hit an out-of-memory error."


def split_batches(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """A batch that is to be split over the ranks, and does not divide by them."""
    found = _SPLIT.search(base.error_text(outcome))
    if not found:
        return None
    size, ranks = found[1], int(found[2])
    return Explanation(
        f"Rank {outcome.rank}: a batch size of {size} cannot be split over {ranks} ranks{base.at(failure, outcome)}.",
        "With split_batches=True every batch of the loader is cut into one equal part for each rank.",
        f"Use a batch size that is a multiple of {ranks}{_nearest(size, ranks)}; or set split_batches=False, and each "
        f"rank takes whole batches of its own (the effective batch size is then {ranks} times that of the loader).",
    )


def _nearest(size: str, ranks: int) -> str:
    """` (6 or 9)`: the multiples around a size."""
    if not size.isdigit():
        return ""
    below = int(size) // ranks * ranks
    return f" ({below} or {below + ranks})" if below else f" ({ranks})"


def no_batch_fits(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """auto_find_batch_size has come down to nothing."""
    if _NONE_FITS not in base.error_text(outcome):
        return None
    return Explanation(
        f"Rank {outcome.rank} found no batch size that fits into memory{base.at(failure, outcome)}.",
        "Every size was tried, down to 1 (auto_find_batch_size, find_executable_batch_size): the model, its gradients "
        "and the optimiser's state alone take too much.",
        "Use bf16 (--precision bf16), shorten the sequences, recompute activations (gradient checkpointing), or shard "
        'the model (fsdp="full_shard" with fsdp_config={"xla": True}).',
    )


def evaluation_does_not_fit(failure: Failure, outcome: WorkerOutcome) -> Explanation | None:
    """The batch of an evaluation is too large; auto_find_batch_size looks for that of training only."""
    if _EVALUATION not in base.error_text(outcome):
        return None
    return Explanation(
        f"Rank {outcome.rank} ran out of memory in an evaluation{base.at(failure, outcome)}.",
        "auto_find_batch_size looks for a batch size for training only.",
        "Set a smaller per_device_eval_batch_size (the one that training came down to spares a compile).",
    )


EXPLAINERS = (split_batches, no_batch_fits, evaluation_does_not_fit)
