"""Sample lengths and batches from DataLoaders, without torch, without the model, and with random states restored."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any

from tpu_magics.errors import TpuMagicsError
from tpu_magics.padding.lengths import MASK, TOKENS, LengthSource, Texts, count_marked, lengths_of

BATCHES = 2_000  # maximum number of batches to read lengths from
_RANDOM = ("RandomSampler", "SeedableRandomSampler", "DistributedSampler")


def is_loader(given: Any) -> bool:
    return hasattr(given, "dataset") and hasattr(given, "batch_size") and hasattr(given, "__iter__")


def unwrap(given: Any) -> Any:
    """The loader inside one that accelerate has prepared."""
    inner = getattr(given, "dataloader", None)
    return inner if is_loader(inner) and not is_loader(given) else given


def read_loader(given: Any, read_dataset: Callable[[Any], LengthSource]) -> LengthSource | None:
    """Lengths from a loader's dataset, or from its batches if the dataset has none."""
    loader = unwrap(given)
    if not is_loader(loader):
        return None
    with kept_random_states():
        try:
            found = read_dataset(loader.dataset)
        except Texts:
            return _from_batches(loader, "its collate function tokenises")
        if not found.indexed:
            return _from_batches(loader, "its dataset has no index")
        return _with_order(loader, replace(found, what=f"the DataLoader's dataset ({found.what})"))


def _with_order(loader: Any, found: LengthSource) -> LengthSource:
    """With the loader's batch size and order."""
    drawn = getattr(loader, "batch_sampler", None)
    sampler = getattr(drawn, "sampler", None)
    size = loader.batch_size or getattr(drawn, "batch_size", None)
    drop = bool(getattr(loader, "drop_last", False) or getattr(drawn, "drop_last", False))
    found = replace(found, batch_size=size, drop_last=drop)
    plain = type(drawn).__name__ == "BatchSampler"
    if plain and type(sampler).__name__ == "SequentialSampler":
        return replace(found, order="in order")
    if plain and type(sampler).__name__ in _RANDOM:
        return found
    return _with_drawn_batches(drawn, found)


def _with_drawn_batches(batch_sampler: Any, found: LengthSource) -> LengthSource:
    """With the batches that a custom sampler draws in one epoch."""
    try:
        drawn = islice(copy.copy(batch_sampler), len(found.lengths))  # a copy, as it may count epochs
        batches = tuple(tuple(map(int, batch)) for batch in drawn)
    except Exception:  # custom samplers may raise anything, e.g. for a missing process group
        return found
    known = all(0 <= index < len(found.lengths) for batch in batches for index in batch)
    if not batches or not known:
        return found
    return replace(found, order="as drawn", batches=batches, batch_size=found.batch_size or max(map(len, batches)))


# -- batches as they are -------------------------------------------------------------------------------------------


def _from_batches(loader: Any, why: str) -> LengthSource:
    """Lengths from the loader's real batches, by their masks."""
    lengths: list[int] = []
    batches: list[tuple[int, ...]] = []
    masked = True
    for batch in islice(iter(loader), BATCHES):
        found, has_mask = _batch_lengths(batch)
        batches.append(tuple(range(len(lengths), len(lengths) + len(found))))
        lengths += found
        masked = masked and has_mask
    return LengthSource(
        lengths_of(lengths, "the DataLoader"),
        f"{len(batches):,} batches of the DataLoader",
        batch_size=loader.batch_size or max(map(len, batches)),
        drop_last=bool(getattr(loader, "drop_last", False)),
        order="as drawn",
        batches=tuple(batches),
        indexed=False,
        notes=tuple(_notes(why, len(batches), masked)),
    )


def _notes(why: str, count: int, masked: bool) -> Iterator[str]:
    yield f"Lengths were read from {count:,} batches of the DataLoader, because {why}."
    if not masked:
        yield f"The batches have no {MASK}: padding counts as tokens, so the padded share is too low."


def _batch_lengths(batch: Any) -> tuple[list[int], bool]:
    """The length of each row of a batch, and whether it came from a mask."""
    if hasattr(batch, "keys"):
        if MASK in batch:
            return [count_marked(row) for row in batch[MASK]], True
        name = next((name for name in TOKENS if name in batch), None)
        tokens = batch[name] if name is not None else None
    else:
        tokens = batch[0] if isinstance(batch, (list, tuple)) and len(batch) else batch
    shape = getattr(tokens, "shape", None)
    if shape is None or len(shape) < 2:
        raise TpuMagicsError(
            "The DataLoader's batches contain no token ids.",
            f"A batch is a {type(batch).__name__}; looked for: input_ids, or a first tensor of shape (batch, length).",
            "Pass the lengths: %tpu_pad [len(ids) for ids in ...]",
        )
    return [int(shape[1])] * int(shape[0]), False


@contextmanager
def kept_random_states() -> Iterator[None]:
    """Restore the random states of Python, NumPy and torch after the block."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    python = random.getstate()
    of_torch = torch.random.get_rng_state() if torch is not None else None
    of_numpy = numpy.random.get_state() if numpy is not None else None
    try:
        yield
    finally:
        random.setstate(python)
        if torch is not None:
            torch.random.set_rng_state(of_torch)
        if numpy is not None:
            numpy.random.set_state(of_numpy)
