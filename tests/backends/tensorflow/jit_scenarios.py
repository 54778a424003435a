"""Runs steps under the jit policy for test_jit.py in a process without torch_xla; XLA's dumps count the compiles.

Usage: python jit_scenarios.py FOLDER [NAME...]; NAME: one of SCENARIOS.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["XLA_FLAGS"] = f"--xla_dump_hlo_as_proto --xla_dump_to={sys.argv[1]}"

import keras
import numpy as np
import tensorflow as tf

from tests.backends.tensorflow import fake_tpu_resolver as fake
from tpu_magics.backends.base import DEFAULT, TPU_LOCAL, Placement
from tpu_magics.backends.tensorflow import jit, keras_settings

DUMP = Path(sys.argv[1])
fake.logical_cpus(2)
X = np.random.default_rng(0).normal(size=(32, 8)).astype("f")
Y = np.random.default_rng(1).integers(0, 3, 32)
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
CELLS = {__file__: "In [3]"}
keras_settings.record_compile_calls()
HOME = Placement(DEFAULT, tf.distribute.get_strategy())
TPU = Placement(TPU_LOCAL, tf.distribute.get_strategy(), 8)  # the policy looks at the kind


def modules() -> int:
    return len(list(DUMP.glob("*before_optimizations.hlo.pb")))


def run(work: Callable[[], Any], placed: Placement = HOME, how: str = "auto") -> dict[str, Any]:
    """What was told and compiled, without the numbers of lines in this file."""
    before = modules()
    with jit.policy(how, placed, CELLS) as changed:
        value = work()
        told = list(changed())
    return {"told": told, "compiles": modules() - before, "value": value}


def model(name: str = "digits", **options: Any) -> Any:
    keras.utils.set_random_seed(0)
    made = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)], name=name)
    made.compile("sgd", LOSS, **options)
    return made


def fit(one: Any) -> float:
    return float(one.fit(X, Y, batch_size=16, shuffle=False, verbose=0).history["loss"][0])


def functions_of(one: Any) -> list[bool]:
    return [one.train_function is None, one.jit_compile]


# -- Keras ---------------------------------------------------------------------------------------------------------


def keras_model() -> Any:
    ours, theirs = model(), model("theirs")
    first = run(lambda: fit(ours))
    return {
        "first": first,
        "same loss": bool(np.isclose(first["value"], fit(theirs), rtol=1e-5)),
        "after": functions_of(ours),
        "again": run(lambda: fit(ours)),
        "plain": (modules(), fit(ours), modules()),
        "after plain": run(lambda: fit(ours)),
        "keep": run(lambda: fit(ours), how="keep"),
    }


def trained_before() -> Any:
    ours = model()
    fit(ours)
    made = ours.train_function
    return {"run": run(lambda: fit(ours)), "put back": ours.train_function is made}


def compiled_in_the_run() -> Any:
    def work() -> Any:
        made = model("inside", jit_compile=False)
        fit(made)
        made.compile("adam", LOSS)
        fit(made)
        return functions_of(made)

    return run(work)


def told_false() -> Any:
    """Before the run, in a subclass, then "auto" again; of a loaded model; and where nobody has listened."""

    class Own(keras.Sequential):
        def compile(self, *args: Any, **options: Any) -> None:
            super().compile(*args, **options, jit_compile=False)

    def own(kind: Any) -> Any:
        made = kind([keras.Input((8,)), keras.layers.Dense(3)], name="digits")
        made.compile("sgd", LOSS)
        return made

    def loaded() -> Any:
        path = DUMP / "saved.keras"
        own(keras.Sequential).save(path)
        return keras.models.load_model(path)

    def unheard() -> Any:
        keras_settings.stop_recording_compile_calls()
        made = own(keras.Sequential)
        keras_settings.record_compile_calls()
        return made

    models = {"False": model(jit_compile=False), "in a subclass": own(Own), "loaded": loaded(), "unheard": unheard()}
    return {name: run(functools.partial(fit, one)) for name, one in models.items()}


def compiled_anew() -> Any:
    ours = model()
    run(lambda: fit(ours))
    ours.compile("adam", LOSS)
    return run(lambda: fit(ours))


def eager_model() -> Any:
    return run(lambda: fit(model(run_eagerly=True)))


def unsupported() -> Any:
    ours = model()
    ours.layers[0].supports_jit = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {"run": run(lambda: fit(ours)), "after": functions_of(ours)[1]}


def mirrored() -> Any:
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        ours = model()
    return run(lambda: fit(ours))


def failing() -> Any:
    ours = model()

    def work() -> None:
        fit(ours)
        raise KeyboardInterrupt

    try:
        run(work)
    except KeyboardInterrupt:
        return functions_of(ours)


def on_a_tpu() -> Any:
    ours, step = model(jit_compile=True), steps()["explicit"]
    fit(ours)

    def work() -> Any:
        fit(ours)
        step(X, Y)
        return [ours.jit_compile, step._jit_compile]

    first = run(work, TPU)
    return {"first": first, "after": [ours.jit_compile, step._jit_compile], "again": run(work, TPU)}


# -- tf.functions --------------------------------------------------------------------------------------------------


def steps() -> dict[str, Any]:
    """A custom loop's functions, made anew."""
    keras.utils.set_random_seed(0)
    network = keras.Sequential([keras.Input((8,)), keras.layers.Dense(3)])
    optimizer = keras.optimizers.SGD(0.1)
    traced: list[str] = []

    def update(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = LOSS(y, network(x, training=True))
        optimizer.apply_gradients(zip(tape.gradient(loss, network.trainable_variables), network.trainable_variables))
        return loss

    @tf.function
    def train_step(x: Any, y: Any) -> Any:
        traced.append("train_step")
        return update(x, y)

    @tf.function
    def evaluate(x: Any) -> Any:
        traced.append("evaluate")
        return tf.reduce_mean(network(x))

    @tf.function
    def epoch(iterator: Any) -> None:
        for _ in tf.range(2):
            train_step(*next(iterator))

    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(16, drop_remainder=True)

    @tf.function
    def over_dataset() -> Any:
        total = 0.0
        for x, y in dataset:
            total += train_step(x, y)
        return total

    @tf.function
    def repeated(times: Any) -> None:
        for _ in tf.range(times):
            train_step(X, Y)

    @tf.function(jit_compile=False)
    def left_off(x: Any, y: Any) -> Any:
        return update(x, y)

    @tf.function(jit_compile=True)
    def explicit(x: Any, y: Any) -> Any:
        return update(x, y)

    return {**locals(), "weights": lambda: [one.numpy().tolist() for one in network.trainable_variables]}


class Counter(tf.Module):  # type: ignore[misc]
    """A tf.function that is a method, and makes its variable in its first call."""

    def __init__(self) -> None:
        super().__init__()
        self.total: Any = None

    @tf.function  # type: ignore[untyped-decorator]
    def add(self, x: Any) -> Any:
        if self.total is None:
            self.total = tf.Variable(1.0)
        self.total.assign_add(tf.reduce_sum(x))
        return self.total.read_value()

    @tf.function  # type: ignore[untyped-decorator]
    def add_all(self, dataset: Any) -> Any:
        if self.total is None:
            self.total = tf.Variable(1.0)
        for x in dataset:
            self.total.assign_add(tf.reduce_sum(x))
        return self.total.read_value()

    @tf.function  # type: ignore[untyped-decorator]
    def add_own(self) -> Any:
        if self.total is None:
            self.total = tf.Variable(1.0)
        for x in tf.data.Dataset.range(3):
            self.total.assign_add(tf.cast(x, tf.float32))
        return self.total.read_value()


def step_function() -> Any:
    made = steps()
    step = made["train_step"]
    first = run(lambda: [float(step(X, Y)) for _ in range(2)])
    second = run(lambda: float(step(X, Y)))
    before = modules()
    step(X, Y)
    return {
        "first": first,
        "second": second,
        "plain compiles": modules() - before,
        "after": step._jit_compile is None,
        "traced": made["traced"],
        "third": run(lambda: float(step(X, Y))),
    }


def same_numbers() -> bool:
    ours, theirs = steps(), steps()
    run(lambda: [ours["train_step"](X, Y) for _ in range(3)])
    for _ in range(3):
        theirs["train_step"](X, Y)
    return bool(np.allclose(np.concatenate([np.ravel(one) for one in ours["weights"]()]),
                            np.concatenate([np.ravel(one) for one in theirs["weights"]()]), rtol=1e-4))  # fmt: skip


def traced_before() -> Any:
    step = steps()["train_step"]
    step(X, Y)
    concrete = step.get_concrete_function(X, Y)
    found = run(lambda: float(step(X, Y)))
    return {**found, "its trace is back": step.get_concrete_function(X, Y) is concrete}


def no_training() -> Any:
    made = steps()
    found = run(lambda: float(made["evaluate"](X)))
    again = run(lambda: float(made["evaluate"](X)))
    return {**found, "again": again, "traced": made["traced"]}


def pipelines() -> Any:
    made = steps()
    found = {"iterator": run(lambda: made["epoch"](iter(made["dataset"])))}
    made = steps()
    return {**found, "dataset": run(lambda: float(made["over_dataset"]()))}


def loops() -> Any:
    """A training in one function, and one of a known, small number of steps."""
    counts = tf.function(lambda n: tf.while_loop(lambda i: i < n, lambda i: i + 1, [0]))
    long, short = steps(), steps()
    return {
        "long": run(lambda: long["repeated"](tf.constant(3))),
        "short": run(lambda: short["repeated"](3)),
        "same": all(map(np.allclose, long["weights"](), short["weights"]())),
        "no training": run(lambda: int(counts(tf.constant(100))[0])),
    }


def pipelines_traced_before() -> Any:
    made = steps()
    made["epoch"](iter(made["dataset"]))
    return run(lambda: made["epoch"](iter(made["dataset"])))


def batches_and_iterators() -> Any:
    """One function that was compiled for tensors, and takes an iterator in the next run."""
    total = tf.Variable(0.0)

    @tf.function
    def add(batch: Any) -> Any:
        return total.assign_add(tf.reduce_sum(batch if tf.is_tensor(batch) else next(batch)))

    batches = tf.data.Dataset.from_tensors(tf.ones(2)).repeat()
    first = run(lambda: float(add(tf.ones(2))))
    second = run(lambda: float(add(iter(batches))))
    return [first, second, run(lambda: float(add(tf.ones(2))))]


def several_steps_in_one_call() -> Any:
    return run(lambda: fit(model(steps_per_execution=2)))


def explicit() -> Any:
    made = steps()
    return run(lambda: [float(made["left_off"](X, Y)), float(made["explicit"](X, Y))])


def methods() -> Any:
    first, second = Counter(), Counter()
    found = run(lambda: [float(first.add(tf.ones(2))), float(first.add(tf.ones(2)))])
    batches = tf.data.Dataset.from_tensors(tf.ones(2))
    given = run(lambda: float(second.add_all(batches)))
    own = Counter()
    return {
        **found,
        "plain afterwards": float(first.add(tf.ones(2))),
        "a dataset": {**given, "plain": float(second.add_all(batches))},
        "its own dataset": {**run(lambda: float(own.add_own())), "plain": float(own.add_own())},
    }


def strategy_run() -> Any:
    made = steps()

    @tf.function
    def distributed(x: Any, y: Any) -> Any:
        return HOME.strategy.run(made["update"], args=(x, y))

    batches = HOME.strategy.experimental_distribute_dataset(made["dataset"])
    return run(lambda: [float(distributed(*batch)) for batch in batches])


def guides_form() -> Any:
    """The guide's: one tf.function takes the iterator, and gives a Python function to strategy.run."""
    made = steps()

    def one(inputs: Any) -> Any:
        return made["update"](*inputs)

    @tf.function
    def train_step(iterator: Any) -> Any:
        return HOME.strategy.run(one, args=(next(iterator),))

    @tf.function
    def many(iterator: Any, count: Any) -> None:
        for _ in tf.range(count):
            HOME.strategy.run(functools.partial(made["update"], *next(iterator)))

    @tf.function(jit_compile=False)
    def left_off(iterator: Any) -> Any:
        return HOME.strategy.run(one, args=(next(iterator),))

    @tf.function
    def twice(iterator: Any) -> Any:
        for _ in range(2):
            HOME.strategy.run(one, args=(next(iterator),))
        return HOME.strategy.run(one, args=(next(iterator),))

    batches = iter(made["dataset"].repeat())
    told = {"first": run(lambda: [float(train_step(batches)) for _ in range(2)])}
    before = modules()
    told["plain afterwards"] = [float(train_step(batches)), modules() - before]
    told["again"] = run(lambda: float(train_step(batches)))
    told["loop"] = run(lambda: many(batches, tf.constant(3)))
    told["three sites"] = run(lambda: float(twice(batches)))
    told["explicit"] = run(lambda: float(left_off(batches)))
    told["eager"] = run(lambda: float(HOME.strategy.run(one, args=(next(batches),))))
    told["steps"] = int(made["optimizer"].iterations)
    return told


def replicas() -> Any:
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        total = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)

    @tf.function
    def both() -> None:
        strategy.run(lambda: total.assign_add(tf.ones([])))

    both_told = run(both)
    return {"told": both_told["told"], "compiles": both_told["compiles"], "total": float(total.numpy())}


