"""Sample lengths from anything that `%tpu_pad` accepts; from DataLoaders without torch, without the model, and with
random states restored."""

from __future__ import annotations

import copy
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from typing import Any

from tpu_magics.errors import TpuMagicsError
from tpu_magics.padding.lengths import (
    MASK,
    TODO,
    TOKENS,
    LengthSource,
    Texts,
    count_marked,
    lengths_of,
    without_padding,
)


def read(given: Any) -> LengthSource:
    """The lengths of samples. Nothing is consumed, and random states are restored.

    Args:
        given: lengths, lists of token ids, an array or tensor, a tokenised dataset or its column, rows, a tokenizer's
            output, or a DataLoader.

    Raises:
        TpuMagicsError: it has no lengths, or reading would consume it.
    """
    try:
        _refuse(given)
        with kept_random_states():
            return read_loader(given, read_dataset) or read_dataset(given)
    except Texts as found:
        raise TpuMagicsError(
            f"These are texts, which have no length in tokens yet: {found}.",
            "The length of a text depends on the tokenizer.",
            "Tokenise them first: lengths = [len(ids) for ids in tokenizer(texts)['input_ids']]",
        ) from None
    except TpuMagicsError:
        raise
    except Exception as error:  # raised by the user's dataset, collator or loader
        raise TpuMagicsError(
            f"Reading the samples failed with {type(error).__name__}: {error}.",
            f"The {type(given).__name__} itself raised the error, for one of its samples or batches.",
            "Fix it, or pass the lengths: %tpu_pad [len(ids) for ids in ...]",
        ) from error


def read_dataset(given: Any) -> LengthSource:
    """The lengths of anything but a loader."""
    _refuse(given)
    for form in _FORMS:
        found = form(given)
        if found is not None:
            return found
    raise TpuMagicsError(f"A {type(given).__name__} contains no lengths.", "It has neither items nor columns.", TODO)


def _refuse(given: Any) -> None:
    if isinstance(given, (str, bytes)):
        raise Texts(repr(given[:30]))
    if isinstance(given, (set, frozenset)):
        raise TpuMagicsError("A set is not a list of lengths.", "It keeps each length only once.", TODO)
    if hasattr(given, "__next__"):
        raise TpuMagicsError(
            f"Reading a {type(given).__name__} would use it up.",
            "It yields its samples only once, so none would be left for training.",
            "Put the samples in a list first, or pass the dataset that it reads.",
        )


# -- datasets and columns ----------------------------------------------------------------------------------------------


SAMPLED = 10_000  # samples read from a source of unknown size
_CHUNK = 10_000  # rows read at once from an Arrow table


def read_splits(given: Any) -> LengthSource | None:
    """A DatasetDict: its training split."""
    if not hasattr(given, "keys") or not callable(getattr(given, "values", None)):
        return None
    if not (len(given) and all(hasattr(split, "column_names") for split in given.values())):
        return None
    name = "train" if "train" in given else next(iter(given))
    found = read_table(given[name])
    return found and LengthSource(found.lengths, f"the split {name!r} ({found.what})", notes=found.notes)


def read_table(given: Any) -> LengthSource | None:
    """A Hugging Face Dataset, a data frame, a BatchEncoding or a dict: the column that has the tokens."""
    names = _names(given)
    if names is None or not hasattr(given, "__getitem__") or not hasattr(given, "__len__") or _transformed(given):
        return None
    found = next((name for name in TOKENS if name in names), None)
    if found is None:
        raise _no_tokens(given, names)
    what = f"the column {found!r}"
    masks = (lambda: column(given, MASK)) if MASK in names and found == TOKENS[0] else None
    arrow = _arrow_lengths(given, found)
    return without_padding(lengths_of(column(given, found) if arrow is None else arrow, what), masks, what)


def _names(given: Any) -> list[Any] | None:
    """The names of the columns; None without columns."""
    for names in ("column_names", "columns"):
        columns = getattr(given, names, None)
        if columns is not None and not callable(columns) and not isinstance(columns, dict):
            return list(columns)
    return list(given.keys()) if hasattr(given, "keys") else None


def _transformed(given: Any) -> bool:
    """Whether rows are made on the fly (set_transform): then a model does not get these columns."""
    style = getattr(given, "format", None)
    return isinstance(style, dict) and style.get("type") == "custom"


