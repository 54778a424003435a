"""Real DataLoaders as LENGTHS."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from tpu_magics.errors import TpuMagicsError
from tpu_magics.padding.sampler import BucketBatches
from tpu_magics.padding.sources import read

LENGTHS = [4, 1, 3, 2, 5]
ROWS = [{"input_ids": [1] * length} for length in LENGTHS]


def padded(rows: list[Any]) -> dict[str, torch.Tensor]:
    longest = max(len(row["input_ids"]) for row in rows)
    ids = torch.tensor([row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in rows])
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}


def texts_to_ids(texts: list[str]) -> dict[str, torch.Tensor]:
    return padded([{"input_ids": [1] * len(text.split())} for text in texts])


class Rows(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Any]:
        return iter(ROWS)


def never(_rows: list[Any]) -> None:
    raise AssertionError("a batch was made")


def test_the_dataset_is_read_and_no_batch_is_made() -> None:
    found = read(DataLoader(ROWS, batch_size=2, shuffle=True, collate_fn=never))
    assert found.lengths == LENGTHS
    assert (found.batch_size, found.drop_last, found.order) == (2, False, "shuffled")
    assert found.what == "the DataLoader's dataset (the list)"


def test_the_order_is_the_loaders() -> None:
    found = read(DataLoader(ROWS, batch_size=2, drop_last=True, collate_fn=never))
    assert (found.batch_size, found.drop_last, found.order) == (2, True, "in order")


def test_batches_of_a_sampler_of_ones_own_are_drawn() -> None:
    class Backwards(SequentialSampler):
        def __iter__(self) -> Iterator[int]:
            return iter([4, 3, 2, 1, 0])

    found = read(DataLoader(ROWS, batch_size=2, sampler=Backwards(ROWS), collate_fn=never))
    assert found.order == "as drawn" and found.batches == ((4, 3), (2, 1), (0,))
    given = read(DataLoader(ROWS, batch_sampler=BatchSampler(RandomSampler(ROWS), 3, True), collate_fn=never))
    assert (given.order, given.batch_size, given.drop_last) == ("shuffled", 3, True)
    listed = read(DataLoader(ROWS, batch_sampler=[[0, 1, 2], [3, 4]], collate_fn=never))
    assert listed.batches == ((0, 1, 2), (3, 4)) and listed.batch_size == 3


def test_our_own_sampler_is_drawn_and_does_not_notice() -> None:
    batches = BucketBatches(LENGTHS, [3, 5], 2)
    found = read(DataLoader(ROWS, batch_sampler=batches, collate_fn=never))
    assert sorted(map(len, found.batches)) == [2, 2] and batches.epoch == 0


def test_a_sampler_that_cannot_be_drawn_is_taken_as_a_shuffle() -> None:
    class NeedsGroup(SequentialSampler):
        def __iter__(self) -> Iterator[int]:
            raise RuntimeError("init_process_group was not called")

    assert read(DataLoader(ROWS, batch_size=2, sampler=NeedsGroup(ROWS))).order == "shuffled"


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

    assert read(DataLoader(ROWS, batch_size=2, sampler=Shuffled(ROWS))).order == "as drawn"
    assert torch.equal(torch.rand(1), expected)
