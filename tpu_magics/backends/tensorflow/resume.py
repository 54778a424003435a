"""What launch/resume/ needs of TensorFlow and Keras: how variables get into checkpoints and back, the random states of
this process, and the loop of `Model.fit` (Keras 3.15).

To go on in a `fit`, it runs again from its beginning and takes its batches without training on them, so that shuffled
and generated data come in the same order; its callbacks and validations are passed over.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tpu_magics.backends.object_kinds import BaseKind
from tpu_magics.backends.protocols import Watcher
from tpu_magics.backends.tensorflow import trackables
from tpu_magics.backends.tensorflow.saved_state import random_states

FIT = "Model.fit"
_ENDING = ".npz"
_CALLBACKS = "keras.src.callbacks.callback.Callback"
_SKIPPED = frozenset({"_model", "_params", "model", "params", "validation_data"})


# -- variables --------------------------------------------------------------------------------------------------------


class TensorFlowStore:
    """The `StateStore` of backends/protocols.py. Its tensors are NumPy arrays and TensorFlow's variables."""

    def __init__(self) -> None:
        self._steps = 0

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, (tf.Variable, tf.Tensor, _Bytes))

    def describe(self, tensor: Any) -> dict[str, Any]:
        kind = "variable" if isinstance(tensor, tf.Variable) else "array" if isinstance(tensor, _Bytes) else "tensor"
        return {"o": kind}

    def make(self, content: Any, described: Mapping[str, Any]) -> Any:
        return _Bytes(content) if described["o"] == "array" else tf.constant(content)

    def put(self, tensor: Any, content: Any, described: Mapping[str, Any]) -> None:  # noqa: ARG002
        tensor.assign(tf.constant(content, dtype=tensor.dtype))

    def plain(self, value: Any) -> tuple[str, Any] | None:
        if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biufc":
            return "array" if isinstance(value, np.ndarray) else "number", _Bytes(np.array(value))
        return ("dtype", value.name) if isinstance(value, tf.DType) else None

    def from_plain(self, name: str, value: Any) -> Any:
        if name == "dtype":
            return tf.as_dtype(value)
        return value.array if name == "array" else value.array[()]

    def tables(self, value: Any) -> Iterator[tuple[str, Any]]:
        """The variables of Keras' objects and tf.Modules."""
        if trackables.has_state(value):
            for number, one in enumerate(trackables.find([("", value)]).variables):
                yield f"variables[{number}]", one

    def wrapped(self, value: Any) -> Any:  # noqa: ARG002
        """Nothing is."""
        return None

    def gradients(self, values: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:  # noqa: ARG002
        return iter(())

    def set_gradient(self, tensor: Any, gradient: Any) -> None:
        """There are none."""

    def new_steps(self, observed: int) -> tuple[int, bool]:
        """Steps that the observer has counted since the last call; a function of TensorFlow's does a whole one."""
        before, self._steps = self._steps, observed
        return observed - before, True

    @contextmanager
    def following_steps(self, watcher: Watcher, call: Callable[[], None]) -> Iterator[None]:
        """Within it, `call` is called when steps were counted."""
        watcher.after_steps = call
        yield

    def replicated(self, values: Iterable[Any]) -> set[int]:  # noqa: ARG002
        return set()

    def fetch(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """The values in host memory."""
        return {key: np.array(one.array if isinstance(one, _Bytes) else one) for key, one in tensors.items()}

    def write(self, path: Path, tensors: Mapping[str, Any]) -> list[Path]:
        """Write what `fetch` returned. Raises OSError."""
        file = path.with_name(path.name + _ENDING)
        names = np.array(list(tensors), dtype=str)
        np.savez(file, names=names, **{f"a{n}": _raw(one) for n, one in enumerate(tensors.values())})
        return [file]

    def read(self, path: Path) -> dict[str, Any]:
        """What `write` wrote there."""
        with np.load(path.with_name(path.name + _ENDING), allow_pickle=False) as found:
            return {str(key): found[f"a{n}"] for n, key in enumerate(found["names"])}


class _Bytes:
    """A NumPy array on its way."""

    def __init__(self, array: Any) -> None:
        self.array = array


def _raw(array: Any) -> Any:
    """bfloat16 is no type of NumPy's own: it would be written without its name."""
    return array if array.dtype.kind in "biufcSU" else array.astype(np.float32)


class _VariableKind(BaseKind):
    """A TensorFlow variable: always written."""

    def mark(self, value: Any) -> Any:  # noqa: ARG002
        return None

    def changed(self, value: Any, mark: Any) -> bool:  # noqa: ARG002
        return True


class _HolderKind(_VariableKind):
    """An object that is followed for its variables only."""

    def changed(self, value: Any, mark: Any) -> bool:  # noqa: ARG002
        return False


class _ArrayKind(_VariableKind):
    """A NumPy array."""

    def mark(self, value: Any) -> Any:
        return value.tobytes() if value.nbytes < 2**20 else None

    def changed(self, value: Any, mark: Any) -> bool:
        return mark is not None and bool(value.tobytes() != mark)

    def content(self, value: Any, mark: Any) -> Any:  # noqa: ARG002
        return np.array(value)

    def put(self, value: Any, content: Any) -> Callable[[], None]:
        old = np.array(value)
        value[...] = content
        return lambda: np.copyto(value, old)


_VARIABLE, _HOLDER, _ARRAY = _VariableKind(), _HolderKind(), _ArrayKind()


class TensorFlowObjects:
    """The `StateAdapter` of backends/protocols.py for objects in this process."""

    rules: Mapping[str, Mapping[str, Any]] = {_CALLBACKS: {"skip": _SKIPPED, "quiet": True}}

    def kind(self, kind: type) -> Any:
        if issubclass(kind, tf.Variable):
            return _VARIABLE
        if issubclass(kind, np.ndarray):
            return _ARRAY
        if issubclass(kind, keras.callbacks.Callback):
            return None
        return _HOLDER if trackables.is_state_type(kind) else None

    def weight(self, value: Any) -> Any:  # noqa: ARG002
        return None

    def named(self, models: Mapping[str, Any]) -> dict[tuple[str, str], Any]:  # noqa: ARG002
        return {}

    def versions(self, models: Mapping[str, Any], *, contents: bool = False) -> dict[tuple[str, str], Any]:  # noqa: ARG002
        return {}

    def modules(self, models: Mapping[str, Any]) -> dict[tuple[str, str], Any]:  # noqa: ARG002
        return {}

    def more_parts(self, value: Any) -> Iterator[tuple[str, Any]]:  # noqa: ARG002
        return iter(())

    def has_fields(self, kind: type) -> bool:  # noqa: ARG002
        return False

    def gradient(self, value: Any) -> Any:  # noqa: ARG002
        return None

    def reduced(self, value: Any) -> tuple[Any, ...] | None:  # noqa: ARG002
        return None

    def extra_state(self, kind: type) -> tuple[str, str] | None:  # noqa: ARG002
        return None

    def random_state(self) -> Any:
        return None


# -- random states ----------------------------------------------------------------------------------------------------


class TensorFlowRandomStates:
    """The `LoopRandomStates` of backends/protocols.py."""

    def __init__(self, objects: Iterable[Any] = ()) -> None:
        """Random states of the process only: generators of the program are variables."""

    def read(self, device: bool = True) -> dict[str, Any]:
        context = _eager_context()
        rng = getattr(context, "_rng", None)
        variables = [np.array(one) for one in random_states().variables] if device else []
        return {
            "python": random.getstate(),
            "numpy": np.random.get_state(),
            "seed": getattr(context, "_seed", None),
            "drawn": rng.getstate() if rng is not None else None,
            "variables": variables,
        }

    def write(self, states: Any) -> None:
        random.setstate(states["python"])
        np.random.set_state(states["numpy"])
        context = _eager_context()
        if states["drawn"] is not None and context is not None:
            context._seed = states["seed"]
            context._rng = random.Random()
            context._rng.setstate(states["drawn"])
        for one, value in zip(random_states().variables, states["variables"], strict=False):
            one.assign(value)

    def write_unmoved(self, states: Any, before: Any) -> None:  # noqa: ARG002
        self.write(states)

    def moved(self, before: Any, now: Any) -> set[str]:
        numpy = before["numpy"][2] != now["numpy"][2] or (before["numpy"][1] != now["numpy"][1]).any()
        return {*(["python"] if before["python"] != now["python"] else []), *(["numpy"] if numpy else [])}

    def loader_state(self, loader: Any) -> Any:  # noqa: ARG002
        """No loader tells it."""
        return None

    def set_loader_state(self, loader: Any, state: Any) -> None:
        """See `loader_state`."""


def _eager_context() -> Any:
    """TensorFlow 2.21, tensorflow/python/eager/context.py: `_seed` and `_rng` have no public name."""
    try:
        from tensorflow.python.eager import context

        return context.context()
    except ImportError:
        return None


# -- Model.fit --------------------------------------------------------------------------------------------------------


@contextmanager
def following_fits(loops: Any) -> Iterator[None]:
    """Within it, `loops` (launch/resume/loops.py) knows of every batch of every `fit`."""
    follower = _FitFollower(loops)
    lists, model = keras.callbacks.CallbackList, keras.Model
    changes = [
        (model, "fit", follower.fit),
        (model, "make_train_function", follower.make_train_function),
        (model, "_should_eval", follower.should_eval),
        (model, "_get_metrics_result_or_logs", follower.metrics),
        (lists, "on_train_batch_begin", follower.batch_begin),
        *((lists, name, follower.unless_quiet) for name in ("on_epoch_begin", "on_train_batch_end", "on_epoch_end")),
    ]
    there = [(owner, name, change) for owner, name, change in changes if hasattr(owner, name)]
    own = [(owner, name, vars(owner).get(name)) for owner, name, _ in there]
    try:
        for owner, name, change in there:
            setattr(owner, name, change(getattr(owner, name)))
        yield
    finally:
        for owner, name, original in own:
            if original is None:
                delattr(owner, name)
            else:
                setattr(owner, name, original)


def _compare_again(callbacks: Iterable[Any]) -> None:
    """EarlyStopping and its like choose their comparison, a function, at the end of their first epoch."""
    for one in callbacks:
        if getattr(one, "monitor_op", _compare_again) is None and hasattr(one, "_set_monitor_op"):
            with suppress(Exception):  # it does so itself later, and then says what is wrong
                one._set_monitor_op()


class _FitFollower:
    """`passing`: batches that are still to be taken without training; `quiet`: no callback runs, until the next batch
    that is trained."""

    def __init__(self, loops: Any) -> None:
        self.loops = loops
        self.passing = 0
        self.quiet = False
        self.batches = 0
        self.histories: list[dict[str, Any]] = []
        self._model: Any = None
        self._begun = False

    def fit(self, original: Any) -> Any:
        @functools.wraps(original)
        def fit(model: Any, *args: Any, **kwargs: Any) -> Any:
            if self._model is not None:  # a fit in a callback of another
                return original(model, *args, **kwargs)
            saved = self.loops.passed_over(FIT)
            if saved is not None:
                return self._earlier(model, saved)
            with self.loops.library_call(FIT) as more:
                self.passing, self.batches = (int(more["batches"]) if more is not None else 0), 0
                self.quiet, self._model = self.passing > 0, model
                try:
                    history = original(model, *args, **kwargs)
                finally:
                    self._end()
            self.histories.append({"history": history.history, "epoch": history.epoch})
            return history

        return fit

    def _end(self) -> None:
        train, self._model.train_function = self._model.train_function, None
        self._model.train_function = getattr(train, "original", train)
        self._model, self.passing, self.quiet = None, 0, False
        if self._begun:
            self._begun = False
            self.loops.end_library()

    def _earlier(self, model: Any, saved: Any) -> Any:
        """The result of a fit that had ended before the checkpoint."""
        found = saved["histories"][len(self.histories)]
        self.histories.append(found)
        history = keras.callbacks.History()
        history.set_model(model)
        history.history, history.epoch = found["history"], found["epoch"]
        return history

    def _more(self) -> dict[str, Any]:
        return {"batches": self.batches, "histories": self.histories}

    def batch_begin(self, original: Any) -> Any:
        @functools.wraps(original)
        def on_train_batch_begin(callbacks: Any, *args: Any, **kwargs: Any) -> Any:
            if self._model is None or self.passing:
                return None if self.quiet else original(callbacks, *args, **kwargs)
            if self.batches and not self._begun:  # the first batch has made all variables
                own = [(f"callbacks[{n}]", one) for n, one in enumerate(callbacks.callbacks)]
                if self.quiet:
                    _compare_again(callbacks.callbacks)
                self.loops.begin_library(FIT, self._more, ("model", self._model), *own)
                self._begun = True
            self.quiet = False
            if self._begun:
                self.loops.library_item(None)
            self.batches += 1
            return original(callbacks, *args, **kwargs)

        return on_train_batch_begin

    def unless_quiet(self, original: Any) -> Any:
        @functools.wraps(original)
        def call(callbacks: Any, *args: Any, **kwargs: Any) -> Any:
            return None if self.quiet else original(callbacks, *args, **kwargs)

        return call

    def should_eval(self, original: Any) -> Any:
        @functools.wraps(original)
        def should_eval(model: Any, *args: Any, **kwargs: Any) -> Any:
            return not self.quiet and original(model, *args, **kwargs)

        return should_eval

    def metrics(self, original: Any) -> Any:
        @functools.wraps(original)
        def results(model: Any, logs: Any) -> Any:
            return logs if self.quiet else original(model, logs)

        return results

    def make_train_function(self, original: Any) -> Any:
        @functools.wraps(original)
        def make(model: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(model, *args, **kwargs)
            if model is self._model and not hasattr(model.train_function, "original"):
                model.train_function = self._passing_over(model, model.train_function)
            return result

        return make

    def _passing_over(self, model: Any, train: Any) -> Any:
        def train_function(iterator: Any) -> Any:
            if not self.passing:
                return train(iterator)
            if not self.batches:  # makes all variables, whose values are put back later
                train(iterator)
            else:
                for _ in range(int(model.steps_per_execution)):
                    next(iterator)
            self.passing -= 1
            self.batches += 1
            return {}

        train_function.original = train  # type: ignore[attr-defined]
        return train_function