def _no_tokens(given: Any, names: list[Any]) -> TpuMagicsError:
    return TpuMagicsError(
        f"No token column found in the {type(given).__name__}.",
        f"Its columns: {', '.join(map(repr, names[:10])) or 'none'}; looked for: {', '.join(TOKENS)}.",
        "Tokenise it first, or pass the column: %tpu_pad dataset['my_ids']",
    )


def column(given: Any, name: str) -> Any:
    """A column's values; rows of a 2-D array or tensor as lists."""
    values = given[name]
    return values.tolist() if hasattr(values, "tolist") else values


def _arrow_lengths(given: Any, name: str) -> list[int] | None:
    """Lengths of a Dataset's column from its Arrow table, without making Python objects of the ids."""
    compute = sys.modules.get("pyarrow.compute")
    if compute is None or not hasattr(given, "with_format") or not hasattr(given, "select_columns"):
        return None
    rows = given.select_columns([name]).with_format("arrow")
    lengths: list[Any] = []
    for start in range(0, len(rows), _CHUNK):
        lengths += _of_arrow(rows[start : start + _CHUNK].column(name), compute)
    return lengths


def _of_arrow(values: Any, compute: Any) -> list[Any]:
    kind = str(values.type)  # e.g. list<element: int32>
    if "string" in kind:
        raise Texts(f"a column of type {kind}")
    is_list = "list" in kind.split("<")[0]
    found: list[Any] = (compute.list_value_length(values) if is_list else values).to_pylist()
    return found


def read_column(given: Any) -> LengthSource | None:
    """A column of a Hugging Face Dataset (datasets 4 and newer), and Arrow's own arrays."""
    compute = sys.modules.get("pyarrow.compute")
    name, source = getattr(given, "column_name", None), getattr(given, "source", None)
    if isinstance(name, str) and hasattr(source, "select_columns"):
        what = f"the column {name!r}"
        arrow = None if _transformed(source) else _arrow_lengths(source, name)
        return without_padding(lengths_of(given if arrow is None else arrow, what), None, what)
    if compute is None or not hasattr(given, "to_pylist"):
        return None
    what = f"the {type(given).__name__}"
    return without_padding(lengths_of(_of_arrow(given, compute), what), None, what)


def read_array(given: Any) -> LengthSource | None:
    """NumPy arrays, tensors and data frames' columns: lengths, or rows of token ids."""
    if not hasattr(given, "tolist") or not hasattr(given, "shape"):
        return None
    if len(given.shape) == 0:
        raise TpuMagicsError(
            f"This is a single number, not a list of lengths: {given.tolist()!r}.",
            "LENGTHS needs one length for each sample.",
            TODO,
        )
    what = f"the {type(given).__name__}"
    if len(given.shape) == 1:
        return LengthSource(lengths_of(given.tolist(), what), what)
    rows, length = int(given.shape[0]), int(given.shape[1])
    return without_padding(lengths_of([length] * rows, what), None, what)


def read_many(given: Any) -> LengthSource | None:
    """A list or another sequence of samples, a dataset with an index, or an iterable that can be read repeatedly."""
    what = f"the {type(given).__name__}"
    if isinstance(given, Sequence):
        lengths = lengths_of(list(given), what)
        return (
            _plain(lengths, what) if set(map(type, given)) <= {int} else without_padding(lengths, _masks(given), what)
        )
    if hasattr(given, "__getitem__") and hasattr(given, "__len__"):
        items = [given[index] for index in range(len(given))]
        return without_padding(lengths_of(items, what), _masks(items), what)
    if hasattr(given, "__iter__"):
        return _stream(given, what)
    return None


def _plain(lengths: list[int], what: str) -> LengthSource:
    return LengthSource(list(lengths), what)


def _masks(rows: Sequence[Any]) -> Callable[[], Iterator[Any]] | None:
    first = rows[0] if len(rows) else None
    has = hasattr(first, "keys") and MASK in first and TOKENS[0] in first  # type: ignore[operator]
    return (lambda: (row[MASK] for row in rows)) if has else None


def _stream(given: Any, what: str) -> LengthSource:
    rows = list(islice(iter(given), SAMPLED))
    found = without_padding(lengths_of(rows, what), _masks(rows), what)
    note = f"{what[0].upper()}{what[1:]} has no known size: only its first {len(rows):,} samples were used."
    return LengthSource(
        found.lengths, what, indexed=False, notes=(*found.notes, *((note,) if len(rows) == SAMPLED else ()))
    )


_FORMS = (read_splits, read_array, read_table, read_column, read_many)  # a Series is an array that has keys, too


# -- DataLoaders ------------------------------------------------------------------------------------------------------


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
