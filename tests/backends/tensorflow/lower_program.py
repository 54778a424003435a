"""Lowers steps of TensorFlow for test_lower.py, in a program of its own: TensorFlow and torch_xla cannot share a
process. The last line of its output is a report as JSON.

Usage: python lower_program.py WHAT FOLDER; WHAT: one of REPORTS. Graphs for the compiler are pickled into FOLDER.
"""

from __future__ import annotations

import json
import linecache
import os
import pickle
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from keras import layers

from tpu_magics.backends.tensorflow import is_step
from tpu_magics.backends.tensorflow.lower import lower
from tpu_magics.errors import TpuMagicsError

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
CLASSES = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def float32(*shape: int) -> Any:
    return tf.TensorSpec(shape)


def int32(*shape: int) -> Any:
    return tf.TensorSpec(shape, tf.int32)


# -- models ---------------------------------------------------------------------------------------------------------


def dense() -> tuple[Any, Any, Any]:
    model = keras.Sequential(
        [layers.Input((20,)), layers.Dense(64, activation="relu"), layers.Dropout(0.1), layers.Dense(10)]
    )
    model.compile("adam", CLASSES, metrics=["accuracy"])
    return model, float32(32, 20), int32(32)


def convolution() -> tuple[Any, Any, Any]:
    parts = [layers.Conv2D(8, 3), layers.BatchNormalization(), layers.ReLU(), layers.MaxPool2D()]
    parts += [layers.DepthwiseConv2D(3), layers.GlobalAveragePooling2D(), layers.Dense(10)]
    model = keras.Sequential([layers.Input((16, 16, 3)), *parts])
    model.compile("sgd", CLASSES)
    return model, float32(8, 16, 16, 3), int32(8)


def transformer() -> tuple[Any, Any, Any]:
    tokens = layers.Input((16,), dtype="int32")
    x = layers.Embedding(100, 32)(tokens)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 16, dropout=0.1)(x, x))
    model = keras.Model(tokens, layers.Dense(100)(layers.Dense(64, activation="gelu")(x)))
    model.compile(keras.optimizers.AdamW(1e-3), CLASSES)
    return model, int32(8, 16), int32(8, 16)


def recurrent() -> tuple[Any, Any, Any]:
    model = keras.Sequential([layers.Input((6, 8)), layers.LSTM(16), layers.Dense(10)])
    model.compile("rmsprop", CLASSES)
    return model, float32(4, 6, 8), int32(4)


MODELS = (dense, convolution, transformer, recurrent)


# -- a step whose values all have shapes of their own ----------------------------------------------------------------

TYPED = """
def step(x, scale):
    count.assign_add(1)
    for _ in tf.range(3):
        slot.assign_add(tf.reduce_sum(x) * table[0, 0] * tf.ones(7))
    if tf.reduce_sum(x) > 10.0:
        shift.assign(shift * 2.0)
    return x @ weight + scale
"""
CELL = "<ipython-input-3-0123456789ab>"


def typed() -> Any:
    """A tf.function, typed into a cell: it assigns `count`, `slot` and `shift`, and only reads `weight` and `table`."""
    values = {
        "tf": tf,
        "count": tf.Variable(np.int64(0), name="count"),
        "slot": tf.Variable(tf.zeros(7), name="slot"),
        "shift": tf.Variable(tf.zeros((2, 3)), name="shift"),
        "weight": tf.Variable(tf.ones((3, 5)), name="weight"),
        "table": tf.constant(np.ones((11, 2), np.float32)),
    }
    linecache.cache[CELL] = (len(TYPED), None, TYPED.splitlines(keepends=True), CELL)
    exec(compile(TYPED, CELL, "exec"), values)
    return tf.function(values["step"])


