"""The observer of one TensorFlow run: gets calls from the hooks and writes records."""

# A call costs one look at the time of the dump folder and at what is known of its program. Compiles are rare, and are
# examined after they have happened.

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf
from tensorflow.python.framework import ops

from tpu_magics.backends import hlo
from tpu_magics.backends.base import ObserverConfig
from tpu_magics.backends.observe.compiles import CompileCause, History, evaluation_batch
from tpu_magics.backends.observe.measurements import (
    Facts,
    LoggedValues,
    PeriodicSampler,
    PrecisionWatch,
    plain,
    precision_facts,
)
from tpu_magics.backends.observe.observer import Observer, guarded
from tpu_magics.backends.observe.progress import number_of_batches
from tpu_magics.backends.tensorflow.observe import evidence, traced_functions
from tpu_magics.backends.tensorflow.observe.causes import distance, explain
from tpu_magics.backends.tensorflow.observe.dumps import DumpedModule, Dumps
from tpu_magics.backends.tensorflow.observe.evidence import (
    CompiledFunction,
    ConcreteCall,
    EvidenceCollector,
    FunctionCall,
    FunctionCompile,
)
from tpu_magics.backends.tensorflow.observe.traced_functions import Retraces
from tpu_magics.runs import events
from tpu_magics.runs.writer import EventWriter

_IN_TRACE = (
    "tpu_magics.log was called with a tensor inside a tf.function, where it runs once per trace and has no "
    "value. Return the tensor from the function and log it after the call."
)


