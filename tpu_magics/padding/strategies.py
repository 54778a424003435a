"""Padding strategies: shapes, padded tokens, predicted seconds and code of each, and which one to choose; the best
bounds for K buckets, exact, by dynamic programming."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tpu_magics.padding.lengths import SimulatedBatches, round_up
from tpu_magics.padding.timings import Timings

# Samples go to the smallest bucket that holds them, and batches are made bucket by bucket from short to long; what does
# not fill a group of batches goes into the next bucket. So up to a bound b, with c samples at most b long,
# F(c) = floor(c / group) * group of them are in batches, and buckets b1 < ... < bK cost
# sum(b_i * (F(c_i) - F(c_(i-1)))) token slots. With f_k(i) the least cost of k buckets up to the i-th length,
#
#     f_k(i) = b_i F_i + min over j < i of (f_(k-1)(j) - F_j b_i)
#
# is the lowest of many lines at x = b_i. Their slopes -F_j fall with j and b_i grows with i, so one pass over a lower
# envelope finds all minima (the convex hull trick): O(D) for each bucket, D being the number of distinct lengths,
# instead of O(D^2). All numbers are integers: nothing is rounded.
# BucketBatches (sampler.py) makes the same number of batches per bucket.


Line = tuple[int, int, int]  # slope, height at 0, and the j it belongs to


@dataclass(frozen=True)
class Buckets:
    """Bounds from short to long, and the token slots of an epoch's batches, with all samples in them."""

    bounds: tuple[int, ...]
    slots: int


@dataclass(frozen=True)
class _BoundsProblem:
    """`below` and `filled`: c and F of the comment above, for no length, the first, the second, ..."""

    lengths: list[int]
    below: list[int]
    filled: list[int]
    group: int
    ranks: int


def best_buckets(counts: Mapping[int, int], most: int, group: int = 1, ranks: int = 1) -> list[Buckets]:
    """The best bounds for at most 1, 2, ... `most` buckets; fewer results if more buckets save nothing, none if all
    samples together fill no group.

    Each bucket that makes batches has a sample of its own for each rank, and the longest bucket makes some: samples
    that fill no group are dropped, and must not be the same ones in every epoch.

    Args:
        counts: number of samples of each length.
        group: samples per step: batch size times ranks.
        ranks: number of ranks that take a step together.
    """
    problem = _bounds_problem(counts, group, ranks)
    costs: list[int | None] = [0, *([None] * len(problem.lengths))]
    came: list[list[int]] = []
    found: list[Buckets] = []
    for _ in range(most):
        costs, origin = _one_more(costs, problem)
        came.append(origin)
        slots = costs[-1]
        if slots is None or (found and slots >= found[-1].slots):
            break
        found.append(Buckets(_bounds(came, problem), slots))
    return found


