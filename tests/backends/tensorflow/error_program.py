"""Raises errors of TensorFlow and XLA in cells for test_error_messages.py, and prints their explanations as JSON on the
last line. It is a program of its own, because TensorFlow and torch_xla cannot share a process.

Usage: python error_program.py FOLDER
"""

from __future__ import annotations

import json
import linecache
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["XLA_FLAGS"] = f"--xla_dump_hlo_as_proto --xla_dump_to={sys.argv[1]}/dump"

import keras
import numpy as np
import tensorflow as tf

from tests.backends.tensorflow import error_guide
from tests.backends.tensorflow import fake_tpu_resolver as fake
from tests.backends.tensorflow.error_texts import TEXTS
from tpu_magics.backends.base import ObserverConfig
from tpu_magics.backends.tensorflow import error_messages, lowering_errors, observe
from tpu_magics.errors import TpuMagicsError
from tpu_magics.runs import origin
from tpu_magics.runs.writer import EventWriter

fake.logical_cpus(2)
FOLDER = Path(sys.argv[1])
CELL = "<ipython-input-3-cell>"
NAMES = {"tf": tf, "keras": keras, "np": np}
FIT = """m = keras.Sequential([keras.Input((3,)), Mine(), keras.layers.Dense(1)])
m.compile("sgd", "mse", jit_compile=True)
m.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)
"""
LAYER = "class Mine(keras.layers.Layer):\n    def call(self, x):\n"
STEP = "@tf.function(jit_compile=True)\ndef step(x):\n"
CALL = "\nstep(tf.ones([4]))\n"
MIRRORED = "s = tf.distribute.MirroredStrategy(['CPU:0', 'CPU:1'])\n"
DENSE = "m = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])\n"
PICTURES = """m = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Conv2D(2, 3), LAYER, keras.layers.Flatten()])
m.add(keras.layers.Dense(1))
m.compile("sgd", "mse", jit_compile=True)
m.fit(np.ones((2, 8, 8, 3)), np.ones((2, 1)), verbose=0)
"""
TRAINED = "w = tf.Variable(tf.eye(4) + 1.0)\n" + STEP.replace("(x)", "()")
# Forms of people's programs that fail under jit_compile alone, with the op that XLA lacks.
STOCK = {
    "ScaleAndTranslate": PICTURES.replace("LAYER", "keras.layers.Resizing(12, 12, interpolation='lanczos3')"),
    "ResizeBicubic": PICTURES.replace("LAYER", "keras.layers.UpSampling2D(2, interpolation='bicubic')"),
    "ResizeArea": PICTURES.replace(  # it has no gradient
        "keras.layers.Conv2D(2, 3), LAYER", "keras.layers.Resizing(12, 12, interpolation='area')"
    ),
    "ResizeNearestNeighborGrad": PICTURES.replace("LAYER", "keras.layers.Resizing(12, 12, interpolation='nearest')"),
    "StatelessRandomGammaV3": STEP + "    return x * keras.random.gamma([4], 2.0)" + CALL,
    "SegmentSum": STEP + "    return tf.math.segment_sum(x, [0, 0, 1, 2])" + CALL,
    "LogMatrixDeterminant": TRAINED + "    return tf.linalg.slogdet(w)\nstep()",
    "ResourceGatherNd": TRAINED + "    return tf.gather_nd(w, [[0, 0]])\nstep()",
    "LogUniformCandidateSampler": TRAINED
    + "    return tf.nn.nce_loss(w, tf.zeros(4), tf.constant([[0], [1]], tf.int64), w[:2], 2, 4)\nstep()",
    "Lu": STEP + "    return tf.linalg.lu(tf.eye(4) * x)[0]" + CALL,
}
MIX = """images, labels = keras.Input((8, 8, 3), name="images"), keras.Input((3,), name="labels")
both = keras.layers.CutMix()({"images": images, "labels": labels})
m = keras.Model({"images": images, "labels": labels}, keras.layers.Dense(1)(keras.layers.Flatten()(both["images"])))
m.compile("sgd", "mse", jit_compile=True)
m.fit({"images": np.ones((2, 8, 8, 3)), "labels": np.eye(3)[:2]}, np.ones((2, 1)), verbose=0)
"""
TRACED = """@tf.function
def patches(x):
    y = x + 1
    return tf.image.extract_patches(y, [1, 3, 3, 1], [1, 2, 2, 1], [1, 1, 1, 1], "VALID")
"""
CELLS = {
    "condition in a layer": LAYER
    + "        if tf.reduce_sum(x) > 10:\n            x = x / 2.0\n        return x\n"
    + FIT,
    "condition without autograph": STEP.replace("True", "True, autograph=False")
    + "    if tf.reduce_sum(x) > 10:\n        x = x / 2.0\n    return x"
    + CALL,
    "loop in a layer": LAYER + "        for row in x:\n            x = x + row\n        return x\n" + FIT,
    "loop without autograph": STEP.replace("True", "True, autograph=False")
    + "    for _ in range(tf.cast(x[0], tf.int32)):\n        x = x + 1\n    return x"
    + CALL,
    "list in a loop": STEP
    + "    rows = []\n    for row in x:\n        rows.append(row)\n    return tf.stack(rows)"
    + CALL,
    "growing loop": STEP + "    while tf.reduce_sum(x) < 100.0:\n        x = tf.concat([x, x], 0)\n    return x" + CALL,
    "gradient of an open loop": STEP
    + "    with tf.GradientTape() as tape:\n        tape.watch(x)\n        y = x\n"
    + "        while tf.reduce_sum(y) < 100.0:\n            y = y * y + 1.0\n    return tape.gradient(y, x)"
    + CALL,
    "value read": STEP + "    return x * x.numpy().mean()" + CALL,
    "value read in a layer": LAYER + "        return x[:, : int(tf.reduce_sum(x))]\n" + FIT,
    "random length": STEP + "    n = tf.random.uniform([], 1, 4, tf.int32)\n    return tf.zeros([n, 2])" + CALL,
    "variable in the step": STEP + "    v = tf.Variable(1.0)\n    return x * v" + CALL,
    "variable in a layer": LAYER + "        v = tf.Variable(1.0)\n        return x * v\n" + FIT,
    "two ops": STEP + "    a = tf.strings.as_string(x)\n    tf.print(x)\n    return tf.strings.length(a)" + CALL,
    "print in a layer": LAYER + "        tf.print(x[0])\n        return x\n" + FIT,
    "python in the step": STEP + "    return tf.py_function(lambda v: v, [x], tf.float32)" + CALL,
    "other device": "with tf.device('CPU:1'):\n    v = tf.Variable(1.0)\n" + STEP + "    return x * v" + CALL,
    "replicas": MIRRORED
    + f"with s.scope():\n    {DENSE}    m.compile('sgd', 'mse', jit_compile=True)\n"
    + "m.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)",
    "optimizer outside": MIRRORED
    + f"with s.scope():\n    {DENSE}m.compile('adam', 'mse')\nm.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)",
    "model outside": MIRRORED + DENSE + "with s.scope():\n    m.compile('sgd', 'mse')\n"
    "m.fit(np.ones((4, 3)), np.ones((4, 1)), verbose=0)",
    "no kernels for a TPU": "from tensorflow.python.ops.gen_tpu_ops import configure_distributed_tpu\n"
    "configure_distributed_tpu()",
    "too large": "x = tf.zeros([200000, 200000, 100])",
    "old name": DENSE + "m.save_weights('x.h5')",
    "shapes that do not fit": STEP + "    return tf.matmul(x, x)" + CALL,
    "layer that does not fit": DENSE + "m(np.ones((4, 7)))",
    "error in the pipeline": "list(tf.data.Dataset.range(4).map("
    "lambda i: tf.numpy_function(lambda v: 1 / 0, [i], tf.int64)))",
    "their own": "def broken():\n    raise ValueError('mine')\nbroken()",
}


