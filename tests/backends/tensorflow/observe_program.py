"""Programs of TensorFlow that the observer's tests watch, run in a process without torch_xla.

`observe_program.py watched FILE`: each program under an observer. `observe_program.py counted FILE FOLDER`: those of
COUNTED without one, where XLA_FLAGS sends XLA's dump to FOLDER. FILE gets JSON. A line that should be reported for a
compile ends with `# site`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import tpu_magics
from tpu_magics.backends.base import ObserverConfig, Placement, RecompileLimit, StepLimit
from tpu_magics.backends.tensorflow import jit
from tpu_magics.backends.tensorflow.observe import observing
from tpu_magics.runs.writer import EventWriter

CELL = """
def train(model, x):
    model.fit(x, x[:, :1], batch_size=20, verbose=0)
train(model, x)
"""


def arrays(count: int = 40) -> tuple[Any, Any]:
    x = np.arange(count * 8, dtype="float32").reshape(count, 8) / 100
    return x, x[:, :1]


def pipeline(count: int = 40, batch: int = 16, **options: Any) -> Any:
    return tf.data.Dataset.from_tensor_slices(arrays(count)).batch(batch, **options)


def made(**options: Any) -> Any:
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", jit_compile=True, **options)
    return model


def weight() -> Any:
    return tf.Variable(tf.ones((8, 1)))


# -- one program per cause -------------------------------------------------------------------------------------------


def keras_last_batch() -> None:
    made().fit(pipeline(), epochs=2, verbose=0)  # site


def arrays_last_batch() -> None:
    made().fit(*arrays(), batch_size=16, verbose=0)  # site


def other_batches() -> None:
    """fit is given arrays that it cuts without a rest, and then with one."""
    model, (x, y) = made(), arrays()
    model.fit(x[:32], y[:32], batch_size=16, verbose=0)
    model.fit(x[:32], y[:32], batch_size=12, verbose=0)


def loop_last_batch() -> None:
    variable = weight()

    @tf.function(jit_compile=True)
    def step(x: Any, y: Any) -> Any:
        variable.assign_sub(0.01 * tf.reduce_mean(x - y) * variable)

    for x, y in pipeline().map(lambda x, y: (x * 2, y)).prefetch(2):
        step(x, y)  # site


def full_batches() -> None:
    made().fit(pipeline(drop_remainder=True), epochs=2, verbose=0)  # site


def lengths() -> None:
    @tf.function(input_signature=[tf.TensorSpec([None])], jit_compile=True)
    def total(values: Any) -> Any:
        return tf.reduce_sum(values)

    for length in (3, 3, 5, 7):
        total(tf.zeros(length))  # site


def python_number() -> None:
    variable = weight()

    @tf.function(jit_compile=True)
    def step(x: Any, rate: float) -> Any:
        variable.assign_sub(rate * tf.reduce_mean(x) * variable)

    for rate in (0.5, 0.25, 0.25, 0.125, 0.0625, 0.03125):
        step(tf.ones((4, 8)), rate)  # site


def dtypes() -> None:
    @tf.function(jit_compile=True)
    def total(batch: Any) -> Any:
        return tf.reduce_sum(batch["ids"])

    for dtype in (tf.int32, tf.int32, tf.int64):
        total({"ids": tf.zeros(3, dtype), "mask": tf.ones(3)})  # site


def evaluated() -> None:
    made().fit(pipeline(32), validation_data=pipeline(20, 10), verbose=0)  # site


def evaluated_after() -> None:
    model = made()
    model.fit(pipeline(32), verbose=0)
    model.evaluate(pipeline(20, 10), verbose=0)


def fitted_twice() -> None:
    model, (x, y) = made(), arrays()
    for size in (16, 8):
        model.fit(x[:32], y[:32], batch_size=size, verbose=0)


def flagged() -> None:
    model = made()

    @tf.function(jit_compile=True)
    def call(x: Any, training: bool) -> Any:
        return model(x, training=training)

    for training in (True, False):
        call(tf.ones((4, 8)), training)  # site


def state_as_argument() -> None:
    variable = weight()

    @tf.function(jit_compile=True)
    def step(x: Any, speed: Any = None) -> Any:
        speed = tf.zeros_like(variable) if speed is None else speed
        speed = 0.9 * speed + tf.reduce_mean(x)
        variable.assign_sub(0.01 * speed)
        return speed

    speed = None
    for _ in range(3):
        speed = step(tf.ones((4, 8)), speed)  # site


def made_in_loop() -> None:
    variable = weight()

    def body(x: Any) -> Any:
        variable.assign_sub(0.01 * tf.reduce_mean(x) * variable)

    for _ in range(2):
        tf.function(body, jit_compile=True)(tf.ones((4, 8)))  # site


def compiled_in_loop() -> None:
    model = made()
    for _ in range(2):
        model.compile("sgd", "mse", jit_compile=True)
        model.fit(*arrays(32), batch_size=16, verbose=0)  # site


def two_programs() -> None:
    first = tf.function(lambda x: x + 1.0, jit_compile=True)

    @tf.function(jit_compile=True)
    def second(x: Any) -> Any:
        return tf.reduce_sum(x * x)

    for function in (first, second):
        function(tf.ones(4))  # site


def under_a_tape() -> None:
    variable = weight()

    @tf.function(jit_compile=True)
    def loss(x: Any) -> Any:
        return tf.reduce_mean(tf.linalg.matmul(x, variable) ** 2)

    for _ in range(2):
        with tf.GradientTape() as tape:
            value = loss(tf.ones((4, 8)))
        variable.assign_sub(0.1 * tape.gradient(value, variable))


# -- steps, values, precision ----------------------------------------------------------------------------------------


def many_steps() -> None:
    made(steps_per_execution=4).fit(*arrays(), batch_size=4, verbose=0)


def later_epochs() -> None:
    made().fit(*arrays(), batch_size=8, epochs=5, initial_epoch=2, validation_data=arrays(16), verbose=0)


def some_steps_each_epoch() -> None:
    made().fit(pipeline(40, 8).repeat(), steps_per_epoch=4, epochs=2, verbose=0)


def data_that_end_in_an_epoch() -> None:
    made().fit(pipeline(40, 8), steps_per_epoch=3, epochs=2, verbose=0)


def unknown_number() -> None:
    made().fit(pipeline(40, 8).filter(lambda *_: True), epochs=2, verbose=0)


def stops_early() -> None:
    class Stopping(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = epoch == 1

    made().fit(*arrays(), batch_size=8, epochs=5, callbacks=[Stopping()], verbose=0)


def loop_over_a_dataset() -> None:
    variable = weight()

    @tf.function(jit_compile=True)
    def step(x: Any, y: Any) -> Any:
        variable.assign_sub(0.01 * tf.reduce_mean(x - y) * variable)

    for _epoch in range(2):
        for x, y in pipeline(64):
            step(x, y)


def loop_over_a_distributed_dataset() -> None:
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with strategy.scope():
        variable = weight()

    @tf.function(jit_compile=True)
    def step(x: Any, y: Any) -> Any:
        variable.assign_sub(0.01 * tf.reduce_mean(x - y) * variable)

    batches = strategy.experimental_distribute_dataset(pipeline(32))
    for _epoch in range(3):
        for x, y in batches:
            strategy.run(step, args=(x, y))


def no_steps() -> None:
    model = made()
    model.evaluate(*arrays(32), verbose=0)
    model.predict(arrays(32)[0], verbose=0)


def other_steps() -> None:
    model = made()
    for _ in range(2):
        model.train_on_batch(*arrays(8))
    optimizer, variable = keras.optimizers.SGD(), keras.Variable([1.0])
    for _ in range(3):
        optimizer.apply([tf.ones(1)], [variable])


def strategy_steps() -> None:
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    with strategy.scope():
        model = made()

    @tf.function(jit_compile=True)
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        model.optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    for x, y in strategy.experimental_distribute_dataset(pipeline(32)):
        loss = strategy.run(step, args=(x, y))
        tpu_magics.log(loss=loss, rate=0.01)


def guides_steps() -> None:
    """As TensorFlow's guide for TPUs has it: the tf.function takes the iterator. The policy compiles what strategy.run
    gets."""
    strategy, model = tf.distribute.get_strategy(), made()

    @tf.function
    def step(iterator: Any) -> None:
        def one(x: Any, y: Any) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
            model.optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)

        strategy.run(one, args=next(iterator))

    batches = iter(pipeline())
    with jit.policy("auto", Placement("default", strategy), {__file__: "In [3]"}):
        for _ in range(3):
            step(batches)  # site


def own_train_step() -> None:
    """A train_step of the person's that returns each of self.metrics by its name, as Keras' guide has it."""

    class Own(keras.Sequential):  # type: ignore[misc]
        def train_step(self, data: Any) -> Any:
            super().train_step(data)
            return {metric.name: metric.result() for metric in self.metrics}

    model = Own([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    model.fit(*arrays(32), batch_size=16, verbose=0)


def predicted() -> None:
    model = made()
    model.predict(arrays(32)[0], batch_size=16, verbose=0)
    model.predict(arrays()[0], batch_size=16, verbose=0)


def logged_in_trace() -> None:
    @tf.function
    def step(x: Any) -> Any:
        tpu_magics.log(inside=x, number=3)
        return x

    step(tf.ones(()))


def mixed() -> None:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        made().fit(*arrays(32), batch_size=16, verbose=0)
    finally:
        keras.config.set_dtype_policy(before)


def raises() -> None:
    variable = weight()

    @tf.function(jit_compile=True)
    def step(x: Any) -> Any:
        variable.assign_sub(x * variable)

    step(tf.ones(()))
    try:
        step(tf.ones(3))
    except ValueError:
        step(tf.ones(()))


def in_a_cell() -> None:
    code = compile(CELL, "<cell-of-a-test>", "exec")
    exec(code, {"model": made(), "x": arrays()[0]})


CAUSES = (
    *(keras_last_batch, arrays_last_batch, loop_last_batch, full_batches, lengths, python_number, dtypes, evaluated),
    *(flagged, state_as_argument, made_in_loop, compiled_in_loop, two_programs),
)
OTHERS = (
    other_batches,
    guides_steps,
    own_train_step,
    predicted,
    evaluated_after,
    under_a_tape,
    many_steps,
    later_epochs,
    some_steps_each_epoch,
    data_that_end_in_an_epoch,
    unknown_number,
    stops_early,
    loop_over_a_dataset,
    loop_over_a_distributed_dataset,
    no_steps,
    other_steps,
    strategy_steps,
    logged_in_trace,
    raises,
    in_a_cell,
    mixed,
)
COUNTED = (*CAUSES, evaluated_after, under_a_tape, many_steps, no_steps, other_steps, strategy_steps, mixed)


# -- running them ----------------------------------------------------------------------------------------------------


def watched(program: Callable[[], None], **options: Any) -> dict[str, Any]:
    """What the observer wrote of a program."""
    path = Path(tempfile.mkdtemp()) / "rank-0.jsonl"
    writer = EventWriter(path, 0)
    cells: dict[str, Any] = {"cell_names": {"<cell-of-a-test>": "In [7]"}, "cell_ids": {"In [7]": "abc"}}
    raised = ""
    with observing(writer, ObserverConfig(**{**cells, **options})) as observer:
        try:
            program()
        except (StepLimit, RecompileLimit) as limit:
            raised = type(limit).__name__
        numbers = [observer.total_steps, observer.compiles, observer.recompiles]
        observer.ended()
        observer.close()
    events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return {"events": events, "numbers": numbers, "raised": raised}


def counted(folder: Path) -> dict[str, Any]:
    """How many modules XLA dumped for each program; and what an observer says where XLA dumps for somebody else."""
    found: dict[str, Any] = {}
    before = 0
    for program in COUNTED:
        program()
        now = len(list(folder.glob("*before_optimizations.txt")))
        found[program.__name__], before = now - before, now
    theirs = watched(lengths)
    theirs["dumped"] = len(list(folder.glob("*before_optimizations.txt"))) - before
    theirs["overwritten"] = [_overwritten(folder), watched(lengths)["numbers"][1]]
    return {"modules": found, "theirs": theirs}


def _overwritten(folder: Path) -> int:
    """Compiles that write over files of an earlier process, which have their names."""
    from tpu_magics.backends.tensorflow.observe.dumps import Dumps

    texts = sorted(folder.glob("*before_optimizations.txt"))[-3:]
    dumps = Dumps(folder, lambda _: True, theirs=True)
    dumps.empty()
    assert not dumps.changed() and dumps.read() == []
    for path in texts:
        path.write_text(path.read_text())
    assert dumps.changed()
    found = dumps.read()
    assert not dumps.changed()
    return len(found)


def broken() -> dict[str, Any]:
    """The observer fails in the middle."""
    from tpu_magics.backends.tensorflow.observe import dumps

    original = dumps.Dumps.read

    def read(self: Any) -> Any:
        raise ZeroDivisionError("a reason")

    dumps.Dumps.read = read  # type: ignore[method-assign]
    try:
        return watched(python_number)
    finally:
        dumps.Dumps.read = original  # type: ignore[method-assign]


def all_watched() -> dict[str, Any]:
    methods = _methods()
    found: dict[str, Any] = {}
    for program in (*CAUSES, *OTHERS):
        try:
            found[program.__name__] = watched(program)
        except Exception:
            found[program.__name__] = {"error": traceback.format_exc()}
    found["two steps"] = watched(keras_last_batch, steps=2)
    found["no recompiles"] = watched(evaluated, max_recompiles=0)
    found["one too many"] = watched(fitted_twice, max_recompiles=0)
    found["broken"] = broken()
    found["asked"] = watched(full_batches, precision="bf16")
    found["twice"] = twice()
    found["traced before"] = traced_before()
    found["put back"] = methods == _methods() and "xla_dump_to" not in os.environ.get("XLA_FLAGS", "")
    return found


def twice() -> list[dict[str, Any]]:
    """Two runs of one function under the jit policy, which keeps what was traced and compiled for the next run."""
    placed = Placement("default", tf.distribute.get_strategy())
    variable = weight()

    @tf.function
    def step(x: Any) -> Any:
        variable.assign_sub(0.01 * tf.reduce_mean(x) * variable)

    def program() -> None:
        for size in (2, 3, 2):
            step(tf.ones((size, 8)))

    found = []
    for _ in range(2):
        with jit.policy("auto", placed, {}):
            found.append(watched(program))
    return found


def traced_before() -> dict[str, Any]:
    """A step that XLA compiles stands in a function that was traced before the run, as one of an earlier cell."""
    variable = weight()

    @tf.function(jit_compile=True)
    def step(x: Any) -> Any:
        variable.assign_sub(0.01 * tf.reduce_mean(x) * variable)

    @tf.function(input_signature=[tf.TensorSpec([None, 8])])
    def around(x: Any) -> None:
        step(x)

    def program() -> None:
        for size in (2, 3, 4):
            around(tf.ones((size, 8)))

    around(tf.ones((2, 8)))
    return watched(program)


def _methods() -> list[Any]:
    from tpu_magics.backends.tensorflow.observe import hooks

    return [getattr(find(), name) for find, name, *_ in hooks._PLACES]


def too_late() -> dict[str, Any]:
    lengths()
    return watched(full_batches)


if __name__ == "__main__":
    doing, target, *rest = sys.argv[1:]
    reports = {"watched": all_watched, "too late": too_late}
    report = counted(Path(rest[0])) if doing == "counted" else reports[doing]()
    Path(target).write_text(json.dumps(report))
