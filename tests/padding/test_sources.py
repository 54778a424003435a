"""What LENGTHS accepts and refuses, real DataLoaders too."""

from __future__ import annotations

import random
from collections import UserDict, deque
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler
from transformers import PreTrainedTokenizerFast

from tpu_magics.errors import TpuMagicsError
from tpu_magics.padding.sampler import BucketBatches
from tpu_magics.padding.sources import read

IDS = [[5, 6, 7], [8], [9, 10]]
ROWS = [{"input_ids": ids, "labels": 0} for ids in IDS]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]")


class Indexed:
    """A map-style dataset that says nothing of its end by an IndexError, as torch's may not."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index % len(self.items)]


class Stream:
    """Can be gone through again and again, and tells no size."""

    def __iter__(self) -> Any:
        return iter(ROWS)


GIVEN = {
    "numbers": [3, 1, 2],
    "tuple": (3, 1, 2),
    "deque": deque([3, 1, 2]),
    "whole floats": [3.0, 1.0, 2.0],
    "array": np.array([3, 1, 2]),
    "array of floats": np.array([3.0, 1.0, 2.0]),
    "array of small numbers": np.array([3, 1, 2], dtype=np.uint8),
    "array of objects": np.array([[5, 6, 7], [8], [9, 10]], dtype=object),
    "numbers of NumPy": [np.int64(3), np.int32(1), np.int8(2)],
    "tensor": torch.tensor([3, 1, 2]),
    "numbers of torch": [torch.tensor(3), torch.tensor(1), torch.tensor(2)],
    "token ids": IDS,
    "tensors": [torch.tensor(ids) for ids in IDS],
    "arrays": [np.array(ids) for ids in IDS],
    "one row each": [torch.tensor([ids]) for ids in IDS],
    "lists of one list": [[ids] for ids in IDS],
    "rows": ROWS,
    "rows of tensors": [{"input_ids": torch.tensor(ids)} for ids in IDS],
    "pairs": [(ids, 1) for ids in IDS],
    "pairs of tensors": [(torch.tensor(ids), torch.tensor(1)) for ids in IDS],
    "columns": {"input_ids": IDS, "labels": [0, 1, 0]},
    "a column of lengths": {"length": [3, 1, 2], "labels": [0, 1, 0]},
    "a column of tensors": {"input_ids": [torch.tensor(ids) for ids in IDS]},
    "a dict of another kind": UserDict({"input_ids": IDS}),
    "dataset": Indexed(ROWS),
    "dataset of pairs": Indexed([(torch.tensor(ids), 1) for ids in IDS]),
    "subset": torch.utils.data.Subset(ROWS, [0, 1, 2]),
    "stream": Stream(),
    "what tokenizers gives": [SimpleNamespace(ids=ids) for ids in IDS],
    "features": [np.zeros((length, 80)) for length in (3, 1, 2)],
}


@pytest.mark.parametrize("form", GIVEN)
def test_all_forms_give_the_same_lengths(form: str) -> None:
    assert read(GIVEN[form]).lengths == [3, 1, 2]


def test_an_empty_sample_has_the_length_0() -> None:
    assert read([[], [1, 2]]).lengths == [0, 2]
    assert read({"input_ids": [[], [1, 2]]}).lengths == [0, 2]


def test_what_a_tokenizer_gives(tokenizer: PreTrainedTokenizerFast) -> None:
    texts = ["a b c", "a", "a b"]
    assert read(tokenizer(texts)).lengths == [3, 1, 2]
    assert read([tokenizer(text) for text in texts]).lengths == [3, 1, 2]
    assert read([tokenizer(text, return_tensors="pt") for text in texts]).lengths == [3, 1, 2]
    assert read(tokenizer.backend_tokenizer.encode_batch(texts)).lengths == [3, 1, 2]


@pytest.mark.parametrize("tensors", [None, "pt", "np"])
def test_padding_that_is_there_already_is_seen_by_the_mask(tokenizer: PreTrainedTokenizerFast, tensors: str) -> None:
    padded = tokenizer(["a b c", "a", "a b"], padding="max_length", max_length=8, return_tensors=tensors)
    found = read(padded)
    assert found.lengths == [3, 1, 2]
    assert found.notes == ("The samples are already padded to 8. Their lengths were taken from the attention_mask.",)
    rows = [{name: column[at] for name, column in padded.items()} for at in range(3)]
    assert read(rows).lengths == read(Indexed(rows)).lengths == [3, 1, 2]


def test_a_table_of_ids_is_said_to_look_padded() -> None:
    for table in (np.ones((4, 16), dtype=int), torch.ones(4, 16, dtype=torch.long), [[1] * 16] * 4):
        found = read(table)
        assert found.lengths == [16] * 4
        assert found.notes == (
            "All samples have 16 tokens. If they are padded, pass them unpadded or with their attention mask.",
        )
    assert read([16] * 4).notes == ()


def test_a_stream_without_an_end_is_sampled() -> None:
    class Endless:
        def __iter__(self) -> Any:
            while True:
                yield from IDS

    found = read(Endless())
    assert len(found.lengths) == 10_000 and not found.indexed
    assert found.notes == ("The Endless has no known size: only its first 10,000 samples were used.",)


def test_the_training_split_of_several_is_taken() -> None:
    class FakeDataset(dict):  # type: ignore[type-arg]  # what a Dataset shows: columns and their values
        @property
        def column_names(self) -> list[str]:
            return list(self)

    splits = {"test": FakeDataset(input_ids=[[1]]), "train": FakeDataset(input_ids=IDS)}
    found = read(splits)
    assert found.lengths == [3, 1, 2] and found.what == "the split 'train' (the column 'input_ids')"


REFUSED = {
    "nothing": ([], "There are no samples in the list."),
    "negative": ([3, -1], "Sample 1 of the list has the length -1."),
    "a half": ([3, 2.5], "Sample 1 of the list has no length: it is the number 2.5."),
    "not a number": ([3.0, float("nan")], "Sample 1 of the list has no length: it is NaN (a missing value)."),
    "infinite": ([float("inf")], "Sample 0 of the list has no length: it is the number inf."),
    "none": ([[1], None], "Sample 1 of the list has no length: it is None."),
    "a mask": ([True, False], "Sample 0 of the list has no length: it is True."),
    "huge": ([3, 10**12], "Sample 1 of the list has the length 1,000,000,000,000."),
    "only empty ones": ([[], []], "All 2 samples of the list are empty."),
    "texts": (["a text"], "These are texts, which have no length in tokens yet: a text ('a text')."),
    "a text": ("a text", "These are texts, which have no length in tokens yet: 'a text'."),
    "words": (
        [["two", "words"]],
        "These are texts, which have no length in tokens yet: a sequence of texts ('two', ...).",
    ),
    "rows of texts": ([{"text": "a"}], "These are texts, which have no length in tokens yet: a row of texts (text)."),
    "rows": ([{"image": 3}], "Sample 0 of the list has no length: it is a row without input_ids; it has image."),
    "batches": (
        [torch.ones(4, 9, dtype=torch.long)],
        "Sample 0 of the list has no length: it is a table of whole numbers (4, 9): a batch, or an image.",
    ),
    "columns": ({"image": [1]}, "No token column found in the dict."),
    "a set": ({3, 4}, "A set is not a list of lengths."),
    "a number": (3, "A int contains no lengths."),
    "an array of one number": (np.array(3), "This is a single number, not a list of lengths: 3."),
    "a function": (len, "A builtin_function_or_method contains no lengths."),
    "an array of halves": (np.array([0.5]), "Sample 0 of the ndarray has no length: it is the number 0.5."),
}


@pytest.mark.parametrize("form", REFUSED)
def test_what_has_no_lengths_is_refused_with_reason_and_advice(form: str) -> None:
    given, what = REFUSED[form]
    with pytest.raises(TpuMagicsError) as caught:
        read(given)
    assert caught.value.what == what
    assert caught.value.todo


@pytest.mark.parametrize("given", [(n for n in (3, 1)), iter([3, 1]), map(len, IDS), zip([3], [1])])
def test_what_would_be_used_up_is_not_touched(given: Any) -> None:
    with pytest.raises(TpuMagicsError, match="would use it up"):
        read(given)
    assert next(given) is not None


def test_random_states_stay_as_they_are() -> None:
    class Noisy(Indexed):
        def __getitem__(self, index: int) -> Any:
            random.random(), np.random.rand(), torch.rand(1)
            return super().__getitem__(index)

    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    expected = (random.random(), np.random.rand(), float(torch.rand(1)))
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    assert read(Noisy(ROWS)).lengths == [3, 1, 2]
    assert (random.random(), np.random.rand(), float(torch.rand(1))) == expected


LENGTHS = [4, 1, 3, 2, 5]
LOADED = [{"input_ids": [1] * length} for length in LENGTHS]


def padded(rows: list[Any]) -> dict[str, torch.Tensor]:
    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.tensor([row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in rows])
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}


def texts_to_ids(texts: list[str]) -> dict[str, torch.Tensor]:
    return padded([{"input_ids": [1] * len(text.split())} for text in texts])


class Rows(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Any]:
        return iter(LOADED)


def never(_rows: list[Any]) -> None:
    raise AssertionError("a batch was made")


def test_the_dataset_is_read_and_no_batch_is_made() -> None:
    found = read(DataLoader(LOADED, batch_size=2, shuffle=True, collate_fn=never))
    assert found.lengths == LENGTHS
    assert (found.batch_size, found.drop_last, found.order) == (2, False, "shuffled")
    assert found.what == "the DataLoader's dataset (the list)"


def test_the_order_is_the_loaders() -> None:
    found = read(DataLoader(LOADED, batch_size=2, drop_last=True, collate_fn=never))
    assert (found.batch_size, found.drop_last, found.order) == (2, True, "in order")


def test_batches_of_a_sampler_of_ones_own_are_drawn() -> None:
    class Backwards(SequentialSampler):
        def __iter__(self) -> Iterator[int]:
            return iter([4, 3, 2, 1, 0])

    found = read(DataLoader(LOADED, batch_size=2, sampler=Backwards(LOADED), collate_fn=never))
    assert found.order == "as drawn" and found.batches == ((4, 3), (2, 1), (0,))
    given = read(DataLoader(LOADED, batch_sampler=BatchSampler(RandomSampler(LOADED), 3, True), collate_fn=never))
    assert (given.order, given.batch_size, given.drop_last) == ("shuffled", 3, True)
    listed = read(DataLoader(LOADED, batch_sampler=[[0, 1, 2], [3, 4]], collate_fn=never))
    assert listed.batches == ((0, 1, 2), (3, 4)) and listed.batch_size == 3


def test_our_own_sampler_is_drawn_and_does_not_notice() -> None:
    batches = BucketBatches(LENGTHS, [3, 5], 2)
    found = read(DataLoader(LOADED, batch_sampler=batches, collate_fn=never))
    assert sorted(map(len, found.batches)) == [2, 2] and batches.epoch == 0


def test_a_sampler_that_cannot_be_drawn_is_taken_as_a_shuffle() -> None:
    class NeedsGroup(SequentialSampler):
        def __iter__(self) -> Iterator[int]:
            raise RuntimeError("init_process_group was not called")

    assert read(DataLoader(LOADED, batch_size=2, sampler=NeedsGroup(LOADED))).order == "shuffled"


def test_without_an_index_the_batches_tell() -> None:
    found = read(DataLoader(Rows(), batch_size=2, collate_fn=padded))
    assert found.lengths == LENGTHS and found.batches == ((0, 1), (2, 3), (4,))
    assert found.order == "as drawn" and not found.indexed
    assert found.notes == ("Lengths were read from 3 batches of the DataLoader, because its dataset has no index.",)


def test_texts_that_the_collate_function_tokenises() -> None:
    texts = ["a b c d", "a", "a b c", "a b", "a b c d e"]
    found = read(DataLoader(texts, batch_size=5, collate_fn=texts_to_ids))
    assert found.lengths == LENGTHS
    assert "because its collate function tokenises" in found.notes[0]


def test_batches_without_a_mask_say_so() -> None:
    found = read(DataLoader(Rows(), batch_size=5, collate_fn=lambda rows: padded(rows)["input_ids"]))
    assert found.lengths == [5] * 5
    assert (
        found.notes[1]
        == "The batches have no attention_mask: padding counts as tokens, so the padded share is too low."
    )


def test_batches_without_tokens_are_refused() -> None:
    with pytest.raises(TpuMagicsError, match="batches contain no token ids"):
        read(DataLoader(Rows(), batch_size=5, collate_fn=lambda rows: "nothing"))


def test_the_random_state_of_torch_stays() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)

    class Shuffled(RandomSampler):
        pass

    assert read(DataLoader(LOADED, batch_size=2, sampler=Shuffled(LOADED))).order == "as drawn"
    assert torch.equal(torch.rand(1), expected)
