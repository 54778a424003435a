"""Runs of TensorFlow in a process of their own, which stands for a notebook; test_in_process.py says what is expected.

`in_process_runs.py NAME ...` prints one JSON object with what each of these functions returns.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf

import tpu_magics
from tests.launch.launching import FakeNotebook
from tests.launch.strategies.signalled import Signal
from tpu_magics.errors import TpuMagicsError
from tpu_magics.launch import session, train, watchdog
from tpu_magics.launch.options import Options
from tpu_magics.launch.strategies import in_process
from tpu_magics.launch.train import CellSource

X = np.random.default_rng(0).random((64, 8), dtype=np.float32)
Y = np.random.default_rng(1).integers(0, 4, 64)


class Notebook(FakeNotebook):
    """A notebook without cells."""

    def checked_cells(self) -> list[Any]:
        return []


def notebook() -> Notebook:
    new = Notebook()
    session.current.notebook = new
    return new


def built(name: str = "adam") -> Any:
    """A small model with dropout (which has a random state) and an optimizer with slots."""
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dropout(0.3), keras.layers.Dense(4)]
    )
    model.compile(name, keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    return model


def state(model: Any) -> str:
    """What a model, its optimizer and its metrics hold, byte for byte, and what there is of it."""
    found = hashlib.sha256()
    for one in (*model.variables, *model.optimizer.variables, *model.metrics_variables):
        found.update(f"{one.path} {one.dtype} {tuple(one.shape)}".encode())
        found.update(one.numpy().tobytes())
    found.update(repr((model.built, model.optimizer.built, len(model.optimizer.variables))).encode())
    return found.hexdigest()


def fitted(model: Any, **options: Any) -> Any:
    return model.fit(X, Y, epochs=1, batch_size=16, verbose=0, **options)


def attempt(function: Callable[..., Any], *args: Any, **options: Any) -> dict[str, Any]:
    """Train, and tell how it ended."""
    told: dict[str, Any] = {}
    began = time.monotonic()
    try:
        tpu_magics.train(function, *args, **{"jit": "keep", **options})
    except BaseException as error:
        told = {"type": type(error).__name__, "text": str(error), "interrupt": isinstance(error, KeyboardInterrupt)}
    last = session.current.last
    files = sorted(path.name for path in Path(last.run.path).iterdir()) if last is not None else []
    status = last.run.info["status"] if last is not None else ""
    return {**told, "status": status, "files": files, "seconds": time.monotonic() - began}


def interrupted(job: Callable[[], Any], steps: Callable[[], Any], **options: Any) -> dict[str, Any]:
    """An attempt that gets an interrupt, as a kernel does, when it has made some steps; `seconds`: until its end."""
    times = []

    def interrupt() -> None:
        begun = int(steps()) + 10
        while int(steps()) < begun:
            time.sleep(0.02)
        times.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    told = attempt(job, **options)
    return {**told, "seconds": time.monotonic() - times[0]}


# -- runs -------------------------------------------------------------------------------------------------------------


def success() -> dict[str, Any]:
    """A run that ends well, and another one in the same process."""
    model, shell = built(), notebook()
    before = state(model)

    def train() -> float:
        print("the person's line")
        return float(fitted(model).history["loss"][-1])

    result = tpu_magics.train(train)
    after = state(model)
    second = tpu_magics.train(train)
    events = [event.kind for event in result.run.events()]
    return {
        "changed": before != after,
        "changed again": after != state(model),
        "value": isinstance(result.value, float),
        "models": list(result.models),
        "home": result.run.summary().models,
        "steps": result.steps,
        "compiles": [result.compiles, second.compiles],
        "status": result.status,
        "log": result.run.log(0),
        "files": sorted(path.name for path in Path(result.run.path).iterdir()),
        "events": sorted(set(events)),
        "info": {key: result.run.info[key] for key in ("plan", "failure", "workers")},
        "lines": shell.lines,
        "threads": [thread.name for thread in threading.enumerate() if "tpu_magics" in thread.name],
        "handler": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "jit": model.jit_compile,
    }


def unknown_size() -> dict[str, Any]:
    """Data whose end is found by reading it, in each epoch: TensorFlow ends such a call with an error of its own."""
    notebook()
    model = built()
    spec = (tf.TensorSpec((16, 8), tf.float32), tf.TensorSpec((16,), tf.int32))
    data = tf.data.Dataset.from_generator(lambda: ((X[:16], Y[:16]) for _ in range(3)), output_signature=spec)
    result = tpu_magics.train(lambda: len(model.fit(data, epochs=3, verbose=0).history["loss"]))
    return {"epochs": result.value, "steps": result.steps, "status": result.status}


def failure() -> dict[str, Any]:
    """A run that fails after it has trained: built and unbuilt optimizers, a model that is built by the run."""
    model, other = built(), built("sgd")
    fitted(model)
    unbuilt = keras.Sequential([keras.layers.Dense(4)])
    unbuilt.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    shell = notebook()
    before, first = state(model), state(other)
    numbers, draws = np.random.get_state()[1].tolist(), tf.random.get_global_generator().state.numpy().tolist()

    def train() -> None:
        for one in (model, other, unbuilt):
            fitted(one)
        np.random.rand(3)
        tf.random.get_global_generator().normal([2])
        print("trained")
        raise ValueError("the person's own")

    told = attempt(train)
    afterwards = {
        "same": [state(model) == before, state(other) == first],
        "optimizer": [other.optimizer.built, len(other.optimizer.variables)],
        "unbuilt": [unbuilt.built, len(unbuilt.weights), unbuilt.optimizer.built],
        "random": [
            np.random.get_state()[1].tolist() == numbers,
            tf.random.get_global_generator().state.numpy().tolist() == draws,
        ],
        "log": session.current.last.run.log(0),
        "exit": session.current.last.run.info["workers"][0]["exit"],
    }
    good = attempt(lambda: [fitted(one) for one in (model, other, unbuilt)])
    return {**told, **afterwards, "lines": shell.lines, "after": good, "trained": state(model) != before}


def equal_draws() -> dict[str, Any]:
    """The run after a failed one gives what it would have given without that one, to the bit."""
    losses = []
    for fail in (False, True):
        notebook()
        keras.utils.set_random_seed(5)
        model = built()

        def train(model: Any = model, stop: bool = False) -> list[float]:
            history = model.fit(X, Y, epochs=2, batch_size=16, verbose=0).history["loss"]
            if stop:
                raise ValueError("stop")
            return list(history)

        if fail:
            attempt(train, model, True)
        losses.append(tpu_magics.train(train, model).value)
    return {"losses": losses}


def custom_loop() -> dict[str, Any]:
    """A tf.function of the notebook that makes the optimizer's slots at its first call, in a run that fails."""
    shell = notebook()
    layer = keras.layers.Dense(4)
    layer.build((None, 8))
    optimizer = keras.optimizers.Adam(0.01)

    @tf.function
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, layer(x), from_logits=True))
        optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
        return loss

    def train(stop: bool) -> list[float]:
        found = [float(step(X[:16], Y[:16])) for _ in range(5)]
        if stop:
            raise ValueError("stop")
        return found

    told = attempt(train, True)
    left = [optimizer.built, len(optimizer.variables)]
    first = tpu_magics.train(train, False).value
    return {**told, "left": left, "losses": first, "iterations": int(optimizer.iterations), "lines": shell.lines}


