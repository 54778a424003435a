"""The advice of `%tpu_pad`: table rows, choice and notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from tpu_magics.errors import TpuMagicsError, plural
from tpu_magics.padding.lengths import SEED, LengthSource, simulate
from tpu_magics.padding.sources import is_loader, read, unwrap
from tpu_magics.padding.strategies import (
    CodeNames,
    PaddingStrategy,
    PaddingTask,
    choose,
    code,
    select_rows,
    strategies,
    tf_code,
)
from tpu_magics.padding.timings import Timings, check_given, seconds, without_times

BATCH = 32  # default batch size
MULTIPLES = (32, 64, 128)
MOST_BUCKETS = 64


@dataclass(frozen=True)
class PadOptions:
    """The options of `%tpu_pad`; None: detected, or the default. `tf_data`: the line of code is for TensorFlow."""

    multiples: Sequence[int] = MULTIPLES
    batch: int | None = None
    max_length: int | None = None
    buckets: int | None = None
    align: int = 1
    epochs: int = 1
    ranks: int = 1
    run: str | None = None
    compile_seconds: float | None = None
    tokens_per_second: float | None = None
    plain: bool = False
    tf_data: bool = False

    def check(self) -> None:
        """Raise TpuMagicsError for an invalid option."""
        whole = {
            "--batch": self.batch,
            "--max-length": self.max_length,
            "--buckets": self.buckets,
            "--align": self.align,
            "--epochs": self.epochs,
            "--processes": self.ranks,
            "--multiples": min(self.multiples, default=None),
        }
        for option, value in whole.items():
            if value is not None and value < 1:
                raise TpuMagicsError(f"{option} is {value}.", "It must be a positive integer.", "Correct it.")
        if self.buckets is not None and self.buckets > MOST_BUCKETS:
            raise TpuMagicsError(
                f"--buckets is {self.buckets}.",
                f"Each bucket is a compile; the maximum is {MOST_BUCKETS}.",
                "Use fewer buckets.",
            )
        check_given(self.tokens_per_second, self.compile_seconds)


@dataclass(frozen=True)
class PaddingReport:
    """`counts`: samples of each length, after truncation; `ways`: the rows; `choice`: one of them; `because`: the
    reason, as the end of a sentence; `seconds`: measured times; `notes`: sentences."""

    what: str
    counts: dict[int, int]
    ways: tuple[PaddingStrategy, ...]
    choice: PaddingStrategy
    because: str
    seconds: Timings
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.choice.name}, {self.choice.code}>"


def advise(given: Any, options: PadOptions | None = None, expression: str = "lengths") -> PaddingReport:
    """The advice for the lengths of `given` (see `sources.read`). `expression`: the name in the user's code."""
    options = options or PadOptions()
    options.check()
    source = _as_requested(read(given), options)
    longest = options.max_length or max(source.lengths)
    lengths, cut = _truncate(source.lengths, longest)
    task = _task(source, lengths, options)
    found = (
        without_times() if options.plain else seconds(options.run, options.compile_seconds, options.tokens_per_second)
    )
    names = _names(given, source, expression)
    ways = tuple(
        replace(way, code=tf_code(way, task) if options.tf_data else code(way, task, names, cut > 0))
        for way in strategies(task, found)
    )
    choice, because = choose(ways)
    notes = (*_notes(source, task, options, found, cut), *_tiles(choice, task))
    return PaddingReport(source.what, dict(task.counts), select_rows(ways, choice), choice, because, found, notes)


def _as_requested(source: LengthSource, options: PadOptions) -> LengthSource:
    """Drawn batches are used only if their size is the requested one; then the samples are those in them."""
    if source.order != "as drawn":
        return source
    if options.batch not in (None, source.batch_size):
        return replace(source, order="shuffled", batches=())
    ends = [0]
    for batch in source.batches:
        ends.append(ends[-1] + len(batch))
    batches = tuple(tuple(range(start, end)) for start, end in pairwise(ends))
    return replace(source, lengths=[source.lengths[at] for batch in source.batches for at in batch], batches=batches)


def _truncate(lengths: list[int], longest: int) -> tuple[list[int], int]:
    """The lengths truncated to `longest`, and how many were truncated."""
    if max(lengths) <= longest:
        return lengths, 0
    return [min(length, longest) for length in lengths], sum(length > longest for length in lengths)


