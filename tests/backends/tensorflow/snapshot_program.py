"""Trains under a saved state and restores it for test_saved_state.py; prints a report as JSON on the last line. It is a
program of its own, because TensorFlow and torch_xla cannot share a process.

Usage: python snapshot_program.py FOLDER
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

from tpu_magics.backends.tensorflow import saved_state
from tpu_magics.launch import object_graph

X = np.random.default_rng(0).random((8, 4), dtype=np.float32)
Y = X[:, :2].copy()
ALONE = (
    "SGD",
    "RMSprop",
    "Adam",
    "AdamW",
    "Adagrad",
    "Adadelta",
    "Adamax",
    "Adafactor",
    "Nadam",
    "Ftrl",
    "Lion",
    "Lamb",
)
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    **{name: getattr(keras.optimizers, name) for name in ALONE},
    "LossScaleOptimizer": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()),
    "average": lambda: keras.optimizers.Adam(use_ema=True, ema_overwrite_frequency=1),
    "accumulating": lambda: keras.optimizers.SGD(momentum=0.9, gradient_accumulation_steps=2),
    "schedule": lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)),
}

FEW = {name: OPTIMIZERS[name] for name in ("SGD", "Adam", "LossScaleOptimizer", "average", "accumulating", "schedule")}


def model(optimizer: Any = "sgd") -> Any:
    layers = [keras.layers.Dense(4), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    made = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(2)])
    made.compile(optimizer, "mse", metrics=["mae"], run_eagerly=True)
    return made


def held(*values: Any) -> list[Any]:
    """What models and their optimizers hold."""
    found = [one for value in values for one in (value.variables, getattr(value, "optimizer", value).variables)]
    return [(one.path, one.numpy().tobytes()) for variables in found for one in variables]


def around(folder: Path, items: dict[str, Any], change: Callable[[], Any]) -> list[str]:
    """Keep, change, put back. Gives what could not be put back."""
    reached = [one for name, value in items.items() for one in object_graph.contents(name, value)]  # as of a cell
    kept = saved_state.TrainingSnapshot(reached, folder / "state")
    try:
        change()
        return list(kept.put_back())
    finally:
        kept.drop()


def optimizers(folder: Path) -> dict[str, Any]:
    """Whether each is as it was, changed in between, and trains on: one without state yet, one with."""
    found = {}
    for name, make in OPTIMIZERS.items() if "all" in sys.argv else FEW.items():
        for trained in (False, True):
            one = model(make())
            if trained:
                one.train_on_batch(X, Y)
            before, changed = held(one), []
            lost = around(folder, {"model": one}, lambda one=one, changed=changed: changed.append(step(one)))  # type: ignore[misc]
            same = held(one) == before
            step(one)
            found[f"{name} {'trained' if trained else 'new'}"] = [same, changed[0] != before, held(one) != before, lost]
    return found


def step(one: Any) -> list[Any]:
    one.train_on_batch(X, Y)
    return held(one)


def nested(folder: Path) -> dict[str, Any]:
    """Models in a model, in containers of the notebook, and one that is not built."""
    inner = keras.Sequential([keras.layers.Dense(4), keras.layers.Dropout(0.1)])
    outer = keras.Sequential([keras.Input((4,)), inner, keras.layers.Dense(2)])
    outer.compile("adam", "mse", run_eagerly=True)
    others, unbuilt = {"a": [model()]}, keras.Sequential([keras.layers.Dense(2)])
    unbuilt.compile("adam", "mse", run_eagerly=True)
    before = held(outer, others["a"][0])

    def change() -> None:
        for one in (outer, others["a"][0], unbuilt):
            one.train_on_batch(X, Y)
        inner.trainable = False
        outer.extra = keras.layers.Dense(3)

    items = {"outer": outer, "others": others, "unbuilt": unbuilt}
    lost = around(folder, items, change)
    shape = [inner.trainable, hasattr(outer, "extra"), unbuilt.built, len(unbuilt.weights), unbuilt.optimizer.built]
    return {"same": held(outer, others["a"][0]) == before, "shape": shape, "lost": lost}


def grown(folder: Path) -> dict[str, Any]:
    """Layers that are added and taken away in the run."""
    more, less = model(), model()
    before = held(more, less)

    def change() -> None:
        more.add(keras.layers.Dense(3))
        less.pop()
        more(X)

    lost = around(folder, {"more": more, "less": less}, change)
    sizes = [len(more.layers), len(less.layers), more.output_shape[-1], less.output_shape[-1]]
    return {"same": held(more, less) == before, "sizes": sizes, "lost": lost, "trains": len(step(more)) > 0}


class Module(tf.Module):
    """Makes a variable in its first call."""

    def __init__(self) -> None:
        self.weight, self.later = tf.Variable(tf.ones((4, 2))), None
        self.steps, self.kept = 0, {"first": tf.Variable(1.0)}

    @tf.function
    def __call__(self, x: Any) -> Any:
        if self.later is None:
            self.later = tf.Variable(tf.zeros(2))
        return x @ self.weight + self.later


def modules(folder: Path) -> dict[str, Any]:
    """A tf.Module, metrics, generators, variables by themselves."""
    one, mean, seeds = Module(), keras.metrics.Mean(), keras.random.SeedGenerator(7)
    numbers, words = tf.random.Generator.from_seed(1), tf.Variable("before")

    def change() -> None:
        one(X)
        one.weight.assign(tf.zeros((4, 2)))
        one.steps, one.kept["second"] = 5, tf.Variable(2.0)
        one.kept["first"].assign(9.0)
        mean.update_state(3.0)
        keras.random.normal((2,), seed=seeds)
        numbers.normal([2])
        words.assign("after")
        np.random.rand(3)

    def state() -> list[Any]:
        parts = (one.weight, one.kept["first"], mean.total, seeds.state, numbers.state)
        found = [part.numpy().tolist() for part in parts]
        return [*found, words.numpy().decode(), np.random.get_state()[2], one.later, one.steps, sorted(one.kept)]

    before = state()
    items = {"one": one, "mean": mean, "seeds": seeds, "numbers": numbers, "words": words}
    lost = around(folder, items, change)
    return {"same": state() == before, "lost": lost, "again": one(X).shape.as_list()}


def broken(folder: Path) -> dict[str, Any]:
    """A disk that is full while it is written; one variable that cannot be put back."""
    one = model()
    with mock.patch.object(saved_state, "_store", side_effect=OSError(errno.ENOSPC, "full")):
        try:
            saved_state.TrainingSnapshot([("one", one)], folder / "state")
            raised = ""
        except OSError as error:
            raised = error.strerror
    left = [path.name for path in folder.iterdir()]
    first, second = tf.Variable([1.0, 2.0], name="first", shape=[None]), tf.Variable(3.0, name="second")
    original = first.assign

    def change() -> None:
        second.assign(4.0)
        first.assign = mock.Mock(side_effect=ValueError("gone"))

    lost = around(folder, {"first": first, "second": second}, change)
    first.assign = original
    return {"raised": raised, "left": left, "lost": lost, "second": float(second)}


REPORTS = (optimizers, nested, grown, modules, broken)

if __name__ == "__main__":
    report = {}
    for make in REPORTS:
        place = Path(sys.argv[1]) / make.__name__
        place.mkdir()
        report[make.__name__] = make(place)
    print(json.dumps(report), flush=True)