class TensorFlowObserver(Observer[FunctionCompile]):
    """Steps, compiles, retraces and values of one run. `dumps`: None if compiles are not recorded; `libraries`: folders
    of TensorFlow and Keras."""

    values: TensorValues
    precision: KerasPrecisionWatch

    def __init__(
        self, writer: EventWriter, config: ObserverConfig, dumps: Dumps | None, libraries: tuple[str, ...] = ()
    ) -> None:
        history = History(writer, distance, explain)
        precision = KerasPrecisionWatch(config.precision, writer.record)
        super().__init__(writer, config, history, TensorValues(writer), precision, libraries)
        self.dumps = dumps
        self.retraces = Retraces(ops.uid())
        self.seconds = 0.0
        self.sampler = DeviceUsage(writer, config.device, self._compiling)
        self.inside = False  # in a call of a traced function
        self.applying = False  # in a step of an optimizer
        self.iterating = False  # a pass over a dataset is beginning; a distributed one begins others
        self.called: ConcreteCall = None  # what ran last, with its tensors
        self.evidence = EvidenceCollector()
        self.steps_stopped = ""
        self.log_in_trace = False
        self.batch: int | None = None  # of Keras' training
        self.fit: tuple[int | None, range] = (None, range(0))  # batches of an epoch, epochs
        self.most: WeakKeyDictionary[Any, int] = WeakKeyDictionary()  # steps in a call of a program

    @property
    def uncounted(self) -> bool:
        """Whether the number of compiles is unknown: XLA does not dump them, or observing stopped."""
        return self.dumps is None or bool(self.stopped)

    def _compiling(self) -> float | None:
        return None if self.dumps is None else self.seconds

    # -- calls ------------------------------------------------------------------------------------------------------
    def on_call(self, function: Any, args: Sequence[Any], result: Any, frame: FrameType) -> None:
        """The outermost call of a traced function returned. `function`: None for a concrete one."""
        called, self.called = self.called, None
        self._record_compiles(function, args, called, frame)
        count = self._steps_in(function, called[0], result, frame) if called is not None else 0
        if count:
            self.step(count)

    @guarded
    def _record_compiles(self, function: Any, args: Sequence[Any], called: ConcreteCall, frame: FrameType) -> None:
        if self.dumps is not None and self.dumps.changed():
            self._compiled(FunctionCall(function, args, called, frame))
            self.check_recompile_limit()

    @guarded
    def on_error(self, function: Any, args: Sequence[Any], frame: FrameType) -> None:
        """It raised: earlier compiles belong to this call."""
        called, self.called = self.called, None
        if self.dumps is not None and self.dumps.changed():
            self._compiled(FunctionCall(function, args, called, frame))

    @guarded
    def on_trace(self, function: Any) -> None:
        """The cache of a function changed."""
        text = self.retraces.find(function, str(getattr(function, "name", "") or "a function"))
        if text:
            self.warn("retrace", text)

    @guarded
    def on_inner_call(self, concrete: Any) -> None:
        """Another function was called during tracing."""
        self.evidence.on_inner_call(concrete)

    # -- steps ------------------------------------------------------------------------------------------------------
    def _steps_in(self, function: Any, concrete: Any, result: Any, frame: FrameType) -> int:
        """Counting continues even if explaining has stopped."""
        if self.steps_stopped:
            return 0
        try:
            most = self.most.get(concrete)
            if most is None:
                most = evidence.steps_in_call(frame, function) if traced_functions.trains(concrete) else 0
                self.most[concrete] = most
            return most if most <= 1 else evidence.steps_done(frame, most, result)
        except Exception as error:
            self.steps_stopped = f"{type(error).__name__}: {error}"
            self.warn("steps-stopped", f"Step counting stopped ({self.steps_stopped}).")
            return 0

    def step(self, count: int) -> None:
        """Count finished steps. Raises StepLimit."""
        self.values.step_done()
        self.count_steps(count)

    # -- compiles ---------------------------------------------------------------------------------------------------
    def _compiled(self, call: FunctionCall) -> None:
        assert self.dumps is not None
        for module in self.dumps.read():
            self._one_compile(module, self.sites.of_frame(call.frame), call)

    def _one_compile(self, module: DumpedModule, site: events.Site, call: FunctionCall) -> None:
        known, report = self.evidence.find(module, call), module.report
        variables = traced_functions.trainable_dtypes(known.concrete) if known.concrete is not None else {}
        self.precision.variables = variables
        first = self._first(known, call)
        self.record_compile(
            FunctionCompile(
                site,
                self.history.nth(site.id),
                self.steps.total,
                report,
                inputs=known.inputs,
                short=known.short,
                facts=known.facts,
            ),
            first,
        )
        self.compiled_in_step = True
        self.seconds += report.seconds or 0.0

    def _first(self, known: CompiledFunction, call: FunctionCall) -> CompileCause | None:
        """The note for a first compile, if any; the first program that Keras trains with shows the batch size."""
        rows = next((one.shape[0] for one in known.inputs if one.shape), None)
        if rows is None or not known.facts.keras:
            return None
        if known.facts.mode != evidence.TRAINING:
            return evaluation_batch(rows, self.batch)
        if self.batch is None:
            self.batch = rows
            accumulation, ranks = evidence.batch_parts(evidence.loop_of(call.frame))
            self.writer.record(events.Batch, per_device=rows, accumulation=accumulation, ranks=ranks)
        return None

    # -- values -----------------------------------------------------------------------------------------------------
    def log(self, values: Mapping[str, Any]) -> None:
        """Record numbers at once; keep a tensor until its step is done."""
        logged = {name: value for name, value in values.items() if not is_symbolic(value)}
        if len(logged) < len(values) and not self.log_in_trace:
            self.log_in_trace = True
            self.warn("log-in-trace", _IN_TRACE)
        super().log(logged)

    @guarded
    def epoch(self, logs: Mapping[str, Any] | None) -> None:
        """A Keras epoch ended; its logs are on the host, or Keras itself fetches them now."""
        self.values.log_now(flat(logs or {}), self.steps.total)

    # -- steps ahead ------------------------------------------------------------------------------------------------
    @guarded
    def epoch_begins(self, frame: FrameType, epoch: int) -> None:
        """An epoch of `fit` begins. Validation is no step."""
        loop, epochs = evidence.loop_of(frame), evidence.epochs_of(evidence.loop_of(frame))
        if epoch == epochs.start:  # later, Keras' own number can be a guess
            self.fit = evidence.batches_of_epoch(loop), epochs
        batches, epochs = self.fit
        if batches is not None:
            self.progress.on_training(frame, batches * (epochs.stop - epoch), number_of_batches(batches, len(epochs)))

    @guarded
    def fit_ends(self, frame: FrameType) -> None:
        """`fit` ends, perhaps earlier than after its last epoch."""
        (batches, epochs), self.fit = self.fit, (None, range(0))
        if batches is not None:
            self.progress.on_training(frame, 0, number_of_batches(batches, len(epochs)))

    # -- the end ----------------------------------------------------------------------------------------------------
    @guarded
    def ended(self) -> None:
        """The user's code ended."""
        if self.dumps is not None and self.dumps.changed():
            self._compiled(FunctionCall(None, (), None, sys._getframe()))
        for text in self.retraces.rest():
            self.warn("retrace", text)
        self.sampler.sample()

    def close(self, read: bool = True) -> None:
        """Write what is left. `read`: also read the tensors logged last."""
        self.called = self.evidence.iterator = None
        super().close(read)


