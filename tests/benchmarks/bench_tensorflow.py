"""What observing a TensorFlow run costs (Keras steps with and without the observer, in one process), and what padding
saves there.

TensorFlow is in a folder of its own (scripts/install.py), which is on the path of the measuring processes only. Blocks
of steps with and without the observer alternate in an order that changes; medians over all steps.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks import fresh, timing
from tests.benchmarks.report import met

TITLE = "TensorFlow: the observer on a Keras step, and padding"
OVERLAY = fresh.ROOT / ".venv" / "tensorflow"
WIDTH, DEPTH, ROWS = 512, 3, 64  # chosen for steps of about 5 ms on two cores
MOST = 3.0  # percent
LENGTHS, EACH, EPOCHS = (23, 30, 40, 49, 59, 75, 90, 101), 32, 3
STEP, TEXTS = "a Keras step of about 5 ms, median ms", "texts of {} lengths, {} epochs, s"


def _tensorflow() -> tuple[Any, Any]:
    sys.path.insert(0, str(OVERLAY))
    import keras
    import tensorflow as tf

    return keras, tf


def steps(rounds: int, width: int = WIDTH, depth: int = DEPTH) -> dict[str, list[float]]:
    """In a fresh process: seconds of each step of Keras, on and off."""
    keras, tf = _tensorflow()
    from tpu_magics.backends.base import ObserverConfig
    from tpu_magics.backends.tensorflow.observe import observing
    from tpu_magics.runs.writer import EventWriter

    writer = EventWriter(Path(tempfile.mkdtemp()) / "rank-0.jsonl", 0)
    layers = [keras.layers.Dense(width, "gelu") for _ in range(depth)]
    model = keras.Sequential([keras.layers.Input((width,)), *layers, keras.layers.Dense(1)])
    model.compile("adam", "mse", jit_compile=True)
    x, y = tf.random.normal((ROWS, width)), tf.zeros((ROWS, 1))
    seen: list[int] = []

    def block(on: bool) -> list[float]:
        with observing(writer, ObserverConfig()) if on else nullcontext() as observer:
            taken = [timing.seconds(lambda: model.train_on_batch(x, y)) for _ in range(timing.BLOCK)]
            seen.append(observer.total_steps if observer is not None else 0)
        return taken[timing.LEFT_OUT :]

    seconds = timing.on_and_off(block, rounds)
    if sum(seen) != timing.BLOCK * len([one for one in seen if one]) or not any(seen):
        raise RuntimeError(f"the observer did not count the steps: {seen}")
    return seconds


def texts(multiple: int, lengths: tuple[int, ...] = LENGTHS, epochs: int = EPOCHS) -> tuple[int, float]:
    """In a fresh process: compiles and seconds of a training with texts of these lengths, each padded to a multiple."""
    keras, tf = _tensorflow()
    from tpu_magics.backends.base import ObserverConfig
    from tpu_magics.backends.tensorflow.observe import observing
    from tpu_magics.runs.writer import EventWriter

    def batch(length: int) -> tuple[Any, Any]:
        ids = tf.ones((EACH, length), tf.int32)
        return tf.pad(ids, [[0, 0], [0, -length % multiple]]), tf.zeros((EACH,), tf.int32)

    batches = [batch(length) for length in lengths]
    spec = (tf.TensorSpec((EACH, None), tf.int32), tf.TensorSpec((EACH,), tf.int32))
    data = tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec)
    layers = [keras.layers.Embedding(1000, 64, mask_zero=True), keras.layers.LSTM(64), keras.layers.Dense(2)]
    model = keras.Sequential([keras.layers.Input((None,), dtype="int32"), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, jit_compile=True)
    writer = EventWriter(Path(tempfile.mkdtemp()) / "rank-0.jsonl", 0)
    with observing(writer, ObserverConfig()) as observer:
        seconds = timing.seconds(lambda: model.fit(data, epochs=epochs, verbose=0))
        compiles = observer.compiles
    if compiles is None:
        raise RuntimeError("the compiles were not counted")
    return compiles, seconds


def measure(
    rounds: int = 1000, turns: int = 3, lengths: tuple[int, ...] = LENGTHS, epochs: int = EPOCHS, width: int = WIDTH
) -> list[dict[str, Any]]:
    """A row for the observer, and one for padding."""
    seconds = fresh.call(__name__, "steps", rounds, width)
    on, off = median(seconds["on"]) * 1e3, median(seconds["off"]) * 1e3
    more = 100 * (on / off - 1)
    found: dict[int, list[tuple[int, float]]] = {1: [], 32: []}
    for turn in range(turns):
        for multiple in (1, 32)[:: -1 if turn % 2 else 1]:
            found[multiple].append(tuple(fresh.call(__name__, "texts", multiple, list(lengths), epochs)))
    plain, padded = (median(one[1] for one in found[multiple]) for multiple in (1, 32))
    return [
        {
            "what": STEP,
            "without": off,
            "with": on,
            "more, %": more,
            "target": f"at most {MOST:g} % more: {met(more <= MOST)}",
        },
        {
            "what": TEXTS.format(len(lengths), epochs),
            "without": plain,
            "with": padded,
            "compiles without": found[1][0][0],
            "compiles with": found[32][0][0],
            "times faster": plain / padded,
        },
    ]


def notes(_rows: list[dict[str, Any]]) -> list[str]:
    """What stands below the table."""
    return [
        "First row: the observer, on against off. Second row: padding to multiples of 32; the same texts, an LSTM over "
        "them, each in a process of its own, in turn; compiling is most of it.",
        "The step is Keras' `train_on_batch` with jit_compile=True, which also waits for the loss.",
    ]
