"""The jit policy for tf.functions: which ones get another `jit_compile` for one run."""

# On CPU the first call of a function in the run decides: it is traced with jit_compile=True, and its graph is inspected
# before anything is executed. If XLA cannot take it because of an input pipeline or several replicas, if it changes no
# variable, or if it is a whole training, it is traced again without. Traces from before the run are set aside until the
# run ends.
# TensorFlow's own parts were read in TensorFlow 2.21 (python/eager/polymorphic_function/polymorphic_function.py).

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import tensorflow as tf

from tpu_magics.backends.tensorflow.source_locations import ops

# Attributes of a tf.function that hold its traces, with the empty value of each.
_EMPTY: dict[str, Callable[[Any], Any]] = {
    "_function_cache": lambda cache: type(cache)(),
    "_function_captures": lambda captures: type(captures)(),
    "_created_variables": lambda _: None,
    "_variable_creation_config": lambda _: None,
    "_no_variable_creation_config": lambda _: None,
    "_concrete_variable_creation_fn": lambda _: None,
    "_jit_compile": lambda _: None,
}
_MAY_LACK = "_concrete_variable_creation_fn"  # before the first trace
_CACHE = "_tpu_magics_jit"

ENABLED = "jit_compile=True for this run"
_DISABLED = "jit_compile removed for this run: on a TPU the strategy compiles what it runs"
_EXPLICIT = (
    "unchanged: it has jit_compile=False. XLA does not compile it here, so an op that XLA cannot compile would "
    "first fail on a TPU"
)


class FunctionJit:
    """`compiled`: whether XLA compiles them; `is_user_code`: takes a path; `log`: takes a Python function, a name and
    a text."""

    def __init__(
        self, compiled: bool, is_user_code: Callable[[str], bool], log: Callable[[Any, str, str], None]
    ) -> None:
        self._compiled = compiled
        self._is_user_code = is_user_code
        self._log = log
        self._seen: WeakSet[Any] = WeakSet()
        self._trials: WeakSet[Any] = WeakSet()
        self._reports: WeakKeyDictionary[Any, str] = WeakKeyDictionary()
        self._before: list[tuple[Any, dict[str, Any]]] = []
        self._lock = threading.RLock()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside it, tf.functions are inspected at their first call."""
        kind = _kind()
        if kind is None:
            self._log(
                None, "tf.functions", f"unchanged: TensorFlow {tf.__version__} differs from 2.21, which this supports"
            )
            yield
            return
        call, initialize = kind._call, kind._initialize
        kind._call, kind._initialize = self._wrapped(call, initialize)
        try:
            yield
        finally:
            kind._call, kind._initialize = call, initialize
            for function, before in reversed(self._before):
                self._restore(function, before)

    def _wrapped(self, call: Any, initialize: Any) -> tuple[Any, Any]:
        see, trying, checked = self._inspect, self._trying, self._checked

        def _call(function: Any, *args: Any, **kwds: Any) -> Any:
            __tracebackhide__ = True
            see(function, args, kwds)
            return call(function, *args, **kwds)

        def _initialize(function: Any, *args: Any, **kwds: Any) -> None:
            __tracebackhide__ = True
            with trying(function):
                initialize(function, *args, **kwds)
            earlier = checked(function)
            if earlier is not None:
                initialize(function, *args, **kwds)
                function._created_variables = [*earlier, *function._created_variables]

        return with_tensorflow_filename(_call), with_tensorflow_filename(_initialize)

    # -- at its first call ---------------------------------------------------------------------------------------------
    def _inspect(self, function: Any, args: tuple[Any, ...], kwds: dict[str, Any]) -> None:
        if function in self._seen:
            return
        if self._compiled and not function._jit_compile and inside_xla():
            return  # compiled with its caller; it may be called alone later
        with self._lock:
            self._seen.add(function)
            code = getattr(python_of(function), "__code__", None)
            if code is None or not self._is_user_code(code.co_filename):
                return
            if self._compiled:
                self._enable(function, args, kwds)
            elif function._jit_compile:
                self._change(function, None, _DISABLED)

    def _enable(self, function: Any, args: tuple[Any, ...], kwds: dict[str, Any]) -> None:
        if function._jit_compile is not None:
            if function._jit_compile is False:
                self._report(function, _EXPLICIT)
            return
        if has_pipeline((args, kwds)):
            self._change(function, None, IN_ARGUMENTS)
            return
        found = [ineligible_reason(one.graph) for one in function._function_cache.values()]
        why = next(filter(None, found), "")
        if why:
            self._change(function, None, why)
        elif not found or None in found:
            self._change(function, True, ENABLED)

    def _change(self, function: Any, jit: bool | None, text: str) -> None:
        """Start with empty traces, or with those of an earlier run; then that run's report is repeated."""
        self._before.append((function, _state(function)))
        state, report = self._cached(function, jit) or (_empty(function, jit), text)
        _set_state(function, state)
        if function._jit_compile and function._concrete_variable_creation_fn is None:
            self._trials.add(function)
        else:
            self._report(function, report)

    def _cached(self, function: Any, jit: bool | None) -> tuple[dict[str, Any], str] | None:
        """Traces and report of an earlier run; None if they do not fit this call."""
        compiled, state, report = function.__dict__.get(_CACHE, (None, {}, ""))
        if compiled is not self._compiled:
            return None
        unfit_then = jit is True and report != IN_ARGUMENTS
        return (state, report) if state["_jit_compile"] is jit or unfit_then else None

    # -- after its first trace -----------------------------------------------------------------------------------------
    @contextmanager
    def _trying(self, function: Any) -> Iterator[None]:
        """After a failed first trace, the next one is inspected."""
        try:
            yield
        except BaseException:
            if function in self._trials:
                _set_state(function, _empty(function, True))
            raise

    def _checked(self, function: Any) -> list[Any] | None:
        """The variables that its trace created, if the function has to be traced again without jit_compile; else
        None."""
        if function not in self._trials:
            return None
        self._trials.discard(function)
        graph = function._concrete_variable_creation_fn.graph
        why = ineligible_reason(graph)
        self._report(function, ENABLED + growth_warning(graph) if why is None else why)
        if why is None:
            return None
        made = list(function._created_variables)
        _set_state(function, _empty(function, None))
        return made

    # -- at the end --------------------------------------------------------------------------------------------------
    def _restore(self, function: Any, before: dict[str, Any]) -> None:
        """Restore the earlier state; traces of this run are cached for the next one."""
        if function._concrete_variable_creation_fn is not None:
            function.__dict__[_CACHE] = (self._compiled, _state(function), self._reports.get(function, ""))
        _set_state(function, before)

    def _report(self, function: Any, text: str) -> None:
        self._reports[function] = text
        if text:
            python = python_of(function)
            self._log(python, getattr(python, "__name__", "a tf.function"), text)