def keep_partial() -> dict[str, Any]:
    model, shell = built(), notebook()
    before = state(model)

    def train() -> None:
        fitted(model)
        raise ValueError("late")

    told = attempt(train, keep_partial=True)
    kept = session.current.last.run.info.get("kept")
    return {**told, "changed": state(model) != before, "lines": shell.lines, "kept": kept}


def not_finite() -> dict[str, Any]:
    """One epoch, so one value of the loss: labels that the model has no output for."""
    model = built("sgd")
    shell = notebook()
    told = attempt(lambda: model.fit(X, Y + 7, epochs=1, batch_size=16, verbose=0), jit="auto")
    run = session.current.last.run
    warnings = [one for one in run.summary().warnings if "The trained weights are not finite" in one]
    return {**told, "warned": [len(warnings), any("not finite" in line for line in shell.lines)], "lines": warnings}


def interrupts() -> dict[str, Any]:
    """In model.fit, in a custom loop, and in one long tf.function, which --jit auto does not have compiled."""
    model, shell = built(), notebook()
    fitted(model)
    before = state(model)
    counter = tf.Variable(0.0)

    def loops() -> None:
        while True:
            counter.assign_add(1.0)

    @tf.function
    def long() -> Any:
        while counter < 2_000_000_000:
            counter.assign_add(1.0)
        return counter

    found = {}
    fits = lambda: model.fit(X, Y, epochs=10**6, verbose=0)  # noqa: E731
    jobs = {"fit": (fits, model.optimizer.iterations), "loop": (loops, counter), "function": (long, counter)}
    for name, (job, steps) in jobs.items():
        told = interrupted(job, steps.numpy)
        found[name] = {**told, "same": state(model) == before, "counter": int(counter)}
    told = interrupted(long, counter.numpy, jit="auto")
    found["auto"] = {**told, "same": state(model) == before, "counter": int(counter)}
    found["after"] = attempt(lambda: fitted(model))
    found["lines"] = shell.lines
    return found