def typed_report() -> dict[str, Any]:
    traced = lower(typed(), (np.ones((4, 3), np.float32),), {"scale": float32(5)}, cell_names={CELL: "In [3]"})
    graph = traced.graphs[0]
    names = {name.rpartition("#")[2]: name for name in op_names(graph.module)}
    return {
        "parameters": graph.parameters,
        "donors": graph.donors,
        "batch": traced.batch,
        "site": str(graph.site),
        "lines": sorted(
            {(names[str(number)].rpartition("#")[0], place.code) for number, place in graph.places.items()}
        ),
        "paths": sorted({place.path for place in graph.places.values()}),
        "counts": [traced.syncs, traced.settled, len(traced.graphs), graph.replicas, graph.steady],
        "form": graph.form,
    }


def multiplied(module: bytes) -> list[str]:
    """Element types of the results of matrix multiplications."""
    from tensorflow.compiler.xla import xla_data_pb2
    from tensorflow.compiler.xla.service import hlo_pb2

    found = hlo_pb2.HloModuleProto.FromString(module)
    dots = [one for part in found.computations for one in part.instructions if one.opcode == "dot"]
    return sorted({xla_data_pb2.PrimitiveType.Name(one.shape.element_type) for one in dots})


def op_names(module: bytes) -> list[str]:
    from tensorflow.compiler.xla.service import hlo_pb2

    found = hlo_pb2.HloModuleProto.FromString(module)
    return [one.metadata.op_name for part in found.computations for one in part.instructions]


# -- what must not change -------------------------------------------------------------------------------------------


def values_of(model: Any) -> dict[str, bytes]:
    variables = {id(one): one for one in (*model.variables, *model.optimizer.variables, *model.metrics_variables)}
    return {one.path: np.asarray(one).tobytes() for one in variables.values()}


def draws() -> list[float]:
    return [float(tf.random.uniform(())), random.random(), float(np.random.rand())]


def seeded() -> None:
    keras.utils.set_random_seed(7)


def model_report() -> dict[str, Any]:
    model, x, y = dense()
    data = np.random.rand(32, 20), np.random.randint(0, 10, 32, np.int32)  # float64 and int32
    model.train_on_batch(*data)
    before = values_of(model)
    seeded()
    expected = draws()
    seeded()
    first = lower(model, data)
    drawn = draws()
    again = [lower(model.train_step, ((x, y),)), lower(model, (tf.data.Dataset.from_tensors((x_of(x), x_of(y))),))]
    other, _, _ = dense()
    graph = first.graphs[0]
    return {
        "unchanged": values_of(model) == before,
        "some": any(any(value) for value in before.values()),
        "drawn": drawn == expected,
        "parameters": graph.parameters,
        "donors": graph.donors,
        "same module": [one.graphs[0].module == graph.module for one in again],
        "hash": graph.hash,
        "hash of a twin": lower(other, (x, y)).graphs[0].hash,
        "hash of another batch": lower(model, (float32(64, 20), int32(64))).graphs[0].hash,
        "batch": first.batch,
        "notes": first.notes,
        "trained after": float(model.train_on_batch(*data)[0]) > 0,
    }