def _kind() -> Any:
    """The class of tf.functions; None if it differs from TensorFlow 2.21."""
    try:
        from tensorflow.python.eager.polymorphic_function.polymorphic_function import Function
    except ImportError:
        return None
    probe = tf.function(lambda: None)
    has_state = all(name in vars(probe) for name in _EMPTY if name != _MAY_LACK)
    has_methods = hasattr(Function, "_call") and hasattr(Function, "_initialize")
    return Function if isinstance(probe, Function) and has_state and has_methods else None


def with_tensorflow_filename(function: Any) -> Any:
    """`function` with TensorFlow's own file name: it is on the stack of everything traced, and a frame of ours would
    hide the user's lines above it."""
    from tensorflow.python.eager.polymorphic_function import polymorphic_function

    function.__code__ = function.__code__.replace(co_filename=polymorphic_function.__file__)
    return function


def inside_xla() -> bool:
    """Whether XLA compiles what is being traced."""
    from tensorflow.python.framework import ops as framework
    from tensorflow.python.ops import control_flow_util

    return bool(control_flow_util.GraphOrParentsInXlaContext(framework.get_default_graph()))


def python_of(function: Any) -> Any:
    """The Python function inside wrappers of methods and decorators."""
    found = function._python_function
    while hasattr(found, "__wrapped__") or hasattr(found, "__func__"):
        found = getattr(found, "__wrapped__", None) or found.__func__
    return found


# -- states --------------------------------------------------------------------------------------------------------


def _state(function: Any) -> dict[str, Any]:
    return {name: getattr(function, name, None) for name in _EMPTY}


def _empty(function: Any, jit: bool | None) -> dict[str, Any]:
    made = {name: make(getattr(function, name, None)) for name, make in _EMPTY.items()}
    return {**made, "_jit_compile": jit}


