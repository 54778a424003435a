"""The advice: rows, choice, code and notes."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import tpu_magics
from tpu_magics.errors import TpuMagicsError
from tpu_magics.padding.report import PaddingReport, PadOptions, advise
from tpu_magics.padding.strategies import PaddingStrategy

CHOOSER = random.Random(11)
LENGTHS = [min(400, 5 + int(CHOOSER.lognormvariate(4, 0.6))) for _ in range(4000)]
ROWS = [{"input_ids": [1] * length} for length in LENGTHS]
pytestmark = pytest.mark.usefixtures("runs")


def way(report: PaddingReport, name: str) -> PaddingStrategy:
    [found] = [each for each in report.ways if each.name == name]
    return found


# -- rows ------------------------------------------------------------------------------------------------------------


def test_the_rows_that_are_asked_for() -> None:
    names = [each.name for each in advise(LENGTHS).ways]
    assert names[:6] == [
        "no padding",
        "longest in batch",
        "multiple of 32",
        "multiple of 64",
        "multiple of 128",
        "max length",
    ]
    assert {"best 2 buckets", "best 4 buckets", "best 8 buckets"} <= set(names[6:])
    assert [each.name for each in advise(LENGTHS, PadOptions(multiples=(96, 16))).ways][2:4] == [
        "multiple of 16",
        "multiple of 96",
    ]


def test_no_padding_and_max_length_by_hand() -> None:
    report = advise([10, 20, 20, 30], PadOptions(batch=2))
    none, longest = way(report, "no padding"), way(report, "max length")
    assert (none.lengths, none.shapes, none.padded) == ((10, 20, 30), 3, 0)
    assert (longest.lengths, longest.shapes, longest.padded) == ((30,), 1, 1 - 80 / 120)


def test_batches_are_padded_to_their_longest_and_up_to_multiples() -> None:
    order = [3, 9, 20, 31, 33, 40, 41, 100]
    report = advise(DataLoader([[1] * length for length in order], batch_size=2))
    assert way(report, "longest in batch").lengths == (9, 31, 40, 100)
    assert way(report, "longest in batch").slots == 2 * (9 + 31 + 40 + 100)
    assert way(report, "multiple of 32").lengths == (32, 64, 128)
    assert way(report, "multiple of 32").slots == 2 * (32 + 32 + 64 + 128)
    assert way(report, "multiple of 128").lengths == (128,)
    assert "in the order of the dataset" in " ".join(report.notes)


def test_a_shuffled_epoch_is_what_the_loader_would_draw_on_average() -> None:
    report = advise(LENGTHS, PadOptions(batch=16, epochs=5))
    drawn = way(report, "longest in batch")
    chance, means = random.Random(99), []
    for _ in range(20):
        order = chance.sample(LENGTHS, len(LENGTHS))
        means.append(sum(16 * max(order[at : at + 16]) for at in range(0, len(order), 16)))
    assert drawn.slots == pytest.approx(sum(means) / len(means), rel=0.02)
    assert drawn.shapes == len(drawn.lengths) > 100
    assert advise(LENGTHS, PadOptions(batch=16)).ways == advise(LENGTHS, PadOptions(batch=16)).ways, (
        "not the same in every run"
    )


def test_shapes_are_those_of_a_dataloader() -> None:
    """Real batches of the chosen buckets, padded by what the line of code makes."""

    class Collator:
        pad_to_multiple_of: int | None = None

        def __call__(self, rows: Any) -> torch.Tensor:
            longest = max(len(row["input_ids"]) for row in rows)
            multiple = self.pad_to_multiple_of or 1
            return torch.zeros(len(rows), -(-longest // multiple) * multiple)

    report = advise(ROWS, PadOptions(batch=16), "rows")
    names = {"DataLoader": DataLoader, "tpu_magics": tpu_magics, "rows": ROWS, "dataset": ROWS, "collator": Collator()}
    for each in [one for one in report.ways if one.kind == "buckets"]:
        loader = eval(each.code, names)
        found = Counter(tuple(batch.shape) for batch in loader)
        assert set(found) == {(16, bound) for bound in each.lengths} and len(found) == each.shapes
        rest = len(ROWS) % 16 * max(LENGTHS)
        assert sum(many * length * 16 for (_, length), many in found.items()) + rest == each.slots


def test_a_short_last_batch_is_a_shape_only_where_it_is_trained_on() -> None:
    kept = advise(DataLoader(ROWS[:90], batch_size=32, shuffle=True))
    dropped = advise(DataLoader(ROWS[:90], batch_size=32, shuffle=True, drop_last=True))
    assert way(kept, "max length").shapes == 2 and way(dropped, "max length").shapes == 1
    assert "counts as a shape of its own. drop_last=True saves that compile" in " ".join(kept.notes)
    assert "Its shape is not counted" in " ".join(dropped.notes)
    assert "No batch is short." in " ".join(advise(ROWS[:64]).notes)


def test_longer_samples_are_cut() -> None:
    report = advise(LENGTHS, PadOptions(max_length=64))
    cut = sum(length > 64 for length in LENGTHS)
    assert (
        f"{cut:,} samples are truncated to 64 tokens: tokenizer(..., truncation=True, max_length=64)." in report.notes
    )
    assert max(report.counts) == 64 and way(report, "max length").lengths == (64,)
    assert way(report, "max length").code == 'tokenizer(texts, padding="max_length", truncation=True, max_length=64)'
    assert way(advise([3, 4], PadOptions(max_length=64)), "max length").padded == 1 - 7 / 128


def test_bounds_can_be_aligned() -> None:
    report = advise(LENGTHS, PadOptions(align=8))
    bounds = [bound for each in report.ways if each.kind == "buckets" for bound in each.lengths]
    assert bounds and all(bound % 8 == 0 for bound in bounds)
    assert "--align 8" in " ".join(advise(LENGTHS).notes) and "--align 8" not in " ".join(report.notes)
    capped = advise(LENGTHS, PadOptions(align=128))
    assert max(bound for each in capped.ways if each.kind == "buckets" for bound in each.lengths) == max(LENGTHS)


def test_a_number_of_buckets_can_be_asked_for() -> None:
    report = advise(LENGTHS, PadOptions(buckets=5))
    assert [each.name for each in report.ways if each.kind == "buckets"] == ["best 5 buckets"]


# -- the choice --------------------------------------------------------------------------------------------------------


def test_without_seconds_the_fewest_shapes_with_little_padding() -> None:
    report = advise(LENGTHS)
    free = [each for each in report.ways if not each.barred and each.padded <= 0.2]
    assert report.choice.shapes == min(each.shapes for each in free)
    assert report.because == "it has the fewest shapes of all with at most 20 % padded tokens"
    assert advise([60, 61, 64] * 50).choice.name == "max length"


def test_where_all_pad_much_the_least_of_a_few_shapes() -> None:
    report = advise([2**n for n in range(12) for _ in range(40)] * 3, PadOptions(buckets=2, batch=8))
    assert report.choice.name == "best 2 buckets"
    assert report.because.startswith("none has at most 20 % padded tokens")


def test_seconds_decide_where_they_are_known() -> None:
    slow_compiles = advise(LENGTHS, PadOptions(compile_seconds=1000, tokens_per_second=1e6))
    assert slow_compiles.choice.shapes == 1
    quick_compiles = advise(LENGTHS, PadOptions(compile_seconds=0.001, tokens_per_second=1e3))
    assert quick_compiles.choice.name == "best 8 buckets"
    assert quick_compiles.because == "it has the lowest predicted time"
    chosen = quick_compiles.choice
    assert chosen.seconds == pytest.approx(8 * 0.001 + chosen.slots / 1e3)
    twice = advise(LENGTHS, PadOptions(compile_seconds=0.001, tokens_per_second=1e3, epochs=2)).choice
    assert twice.training == pytest.approx(2 * (chosen.training or 0))


def test_a_plain_report_has_no_seconds() -> None:
    report = advise(LENGTHS, PadOptions(plain=True, compile_seconds=3, tokens_per_second=3))
    assert all(each.compiling is None and each.training is None for each in report.ways)


def test_several_ranks_need_one_shape_in_each_step() -> None:
    report = advise(LENGTHS, PadOptions(ranks=8))
    assert {each.name for each in report.ways if each.barred} >= {"no padding", "longest in batch", "multiple of 32"}
    assert report.choice.kind == "buckets" and ", ranks=8))" in report.choice.code
    assert not way(report, "max length").barred


@pytest.mark.parametrize(("batch", "ranks"), [(64, 2), (1, 2)])
def test_where_buckets_cannot_be_none_are_offered(batch: int, ranks: int) -> None:
    report = advise([5, 9, 12] * 10, PadOptions(batch=batch, ranks=ranks))
    assert not [each for each in report.ways if each.kind == "buckets"]
    assert report.choice.name == "max length"


def test_batches_of_one_need_no_padding() -> None:
    report = advise([10, 20, 20, 30], PadOptions(batch=1, compile_seconds=0.1, tokens_per_second=1))
    assert report.choice.name == "no padding" and report.choice.code == "DataLoader(dataset, batch_size=1)"


# -- code and sentences ------------------------------------------------------------------------------------------------


def test_the_lines_of_code() -> None:
    report = advise(LENGTHS, PadOptions(batch=8), 'ds["input_ids"]')
    assert way(report, "longest in batch").code == "DataCollatorWithPadding(tokenizer)"
    assert way(report, "multiple of 64").code == "DataCollatorWithPadding(tokenizer, pad_to_multiple_of=64)"
    longest = max(LENGTHS)
    assert (
        way(report, "max length").code
        == f'DataCollatorWithPadding(tokenizer, padding="max_length", max_length={longest})'
    )
    bounds = list(way(report, "best 2 buckets").lengths)
    line = f'DataLoader(dataset, **tpu_magics.padding.buckets(ds["input_ids"], {bounds}, 8, collate=collator))'
    assert way(report, "best 2 buckets").code == line


def test_the_line_for_a_loader_uses_what_it_has() -> None:
    report = advise(DataLoader(ROWS, batch_size=8, drop_last=True, shuffle=True), expression="loader")
    assert way(report, "best 2 buckets").code.startswith(
        "DataLoader(loader.dataset, **tpu_magics.padding.buckets(loader.dataset, ["
    )
    assert way(report, "best 2 buckets").code.endswith("], 8, collate=loader.collate_fn))")
    assert "Batches of 8 (from the DataLoader)" in " ".join(report.notes)


def test_what_is_assumed_is_said() -> None:
    said = " ".join(advise(LENGTHS).notes)
    assert "Batches of 32 (assumed; set it with --batch), drawn by a shuffle with seed 0, 1 epoch" in said
    assert "Batches of 4 (--batch) on each of 2 ranks" in " ".join(advise(LENGTHS, PadOptions(batch=4, ranks=2)).notes)


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        (PadOptions(batch=0), "--batch is 0."),
        (PadOptions(max_length=-4), "--max-length is -4."),
        (PadOptions(buckets=0), "--buckets is 0."),
        (PadOptions(buckets=65), "--buckets is 65."),
        (PadOptions(multiples=(32, 0)), "--multiples is 0."),
        (PadOptions(align=0), "--align is 0."),
        (PadOptions(epochs=0), "--epochs is 0."),
        (PadOptions(ranks=0), "--processes is 0."),
        (PadOptions(compile_seconds=-1), "--compile-seconds is -1."),
    ],
)
def test_numbers_that_cannot_be_are_refused(asked: PadOptions, what: str, runs: Path) -> None:
    with pytest.raises(TpuMagicsError) as caught:
        advise(LENGTHS, asked)
    assert caught.value.what == what
