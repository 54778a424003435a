"""Checks input pipelines and uses in_memory for test_data.py, and prints a report as JSON on the last line. It is a
program of its own, because TensorFlow and torch_xla cannot share a process.

Usage: python data_program.py FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from fake_hf_dataset import FakeHfDataset

from tpu_magics import tf as public
from tpu_magics.backends.base import Placement
from tpu_magics.backends.tensorflow import data_checks
from tpu_magics.backends.tensorflow.data_checks import checking_fits
from tpu_magics.backends.tensorflow.in_memory import in_memory
from tpu_magics.errors import TpuMagicsError

HERE, HOME = (Placement(kind, None, replicas=4) for kind in ("tpu-local", "default"))


def told(problems: Any) -> list[list[Any]]:
    return [[one.what, one.why, one.todo, one.refuses] for one in problems]


def reached(folder: Path) -> dict[str, Any]:
    """Datasets in containers, iterators and distributed ones."""
    short = tf.data.Dataset.range(10).batch(4)
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    items = {
        "splits": {"train": [short], "count": 3},
        "iterator": iter(short),
        "distributed": strategy.experimental_distribute_dataset(short),
        "from function": strategy.distribute_datasets_from_function(lambda context: short),
        "other": [1, "text", np.zeros(3), tf.zeros(2)],
    }
    found = {
        name: [one[0] for one in told(data_checks.problems([(name, value)], HOME))] for name, value in items.items()
    }
    twice = data_checks.problems([("one", short), ("same", [short])], HOME)
    return {**found, "twice": len(twice)}


def last_batches(folder: Path) -> dict[str, Any]:
    """The warning about a short last batch, and the compiles that there are."""

    def rows(count: int) -> Any:
        return tf.data.Dataset.from_tensor_slices((tf.ones((count, 3)), tf.ones((count, 2))))

    made = {
        "short": rows(10).shuffle(3).batch(4).map(lambda x, y: (x, y)).prefetch(1),
        "even": rows(8).batch(4),
        "dropped": rows(10).batch(4, drop_remainder=True),
        "only": rows(3).batch(4),
        "taken": rows(10).batch(4).take(2),
        "repeated before": rows(10).repeat().batch(4),
        "repeated after": rows(10).batch(4).repeat(),
        "unknown": rows(10).filter(lambda x, y: True).batch(4),
        "unbatched": rows(10).batch(4).unbatch(),
        "padded": rows(10).padded_batch(4, ((3,), (2,))),
        "nearly full": rows(47).batch(16),
        "third": rows(22).batch(16),
    }
    found = {name: told(data_checks.problems([(name, one)], HOME)) for name, one in made.items()}
    places = {"home": HOME, "tpu": HERE}
    found["by place"] = {
        name: {where: told(data_checks.problems([(name, made[name])], placed)) for where, placed in places.items()}
        for name in ("nearly full", "third", "unknown")
    }
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2", "CPU:3"])
    found["shares"] = {
        name: [[len(share) for share in x.values] for x, _ in strategy.experimental_distribute_dataset(made[name])]
        for name in ("nearly full", "third")
    }
    found["compiled"] = {name: compiles(made[name]) for name in ("short", "even", "dropped", "taken")}
    return found


def compiles(dataset: Any) -> int:
    """Programs that XLA makes of one step over all batches."""
    step = tf.function(lambda x: tf.reduce_sum(x * 2.0), jit_compile=True)
    before = dump_count()
    for x, _ in dataset:
        step(x)
    return dump_count() - before


def dump_count() -> int:
    return len(list(DUMP.glob("*before_optimizations.txt")))


def fits(folder: Path) -> dict[str, Any]:
    """What is said when `fit` is called, and whether it trained."""
    x, y = np.ones((10, 3), "float32"), np.ones((10, 1), "float32")

    def model() -> Any:
        made = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
        made.compile("sgd", "mse", run_eagerly=True)
        return made

    def batches() -> Any:
        yield from [(x[:4], y[:4])] * 2

    class Batches(keras.utils.PyDataset):
        shape = (224, 3)  # of a picture

        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            return x[:4], y[:4]

    signature = (tf.TensorSpec((None, 3)), tf.TensorSpec((None, 1)))
    unknown = tf.data.Dataset.from_generator(batches, output_signature=signature)
    known = tf.data.Dataset.from_tensor_slices((x, y)).batch(5)
    short = tf.data.Dataset.from_tensor_slices((x, y)).batch(4)
    best, backup = keras.callbacks.ModelCheckpoint, keras.callbacks.BackupAndRestore
    tried = best("/proc/best-{epoch}.keras", save_freq=100)
    cases: dict[str, tuple[Placement, Callable[[Any], Any], list[Any]]] = {
        "unknown on a TPU": (HERE, lambda one: one.fit(unknown, verbose=0), []),
        "unknown with steps": (HERE, lambda one: one.fit(unknown, steps_per_epoch=2, verbose=0), []),
        "unknown at home": (HOME, lambda one: one.fit(unknown, verbose=0), []),
        "known": (HERE, lambda one: one.fit(known, verbose=0), []),
        "arrays": (HOME, lambda one: one.fit(x, y, batch_size=4, verbose=0), []),
        "even arrays": (HOME, lambda one: one.fit(x, y, batch_size=5, verbose=0), []),
        "py dataset": (HOME, lambda one: one.fit(Batches(), verbose=0), []),
        "told before": (HOME, lambda one: one.fit(short, verbose=0), [("short", short)]),
        "made in the cell": (HOME, lambda one: one.fit(short, verbose=0), []),
        "evaluate": (HERE, lambda one: one.evaluate(unknown, verbose=0), []),
        "validation": (HERE, lambda one: one.fit(known, validation_data=unknown, verbose=0), []),
        "callback": (HOME, lambda one: one.fit(known, callbacks=[best("/proc/best.keras")], verbose=0), []),
        "backup": (HOME, lambda one: one.fit(known, callbacks=[backup("/proc/backup")], verbose=0), []),
        "good callback": (HOME, lambda one: one.fit(known, callbacks=[best(folder / "a.keras")], verbose=0), []),
        "tried before": (HOME, lambda one: one.fit(known, callbacks=[tried], verbose=0), [("callbacks", [tried])]),
    }
    found: dict[str, Any] = {}
    for name, (placed, act, items) in cases.items():
        said: list[Any] = []
        one = model()
        with checking_fits(placed, said.append, items):
            try:
                act(one)
                raised = ""
            except TpuMagicsError as error:
                raised = str(error)
        found[name] = {"said": told(said), "raised": raised, "steps": int(one.optimizer.iterations)}
    endless: list[Any] = []
    with checking_fits(HOME, endless.append), suppress(StopIteration):
        model().fit(known.repeat(), verbose=0, callbacks=[Stop()])
    found["endless"] = told(endless)
    trainer = sys.modules["keras.src.backend.tensorflow.trainer"]
    found["left as it was"] = "data_checks.py" not in trainer.TFEpochIterator.__init__.__code__.co_filename
    iterator, told_so = trainer.TFEpochIterator, []
    del trainer.TFEpochIterator
    with checking_fits(HOME, told_so.append):
        found["another Keras"] = told(told_so)
    trainer.TFEpochIterator = iterator
    return found


class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch:
            raise StopIteration


# -- in memory ------------------------------------------------------------------------------------------------------


def plain(element: Any) -> Any:
    if isinstance(element, dict):
        return {key: plain(one) for key, one in element.items()}
    if isinstance(element, (tuple, list)):
        return [plain(one) for one in element]
    return np.asarray(element).tolist()


def elements(dataset: Any) -> Any:
    return [plain(tf.nest.map_structure(lambda one: one.numpy(), element)) for element in dataset]


def told_of(dataset: Any) -> dict[str, Any]:
    spec = tf.nest.flatten(dataset.element_spec)
    return {
        "size": int(dataset.cardinality()),
        "static": all(one.shape.is_fully_defined() for one in spec),
        "types": [one.dtype.name for one in spec],
        "problems": told(data_checks.problems([("made", dataset)], HERE)),
    }


def memory(folder: Path) -> dict[str, Any]:
    """What in_memory makes of each form, beside the source."""

    def rows() -> Any:
        for number in range(7):
            yield {"x": np.full((3,), number, "float32"), "y": number}

    signature = {"x": tf.TensorSpec((3,)), "y": tf.TensorSpec((), tf.int32)}
    generated = tf.data.Dataset.from_generator(rows, output_signature=signature)
    double = lambda row: {**row, "x": tf.ensure_shape(tf.py_function(lambda v: v * 2, [row["x"]], tf.float32), (3,))}  # noqa: E731
    mapped = generated.map(double)
    sources = {
        "generated": (generated, {}),
        "mapped": (mapped, {}),
        "batched": (mapped.batch(3), {"drop_remainder": False}),
        "pairs": (tf.data.Dataset.from_tensor_slices((np.eye(4), [1, 2, 3, 4])).batch(2), {}),
    }
    found: dict[str, Any] = {}
    for name, (source, options) in sources.items():
        made = public.in_memory(source, **options)
        found[name] = {**told_of(made), "same": elements(made) == elements(source)}
    dropped, again = public.in_memory(mapped.batch(3)), public.in_memory(mapped.batch(3), 2)
    found["dropped"] = {**told_of(dropped), "same": elements(dropped) == elements(mapped.batch(3).take(2))}
    found["rebatched"] = {**told_of(again), "same": elements(again) == elements(mapped.batch(2, drop_remainder=True))}
    hf = FakeHfDataset([{"ids": list(range(1, n % 5 + 2)), "label": n, "text": "a"} for n in range(2500)])
    chosen = hf.with_format(None, columns=["ids", "label"])
    padded = in_memory(chosen, 500, pad=8, fill={"ids": -1})
    found["hugging face"] = {**told_of(padded), "first": elements(padded)[0]["ids"][3], "reads": hf.reads[:3]}
    found["hugging face text"] = refused(hf, pad=8)
    found["splits"] = refused({"train": chosen, "test": chosen})
    found["transformed"] = elements(in_memory(FakeHfDataset([{"x": 1}, {"x": 2}], "custom")))
    found.update(memory_python(rows))
    return found


def memory_python(rows: Callable[[], Any]) -> dict[str, Any]:
    class Batches(keras.utils.PyDataset):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return np.full((2, 2), index), np.full((2,), index)

    ragged = tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1, 2], [3], [4, 5, 6]]))
    lists = [{"ids": [1, 2, 3], "y": 0.5}, {"ids": [1], "y": 1.5}]
    large = 2**40
    return {
        "function": elements(in_memory(rows, 3)) == elements(in_memory(list(rows()), 3)),
        "generator": len(elements(in_memory(rows()))),
        "py dataset": elements(in_memory(Batches(workers=1))),
        "columns": elements(in_memory((np.arange(4), [[1], [2], [3], [4]]), 2)),
        "array": elements(in_memory(np.arange(3))),
        "lists": elements(in_memory(lists, pad="longest")),
        "types": told_of(in_memory([{"a": 1, "b": large, "c": 0.5, "d": True}]))["types"],
        "limited": elements(in_memory((row for row in iter(int, 1)), limit=3)),
        "limited batches": elements(in_memory(tf.data.Dataset.range(10).batch(4), limit=6, drop_remainder=False)),
        "ragged": elements(in_memory(ragged, pad="longest", fill=-1)),
        "ragged batches": elements(in_memory(ragged.batch(2), pad="longest", drop_remainder=False)),
        "sparse": elements(in_memory(tf.data.Dataset.from_tensors(tf.sparse.from_dense([[1, 0], [0, 2]])))),
        "shuffled": sorted(elements(in_memory(range(9), shuffle=True))),
        "seeded": elements(in_memory(range(9), shuffle=3)) == elements(in_memory(range(9), shuffle=3)),
        "in order": elements(in_memory(range(9), shuffle=3)) == list(range(9)),
        "errors": {
            "text": refused([{"t": "a"}]),
            "none": refused([{"x": 1}, {"x": None}]),
            "ragged": refused([{"ids": [1]}, {"ids": [2, 3]}]),
            "endless": refused(tf.data.Dataset.range(3).repeat()),
            "empty": refused([]),
            "no rows": refused(3),
            "few rows": refused([1, 2], batch_size=3),
            "other columns": refused([{"a": 1}, {"b": 1}]),
            "lengths": refused((np.zeros(3), np.zeros(4))),
            "batch size": refused([1], batch_size=0),
            "pad": refused([1], pad="max"),
        },
        "too large": too_large(),
    }


def refused(source: Any, **options: Any) -> str:
    try:
        in_memory(source, **options)
    except TpuMagicsError as error:
        return str(error)
    return ""


def too_large() -> dict[str, Any]:
    """What is said, and how many rows were read until then."""
    read = []

    def rows() -> Any:
        while True:
            read.append(1)
            yield np.zeros(25_000, "float32")

    counted = tf.data.Dataset.range(10**9).map(lambda number: tf.zeros(1000))
    return {
        "endless": [refused(rows, available=30_000_000), len(read)],
        "counted": refused(counted, available=10**9),
        "arrays": refused(np.zeros((1000, 1000)), available=10**6),
        "fits": told_of(in_memory(np.zeros((100, 10)), available=10**6))["size"],
    }


REPORTS = {"reached": reached, "last": last_batches, "fits": fits, "memory": memory}

if __name__ == "__main__":
    FOLDER = Path(sys.argv[1])
    DUMP = FOLDER / "dump"
    os.environ["XLA_FLAGS"] = f"--xla_dump_to={DUMP} --xla_dump_hlo_as_text"
    cpus = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * 4)
    report = {name: make(FOLDER) for name, make in REPORTS.items() if name in (sys.argv[2:] or REPORTS)}
    print(json.dumps(report), flush=True)