def refused_by_xla() -> Any:
    """What XLA refuses shows, and all is put back."""
    total = tf.Variable(0.0)

    @tf.function
    def host_step(x: Any) -> None:
        total.assign_add(tf.py_function(lambda one: one, [x], tf.float32))

    try:
        run(lambda: host_step(tf.constant(1.0)))
    except tf.errors.OpError as error:
        refused = str(error)
    host_step(tf.constant(1.0))
    return ["EagerPyFunc" in refused, float(total), host_step._jit_compile is None]


def growing_array() -> Any:
    """An array that begins empty is empty under XLA, and nothing is raised."""
    total = tf.Variable(0.0)

    @tf.function
    def step(n: Any) -> Any:
        gathered = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
        for i in tf.range(n):
            gathered = gathered.write(i, 1.0)
        total.assign_add(1.0)
        return gathered.stack()

    seen = [len(step(tf.constant(3)))]
    return {**run(lambda: seen.append(len(step(tf.constant(3))))), "lengths": seen}


def broken_trace() -> Any:
    """An error of the person's own, mended; the function is compiled then."""
    total, wrong = tf.Variable(0.0), [True]

    @tf.function
    def step() -> Any:
        if wrong[0]:
            raise ValueError("mine")
        return total.assign_add(1.0)

    def work() -> float:
        try:
            step()
        except ValueError:
            wrong[0] = False
        return float(step())

    return run(work)


