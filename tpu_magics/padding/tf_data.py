"""The tf.data line for each padding strategy, for a dataset of (token ids, label)."""

# bucket_by_sequence_length takes bounds that lengths lie below, and pads to one less than them (TensorFlow 2.21).

from __future__ import annotations

from collections.abc import Callable

from tpu_magics.padding.strategies import PaddingStrategy, PaddingTask


def line(way: PaddingStrategy, task: PaddingTask, dataset: str = "dataset") -> str:
    """For the rows of `dataset`, before batching."""
    return f"{dataset}.{_LINES[way.kind](way, task)}"


def _whole(task: PaddingTask) -> str:
    return "" if task.last else ", drop_remainder=True"


def _batches(task: PaddingTask, length: int | None) -> str:
    return f"padded_batch({task.batch_size}, padded_shapes=([{length}], []){_whole(task)})"


def _buckets(way: PaddingStrategy, task: PaddingTask) -> str:
    bounds = [length + 1 for length in way.lengths]
    sizes = f"[{task.batch_size}] * {len(bounds) + 1}"
    return (
        f"bucket_by_sequence_length(lambda ids, label: tf.shape(ids)[0], {bounds}, {sizes}, "
        f"pad_to_bucket_boundary=True{_whole(task)})"
    )


def _in_batch(way: PaddingStrategy, task: PaddingTask) -> str:
    longest = _batches(task, None)
    if way.multiple == 1:
        return longest
    missing = f"-tf.shape(ids)[1] % {way.multiple}"
    return f"{longest}.map(lambda ids, label: (tf.pad(ids, [[0, 0], [0, {missing}]]), label))"


_LINES: dict[str, Callable[[PaddingStrategy, PaddingTask], str]] = {
    "none": lambda _way, _task: "batch(1)",
    "longest": _in_batch,
    "multiple": _in_batch,
    "max": lambda _way, task: _batches(task, task.max_length),
    "buckets": _buckets,
}
