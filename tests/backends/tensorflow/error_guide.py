"""The three rules of the guide for transformers on TPUs, in their bad and good form, for XLA:CPU and for the checker.

Only numpy is imported here, so that the checker's test can read the forms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

_HEAD = "import tensorflow as tf\n\n@tf.function(jit_compile=True)\n"
_MODEL = """import keras
import tensorflow as tf

keras.utils.set_random_seed(0)
model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(5)])
loss_fn = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

@tf.function(jit_compile=True)
def masked(x, labels):
    out = model(x)
    keep = labels >= 0
"""
_COLLATOR = """import tensorflow as tf
from transformers import AutoTokenizer, DataCollatorWithPadding

strategy = tf.distribute.TPUStrategy(tf.distribute.cluster_resolver.TPUClusterResolver("local"))
tokenizer = AutoTokenizer.from_pretrained("bert-base-cased")
collate = DataCollatorWithPadding(tokenizer{}, return_tensors="tf")
"""
FORMS = {
    "condition": (
        _HEAD + "def halve(x):\n    if tf.reduce_sum(x) > 10:\n        x = x / 2.0\n    return x\n",
        _HEAD + "def halve(x):\n    big = tf.cast(tf.reduce_sum(x) > 10, tf.float32)\n    return x / (1.0 + big)\n",
    ),
    "shape": (
        _MODEL + "    loss = loss_fn(labels[keep], out[keep])\n    return tf.reduce_mean(loss)\n",
        _MODEL + "    zeroed = loss_fn(tf.nn.relu(labels), out) * tf.cast(keep, tf.float32)\n"
        "    return tf.reduce_sum(zeroed) / tf.reduce_sum(tf.cast(keep, tf.float32))\n",
    ),
    "batch": (
        _COLLATOR.format(""),
        _COLLATOR.format(", pad_to_multiple_of=32"),
    ),
}
MEAN = (
    _HEAD + "def mean(x, attention_mask):\n"
    "    return tf.reduce_sum(x * attention_mask) / tf.reduce_sum(attention_mask)\n"
)
LENGTHS = (3, 3, 5, 7)


def run(compiles: Callable[[], int], function: Callable[[str], Any]) -> dict[str, Any]:
    """The numbers of both forms, and how many programs XLA compiled. `function`: makes the function of a cell."""
    return {
        "condition": [_condition(function(text)) for text in FORMS["condition"]],
        "shape": [_shape(function(text)) for text in FORMS["shape"]],
        "batch": [_batches(function(MEAN), compiles, multiple) for multiple in (1, 32)],
    }


def _condition(halve: Any) -> list[Any]:
    draw = np.random.default_rng(0)
    return [halve(draw.random(8, np.float32) + add).numpy().tolist() for add in (0.0, 2.0)]


def _shape(masked: Any) -> list[float]:
    draw = np.random.default_rng(1)
    out = draw.normal(size=(3, 12, 5)).astype(np.float32)
    labels = draw.integers(-2, 5, (3, 12)).astype(np.int32)
    return [float(masked(*batch)) for batch in zip(out, labels, strict=True)]


def _batches(mean: Any, compiles: Callable[[], int], multiple: int) -> Any:
    draw = np.random.default_rng(2)
    before = compiles()
    numbers = [float(mean(*_padded(draw.random(length, np.float32), multiple))) for length in LENGTHS]
    return {"numbers": numbers, "compiles": compiles() - before}


def _padded(x: Any, multiple: int) -> tuple[Any, Any]:
    room = (0, -len(x) % multiple)
    return np.pad(x, room), np.pad(np.ones_like(x), room)
