"""Buckets in training, with torch's DataLoader, transformers' collators and accelerate's sharding."""

from __future__ import annotations

import json
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.utils.data import DataLoader
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    PreTrainedTokenizerFast,
)

import tpu_magics
from tests import forks
from tpu_magics.errors import TpuMagicsError
from tpu_magics.padding import BucketBatches, PadTo, bucket_for, buckets

ROOT = Path(__file__).resolve().parents[2]
BOUNDS = (16, 32, 50)
CHOOSER = random.Random(3)
LENGTHS = [CHOOSER.randrange(3, 51) for _ in range(203)]
ROWS: list[dict[str, Any]] = [
    {"input_ids": [2] * length, "attention_mask": [1] * length, "labels": length % 2} for length in LENGTHS
]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    words = {"[PAD]": 0, "[UNK]": 1, "a": 2, "[MASK]": 3}
    backend = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]", model_max_length=64
    )


def shapes(loader: Any) -> list[tuple[int, ...]]:
    return [tuple(batch["input_ids"].shape) for batch in loader]


# -- one rank --------------------------------------------------------------------------------------------------------


def test_a_dataloader_gives_batches_of_the_bounds_only(tokenizer: PreTrainedTokenizerFast) -> None:
    collator = DataCollatorWithPadding(tokenizer)
    loader = DataLoader(ROWS, **tpu_magics.padding.buckets(ROWS, BOUNDS, 8, collate=collator))
    found = shapes(loader)
    assert len(loader) == len(found) == 203 // 8
    assert set(found) == {(8, bound) for bound in BOUNDS}
    assert {length: found.count((8, length)) for length in BOUNDS} == loader.batch_sampler.counts
    assert collator.pad_to_multiple_of is None, "the person's collator was changed"


def test_no_sample_comes_twice_and_each_epoch_has_its_own_order() -> None:
    batches = BucketBatches(LENGTHS, BOUNDS, 8)
    first, second = list(batches), list(batches)
    assert first != second
    for epoch in (first, second):
        members = [index for batch in epoch for index in batch]
        assert len(members) == len(set(members)) == 203 // 8 * 8
    batches.set_epoch(0)
    assert list(batches) == first
    assert list(BucketBatches(LENGTHS, BOUNDS, 8)) == first, "another process draws other batches"
    assert list(BucketBatches(LENGTHS, BOUNDS, 8, seed=1)) != first


def test_every_sample_is_trained_on_in_some_epoch() -> None:
    batches = BucketBatches(LENGTHS, BOUNDS, 8)
    assert {index for _ in range(40) for batch in batches for index in batch} == set(range(203))


def test_without_a_shuffle_all_epochs_are_the_same() -> None:
    batches = BucketBatches(LENGTHS, BOUNDS, 8, shuffle=False)
    assert list(batches) == list(batches)


def test_the_last_batch_can_be_kept() -> None:
    batches = BucketBatches(LENGTHS, BOUNDS, 8, drop_last=False)
    found = list(batches)
    assert len(found) == len(batches) == 26 and len(found[-1]) == 203 % 8
    assert sorted(index for batch in found for index in batch) == list(range(203))


@pytest.mark.process
def test_workers_of_the_loader_can_have_it(tokenizer: PreTrainedTokenizerFast) -> None:
    pads = pickle.loads(pickle.dumps(PadTo(DataCollatorWithPadding(tokenizer), BOUNDS)))
    loader = DataLoader(ROWS, batch_sampler=BucketBatches(LENGTHS, BOUNDS, 8), collate_fn=pads, num_workers=1)
    assert set(shapes(loader)) == {(8, bound) for bound in BOUNDS}


# -- collators -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        DataCollatorWithPadding,
        lambda tokenizer: DataCollatorWithPadding(tokenizer, padding="max_length", max_length=64),
        lambda tokenizer: DataCollatorForLanguageModeling(tokenizer, mlm=True),
        lambda tokenizer: DataCollatorForLanguageModeling(tokenizer, mlm=False),
        lambda tokenizer: tokenizer,
    ],
    ids=["padding", "max length", "masked", "causal", "tokenizer"],
)
def test_collators_of_transformers_pad_to_the_bound(tokenizer: PreTrainedTokenizerFast, make: Any) -> None:
    pads = PadTo(make(tokenizer), BOUNDS)
    rows = [{"input_ids": row["input_ids"], "attention_mask": row["attention_mask"]} for row in ROWS]
    for length, bound in ((1, 16), (15, 16), (16, 16), (17, 32), (32, 32), (33, 50), (50, 50)):
        chosen = [row for row in rows if len(row["input_ids"]) <= length][:2] or rows[:0]
        batch = pads([*chosen, {"input_ids": [2] * length, "attention_mask": [1] * length}])
        assert batch["input_ids"].shape[1] == batch["attention_mask"].shape[1] == bound


@pytest.mark.parametrize("make", [DataCollatorForTokenClassification, DataCollatorForSeq2Seq])
def test_collators_pad_labels_too(tokenizer: PreTrainedTokenizerFast, make: Any) -> None:
    batch = PadTo(make(tokenizer), BOUNDS)(
        [{"input_ids": [2] * 20, "labels": [1] * 20}, {"input_ids": [2], "labels": [1]}]
    )
    assert batch["input_ids"].shape == batch["labels"].shape == (2, 32)
    assert int((batch["labels"] == -100).sum()) == 43


