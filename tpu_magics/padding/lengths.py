"""Lengths in tokens: of one sample, checked ones of many, and the longest of each simulated batch, for collators that
pad each batch by itself."""

from __future__ import annotations

import operator
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tpu_magics.errors import TpuMagicsError

TOKENS = (
    "input_ids",
    "input_features",
    "input_values",
    "inputs",
    "tokens",
    "length",
    "lengths",
)  # the first one found is used
MASK = "attention_mask"
LONGEST = 10_000_000  # tokens of one sample; more is not a length
TODO = (
    "Pass the lengths ([len(ids) for ids in ...]), lists of token ids, a tokenised dataset or its column, or a "
    "DataLoader."
)


@dataclass(frozen=True)
class LengthSource:
    """Lengths in tokens, in the order of the dataset, and what is known of its batches.

    `what`: the source in words. `batch_size` and `drop_last`: None if unknown. `order`: "shuffled", "in order", or "as
    drawn": then `batches` has the indices of each batch of one epoch. `indexed`: the positions are those of a dataset,
    so a batch sampler can be made for it. `notes`: sentences for the user.
    """

    lengths: list[int]
    what: str
    batch_size: int | None = None
    drop_last: bool | None = None
    order: str = "shuffled"
    batches: tuple[tuple[int, ...], ...] = ()
    indexed: bool = True
    notes: tuple[str, ...] = ()


class NoLength(Exception):
    """A sample without a length; the message says what it is."""


class Texts(NoLength):
    """The samples are texts, without tokens yet."""


def lengths_of(samples: Iterable[Any], what: str) -> list[int]:
    """The checked length of each sample. Raises TpuMagicsError for the first sample without a length, and Texts if the
    samples are texts."""
    items = samples if isinstance(samples, list) else list(samples)
    kinds = set(map(type, items))
    if kinds <= {int}:
        found = items
    elif kinds <= {list} and not any(item and type(item[0]) is not int for item in items):
        found = list(map(len, items))
    else:
        found = [_length_or_error(item, number, what) for number, item in enumerate(items)]
    return checked(found, what)


def _length_or_error(item: Any, number: int, what: str) -> int:
    try:
        return length_of(item)
    except Texts:
        raise
    except NoLength as odd:
        raise TpuMagicsError(
            f"Sample {number} of {what} has no length: it is {odd}.", "A length is a whole number of tokens.", TODO
        ) from None


def checked(lengths: list[int], what: str) -> list[int]:
    """The lengths, if all are valid."""
    if not lengths:
        raise TpuMagicsError(
            f"There are no samples in {what}.", "The lengths of samples are needed to choose a padding.", TODO
        )
    low, high = min(lengths), max(lengths)
    if low < 0:
        raise TpuMagicsError(
            f"Sample {lengths.index(low)} of {what} has the length {low}.", "A length is 0 or more tokens.", TODO
        )
    if high > LONGEST:
        raise TpuMagicsError(
            f"Sample {lengths.index(high)} of {what} has the length {high:,}.",
            f"A sample cannot have more than {LONGEST:,} tokens. These may be ids, hashes or bytes.",
            TODO,
        )
    if high == 0:
        raise TpuMagicsError(
            f"All {len(lengths):,} samples of {what} are empty.", "The longest has 0 tokens.", "Check the tokenizer."
        )
    return lengths


# -- one sample ----------------------------------------------------------------------------------------------------


def length_of(item: Any) -> int:
    """The length of one sample: a number, token ids (list, array, tensor), a row with input_ids, or a tuple that begins
    with one of these. Raises NoLength."""
    if isinstance(item, (str, bytes)):
        raise Texts(f"a text ({item[:30]!r})")
    if item is None or isinstance(item, (bool, complex, set, frozenset)):
        raise NoLength(repr(item)[:60])
    for form in (_row, _shaped, _encoding, _sequence, _number):
        length = form(item)
        if length is not None:
            return length
    raise NoLength(f"a {type(item).__name__}")


def _row(item: Any) -> int | None:
    """A row of columns: its tokens, including padding."""
    if not (hasattr(item, "keys") and hasattr(item, "__getitem__")):
        return None
    names = list(item.keys())
    found = next((name for name in TOKENS if name in names), None)
    if found is None and any(isinstance(item[name], (str, bytes)) for name in names):
        raise Texts(f"a row of texts ({', '.join(map(str, names))[:60]})")
    if found is None:
        raise NoLength(f"a row without input_ids; it has {', '.join(map(str, names))[:80] or 'nothing'}")
    return length_of(item[found])


def _shaped(item: Any) -> int | None:
    """An array or tensor: its first dimension, or the second if there is one row of ids (a tokenizer's return_tensors).
    Several rows of integers are not one sample of tokens."""
    shape = getattr(item, "shape", None)
    if shape is None or callable(shape) or len(shape) == 0:
        return None
    if len(shape) == 1 or "int" not in str(getattr(item, "dtype", "")):
        return int(shape[0])
    if len(shape) == 2 and shape[0] == 1:
        return int(shape[1])
    raise NoLength(f"a table of whole numbers {tuple(map(int, shape))}: a batch, or an image")