def typed(text: str) -> dict[str, Any]:
    """The names after a cell."""
    linecache.cache[CELL] = (len(text), None, text.splitlines(keepends=True), CELL)
    names = {**NAMES, "__name__": "__main__"}
    exec(compile(text, CELL, "exec"), names)
    return names


def function(text: str) -> Any:
    """The function that a cell defines last."""
    return list(typed(text).values())[-1]


def compiles() -> int:
    return len(list((FOLDER / "dump").glob("*before_optimizations.hlo.pb")))


def raised(text: str) -> Exception | None:
    """What the cell raises."""
    try:
        typed(text)
    except Exception as error:
        return error
    return None


def said(error: BaseException | None, put_on: bool = False) -> Any:
    found = error_messages.explain(error, {CELL: "In [3]"}, put_on) if error is not None else None
    if found is None:
        return None if error is not None else "passes"
    return {"what": found.what, "why": found.why, "todo": found.todo, "details": list(found.details)}


def of_cells() -> Mapping[str, Any]:
    found = {}
    for name, text in CELLS.items():
        error = raised(text)
        found[name] = said(error)
        keras.utils.clear_session()
    return found


def of_stock() -> Mapping[str, Any]:
    """As where the run has put jit_compile on; without the kernel of XLA, and with what the table has for it."""
    from tensorflow.python.framework import kernels

    found = {name: said(raised(text), put_on=True) for name, text in {**STOCK, "CutMix": MIX}.items()}
    compiled = {one.op for one in kernels.get_all_registered_kernels().kernel if one.device_type == "XLA_CPU_JIT"}
    known = {**lowering_errors.LACKING, **lowering_errors.TPU_ONLY}
    return {"said": found, "compiled": len(compiled), "has by now": sorted(compiled & set(known))}