def retracing_warnings() -> Any:
    """Runs one after the other are no retracing."""
    import logging

    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tensorflow").addHandler(handler)
    step = steps()["train_step"]
    for _ in range(8):
        run(lambda: step(X, Y))
        step(X, Y)
    return [line for line in said if "retracing" in line]


def put_back_whole() -> Any:
    """The classes are as they were; other parts than those that were read are left alone, with a line."""
    from keras.src.backend.tensorflow.trainer import TensorFlowTrainer
    from tensorflow.python.distribute.distribute_lib import StrategyBase
    from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function

    from tpu_magics.backends.tensorflow import jit_functions

    def parts() -> Any:
        return (Function._call, Function._initialize, TensorFlowTrainer.make_train_function, StrategyBase.run)

    before = parts()
    run(lambda: None)
    after = parts()
    kinds = (jit_functions._kind, jit._strategy_class, jit._trainer)
    jit_functions._kind = jit._strategy_class = jit._trainer = lambda: None
    try:
        unknown = run(lambda: fit(model()))
    finally:
        jit_functions._kind, jit._strategy_class, jit._trainer = kinds
    return {"same": before == after, "unknown": unknown}


def stack_is_tensorflows() -> Any:
    """No frame of this package stands between a person's line and what it traces."""
    total, seen = tf.Variable(0.0), []

    def one() -> Any:
        changed = total.assign_add(1.0)
        seen.extend(frame.filename for frame in changed.op.traceback)
        return changed

    @tf.function
    def step() -> Any:
        return one()

    @tf.function
    def over(iterator: Any) -> Any:
        next(iterator)
        return HOME.strategy.run(one)

    run(lambda: step())
    run(lambda: over(iter(tf.data.Dataset.range(2))))
    return [path for path in seen if path.endswith(("jit.py", "jit_functions.py"))]


SCENARIOS = (
    *(keras_model, trained_before, compiled_in_the_run, compiled_anew, eager_model, unsupported, mirrored, failing),
    *(on_a_tpu, step_function, same_numbers, traced_before, no_training, pipelines, pipelines_traced_before, explicit),
    *(batches_and_iterators, several_steps_in_one_call, growing_array, told_false),
    *(methods, strategy_run, guides_form, replicas, refused_by_xla, broken_trace, retracing_warnings, put_back_whole),
    *(stack_is_tensorflows, loops),
)


def main(names: list[str]) -> None:
    chosen = [one for one in SCENARIOS if one.__name__ in names or not names]
    print(json.dumps({one.__name__: one() for one in chosen}))


if __name__ == "__main__":
    main(sys.argv[2:])