def _counts(lengths: list[int]) -> dict[int, int]:
    """Samples of each length, shortest first; an empty sample still takes one slot."""
    counts = Counter(lengths)
    counts[1] += counts.pop(0, 0)
    return dict(sorted((+counts).items()))


def _task(source: LengthSource, lengths: list[int], options: PadOptions) -> PaddingTask:
    batch = options.batch or source.batch_size or min(BATCH, len(lengths))
    return PaddingTask(
        counts=_counts(lengths),
        tokens=sum(lengths),
        drawn=simulate(lengths, source, batch, options.epochs),
        batch_size=batch,
        ranks=options.ranks,
        max_length=options.max_length or max(lengths),
        epochs=options.epochs,
        multiples=tuple(sorted(set(options.multiples))),
        last=source.drop_last is False or source.order == "as drawn",
        buckets=options.buckets,
        align=options.align,
    )


def _names(given: Any, source: LengthSource, expression: str) -> CodeNames:
    """Names for the code; a loader's own dataset and collate function are reused."""
    if is_loader(unwrap(given)):
        inner = expression if is_loader(given) else f"{expression}.dataloader"
        dataset = f"{inner}.dataset"
        return CodeNames(dataset if source.indexed else "lengths", dataset, f"{inner}.collate_fn")
    if hasattr(given, "column_names") and expression.isidentifier():
        return CodeNames(expression, expression)
    return CodeNames(expression)


# -- sentences -----------------------------------------------------------------------------------------------------


def _notes(source: LengthSource, task: PaddingTask, options: PadOptions, found: Timings, cut: int) -> Iterator[str]:
    yield from source.notes
    if cut:
        many = f"{cut:,} samples are" if cut > 1 else "1 sample is"
        yield (
            f"{many} truncated to {task.max_length:,} tokens: tokenizer(..., truncation=True, "
            f"max_length={task.max_length})."
        )
    yield _batches(source, task, options)
    yield (
        "Multiples: each batch is padded to its longest sample, rounded up, as pad_to_multiple_of does. Buckets: "
        "each sample goes to the smallest bucket that holds it, and a batch is made of one bucket; these bounds "
        "need the least padding."
    )
    yield f"Padded tokens: the share of padding in all token slots of an epoch. {_last(task)}"
    if not options.plain:
        yield from filter(None, _seconds(task, found))


def _batches(source: LengthSource, task: PaddingTask, options: PadOptions) -> str:
    origin = (
        "--batch" if options.batch else "from the DataLoader" if source.batch_size else "assumed; set it with --batch"
    )
    text = f"Batches of {task.batch_size:,} ({origin})"
    if task.ranks > 1:
        text += f" on each of {task.ranks} ranks"
    if source.order == "as drawn":
        return f"{text}, as the DataLoader draws them in one epoch."
    if source.order == "in order":
        return f"{text}, in the order of the dataset (no shuffle)."
    epochs = plural(task.drawn.epochs, "epoch")
    return f"{text}, drawn by a shuffle with seed {SEED}, {epochs}; another shuffle gives slightly different batches."


def _tiles(choice: PaddingStrategy, task: PaddingTask) -> Iterator[str]:
    if choice.kind == "buckets" and task.align == 1 and any(bound % 8 for bound in choice.lengths):
        yield "A TPU stores arrays in tiles of 8 by 128: bounds that are multiples of 8 use them better (--align 8)."


def _last(task: PaddingTask) -> str:
    if not task.drawn.short:
        return "No batch is short."
    if task.last:
        return "The last batch is short and counts as a shape of its own. drop_last=True saves that compile."
    return "The last batch is short. Its shape is not counted, because training on XLA should use drop_last=True."


def _seconds(task: PaddingTask, found: Timings) -> Iterator[str]:
    yield found.compile_text
    yield found.token_text
    if found.compile is None and found.token is None:
        return
    steps = ", and the steps" if found.token is not None else ""
    yield (
        f"Predicted for {plural(task.epochs, 'epoch')} (--epochs): one compile per shape{steps}. An optimizer that "
        "creates its state in the first step adds one compile to every row."
    )
    if found.device == "CPU":
        yield (
            "These seconds are for XLA:CPU. On a TPU, a token takes much less time and compiling a large model "
            "takes more, so fewer shapes are better there. Run this again after a run on a TPU."
        )