class Plain(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(5)

    def call(self, x: Any) -> Any:
        return self.dense(x)


def unbuilt_report() -> dict[str, Any]:
    model = Plain()
    model.compile("sgd", "mse")
    built = model.built
    traced = lower(model, (float32(4, 3), float32(4, 5)))
    return {"built": built, "parameters": traced.graphs[0].parameters}


def loop_report() -> dict[str, Any]:
    """A step of a custom loop, whose optimizer has made no state yet."""
    model = keras.Sequential([layers.Input((3,)), layers.Dense(5)])
    optimizer = keras.optimizers.Adam(1e-2)
    seen = keras.metrics.Mean(name="seen")
    model_before = [value.numpy().tobytes() for value in model.trainable_variables]

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        seen.update_state(loss)
        return loss

    graph = lower(step, (float32(4, 3), float32(4, 5))).graphs[0]
    again = lower(step, (float32(4, 3), float32(4, 5))).graphs[0]
    return {
        "donors": [graph.parameters[number] for number in graph.donors],
        "codes": sorted({place.code for place in graph.places.values()}),
        "unchanged": [value.numpy().tobytes() for value in model.trainable_variables] == model_before,
        "state": [float(np.abs(np.asarray(one)).max()) for one in optimizer.variables],
        "seen": float(seen.result()),
        "same": graph.module == again.module,
    }


def x_of(spec: Any) -> Any:
    return tf.zeros(spec.shape, spec.dtype)


def hash_report() -> dict[str, Any]:
    model, x, y = dense()
    return {"hash": lower(model, (x, y)).graphs[0].hash}


# -- arguments ------------------------------------------------------------------------------------------------------


def arguments_report() -> dict[str, Any]:
    rows = np.arange(30, dtype=np.float32).reshape(10, 3), np.arange(10)
    whole = tf.data.Dataset.from_tensor_slices(rows).batch(5, drop_remainder=True)
    ragged_end = tf.data.Dataset.from_tensor_slices(rows).batch(4)
    iterator = iter(whole)

    def from_iterator(batches: Any) -> Any:
        x, _ = next(batches)
        return tf.reduce_sum(x)

    def two(x: Any, y: Any) -> Any:
        return tf.reduce_sum(x) + tf.cast(tf.reduce_sum(y), tf.float32)

    def one(batch: Any) -> Any:
        return two(*batch)

    def nested(batch: Any, scale: float) -> Any:
        return batch["ids"][0] * scale

    def shaped(size: Any) -> Any:
        return tf.zeros(size)

    read = lower(one, (ragged_end,))
    return {
        "iterator": lower(tf.function(from_iterator), (iterator,)).graphs[0].parameters,
        "iterator is where it was": float(next(iterator)[0][0, 1]),
        "two": lower(two, (whole,)).graphs[0].parameters,
        "one": lower(one, (whole,)).graphs[0].parameters,
        "read": [read.graphs[0].parameters, read.batch, any("first batch was read" in note for note in read.notes)],
        "not read": any("first batch was read" in note for note in lower(one, (whole,)).notes),
        "nested": lower(nested, ({"ids": [float32(2, 3)]}, 0.5)).graphs[0].parameters,
        "shape": lower(shaped, (np.array([2, 3]),)).graphs[0].parameters,
    }


# -- what has no program ----------------------------------------------------------------------------------------------


class Halving(layers.Layer):
    def call(self, x: Any) -> Any:
        if tf.reduce_sum(x) > 10:  # the branch
            x = x / 2
        return x


class Own(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.halving = Halving()

    def call(self, x: Any) -> Any:
        return self.halving(x)


def branch_in_layer() -> Any:
    model = Own()
    model.compile("sgd", "mse")
    return lower(model, (float32(4, 3), float32(4, 3)))


def host_ops() -> Any:
    def inner(x: Any) -> Any:
        tf.print("sum", tf.reduce_sum(x))
        return tf.numpy_function(lambda value: value + 1, [x], tf.float32)

    return lower(tf.function(lambda x: tf.function(inner)(x)), (float32(4, 3),))


def no_kernel() -> Any:
    return lower(lambda x: tf.linalg.det(x), (float32(3, 3),))


def read_by_host() -> Any:
    def step(x: Any) -> Any:
        return x.numpy()

    return lower(step, (float32(3, 3),))


def shape_from_spec() -> Any:
    def step(size: Any) -> Any:
        return tf.zeros(size)

    return lower(step, (int32(2),))


def open_shape() -> Any:
    return lower(lambda x: x, (tf.TensorSpec((None, 3)),))


def ragged() -> Any:
    return lower(lambda x: x, (tf.ragged.constant([[1.0], [2.0, 3.0]]),))


def uncompiled() -> Any:
    return lower(keras.Sequential([layers.Input((2,)), layers.Dense(2)]), (float32(3, 2), float32(3, 2)))


def fit_itself() -> Any:
    model, x, y = dense()
    return lower(model.fit, (x_of(x), x_of(y)))


def calls_fit() -> Any:
    model, x, y = dense()

    def train() -> Any:
        return model.fit(x_of(x), x_of(y), verbose=0)

    return lower(train)


def two_replicas() -> Any:
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model, x, y = dense()
    return lower(model, (x, y))


REFUSED = (
    *(branch_in_layer, host_ops, no_kernel, read_by_host, shape_from_spec, open_shape, ragged, uncompiled),
    *(fit_itself, calls_fit, two_replicas),
)


def refused_report() -> dict[str, Any]:
    return {one.__name__: refusal(one) for one in REFUSED}


def refusal(call: Callable[[], Any]) -> dict[str, Any]:
    try:
        call()
    except TpuMagicsError as error:
        return {"what": error.what, "why": error.why, "todo": error.todo, "details": error.details}
    return {}


# -- the rest -------------------------------------------------------------------------------------------------------


def notes_report() -> dict[str, Any]:
    def growing(x: Any) -> Any:
        return tf.boolean_mask(x, x > 0)

    keras.config.set_dtype_policy("mixed_bfloat16")
    mixed, x, y = dense()
    keras.config.set_dtype_policy("float32")
    plain, _, _ = dense()
    return {
        "growing": lower(growing, (float32(4, 3),)).notes,
        "kept policy": lower(plain, (x, y), precision="bf16").notes,
        "its policy": lower(mixed, (x, y), precision="bf16").notes,
        "multiplies in": [multiplied(lower(one, (x, y)).graphs[0].module) for one in (plain, mixed)],
        "function": lower(growing, (float32(4, 3),), precision="bf16").notes,
    }


def is_step_report() -> dict[str, bool]:
    def names_it(x: Any) -> Any:
        return (lambda: tf.reduce_sum(x))()

    def other(x: Any) -> Any:
        return np.sum(x)

    model, _, _ = dense()
    array = np.ones(3)
    return {
        "tf.function": is_step(tf.function(other), (array,)),
        "model": is_step(model, (array, array)),
        "train_step": is_step(model.train_step, ((array, array),)),
        "names it": is_step(names_it, (array,)),
        "takes it": is_step(other, ({"x": [float32(3)]},)),
        "dataset": is_step(other, (tf.data.Dataset.range(3),)),
        "other": is_step(other, (array,)),
    }


def pickled(folder: Path) -> None:
    for make in MODELS:
        model, x, y = make()
        (folder / f"{make.__name__}.pickle").write_bytes(pickle.dumps(lower(model, (x, y)).graphs[0]))


def all_reports(folder: Path) -> dict[str, Any]:
    pickled(folder)
    return {
        "typed": typed_report(),
        "model": model_report(),
        "unbuilt": unbuilt_report(),
        "loop": loop_report(),
        "arguments": arguments_report(),
        "refused": refused_report(),
        "notes": notes_report(),
        "is_step": is_step_report(),
    }


def preflight_report() -> dict[str, Any]:
    """A model and a tf.function all the way: lowered, compiled for a TPU, told."""
    from tpu_magics.panel.preflight import to_text
    from tpu_magics.preflight.run import preflight

    model, _, _ = dense()
    x, y = np.zeros((32, 20), np.float32), np.zeros(32, np.int32)
    batch = tf.zeros((64, 256))
    squared = tf.function(lambda rows: tf.reduce_mean((rows @ tf.transpose(rows)) ** 2))
    made = tf.function(lambda rows: squared(tf.random.uniform((rows, 256))))
    found = {
        "model": preflight(model, x, y, target="v5e-8", kept=False, advise=True),
        "function": preflight(squared, batch, target="v5e-8", kept=False),
        "compared": preflight(made, 64, target="v5e-1", kept=False, compare="rows=64,512"),
    }
    return {name: {"text": to_text(one), "json": one.to_dict()} for name, one in found.items()}


REPORTS = {
    "all": all_reports,
    "preflight": lambda _: preflight_report(),
    "hash": lambda _: hash_report(),
}

if __name__ == "__main__":
    print(json.dumps(REPORTS[sys.argv[1]](Path(sys.argv[2]))))