def _encoding(item: Any) -> int | None:
    """An Encoding of the library tokenizers."""
    ids = getattr(item, "ids", None)
    return len(ids) if isinstance(ids, list) else None


def _sequence(item: Any) -> int | None:
    if not isinstance(item, Sequence):
        return None
    first = item[0] if len(item) else None
    if isinstance(first, (str, bytes)):
        raise Texts(f"a sequence of texts ({first[:30]!r}, ...)")
    holds_tokens = hasattr(first, "keys") or (hasattr(first, "__len__") and getattr(first, "shape", None) != ())
    if holds_tokens and (isinstance(item, tuple) or len(item) == 1):
        return length_of(first)
    return len(item)


def _number(item: Any) -> int | None:
    """A number of any library: integers by the index protocol, floats with integer values."""
    try:
        return operator.index(item)
    except TypeError:
        pass
    try:
        value = float(item)
    except (TypeError, ValueError):
        return None
    if value != value or not value.is_integer():
        raise NoLength(f"the number {value}" if value == value else "NaN (a missing value)")
    return int(value)


# -- samples that are padded already -------------------------------------------------------------------------------


def without_padding(lengths: list[int], masks: Callable[[], Iterable[Any]] | None, what: str) -> LengthSource:
    """The source of these lengths. If all are equal, the samples may be padded, and the lengths are taken from the
    masks. `masks`: returns the masks (None: there are none)."""
    if len(lengths) < 2 or min(lengths) != max(lengths):
        return LengthSource(lengths, what)
    found = checked([count_marked(mask) for mask in masks()], what) if masks is not None else lengths
    if found == lengths:
        note = (
            f"All samples have {lengths[0]:,} tokens. If they are padded, pass them unpadded or with their "
            "attention mask."
        )
        return LengthSource(lengths, what, notes=(note,))
    note = f"The samples are already padded to {lengths[0]:,}. Their lengths were taken from the {MASK}."
    return LengthSource(found, what, notes=(note,))


def count_marked(mask: Any) -> int:
    """Number of tokens that a mask marks."""
    values = mask.tolist() if hasattr(mask, "tolist") else mask
    while values and isinstance(values[0], (list, tuple)):
        values = values[0]
    return int(sum(values))


# -- simulated batches ------------------------------------------------------------------------------------------------


SEED = 0
SAMPLES = 3_000_000  # maximum; further epochs are not simulated


@dataclass(frozen=True)
class SimulatedBatches:
    """Batches of `epochs` epochs. `full`: number of full batches of each longest length; `short`: the same for batches
    with fewer samples, by (samples, longest)."""

    epochs: int
    full: Counter[int]
    short: Counter[tuple[int, int]]
    batch_size: int

    def padded_to(self, multiple: int) -> PaddedBatches:
        """These batches, each padded to its longest sample rounded up to a multiple."""
        full = [(round_up(longest, multiple), count) for longest, count in self.full.items()]
        short = [(size, round_up(longest, multiple), count) for (size, longest), count in self.short.items()]
        slots = self.batch_size * sum(length * count for length, count in full)
        slots += sum(size * length * count for size, length, count in short)
        lengths = {length for length, _count in full}
        return PaddedBatches(
            tuple(sorted(lengths or {length for _size, length, _count in short})),
            len({(size, length) for size, length, _count in short}),
            slots / self.epochs,
        )


@dataclass(frozen=True)
class PaddedBatches:
    """Lengths of full batches, number of shapes of short ones, and token slots of one epoch."""

    lengths: tuple[int, ...]
    short_shapes: int
    slots: float


def round_up(length: int, multiple: int) -> int:
    """`length` rounded up to a multiple, at least one."""
    return max(1, -(-length // multiple)) * multiple


def simulate(lengths: Sequence[int], source: LengthSource, batch_size: int, epochs: int) -> SimulatedBatches:
    """The batches of the first epochs: a seeded shuffle of all samples, or the order of the source."""
    many = min(epochs, max(1, SAMPLES // len(lengths))) if source.order == "shuffled" else 1
    full: Counter[int] = Counter()
    short: Counter[tuple[int, int]] = Counter()
    for longest, rest in _epochs(lengths, source, batch_size, many):
        full.update(longest)
        short.update(rest)
    return SimulatedBatches(many, full, short, batch_size)


def _epochs(
    lengths: Sequence[int], source: LengthSource, size: int, epochs: int
) -> Iterator[tuple[Iterable[int], list[tuple[int, int]]]]:
    if source.order == "as drawn":
        drawn = [(len(batch), max(lengths[index] for index in batch)) for batch in source.batches if batch]
        yield [longest for count, longest in drawn if count == size], [one for one in drawn if one[0] != size]
        return
    chance = random.Random(SEED)
    order = list(lengths)
    for _ in range(epochs):
        if source.order == "shuffled":
            chance.shuffle(order)
        yield _maxima(order, size)


def _maxima(order: Sequence[int], size: int) -> tuple[Iterable[int], list[tuple[int, int]]]:
    rest = len(order) % size
    each = iter(order)
    full = map(max, zip(*[each] * size, strict=False)) if size > 1 else order
    return full, [(rest, max(order[-rest:]))] if rest else []