def observed() -> Any:
    """With frames of the observer between the person's line and TensorFlow."""
    (FOLDER / "run").mkdir()
    writer = EventWriter(FOLDER / "run" / "events.jsonl", 0)
    with observe.observing(writer, ObserverConfig(cell_names={CELL: "In [3]"})):
        error = raised(CELLS["print in a layer"])
        return {"print": said(error), "condition": said(raised(CELLS["condition in a layer"]))}


def of_a_tpu() -> Mapping[str, Any]:
    return {name: said(kind(None, None, text)) for name, (kind, text) in TEXTS.items()}


def with_its_graph() -> Any:
    """A TPU's refusal of an op, of a function that was traced here: its graph knows the line of the op."""
    step = function(TRACED)
    graph = step.get_concrete_function(tf.TensorSpec((1, 8, 8, 3), tf.int64))
    kind, text = TEXTS["op of a gradient"]
    node = next(op.name for op in graph.graph.get_operations() if op.type == "ExtractImagePatches")
    text = text.replace("gradient_tape/model/unfold_matmul_fold_3/ExtractImagePatches", node)
    return said(kind(None, None, text.replace("__inference_train_function_137027", graph.function_def.signature.name)))


def chained() -> Any:
    """An error that somebody wrapped, and what is ours already."""
    inner = raised(CELLS["variable in the step"])
    wrapped = RuntimeError("training failed")
    wrapped.__cause__ = inner
    return [said(wrapped), said(TpuMagicsError("ours"))]


def main() -> None:
    report = {
        "cells": of_cells(),
        "stock": of_stock(),
        "tpu": of_a_tpu(),
        "with its graph": with_its_graph(),
        "chained": chained(),
        "rules": error_guide.run(compiles, function),
        "observed": observed(),
        "libraries": [origin.is_library(one.__file__) for one in (tf, keras, np)],
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