def interrupted_context() -> dict[str, Any]:
    """An interrupt that comes as TensorFlow goes on to record gradients, which it does not do within a step."""
    from tensorflow.python.eager import record

    notebook()
    model, errors = built(), []

    def train() -> None:
        with record.stop_recording():
            Signal(signal.SIGINT).comes

    try:
        tpu_magics.train(train)
    except BaseException as error:
        errors.append(error)  # as a shell keeps the last one
    return {"type": type(errors[0]).__name__, "after": attempt(lambda: fitted(model))}


def swallowed_interrupts() -> dict[str, Any]:
    """An interrupt that code within `fit` swallows, and one that the person's own code catches around it."""
    notebook()
    model = built()
    usual, watchdog.AGAIN = watchdog.AGAIN, 0.3

    class Interrupted(keras.callbacks.Callback):
        def __init__(self, swallows: bool) -> None:
            super().__init__()
            self.swallows, self.times = swallows, 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            try:
                if not self.times:
                    Signal(signal.SIGINT).comes
                    time.sleep(0)
            except KeyboardInterrupt:
                self.times += 1
                if not self.swallows:
                    raise

    def caught() -> None:
        try:
            fitted(model, callbacks=[Interrupted(False)])
        except KeyboardInterrupt:
            time.sleep(4 * watchdog.AGAIN)
            fitted(model)

    within = Interrupted(True)
    found = {"within": attempt(lambda: model.fit(X, Y, epochs=10**6, verbose=0, callbacks=[within]))}
    found = {**found, "times": within.times, "around": attempt(caught)}
    watchdog.AGAIN = usual
    return found


def limits() -> dict[str, Any]:
    """--timeout, --steps and --max-recompiles."""
    model, shell = built(), notebook()
    fitted(model)
    before = state(model)
    found: dict[str, Any] = {}

    def shapes() -> None:
        for rows in range(8, 40, 8):
            model.fit(X[:rows], Y[:rows], batch_size=rows, verbose=0)

    found["timeout"] = attempt(lambda: model.fit(X, Y, epochs=10**6, verbose=0), timeout=1.0)
    found["same timeout"] = state(model) == before
    found["steps"] = attempt(lambda: model.fit(X, Y, epochs=10**6, verbose=0), steps=3)
    found["counted"] = session.current.last.steps
    found["same steps"] = state(model) == before
    found["recompiles"] = attempt(shapes, max_recompiles=1, jit="auto")
    return {**found, "lines": shell.lines}


def full_disk() -> dict[str, Any]:
    """As a disk is that has no room: what is free is asked of the system, and here of a function."""
    model, _shell = built(), notebook()
    before = state(model)
    asked, in_process.free_disk = in_process.free_disk, lambda _path: 100
    try:
        told = attempt(lambda: fitted(model))
    finally:
        in_process.free_disk = asked
    folders = sorted(Path(os.environ["TPU_MAGICS_RUNS"]).iterdir(), key=lambda path: path.stat().st_mtime_ns)
    status = json.loads((folders[-1] / "run.json").read_bytes())["status"]
    return {**told, "status": status, "same": state(model) == before}


