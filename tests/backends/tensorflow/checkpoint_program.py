"""Writes and reads checkpoints for test_checkpoints.py, and prints a report as JSON on the last line. It is a program
of its own, because TensorFlow and torch_xla cannot share a process.

Usage: python checkpoint_program.py FOLDER
"""

from __future__ import annotations

import ast
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import fake_gcs
import keras
import numpy as np
import tensorflow as tf

from tpu_magics import tf as public
from tpu_magics.backends.tensorflow import checkpoint_files, checkpoint_paths, checkpoints
from tpu_magics.backends.tensorflow.checkpoints import saving_problems
from tpu_magics.errors import TpuMagicsError

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(48, 3)).astype("float32")
Y = X[:, :2].copy()
FILES = ("model.keras", "model.weights.h5", "folder")


def model(seed: int = 3, units: int = 8) -> Any:
    """With a layer that draws, one that keeps statistics, and an optimizer with state."""
    keras.utils.set_random_seed(seed)
    parts = [
        keras.layers.Dense(units),
        keras.layers.Dropout(0.5),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(2),
    ]
    made = keras.Sequential([keras.layers.Input((3,)), *parts])
    made.compile("adam", "mse", run_eagerly=True)
    return made


def train(one: Any, first: int, last: int) -> None:
    for step in range(first, last):
        one.train_on_batch(X[8 * step : 8 * step + 8], Y[8 * step : 8 * step + 8])


def state(one: Any) -> list[bytes]:
    return [variable.numpy().tobytes() for variable in (*one.variables, *one.optimizer.variables)]


def said(act: Callable[[], Any]) -> str:
    try:
        act()
    except TpuMagicsError as error:
        return str(error)
    return ""


# -- resuming -------------------------------------------------------------------------------------------------------


def resume(folder: Path) -> dict[str, Any]:
    """3 steps, saved, loaded into another model, 3 steps; beside 6 steps."""
    whole = model()
    train(whole, 0, 6)
    found: dict[str, Any] = {}
    for root in (str(folder), "ram://bucket"):
        for name in FILES:
            half, other = model(), model(seed=99)
            train(half, 0, 3)
            path = public.save(half, f"{root}/{name}")
            public.load(other, f"{root}/{name}")
            loaded = state(other) == state(half)
            train(other, 3, 6)
            given = "ram" if root.startswith("ram") else "local"
            found[f"{given} {name}"] = {
                "loaded": loaded,
                "same": state(other) == state(whole),
                "path": path[len(root) + 1 :],
            }
    keras_own = keras.models.load_model(folder / "model.keras", compile=False)
    found["keras reads it"] = all(
        (a == b).all() for a, b in zip(keras_own.get_weights(), half.get_weights(), strict=True)
    )
    return found


def distributed(folder: Path) -> dict[str, Any]:
    """Variables that two replicas hold."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        one, other = (keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)]) for _ in range(2))
        for each in (one, other):
            each.compile("adam", "mse")
    train(one, 0, 1)
    found = {}
    for name in FILES:
        public.save(one, folder / name)
        found[name] = state(public.load(other, folder / name)) == state(one)
        for variable in (*other.variables, *other.optimizer.variables[2:]):
            variable.assign(variable * 0)
    return found


def loop(folder: Path) -> dict[str, Any]:
    """A loop of one's own, with a step of its own and something more."""

    def start() -> tuple[Any, Any, Any, Any]:
        keras.utils.set_random_seed(5)
        one = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
        return one, keras.optimizers.Adam(0.1), tf.Variable(0, dtype=tf.int64), tf.Variable([0.0])

    def run(parts: tuple[Any, Any, Any, Any], last: int) -> None:
        one, optimizer, step, total = parts
        while int(step) < last:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((one(X[:8] + float(step)) - Y[:8]) ** 2)
            optimizer.apply(tape.gradient(loss, one.trainable_variables), one.trainable_variables)
            step.assign_add(1)
            total.assign_add([loss])

    def saved(parts: tuple[Any, Any, Any, Any], **options: Any) -> Any:
        one, optimizer, step, total = parts
        return public.checkpoint(folder / "loop", model=one, optimizer=optimizer, step=step, total=total, **options)

    def values(parts: tuple[Any, Any, Any, Any]) -> list[Any]:
        one, optimizer, step, total = parts
        return [np.asarray(one.numpy()).tolist() for one in (*one.variables, *optimizer.variables, step, total)]

    whole, half, other = start(), start(), start()
    run(whole, 6)
    empty = [saved(half).restore(), saved(half).exists]
    run(half, 3)
    prefix = saved(half).save()
    restored = saved(other).restore()
    run(other, 6)
    names = [Path(saved(other, keep=2).save()).name, *(Path(saved(other, keep=2).save()).name for _ in range(2))]
    return {
        "empty": empty,
        "prefix": Path(prefix).name,
        "restored": restored,
        "same": values(other) == values(whole),
        "names": names,
        "kept": sorted(path.name for path in (folder / "loop").iterdir()),
        "latest": Path(tf.train.latest_checkpoint(folder / "loop") or "").name,
    }