def _bounds_problem(counts: Mapping[int, int], group: int, ranks: int) -> _BoundsProblem:
    lengths = sorted(counts)
    below = [0]
    for length in lengths:
        below.append(below[-1] + counts[length])
    filled = [samples // group * group for samples in below]
    filled[-1] = below[-1]  # samples that fill no group count as long as the longest
    return _BoundsProblem(lengths, below, filled, group, ranks)


def _one_more(before: Sequence[int | None], problem: _BoundsProblem) -> tuple[list[int | None], list[int]]:
    """The lowest costs with one more bucket, and where that bucket begins."""
    below, filled = problem.below, problem.filled
    costs: list[int | None] = [0, *([None] * (len(before) - 1))]
    origin = [0] * len(before)
    hull: deque[Line] = deque()
    ready = 0
    for end, bound in enumerate(problem.lengths[:-1], 1):
        while ready < end and below[end] - below[ready] >= problem.ranks:
            height = before[ready]
            if height is not None:
                _add(hull, (-filled[ready], height, ready))
            ready += 1
        while len(hull) > 1 and _at(hull[1], bound) <= _at(hull[0], bound):
            hull.popleft()
        if hull:
            costs[end] = _at(hull[0], bound) + bound * filled[end]
            origin[end] = hull[0][2]
    costs[-1], origin[-1] = _longest_bound(before, problem)
    return costs, origin


def _longest_bound(before: Sequence[int | None], problem: _BoundsProblem) -> tuple[int | None, int]:
    """A bound for the longest bucket, over all its beginnings: it must fill a group."""
    bound, samples = problem.lengths[-1], problem.below[-1]
    ways = [
        (cost + bound * (samples - problem.filled[start]), start)
        for start, cost in enumerate(before[:-1])
        if cost is not None
        and samples - problem.below[start] >= problem.ranks
        and samples - problem.filled[start] >= problem.group
    ]
    return min(ways, default=(None, 0))


def _at(line: Line, x: int) -> int:
    return line[0] * x + line[1]


def _add(hull: deque[Line], line: Line) -> None:
    """Append a line, none of the others being steeper, and remove lines that are lowest nowhere."""
    if hull and hull[-1][0] == line[0]:
        if hull[-1][1] <= line[1]:
            return
        hull.pop()
    while len(hull) > 1 and _needless(hull[-2], hull[-1], line):
        hull.pop()
    hull.append(line)


def _needless(first: Line, middle: Line, last: Line) -> bool:
    """Whether the last line meets the first before the middle one does."""
    return (last[1] - first[1]) * (first[0] - middle[0]) <= (middle[1] - first[1]) * (first[0] - last[0])


def _bounds(came: Sequence[Sequence[int]], problem: _BoundsProblem) -> tuple[int, ...]:
    """The bounds, from the longest backwards, without those that make no batch."""
    bounds: list[int] = []
    end = len(problem.lengths)
    for origin in reversed(came):
        if end == 0:
            break
        start = origin[end]
        if problem.filled[end] > problem.filled[start]:
            bounds.append(problem.lengths[end - 1])
        end = start
    return tuple(reversed(bounds))


# -- strategies -------------------------------------------------------------------------------------------------------


MOST_PADDED = 0.2  # of all token slots; maximum for a choice without measured seconds
SHOWN_BUCKETS = (2, 4, 8)
SURE = (
    "max",
    "multiple",
    "none",
    "longest",
    "buckets",
)  # from shapes that hold for any data to shapes of this data only
SHUFFLES_DIFFER = "its lengths come from one shuffle, and every other shuffle has new ones"
RANKS_DIFFER = "each rank draws its own batches, so ranks would have different shapes in one step and hang on a TPU"


@dataclass(frozen=True)
class PaddingStrategy:
    """One way of padding.

    `kind`: "none", "longest", "multiple", "max" or "buckets". `lengths`: what samples are padded to; `shapes`: distinct
    shapes of batches, each of which is one compile; `slots`: tokens of one epoch with padding, `padded`: the share of
    padding. `compiling` and `training`: predicted seconds of all epochs, None: n/a. `barred`: why it cannot be chosen,
    or "". `multiple`: of which its lengths are. `code`: the line of code.
    """

    name: str
    kind: str
    lengths: tuple[int, ...]
    shapes: int
    slots: float
    padded: float
    compiling: float | None = None
    training: float | None = None
    barred: str = ""
    multiple: int = 1
    code: str = ""

    @property
    def seconds(self) -> float | None:
        """Compiling and training; None if one of them is n/a."""
        return None if self.compiling is None or self.training is None else self.compiling + self.training


@dataclass(frozen=True)
class PaddingTask:
    """`counts`: samples of each length (truncated to `max_length`); `tokens`: in one epoch; `last`: whether a short
    last batch is used; `buckets`: None for up to 8, of which the best is found."""

    counts: dict[int, int]
    tokens: int
    drawn: SimulatedBatches
    batch_size: int
    ranks: int
    max_length: int
    epochs: int
    multiples: tuple[int, ...]
    last: bool
    buckets: int | None = None
    align: int = 1


def strategies(task: PaddingTask, seconds: Timings) -> tuple[PaddingStrategy, ...]:
    """All strategies, from the least padding per batch to the fewest shapes, then buckets."""
    ways = [_none(task), _in_batch(task, 1), *(_in_batch(task, each) for each in task.multiples), _longest(task)]
    return tuple(_with_prediction(way, task, seconds) for way in (*ways, *_buckets(task)))


def _none(task: PaddingTask) -> PaddingStrategy:
    lengths = tuple(sorted(task.counts))
    one = task.batch_size == 1 or len(lengths) == 1
    barred = "" if one else "a batch needs one length, so this works only for batches of one sample"
    if task.ranks > 1 and len(lengths) > 1:
        barred = RANKS_DIFFER
    return _choice(task, "no padding", "none", lengths, len(lengths), task.tokens, barred=barred)


def _in_batch(task: PaddingTask, multiple: int) -> PaddingStrategy:
    padded = task.drawn.padded_to(multiple)
    shapes = len(padded.lengths) + (padded.short_shapes if task.last else 0)
    barred = RANKS_DIFFER if task.ranks > 1 and shapes > 1 else ""
    if multiple == 1 and len(task.counts) > 1 and task.batch_size > 1:
        barred = barred or SHUFFLES_DIFFER
    name = "longest in batch" if multiple == 1 else f"multiple of {multiple}"
    kind = "longest" if multiple == 1 else "multiple"
    return _choice(task, name, kind, padded.lengths, shapes, padded.slots, barred=barred, multiple=multiple)


def _longest(task: PaddingTask) -> PaddingStrategy:
    samples = sum(task.counts.values())
    short = len({size for size, _longest in task.drawn.short}) if task.last and task.drawn.full else 0
    return _choice(task, "max length", "max", (task.max_length,), 1 + short, samples * task.max_length)


def _buckets(task: PaddingTask) -> Iterator[PaddingStrategy]:
    """The requested number of buckets, or each number up to 8 (`shown` selects some)."""
    counts: dict[int, int] = {}
    for length, samples in task.counts.items():
        bound = min(round_up(length, task.align), max(task.max_length, length))
        counts[bound] = counts.get(bound, 0) + samples
    group = task.batch_size * task.ranks
    samples = sum(counts.values())
    if samples < group or (task.batch_size == 1 and task.ranks > 1):  # BucketBatches needs more samples
        return
    short = task.last and samples % group > 0
    found_all = best_buckets(counts, task.buckets or max(SHOWN_BUCKETS), group, task.ranks)
    for found in found_all[-1:] if task.buckets else found_all:
        if len(found.bounds) > 1:
            yield _choice(
                task,
                f"best {len(found.bounds)} buckets",
                "buckets",
                found.bounds,
                len(found.bounds) + short,
                found.slots,
            )


def _choice(
    task: PaddingTask,
    name: str,
    kind: str,
    lengths: tuple[int, ...],
    shapes: int,
    slots: float,
    *,
    barred: str = "",
    multiple: int = 1,
) -> PaddingStrategy:
    return PaddingStrategy(
        name, kind, lengths, shapes, slots, 1 - task.tokens / slots, barred=barred, multiple=multiple
    )


def _with_prediction(way: PaddingStrategy, task: PaddingTask, seconds: Timings) -> PaddingStrategy:
    compiling = None if seconds.compile is None else way.shapes * seconds.compile
    alone = (
        way.kind == "none" and task.batch_size > 1
    )  # the time of a batch of one cannot be derived from that of a large batch
    training = None if seconds.token is None or alone else task.epochs * way.slots / task.ranks * seconds.token
    return replace(way, compiling=compiling, training=training)


# -- the choice ----------------------------------------------------------------------------------------------------


def choose(ways: Sequence[PaddingStrategy]) -> tuple[PaddingStrategy, str]:
    """The best strategy, and the reason as the end of a sentence. Of equal ones, the most certain."""
    free = sorted((way for way in ways if not way.barred), key=lambda way: SURE.index(way.kind))
    timed = [way for way in free if way.seconds is not None]
    if timed:
        return min(timed, key=lambda way: (way.seconds, way.shapes)), "it has the lowest predicted time"
    little = [way for way in free if way.padded <= MOST_PADDED]
    share = f"{MOST_PADDED:.0%}".replace("%", " %")
    if little:
        best = min(little, key=lambda way: (way.shapes, way.slots))
        return best, f"it has the fewest shapes of all with at most {share} padded tokens"
    few = [way for way in free if way.shapes <= max(SHOWN_BUCKETS)]
    best = min(few or free, key=lambda way: (way.slots, way.shapes))
    return best, (
        f"none has at most {share} padded tokens, and it has the fewest of all with up to {max(SHOWN_BUCKETS)} shapes"
    )


def select_rows(ways: Sequence[PaddingStrategy], chosen: PaddingStrategy) -> tuple[PaddingStrategy, ...]:
    """The rows to show: the usual numbers of buckets, the largest, and the chosen one."""
    wanted = {*SHOWN_BUCKETS, max((len(way.lengths) for way in ways if way.kind == "buckets"), default=0)}
    return tuple(way for way in ways if way.kind != "buckets" or way is chosen or len(way.lengths) in wanted)


# -- code ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CodeNames:
    """Names in the user's code. `lengths`: the expression given to %tpu_pad."""

    lengths: str = "lengths"
    dataset: str = "dataset"
    collate: str = "collator"


def code(way: PaddingStrategy, task: PaddingTask, names: CodeNames, cut: bool) -> str:
    """The line of code. `cut`: some samples are longer than the requested maximum."""
    return _CODE[way.kind](way, task, names, cut)


def _collator(*arguments: str) -> str:
    return f"DataCollatorWithPadding({', '.join(('tokenizer', *arguments))})"


def _max_code(_way: PaddingStrategy, task: PaddingTask, _names: CodeNames, cut: bool) -> str:
    if cut:
        return f'tokenizer(texts, padding="max_length", truncation=True, max_length={task.max_length})'
    return _collator('padding="max_length"', f"max_length={task.max_length}")


def _bucket_code(way: PaddingStrategy, task: PaddingTask, names: CodeNames, _cut: bool) -> str:
    ranks = f", ranks={task.ranks}" if task.ranks > 1 else ""
    last = ", drop_last=False" if task.last and task.ranks == 1 else ""
    arguments = f"{names.lengths}, {list(way.lengths)}, {task.batch_size}, collate={names.collate}{ranks}{last}"
    return f"DataLoader({names.dataset}, **tpu_magics.padding.buckets({arguments}))"


def _none_code(_way: PaddingStrategy, _task: PaddingTask, names: CodeNames, _cut: bool) -> str:
    return f"DataLoader({names.dataset}, batch_size=1)"


def _batch_code(way: PaddingStrategy, _task: PaddingTask, _names: CodeNames, _cut: bool) -> str:
    return _collator(f"pad_to_multiple_of={way.multiple}") if way.multiple > 1 else _collator()


_CODE: dict[str, Callable[[PaddingStrategy, PaddingTask, CodeNames, bool], str]] = {
    "none": _none_code,
    "longest": _batch_code,
    "multiple": _batch_code,
    "max": _max_code,
    "buckets": _bucket_code,
}

# -- code for tf.data --------------------------------------------------------------------------------------------------
# bucket_by_sequence_length takes bounds that lengths lie below, and pads to one less than them (TensorFlow 2.21).


def tf_code(way: PaddingStrategy, task: PaddingTask) -> str:
    """For the rows of `dataset`, before batching."""
    return f"dataset.{_TF_CODE[way.kind](way, task)}"


def _tf_drop(task: PaddingTask) -> str:
    return "" if task.last else ", drop_remainder=True"


def _tf_batches(task: PaddingTask, length: int | None) -> str:
    return f"padded_batch({task.batch_size}, padded_shapes=([{length}], []){_tf_drop(task)})"


def _tf_buckets(way: PaddingStrategy, task: PaddingTask) -> str:
    bounds = [length + 1 for length in way.lengths]
    sizes = f"[{task.batch_size}] * {len(bounds) + 1}"
    return (
        f"bucket_by_sequence_length(lambda ids, label: tf.shape(ids)[0], {bounds}, {sizes}, "
        f"pad_to_bucket_boundary=True{_tf_drop(task)})"
    )


def _tf_in_batch(way: PaddingStrategy, task: PaddingTask) -> str:
    longest = _tf_batches(task, None)
    if way.multiple == 1:
        return longest
    missing = f"-tf.shape(ids)[1] % {way.multiple}"
    return f"{longest}.map(lambda ids, label: (tf.pad(ids, [[0, 0], [0, {missing}]]), label))"


_TF_CODE: dict[str, Callable[[PaddingStrategy, PaddingTask], str]] = {
    "none": lambda _way, _task: "batch(1)",
    "longest": _tf_in_batch,
    "multiple": _tf_in_batch,
    "max": lambda _way, task: _tf_batches(task, task.max_length),
    "buckets": _tf_buckets,
}