def refusals() -> dict[str, Any]:
    notebook()
    session.current.last = None
    refused = {
        "-n": {"processes": 2},
        "--hoist": {"hoist": "off"},
        "--background": {"background": True},
        "--spmd": {"spmd": True},
        "--precision": {"precision": "bf16-downcast"},
        "--jit": {"jit": "never"},
    }
    found: dict[str, Any] = {name: attempt(lambda: None, **options) for name, options in refused.items()}
    found["nested"] = attempt(lambda: tpu_magics.train(lambda: None))
    found["folders"] = len(list(Path(os.environ["TPU_MAGICS_RUNS"]).glob("*")))
    found["torch"] = _import_of_torch()
    return found


def _import_of_torch() -> str:
    try:
        import torch_xla  # noqa: F401
    except ImportError as error:
        return str(error)
    return "imported"


def _cell(text: str, *words: str, **options: Any) -> str:
    """Train a cell in the session's notebook; the error's text, or ""."""
    import linecache

    name = f"<cell {abs(hash(text))}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    try:
        train.train_cell(CellSource(text, name), words, Options(**options))
    except TpuMagicsError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def forms() -> dict[str, Any]:
    """The three forms of a cell, run in the strategy's scope."""
    shell = notebook()
    shell.names.update(X=X, Y=Y, built=built, fitted=fitted)
    third = _cell("import tensorflow as tf\nmodel = built()\nhistory = fitted(model)\n", jit="keep")
    names = sorted(name for name in shell.names if name not in ("__name__", "__builtins__"))
    models = list(session.current.last.models)
    text = "import keras\ndef train(model, lr=1.0):\n    return fitted(model), lr\n"
    first = _cell(text, "model", "lr=0.5", jit="keep")
    value = session.current.last.value[1]
    second = _cell("from accelerate import notebook_launcher\nnotebook_launcher(train, (model,))\n")
    kept = shell.names["model"]
    broken = _cell("import keras\nmodel = built()\nfitted(model)\nraise ValueError('late')\n", jit="keep")
    return {
        "third": third,
        "names": names,
        "models": models,
        "first": first,
        "value": value,
        "second": second,
        "broken": broken,
        "model": shell.names["model"] is kept,
    }


OWN_STRATEGY = """import tensorflow as tf
strategy = MAKE
with strategy.scope():
    model = built()
fitted(model)
before = state(model)
"""
WRONG_GRADIENT = """import keras, tensorflow as tf
optimizer, weight = keras.optimizers.SGD(), tf.Variable([1.0, 2.0])
@tf.function
def inner(x):
    optimizer.apply_gradients([(tf.zeros([3]), weight)])
@tf.function
def step(x):
    return inner(x)
step(tf.ones([2]))
"""


def own_strategy(make: str) -> list[Any]:
    """A cell that makes a strategy and trains under it, a later one that trains its model, and one that fails."""
    shell = notebook()
    shell.names.update(X=X, Y=Y, built=built, fitted=fitted, state=state)
    here = _cell(OWN_STRATEGY.replace("MAKE", make))
    later = _cell("import keras\nfitted(model)\n")
    trained = state(shell.names["model"])
    failed = _cell("import keras\nfitted(model)\nraise ValueError('late')\n")
    kept = trained == state(shell.names["model"])
    return [here, later, trained != shell.names["before"], failed, kept]


def mirrored() -> list[Any]:
    return own_strategy("tf.distribute.MirroredStrategy()")


def one_device() -> list[Any]:
    return own_strategy('tf.distribute.OneDeviceStrategy("/cpu:0")')


def current() -> list[Any]:
    return own_strategy("tf.distribute.get_strategy()")


def stack_of_traced_code() -> dict[str, Any]:
    notebook()
    return {"text": _cell(WRONG_GRADIENT)}


def scopes() -> dict[str, Any]:
    """A model that was built outside the scope of a strategy that owns its variables."""
    from tpu_magics.backends.base import TPU_LOCAL, Placement
    from tpu_magics.backends.tensorflow import saved_state

    notebook()
    model = built()
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])  # owns its variables as TPUStrategy does
    placed = Placement(TPU_LOCAL, strategy, 1)
    problems = saved_state.placement_problems([("model", model)], placed)
    with strategy.scope():
        inside = built()
    good = saved_state.placement_problems([("inside", inside)], placed)
    return {"outside": [[one.what, one.why, one.todo, one.refuses] for one in problems], "inside": len(good)}


if __name__ == "__main__":
    print(json.dumps({name: globals()[name]() for name in sys.argv[1:]}), flush=True)
