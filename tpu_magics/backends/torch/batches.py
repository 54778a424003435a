"""The sizes of a run's batches, and the tensors in one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_DEEP = 4


class BatchSizes:
    """`last`: of the batch that a loader returned last; `training`: of the first step with a backward pass; `short`:
    (full, last) of loaders whose last batch is short and has been returned; `backwards`: backward passes since the last
    step of an optimizer, `used`: batches that had one; `accumulation`: how many batches make a step, the most so far
    (at the end of an epoch fewer may be left); `unrecorded`: it may have changed since the last record."""

    def __init__(self) -> None:
        self.last: int | None = None
        self.training: int | None = None
        self.short: set[tuple[int, int]] = set()
        self.backwards = self.used = 0
        self.fresh = 0  # batches that have come and that no backward pass has used
        self.accumulation: int | None = None
        self.unrecorded = True
        self.loaders: dict[int, tuple[int, int | None]] = {}  # (full size, number of batches)

    def on_batch(self, batch: Any) -> None:
        """The batch of the next step."""
        self.last = batch_size(batch) or self.last
        self.fresh += 1

    def on_backward(self) -> None:
        """A GAN has several for one batch."""
        self.backwards += 1
        if self.fresh:  # Trainer fetches all batches of a step before its first one
            self.used += 1
            self.fresh -= 1

    def on_host_batch(self, iterator: Any, batch: Any, own: bool) -> None:
        """A DataLoader's iterator returned a batch; its last one may be short. `own`: it is that of the next step, not
        fetched ahead by accelerate's or XLA's loaders."""
        number = getattr(iterator, "_num_yielded", 0)
        if number == 1 or id(iterator) not in self.loaders:
            self.loaders[id(iterator)] = (batch_size(batch) or 0, _length(iterator))
        full, length = self.loaders[id(iterator)]
        if own:
            self.last = full or self.last
            self.fresh += 1
        if number == length:
            last = batch_size(batch) or full
            if last < full:
                self.short.add((full, last))
            self.loaders.pop(id(iterator), None)

    def on_optimizer_step(self) -> None:
        """The backward passes so far belong to this step."""
        before = self.accumulation
        self.accumulation = max(self.used or self.backwards, before or 0) or None
        self.backwards = self.used = 0
        self.unrecorded = self.unrecorded or self.accumulation != before

    def new_fields(self) -> dict[str, int | None] | None:
        """After a step with a backward pass: the fields of events.Batch; None if they are not known yet."""
        if self.last is None:
            return None
        self.training = self.last if self.training is None else self.training
        if self.accumulation is None:
            return None
        self.unrecorded = False
        return {"per_device": self.training, "accumulation": self.accumulation}


def leaves(name: str, value: Any, depth: int = _DEEP) -> Iterator[tuple[str, Any]]:
    """The tensors of a batch, by name."""
    import torch

    if isinstance(value, torch.Tensor):
        yield name, value
    elif depth and isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(str(key), item, depth - 1)
    elif depth and isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves("", item, depth - 1)


def batch_size(batch: Any) -> int | None:
    """The first dimension of a batch's first tensor."""
    first = next((tensor for _name, tensor in leaves("", batch) if tensor.dim()), None)
    return None if first is None else int(first.shape[0])


def _length(iterator: Any) -> int | None:
    """The number of batches of a DataLoader's iterator; None if unknown."""
    try:
        return len(iterator._index_sampler)
    except (TypeError, AttributeError):
        return None


def length_on_host(loader: Any) -> int | None:
    """The number of batches of one pass over a DataLoader, a list or a tuple; None if unknown."""
    from torch.utils.data import DataLoader, IterableDataset

    if isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset):
        return len(loader)  # of an IterableDataset it may be wrong, and asking for it makes torch warn
    return len(loader) if type(loader) in (list, tuple) else None
