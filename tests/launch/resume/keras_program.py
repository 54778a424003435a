"""A training of TensorFlow's that ends this process in the middle, or goes on from there: its last line is JSON.

Words: what trains, the batch after which the process ends (0: none), the place for checkpoints ("": none); then, if
they are others, how many steps apart they are, and how it ends: "exit", or "SIGKILL" for it and all its children.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import signal
import sys
import time
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tpu_magics

WHAT, PLACE = sys.argv[1], sys.argv[3]
EVERY, *HOW = sys.argv[4:] or ("7", "exit")  # lists, because a training compares the texts that it reads
ends_at = [int(sys.argv[2])]
BATCHES = "TEST_BATCHES"  # of this process: a variable of the program would be in its checkpoints


def is_saved() -> bool:
    """Whether there is a whole checkpoint: one that is being written has another name."""
    return any(one.parent.name.startswith("step") for one in pathlib.Path(PLACE).rglob("manifest.json"))


def may_end() -> None:
    batches = int(os.environ.get(BATCHES, "0")) + 1
    os.environ[BATCHES] = str(batches)
    if [batches] == ends_at:
        if HOW == ["SIGKILL"]:
            os.killpg(0, signal.SIGKILL)
        until = time.monotonic() + 60
        while not is_saved() and time.monotonic() < until:
            time.sleep(0.02)
        os._exit(0)


class Ends(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        may_end()


def data() -> tuple[Any, Any]:
    inputs = np.random.RandomState(0).rand(40, 8).astype("float32")
    return inputs, inputs.sum(1, keepdims=True)


def callbacks() -> list[Any]:
    patient = keras.callbacks.EarlyStopping(patience=10, restore_best_weights=True)
    return [Ends(), keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=0, min_delta=10), patient]


def fit_twice(model: Any) -> Any:
    """Arrays that Keras shuffles; a fit before the one that is ended."""
    inputs, targets = data()
    first = model.fit(inputs, targets, epochs=1, batch_size=8, verbose=0)
    unseen = inputs[:8], targets[:8]
    found = model.fit(inputs, targets, batch_size=4, epochs=4, verbose=0, validation_data=unseen, callbacks=callbacks())
    return first.history, found.history


def fit_dataset(model: Any) -> Any:
    """A tf.data pipeline that is shuffled anew in each epoch."""
    pipeline = tf.data.Dataset.from_tensor_slices(data()).shuffle(40).batch(4)
    return model.fit(pipeline, epochs=4, verbose=0, callbacks=callbacks()).history


def own_loop(model: Any) -> Any:
    """A loop with a GradientTape, running sums and a history."""
    optimizer = keras.optimizers.Adam(1e-2)
    pipeline = tf.data.Dataset.from_tensor_slices(data()).batch(4)

    @tf.function
    def train_step(inputs: Any, targets: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(inputs, training=True) - targets) ** 2)
        optimizer.apply_gradients(zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables))
        return loss

    train_step(*next(iter(pipeline)))  # makes the optimizer's variables
    history, total = [], 0.0
    for epoch in range(4):
        for inputs, targets in pipeline:
            total += float(train_step(inputs, targets))
            may_end()
        history.append((epoch, total))
    return history


def begin() -> Any:
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(16, "relu"), keras.layers.Dropout(0.2), keras.layers.BatchNormalization()]
    model = keras.Sequential([keras.Input((8,)), *layers, keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    return model


def end_with_child() -> None:
    """Be the child of a process that waits for it and then ends well, however this one ends; in a group of its own."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        os._exit(0)
    os.setpgid(0, 0)


TRAININGS = {"twice": fit_twice, "dataset": fit_dataset, "own": own_loop}

if __name__ == "__main__":
    if HOW == ["SIGKILL"]:
        end_with_child()
    tpu_magics.init(framework="tensorflow", checkpoints=PLACE or "off")
    model = begin()
    more = {"resume": True, "save_every": EVERY} if PLACE else {}
    result = tpu_magics.train(TRAININGS[WHAT], model, plain=True, **more)
    weights = hashlib.sha256(b"".join(one.numpy().tobytes() for one in model.weights)).hexdigest()
    resumed = [one.step for one in result.run.events("resumed")]
    print(json.dumps({"value": repr(result.value), "weights": weights, "resumed": resumed, "steps": result.steps}))