# -- logged values ----------------------------------------------------------------------------------------------------


class TensorValues(LoggedValues):
    """The logged values of one rank."""

    def waits(self, value: Any) -> bool:
        """Whether it is a tensor or variable, whose computation may not be finished."""
        return isinstance(value, (tf.Tensor, tf.Variable)) or callable(getattr(value, "numpy", None))

    def log_now(self, values: Mapping[str, Any], step: int) -> None:
        """Record values without waiting for the next step."""
        for name, value in values.items():
            self.meter.log(str(name), plain(self.fetch(value) if self.waits(value) else value), step)

    def fetch(self, value: Any) -> Any:
        """Read it, as a NumPy value."""
        return value.numpy()


def is_symbolic(value: Any) -> bool:
    """Whether it is a symbolic tensor in a function that is being traced, which has no value to read."""
    return bool(tf.is_tensor(value)) and not hasattr(value, "numpy")


def flat(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Epoch logs as in Keras' history: a train_step that returns all of `self.metrics` gives those of compile() as a
    nested dict."""
    found: dict[str, Any] = {}
    for name, value in logs.items():
        found.update(flat(value) if isinstance(value, Mapping) else {name: value})
    return found


# -- device usage -----------------------------------------------------------------------------------------------------


class DeviceUsage(PeriodicSampler):
    """What one rank uses. `device`: "CPU" or "TPU"; `compiling`: seconds of compiling so far (None: unknown)."""

    def __init__(self, writer: EventWriter, device: str, compiling: Callable[[], float | None]) -> None:
        super().__init__(writer)
        self.device = device
        self.compiling = compiling

    def sample(self) -> None:
        """Record what is new."""
        seconds = self.compiling()
        if seconds is not None:
            self.record_if_new("times", events.Times, compiling=round(seconds, 3))
        used = self._hbm()
        if used is not None:
            self.record_if_new("hbm", events.Memory, hbm_used=used)

    def _hbm(self) -> int | None:
        """Bytes in use on the first TPU device; TensorFlow has no figure for the total. A CPU has no memory of its
        own."""
        if self.device == "CPU":
            return None
        try:
            return int(tf.config.experimental.get_memory_info("TPU:0")["current"])
        except (ValueError, RuntimeError, KeyError, tf.errors.OpError):
            return None


# -- precision --------------------------------------------------------------------------------------------------------

# Under Keras' policy mixed_bfloat16, variables are float32 and layers compute in bfloat16. A program is read before XLA
# optimises it, so the figures are those of the program as traced.
_POLICIES = {"mixed_bfloat16": "bf16", "bfloat16": "bf16", "float32": "fp32"}
OPTION, POLICY = "--precision", "Keras' dtype policy"
_EARLIER = (
    " Layers keep the dtype that they were created with: build the model again under --precision bf16. Layers "
    'with dtype="float32" stay float32.'
)
_OWN = " The model itself uses bfloat16 (a dtype policy or a cast)."


class KerasPrecisionWatch(PrecisionWatch):
    """The requested precision and that of the compiled programs, of one rank. `variables`: how many trainable variables
    of each dtype the program has that is compiled next."""

    def __init__(self, option: str, write: Callable[..., None]) -> None:
        super().__init__(option, write)
        self.variables: Mapping[str, int] = {}

    def facts(self, graph: hlo.Graph, digest: str) -> Facts:
        """The fields of the record for a graph."""
        request = self._request()
        total, bf16 = hlo.multiplications(graph)
        # Keras' own guide gives the last layer dtype="float32": under bf16 a part in float32 is as requested.
        agrees = not total or {"bf16": bf16 > 0, "fp32": bf16 == 0}.get(request[0], True)
        reason = _EARLIER if request[0] == "bf16" else _OWN
        return precision_facts(request, graph, digest, agrees, reason, _notes(self.variables))

    def _request(self) -> tuple[str, str]:
        if self.option:
            return self.option, OPTION
        policy = _policy()
        return ("", "") if policy == "float32" else (_POLICIES.get(policy, policy), POLICY)


def _notes(variables: Mapping[str, int]) -> Iterator[str]:
    if variables:
        counts = ", ".join(f"{count} {dtype}" for dtype, count in sorted(variables.items()))
        yield f"Trainable variables of the program: {counts}."


def _policy() -> str:
    import keras

    return str(keras.config.dtype_policy().name)
