"""The TensorFlow backend: tf.functions, Keras models and custom loops. Importing it imports no framework."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from tpu_magics.backends.base import DEFAULT, ObserverConfig, Placement, SavedState, TrainingProblem, Watcher
from tpu_magics.errors import TpuMagicsError

if TYPE_CHECKING:
    from tpu_magics.backends.lowered import TraceResult
    from tpu_magics.runs.writer import EventWriter

_NAMES = ("tensorflow", "keras")


class TensorFlow:
    """The backend of TensorFlow and Keras 3 (LocalBackend in base.py)."""

    name = "tensorflow"

    def __init__(self) -> None:
        self._placed: Placement | None = None
        self._changed: Callable[[], Sequence[str]] = tuple  # changes of the last run's jit policy
        self._on_colab = False  # how to log in to a bucket differs on Colab

    def prepare(self) -> None:
        self._part("runtime").prepare()

    def initialise(self, asked: str = "", precision: str = "", host: Any = None) -> Placement:
        placed: Placement = self._part("runtime").initialise(asked, precision, host=host)
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
        return self._part("snapshot").state_bytes(items)  # type: ignore[no-any-return]

    def save_state(self, items: Sequence[tuple[str, Any]], folder: Path) -> SavedState:
        return self._part("snapshot").TrainingSnapshot(items, folder)  # type: ignore[no-any-return]

    def precision(self, asked: str) -> AbstractContextManager[None]:
        return self._part("keras_settings").within_precision(asked)  # type: ignore[no-any-return]

    def precision_notes(self, models: Mapping[str, Any], asked: str) -> Sequence[str]:
        return self._part("keras_settings").models_with_other_policy(models, asked)  # type: ignore[no-any-return]

    def not_finite(self, models: Mapping[str, Any]) -> str:
        return self._part("snapshot").not_finite(models)  # type: ignore[no-any-return]

    def jit(self, how: str, cells: Mapping[str, str]) -> AbstractContextManager[Callable[[], Sequence[str]]]:
        policy: AbstractContextManager[Callable[[], Sequence[str]]] = self._part("jit").policy(how, self.placed, cells)
        return self._remember(policy)

    @contextmanager
    def _remember(
        self, policy: AbstractContextManager[Callable[[], Sequence[str]]]
    ) -> Iterator[Callable[[], Sequence[str]]]:
        with policy as self._changed:
            yield self._changed

    def placement_problems(self, items: Sequence[tuple[str, Any]]) -> Sequence[TrainingProblem]:
        return self._part("snapshot").placement_problems(items, self.placed)  # type: ignore[no-any-return]

    def data_problems(self, items: Sequence[tuple[str, Any]], cells: Mapping[str, str]) -> Sequence[TrainingProblem]:
        paths = self._part("checkpoints").path_problems(items, self.placed, self._on_colab)
        return [*self._part("data_checks").problems(items, self.placed, cells), *paths]

    def saving_problems(self, tree: ast.AST, names: Mapping[str, Any]) -> Sequence[TrainingProblem]:
        return self._part("checkpoints").saving_problems(  # type: ignore[no-any-return]
            tree, names, self.placed, self._on_colab
        )

    def watching_data(
        self, tell: Callable[[TrainingProblem], None], items: Sequence[tuple[str, Any]], cells: Mapping[str, str]
    ) -> AbstractContextManager[None]:
        return self._part("data_checks").checking_fits(  # type: ignore[no-any-return]
            self.placed, tell, items, cells, self._on_colab
        )

    def before_first_step(
        self, ask: Callable[[TraceResult], None], precision: str, cells: Mapping[str, str]
    ) -> AbstractContextManager[Callable[[], bool]]:
        return self._part("lower").before_first_step(ask, precision, cells)  # type: ignore[no-any-return]

    def observing(self, writer: EventWriter, config: ObserverConfig) -> AbstractContextManager[Watcher]:
        return self._part("observe").observing(writer, config)  # type: ignore[no-any-return]

    def cancelling(self) -> AbstractContextManager[Callable[[], None]]:
        return self._part("runtime").cancelling()  # type: ignore[no-any-return]

    def checkpoint_store(self) -> Any:
        return self._part("resume").TensorFlowStore()

    def object_state(self) -> Any:
        return self._part("resume").TensorFlowObjects()

    def random_states(self, objects: Iterable[Any]) -> Any:
        return self._part("resume").TensorFlowRandomStates(objects)

    def following_libraries(self, loops: Any) -> AbstractContextManager[None]:
        return self._part("resume").following_fits(loops)  # type: ignore[no-any-return]

    def explained(self, error: BaseException, cells: Mapping[str, str]) -> TpuMagicsError | None:
        jit_enabled = self._part("jit").has_enabled_jit(self._changed())
        return self._part("error_messages").explain(error, cells, jit_enabled)  # type: ignore[no-any-return]

    def _part(self, name: str) -> Any:
        """A module of this folder. They import TensorFlow, so each is imported on first use."""
        return import_module(f"{__name__}.{name}")


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
