"""The TensorFlow backend: tf.functions, Keras models and custom loops. Importing it imports no framework."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.base import DEFAULT, ObserverConfig, Placement, TrainingProblem
from tpu_magics.backends.protocols import SavedState, Watcher
from tpu_magics.errors import TpuMagicsError

if TYPE_CHECKING:
    from tpu_magics.backends.lowered import TraceResult
    from tpu_magics.runs.writer import EventWriter

_NAMES = ("tensorflow", "keras")


class TensorFlow:
    """The backend of TensorFlow and Keras 3 (LocalBackend in protocols.py). A module of this folder is imported when it
    is first needed."""

    name = "tensorflow"

    def __init__(self) -> None:
        self._placed: Placement | None = None
        self._changed: Callable[[], Sequence[str]] = tuple  # changes of the last run's jit policy
        self._on_colab = False  # how to log in to a bucket differs on Colab

    def prepare(self) -> None:
        from tpu_magics.backends.tensorflow import runtime

        runtime.prepare()

    def initialise(self, precision: str = "", host: Any = None) -> Placement:
        from tpu_magics.backends.tensorflow import runtime

        placed: Placement = runtime.initialise(precision, host=host)
        self._placed = placed
        self._on_colab = getattr(getattr(host, "environment", None), "key", "") == "colab"
        return placed

    @property
    def placed(self) -> Placement:
        """Where it trains. Initialises TensorFlow on first use."""
        return self._placed or self.initialise()

    def scope(self) -> AbstractContextManager[None]:
        """No scope without a TPU: TensorFlow's default strategy is current anyhow, and inside an explicit scope a cell
        could not enter another one, such as the MirroredStrategy of tutorials."""
        return nullcontext() if self.placed.kind == DEFAULT else self.placed.strategy.scope()

    def is_model(self, value: object) -> bool:
        return isinstance(value, _classes("keras:Model", "tensorflow:Module")) and not _is_part(value)

    def state_bytes(self, items: Sequence[tuple[str, Any]]) -> int:
        from tpu_magics.backends.tensorflow import saved_state

        return saved_state.state_bytes(items)

    def save_state(self, items: Sequence[tuple[str, Any]], folder: Path) -> SavedState:
        from tpu_magics.backends.tensorflow import saved_state

        return saved_state.TrainingSnapshot(items, folder)

    def precision(self, asked: str) -> AbstractContextManager[None]:
        from tpu_magics.backends.tensorflow import keras_settings

        return keras_settings.within_precision(asked)

    def precision_notes(self, models: Mapping[str, Any], asked: str) -> Sequence[str]:
        from tpu_magics.backends.tensorflow import keras_settings

        return keras_settings.models_with_other_policy(models, asked)

    def not_finite(self, models: Mapping[str, Any]) -> str:
        from tpu_magics.backends.tensorflow import saved_state

        return saved_state.not_finite(models)

    def jit(self, how: str, cells: Mapping[str, str]) -> AbstractContextManager[Callable[[], Sequence[str]]]:
        from tpu_magics.backends.tensorflow import jit

        policy: AbstractContextManager[Callable[[], Sequence[str]]] = jit.policy(how, self.placed, cells)
        return self._remember(policy)

    @contextmanager
    def _remember(
        self, policy: AbstractContextManager[Callable[[], Sequence[str]]]
    ) -> Iterator[Callable[[], Sequence[str]]]:
        with policy as self._changed:
            yield self._changed

    def placement_problems(self, items: Sequence[tuple[str, Any]]) -> Sequence[TrainingProblem]:
        from tpu_magics.backends.tensorflow import saved_state

        return saved_state.placement_problems(items, self.placed)

    def data_problems(self, items: Sequence[tuple[str, Any]]) -> Sequence[TrainingProblem]:
        from tpu_magics.backends.tensorflow import checkpoints, data_checks

        return [*data_checks.problems(items, self.placed), *checkpoints.path_problems(items, self._on_colab)]

    def saving_problems(self, tree: ast.AST, names: Mapping[str, Any]) -> Sequence[TrainingProblem]:
        from tpu_magics.backends.tensorflow import checkpoints

        return checkpoints.saving_problems(tree, names, self._on_colab)

    def watching_data(
        self, tell: Callable[[TrainingProblem], None], items: Sequence[tuple[str, Any]]
    ) -> AbstractContextManager[None]:
        from tpu_magics.backends.tensorflow import data_checks

        return data_checks.checking_fits(self.placed, tell, items, self._on_colab)

    def before_first_step(
        self, ask: Callable[[TraceResult], None], precision: str, cells: Mapping[str, str]
    ) -> AbstractContextManager[Callable[[], bool]]:
        from tpu_magics.backends.tensorflow import lower

        return lower.before_first_step(ask, precision, cells)

    def observing(self, writer: EventWriter, config: ObserverConfig) -> AbstractContextManager[Watcher]:
        from tpu_magics.backends.tensorflow import observe

        return observe.observing(writer, config)

    def cancelling(self) -> AbstractContextManager[Callable[[], None]]:
        from tpu_magics.backends.tensorflow import runtime

        return runtime.cancelling()

    def checkpoint_store(self) -> Any:
        from tpu_magics.backends.tensorflow import resume

        return resume.TensorFlowStore()

    def object_state(self) -> Any:
        from tpu_magics.backends.tensorflow import resume

        return resume.TensorFlowObjects()

    def loop_random_states(self, objects: Iterable[Any]) -> Any:
        from tpu_magics.backends.tensorflow import resume

        return resume.TensorFlowRandomStates(objects)

    def following_libraries(self, loops: Any) -> AbstractContextManager[None]:
        from tpu_magics.backends.tensorflow import resume

        return resume.following_fits(loops)

    def explained(self, error: BaseException, cells: Mapping[str, str]) -> TpuMagicsError | None:
        from tpu_magics.backends.tensorflow import error_messages, jit

        jit_enabled = jit.has_enabled_jit(self._changed())
        return error_messages.explain(error, cells, jit_enabled)


def _classes(*names: str) -> tuple[type, ...]:
    """The classes ("module:Class") whose module was imported."""
    found = (getattr(sys.modules.get(name.partition(":")[0]), name.partition(":")[2], None) for name in names)
    return tuple(one for one in found if isinstance(one, type))


def _is_part(value: object) -> bool:
    """Whether `value` is a tf.Module but not a user's model: a layer, metric, optimizer or generator."""
    return not isinstance(value, _classes("keras:Model")) and isinstance(
        value, _classes("keras:Layer", "keras:Metric", "keras:Optimizer", "keras:Variable")
    )


def is_step(function: object, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> bool:
    """Whether lower.py can lower `function`: a tf.function, a Keras model or a method of one, or a Python function that
    takes or names TensorFlow objects. False if TensorFlow was never imported."""
    if not any(name in sys.modules for name in _NAMES):
        return False
    found = (function, getattr(function, "__self__", None), *args, *(kwargs or {}).values())
    return any(_is_tensorflows(value) for value in found) or _names_tensorflow(function)


def _is_tensorflows(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_is_tensorflows(item) for item in value)
    if isinstance(value, Mapping):
        return any(_is_tensorflows(item) for item in value.values())
    return any(kind.__module__.partition(".")[0] in _NAMES for kind in type(value).__mro__)


def _names_tensorflow(function: object) -> bool:
    code, known = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    if not isinstance(code, CodeType):
        return False
    values = (known.get(name) for one in _with_inner(code) for name in one.co_names)
    return any(isinstance(value, ModuleType) and value.__name__.partition(".")[0] in _NAMES for value in values)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_inner(constant)