def test_what_cannot_pad_is_refused() -> None:
    with pytest.raises(TpuMagicsError) as caught:
        PadTo(torch.utils.data.default_collate, BOUNDS)
    assert caught.value.what == "function has no setting for the padded length."
    assert "bucket_for" in caught.value.todo


def test_the_bucket_of_a_length() -> None:
    assert [bucket_for(length, BOUNDS) for length in (0, 1, 16, 17, 50)] == [16, 16, 16, 32, 50]
    with pytest.raises(TpuMagicsError, match=r"A sample has 51 tokens, more than the largest bound, 50\."):
        bucket_for(51, BOUNDS)


# -- several ranks ---------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 50), min_size=40, max_size=200), st.integers(2, 4), st.integers(2, 4))
def test_ranks_have_one_bound_in_each_step(lengths: list[int], batch_size: int, ranks: int) -> None:
    try:
        batches = BucketBatches(lengths, [*BOUNDS, 50], batch_size, ranks=ranks)
    except TpuMagicsError:
        return
    shards = []
    for rank in range(ranks):
        batches.set_epoch(0)
        shards.append(list(BatchSamplerShard(batches, ranks, rank)))
    assert {len(shard) for shard in shards} == {len(batches) // ranks}
    for step in zip(*shards, strict=True):
        assert len({bucket_for(max(lengths[index] for index in batch), BOUNDS) for batch in step}) == 1
        assert {len(batch) for batch in step} == {batch_size}
    own = [list(BucketBatches(lengths, BOUNDS, batch_size, ranks=ranks, rank=rank)) for rank in range(ranks)]
    assert own == shards


@pytest.mark.parametrize(
    "wrong", [{"ranks": 0}, {"batch_size": 0}, {"bounds": []}, {"bounds": [0]}, {"rank": 2, "ranks": 2}]
)
def test_wrong_numbers_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TpuMagicsError, match="BucketBatches cannot make batches"):
        BucketBatches(**{"lengths": LENGTHS, "bounds": BOUNDS, "batch_size": 4, **wrong})


def test_a_short_batch_and_several_ranks_do_not_go_together() -> None:
    with pytest.raises(TpuMagicsError, match="drop_last is False"):
        BucketBatches(LENGTHS, BOUNDS, 4, ranks=2, drop_last=False)


def test_buckets_that_cannot_be_filled_are_refused() -> None:
    with pytest.raises(TpuMagicsError, match="20 samples are fewer than one step needs"):
        BucketBatches([5] * 20, [8], 32)
    with pytest.raises(TpuMagicsError, match="The bucket of 64 tokens would never be used: its 3 samples are fewer"):
        BucketBatches([5] * 32 + [60] * 3, [8, 64], 16)
    with pytest.raises(TpuMagicsError, match="The bucket of 64 tokens has only 1 samples of its own for 2 batches"):
        BucketBatches([5] * 3 + [60], [8, 64], 2, ranks=2)


# -- accelerate ------------------------------------------------------------------------------------------------------

PREPARED = """
import json, sys
from accelerate import Accelerator
from torch.utils.data import DataLoader
import tpu_magics
lengths = [3 + 7 * n % 48 for n in range(203)]
rows = [{"input_ids": [2] * length} for length in lengths]
class Collator:
    pad_to_multiple_of = None
    def __call__(self, rows):
        import torch
        longest = max(len(row["input_ids"]) for row in rows)
        longest = -(-longest // self.pad_to_multiple_of) * self.pad_to_multiple_of
        return {"input_ids": torch.tensor([row["input_ids"] + [0] * (longest - len(row["input_ids"])) for row in rows])}
loader = DataLoader(rows, **tpu_magics.padding.buckets(lengths, [16, 32, 50], 8, collate=Collator()))
prepared = Accelerator().prepare(loader)
epochs = [[list(batch["input_ids"].shape) for batch in prepared] for _ in range(2)]
print(json.dumps([len(prepared), epochs]))
"""


@pytest.mark.process
def test_accelerate_prepares_it(tmp_path: Path) -> None:
    """In a process of its own: Accelerator starts the XLA runtime."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PJRT_DEVICE": "CPU"}
    told = forks.run("torch_xla", PREPARED, cwd=tmp_path, environment=environment)
    count, [first, second] = json.loads(told.splitlines()[-1])
    assert count == len(first) == len(second) == 25
    assert {tuple(shape) for shape in first} == {(8, bound) for bound in BOUNDS}
    assert first != second and sorted(first) == sorted(second)


def test_arguments_reach_the_sampler(tokenizer: PreTrainedTokenizerFast) -> None:
    made = buckets(LENGTHS, BOUNDS, 4, collate=tokenizer, ranks=2, rank=1, seed=9, shuffle=False)
    sampler = made["batch_sampler"]
    assert isinstance(sampler, BucketBatches)
    assert (sampler.ranks, sampler.rank, sampler.seed, sampler.shuffle) == (2, 1, 9, False)
    assert sampler.batch_size == 4 and sampler.drop_last
