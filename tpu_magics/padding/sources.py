"""Sample lengths from anything that `%tpu_pad` accepts."""

from __future__ import annotations

from typing import Any

from tpu_magics.errors import TpuMagicsError
from tpu_magics.padding.columns import read_array, read_column, read_many, read_splits, read_table
from tpu_magics.padding.lengths import TODO, LengthSource, Texts
from tpu_magics.padding.loaders import kept_random_states, read_loader

_FORMS = (read_splits, read_array, read_table, read_column, read_many)  # a Series is an array that has keys, too


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