def _set_state(function: Any, state: dict[str, Any]) -> None:
    _forget_traces(function)
    for name, value in state.items():
        setattr(function, name, value)


def _forget_traces(function: Any) -> None:
    """TensorFlow warns about a function that is traced in most of its calls, by its number of traces."""
    from tensorflow.python.eager.polymorphic_function import polymorphic_function

    detectors = getattr(polymorphic_function, "_frequent_tracing_detector_manager", None)
    getattr(detectors, "_detectors", {}).pop(getattr(function, "_key_for_call_stats", None), None)


# -- whether XLA can compile it ----------------------------------------------------------------------------------------


_UPDATES = ("Assign", "ResourceApply", "ResourceSparseApply", "ResourceScatter")
_PIPELINE = ("Iterator", "Dataset", "OptionalFromValue", "OptionalGetValue")

IN_ARGUMENTS = (
    "jit_compile stays off: it takes its batches from an iterator or a dataset, and XLA cannot compile an input "
    "pipeline. A step that it calls is compiled if it is a tf.function of its own or is passed to strategy.run"
)
_IN_GRAPH = (
    "jit_compile stays off: it reads from an input pipeline, which XLA cannot compile. A step that it calls is "
    "compiled if it is a tf.function of its own or is passed to strategy.run"
)
_LOOP = (
    "jit_compile stays off: it trains in a loop, which XLA would compile to one program, and no interrupt ends that. A "
    "step that the loop calls is compiled if it is a tf.function of its own or is passed to strategy.run"
)
_FEW = 32  # passes of a loop that may be one program: micro-batches, inner steps
_REPLICAS = "jit_compile stays off: it runs on several replicas, and XLA cannot compile collectives on a CPU"
# Seen in 2.21: no error; with size 0 the result is empty, with size 2 two of five elements are kept.
_GROWS = (
    "; it writes to a TensorArray with dynamic_size=True, which cannot grow under XLA: elements beyond its size "
    "are lost without an error, so set its size to the maximum"
)


def growth_warning(graph: Any) -> str:
    """A warning for a function that XLA compiles and that lets a TensorArray grow; "" if it does not."""
    writes = (op for _, op in ops(graph) if op.type == "TensorListSetItem")
    return _GROWS if any(op.get_attr("resize_if_index_out_of_bounds") for op in writes) else ""


def has_pipeline(arguments: Any) -> bool:
    """Whether a dataset or a dataset iterator is among the arguments."""
    kinds = (tf.data.Dataset, tf.data.Iterator, tf.distribute.DistributedDataset, tf.distribute.DistributedIterator)
    try:
        return any(isinstance(one, kinds) for one in tf.nest.flatten(arguments))
    except (TypeError, ValueError):  # keys that cannot be sorted
        return False


def ineligible_reason(graph: Any) -> str | None:
    """Why XLA should not compile a traced function: a sentence; "" if it changes no variable; None if XLA should."""
    found = [op for _, op in ops(graph)]
    if any(sign in op.type for op in found for sign in _PIPELINE):
        return _IN_GRAPH
    if len({op.device for op in found if op.device and op.type.startswith(_UPDATES)}) > 1:
        return _REPLICAS
    if any(_is_training_loop(op) for op in found):
        return _LOOP
    return None if any(op.type.startswith(_UPDATES) for op in found) else ""


def _is_training_loop(op: Any) -> bool:
    """A loop that changes weights in each pass, and may have many. (Seeds and counters are integers.)"""
    if op.type not in ("While", "StatelessWhile"):
        return False
    body = op.graph._get_function(op.get_attr("body").name)
    updates = () if body is None else (inner for _, inner in ops(body.graph) if inner.type.startswith(_UPDATES))
    if not any(value.dtype.is_floating for one in updates for value in one.inputs):
        return False
    most = _constant(op.inputs[1])  # -1: without a limit (python/ops/while_v2.py)
    return most is None or not 0 <= most <= _FEW


def _constant(tensor: Any) -> int | None:
    """A number of a graph that does not depend on its inputs; None if it does."""
    waiting, known = [tensor.op], {tensor.op}
    while waiting:
        op = waiting.pop()
        if op.type == "Placeholder":
            return None
        found = {one.op for one in op.inputs} - known
        known |= found
        waiting += found
    try:
        with tf.compat.v1.Session(graph=tensor.graph) as session:
            return int(session.run(tensor))
    except tf.errors.OpError:
        return None