# -- what breaks off ------------------------------------------------------------------------------------------------


def broken(folder: Path) -> dict[str, Any]:
    """A second save breaks off at different moments: what was there, and what is left."""
    found: dict[str, Any] = {}
    for error, names in ((KeyboardInterrupt, FILES), (OSError, FILES[2:])):
        for name in names:
            where = folder / f"{error.__name__}-{name}"
            where.mkdir()
            one = model()
            train(one, 0, 1)
            public.save(one, where / name)
            before, files = state(one), listing(where)
            train(one, 1, 2)
            outcome = interrupted(lambda: public.save(one, where / name), error)
            other = public.load(model(seed=7), where / name)
            key = f"{error.__name__} {name}"
            found[key] = {"raised": outcome, "same files": listing(where) == files, "loads": state(other) == before}
            public.save(one, where / name)
            found[key]["then"] = state(public.load(model(seed=7), where / name)) == state(one)
    return found


def listing(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def interrupted(act: Callable[[], Any], error: type[BaseException]) -> str:
    """Does it with a write that puts down a part of its files and breaks off."""
    writers, write = dict(checkpoint_files.WRITERS), tf.train.Checkpoint.write

    def half(one: Any, path: str) -> None:
        Path(path).write_bytes(b"half")
        raise error("in the middle")

    def some(self: Any, prefix: str, options: Any = None) -> str:
        Path(f"{prefix}.data-00000-of-00001").write_bytes(b"half")
        Path(f"{prefix}_temp").mkdir()
        raise error("in the middle")

    checkpoint_files.WRITERS.update(dict.fromkeys(writers, half))
    tf.train.Checkpoint.write = some
    try:
        act()
    except BaseException as raised:
        return type(raised).__name__
    finally:
        checkpoint_files.WRITERS.update(writers)
        tf.train.Checkpoint.write = write
    return ""


def killed(folder: Path) -> dict[str, Any]:
    """What a killed process leaves: files that no "checkpoint" names, with the number that comes next."""
    where, one = folder / "killed", model()
    train(one, 0, 1)
    public.save(one, where)
    before = state(one)
    for name in ("ckpt-2.data-00000-of-00001", "ckpt-2.index", ".checkpoint-1234"):
        (where / name).write_bytes(b"half")
    loads = state(public.load(model(seed=7), where)) == before
    train(one, 1, 2)
    prefix = public.save(one, where)
    return {"loads": loads, "prefix": Path(prefix).name, "then": state(public.load(model(seed=7), where)) == state(one)}


# -- errors ---------------------------------------------------------------------------------------------------------


def refused(folder: Path) -> dict[str, Any]:
    one = model()
    train(one, 0, 1)
    (folder / "taken.keras").mkdir()
    (folder / "file").write_text("text")
    public.save(one, folder / "good.keras")
    public.save(one, folder / "good.weights.h5")
    public.save(one, folder / "good")
    (folder / "torn.keras").write_bytes((folder / "good.keras").read_bytes()[:900])
    (folder / "torn.weights.h5").write_bytes((folder / "good.weights.h5").read_bytes()[:900])
    before, wider = state(one), model(units=9)
    train(wider, 0, 1)
    kept = state(wider)
    unbuilt = keras.Sequential([keras.layers.Dense(2)])
    optimizer = keras.optimizers.Adam()
    found = {
        "folder missing": said(lambda: public.save(one, folder / "no" / "a.keras")),
        "taken by a directory": said(lambda: public.save(one, folder / "taken.keras")),
        "taken by a file": said(lambda: public.save(one, folder / "file")),
        "under a file": said(lambda: public.save(one, folder / "file" / "a.keras")),
        "not writable": said(lambda: public.save(one, "/proc/a.keras")),
        "before training": said(lambda: public.checkpoint("/proc/checkpoints", model=one)),
        "empty": said(lambda: public.save(one, "")),
        "old name": said(lambda: public.save(one, folder / "a.h5")),
        "unbuilt": said(lambda: public.save(unbuilt, folder / "a.keras")),
        "missing": said(lambda: public.load(one, folder / "good2.keras")),
        "other shapes": said(lambda: public.load(wider, folder / "good.keras")),
        "other shapes in a folder": said(lambda: public.load(wider, folder / "good")),
        "torn": said(lambda: public.load(one, folder / "torn.keras")),
        "torn weights": said(lambda: public.load(one, folder / "torn.weights.h5")),
        "nothing": said(lambda: public.checkpoint(folder / "c")),
        "step is a number": said(lambda: public.checkpoint(folder / "c", model=one, step=3)),
        "two optimizers": said(lambda: public.checkpoint(folder / "c.keras", model=one, optimizer=optimizer)),
        "optimizer unbuilt": said(lambda: public.checkpoint(folder / "c", optimizer=optimizer).save()),
    }
    room = checkpoints.writable(folder / "a.keras", needed=2**60)
    return {
        **found,
        "no room": room.what if room else "",
        "writable": checkpoints.writable(folder / "a.keras") is None,
        "unchanged": state(one) == before and state(wider) == kept,
        "left": sorted(path.name for path in folder.iterdir() if path.name.startswith(".")),
    }


def foreign(folder: Path) -> dict[str, Any]:
    """What was saved without an optimizer, by TensorFlow or by us, in a compiled model; and the other way round."""

    def bare() -> Any:
        return keras.Sequential.from_config(model().get_config())

    plain, found = bare(), {}
    tf.train.Checkpoint(model=plain).write(str(folder / "old.ckpt"))
    for name in FILES:
        public.save(plain, folder / name)
    for name in ("old.ckpt", *FILES):
        one = model(seed=11)
        train(one, 0, 1)
        found[name] = same_weights(public.load(one, folder / name), plain) and int(one.optimizer.iterations) == 1
    more = keras.Sequential([*plain.layers, keras.layers.Dense(2)])
    more.compile("adam", "mse")
    more.build((None, 3))
    found["more layers"] = said(lambda: public.load(more, folder / "old.ckpt"))
    compiled = model(seed=12)
    train(compiled, 0, 1)
    for name in FILES:
        public.save(compiled, folder / name)
        found[f"compiled {name}"] = same_weights(public.load(bare(), folder / name), compiled)
    module = tf.Module()
    module.v = tf.Variable([1.0])
    public.save(module, folder / "module")
    module.v.assign([2.0])
    found["module"] = public.load(module, folder / "module").v.numpy().tolist() == [1.0]
    found["no model of Keras"] = said(lambda: public.save(module, folder / "module.keras"))
    return found


def same_weights(one: Any, other: Any) -> bool:
    return all((a == b).all() for a, b in zip(one.get_weights(), other.get_weights(), strict=True))


def buckets(folder: Path) -> dict[str, Any]:
    """What each answer of a bucket becomes."""

    def told(path: str, attempt: Any, **options: Any) -> list[str]:
        problem = checkpoints.writable(path, attempt=attempt, **options)
        return [problem.what, problem.why, problem.todo] if problem else []

    found = {
        name: {
            "colab": told("gs://bucket/model.keras", fake_gcs.refusing(name), on_colab=True),
            "elsewhere": told("gs://bucket/model", fake_gcs.refusing(name)),
        }
        for name in fake_gcs.RECORDED
    }
    started = time.monotonic()
    found["silent"] = {"colab": told("gs://bucket/model", fake_gcs.silent, on_colab=True, patience=0.3)}
    tries: list[str] = []
    return {
        **found,
        "seconds": time.monotonic() - started,
        "good": told("gs://bucket/runs/model.keras", tries.append),
        "tries": [path.rpartition("/")[0] for path in tries],
        "ram": checkpoints.writable("ram://bucket/model.keras") is None,
        "ram holds": tf.io.gfile.glob("ram://bucket/.tpu*"),
    }


def names(folder: Path) -> dict[str, str]:
    """Keras 3's own refusals, explained."""
    one = model()
    acts: dict[str, Callable[[], Any]] = {
        "save_weights": lambda: one.save_weights("x.h5"),
        "save": lambda: one.save("runs/folder"),
        "save_format": lambda: one.save("folder", save_format="tf"),
        "load_model": lambda: keras.models.load_model(folder),
        "load_weights": lambda: one.load_weights("runs/ckpt"),
        "ModelCheckpoint": lambda: keras.callbacks.ModelCheckpoint("best"),
        "ModelCheckpoint weights": lambda: keras.callbacks.ModelCheckpoint("best.h5", save_weights_only=True),
        "other": lambda: one.fit(X, Y[:3]),
    }
    found = {}
    for name, act in acts.items():
        try:
            act()
        except Exception as error:
            found[name] = str(checkpoints.name_refused(error) or "")
    return found


def known(folder: Path) -> list[str]:
    """Callbacks and managers that will write."""
    manager = tf.train.CheckpointManager(tf.train.Checkpoint(), str(folder / "managed"), 1)
    here = [
        keras.callbacks.ModelCheckpoint(str(folder / "new" / "best-{epoch}.keras")),
        keras.callbacks.ModelCheckpoint("/proc/best.keras"),
        keras.callbacks.EarlyStopping(),
    ]
    items = [("callbacks", here), ("manager", manager), ("x", 1)]
    return [problem.what for problem in checkpoints.path_problems(items)]


def calls(folder: Path) -> dict[str, Any]:
    """What the code will save to, read from it."""
    names = {"model": model(), "tf": public, "saved": public.save, "name": "best.h5", "np": np, "folder": str(folder)}
    texts = {
        "old name": 'model.save_weights("x.h5")',
        "old name in a variable": "model.fit(x)\nmodel.save_weights(filepath=name)",
        "model of the cell": 'made.save_weights("x.tf")',
        "no ending": 'model.save("x")',
        "no place": 'model.save("/proc/x.keras")',
        "no place for ours": 'tf.save(model, "/proc/x")',
        "no place by its name": 'saved(model, path="/proc/x.keras")',
        "no place for a loop": 'tf.checkpoint("/proc/x", model=model)',
        "in the function": 'def train(model):\n    model.save_weights("x.h5")',
        "in a branch": 'if late:\n    model.save_weights("x.h5")',
        "good": 'model.save("x.keras")\nmodel.save("x.h5")\nmodel.save_weights("new/x.weights.h5")\nmodel.export("x")',
        "not of a model": 'np.save("/proc/x", 1)\nfigure.save("x.png")\nmodel.save(f"/proc/{1}.keras")',
    }
    found: dict[str, Any] = {
        name: [[one.what, one.refuses] for one in saving_problems(ast.parse(text), names)]
        for name, text in texts.items()
    }
    with mock.patch.object(checkpoint_paths, "_try", fake_gcs.refusing("no credentials")):
        tree = ast.parse('model.save("gs://bucket/model.keras")')
        (one,) = saving_problems(tree, names, on_colab=True)
    return {**found, "bucket": [one.what, one.todo, one.refuses]}


REPORTS = (resume, distributed, loop, broken, killed, foreign, refused, buckets, names, known, calls)

if __name__ == "__main__":
    cpus = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 2)
    report = {}
    for make in REPORTS:
        place = Path(sys.argv[1]) / make.__name__
        place.mkdir()
        report[make.__name__] = make(place)
    print(json.dumps(report), flush=True)
