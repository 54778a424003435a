"""TensorFlow's and XLA's errors explained: the user's line, the rule and the fix. Clear errors are left as they are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from tpu_magics.backends.instances import instances
from tpu_magics.backends.lowered import UnsupportedOp
from tpu_magics.backends.tensorflow import lowering_errors
from tpu_magics.backends.tensorflow.availability import no_tpu
from tpu_magics.backends.tensorflow.checkpoint_paths import name_refused
from tpu_magics.backends.tensorflow.source_locations import LocatedError, SourceLocations
from tpu_magics.errors import TpuMagicsError

_UNSUPPORTED = re.compile(r"Detected unsupported operations when trying to compile graph|OpKernel for XLA_\w+_JIT")
_FUNCTION = re.compile(r"__inference_\w+")
_NAME = re.compile(r"__inference_(?:one_step_on_data|train_function|multi_step_on_iterator)_\d+")
_INFERENCE = re.compile(r"^__inference_+(.+)_\d+$")
_KEEP = "To train here without XLA: %%tpu_train --jit keep. XLA then compiles the step only on the TPU."
_OWN = "To train here without XLA, remove jit_compile=True from the code."
_TPU_HOST = (
    "Or keep it: with tf.config.set_soft_device_placement(True), called before the strategy is created, the "
    "TPU's host runs it in each step, which is slow."
)
_WHY = {
    lowering_errors.EVERYWHERE: "TensorFlow (checked: 2.21) has no XLA kernel for it on any device.",
    lowering_errors.ONLY_CPU: "TensorFlow has an XLA kernel for it only on a TPU.",
    lowering_errors.UNKNOWN: "TensorFlow's XLA kernels are nearly the same on all devices, so it will probably fail "
    "there too.",
}


def explain(error: BaseException, cells: Mapping[str, str], jit_enabled: bool = False) -> TpuMagicsError | None:
    """The error explained; None if it is not about XLA, the TPU or the strategy.

    Args:
        error: raised by the user's code, with its traceback.
        cells: file names of cells -> "In [n]".
        jit_enabled: whether the run had set jit_compile on something.
    """
    places = SourceLocations(cells)
    for one in _chain(error):
        located = LocatedError(one, places)
        if (found := _unsupported(located, jit_enabled)) is not None:
            return found
        for explain in (_named, *_ABOUT_DEVICES, _against_a_rule, _refused):
            if (found := explain(located)) is not None:
                return _with_flag(found) if jit_enabled and located.is_of_xla else found
    return None


def _with_flag(found: TpuMagicsError) -> TpuMagicsError:
    return TpuMagicsError(found.what, found.why, f"{found.todo} {_KEEP}".strip(), found.details)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error and its causes, nearest first."""
    known: set[int] = set()
    while error is not None and id(error) not in known and not isinstance(error, TpuMagicsError):
        yield error
        known.add(id(error))
        error = error.__cause__


def _named(located: LocatedError) -> TpuMagicsError | None:
    return name_refused(located.error)


# -- ops that XLA lacks -----------------------------------------------------------------------------------------------


def _unsupported(located: LocatedError, jit_enabled: bool) -> TpuMagicsError | None:
    if not _UNSUPPORTED.search(located.text) or not isinstance(located.error, Exception):
        return None
    functions = list(dict.fromkeys(_FUNCTION.findall(located.text)))
    refused = lowering_errors.unsupported_ops(located.text, _graph(functions), located.places)
    if not refused:
        found = lowering_errors.lowering_error(_step_name(functions), located.error, tf.Graph(), located.places)
        return TpuMagicsError(
            f"{found.what.removesuffix('.')}{located.at()}.", found.why, found.todo, located.details()
        )
    return _lacking(located, refused, jit_enabled)


def _lacking(located: LocatedError, refused: Sequence[UnsupportedOp], jit_enabled: bool) -> TpuMagicsError:
    """The error for ops that XLA lacks: whether a TPU has them, and the ways to continue."""
    first, on_tpu = refused[0], "XLA_TPU_JIT" in located.text
    where = lowering_errors.where([one.op for one in refused])
    place = f" at {first.place}" if first.place else located.at()  # the message has the line of only one op
    rest = f" and {len(refused) - 1} more" if refused[1:] else ""
    if on_tpu:
        ways = [_instead(first), _TPU_HOST]
        return TpuMagicsError(
            f"XLA cannot compile {first.op}{place}{rest}.",
            lowering_errors.describe(refused),
            *_todo_and_code(located, refused, ways),
        )
    ways = [
        _KEEP if jit_enabled else _OWN,
        "" if where == lowering_errors.ONLY_CPU else f"For a TPU: {_instead(first)}",
    ]
    ways.append(
        f"To have it compiled here as well: {_instead(first)}" if where == lowering_errors.ONLY_CPU else _TPU_HOST
    )
    return TpuMagicsError(
        f"XLA cannot compile {first.op}{place}{rest}; {where}.",
        f"{lowering_errors.describe(refused)} {_WHY[where]}",
        *_todo_and_code(located, refused, ways),
    )


def _todo_and_code(
    located: LocatedError, refused: Sequence[UnsupportedOp], ways: Sequence[str]
) -> tuple[str, list[str]]:
    return " ".join(filter(None, ways)), lowering_errors.code_lines(refused) or located.details()


def _instead(refused: UnsupportedOp) -> str:
    known = lowering_errors.known_op(refused.op)
    if refused.kind == "host":
        return "do it before the step in the tf.data pipeline, or after the step on its result."
    return f"{known.instead}." if known and known.instead else "use another op, or several others."


def _refused(located: LocatedError) -> TpuMagicsError | None:
    """An XLA error of which nothing more is known."""
    found = located.is_of_xla
    if found is None:
        return None
    return located.explain(
        "XLA cannot compile the step",
        "This is not one of the known XLA errors. %tpu_preflight shows whether the TPU compiler accepts the step.",
        "Read TensorFlow's message below. If it tells little, call the model once without XLA, `model(x[:2])`: inputs "
        "of another shape than the layers take are named there.",
        [located.quote(found)],
    )


def _step_name(functions: list[str]) -> str:
    """The name that the user knows; functions of Keras' trainer are called the training step."""
    own = [one for one in functions if not _NAME.match(one)]
    found = _INFERENCE.match(own[0]) if own else None
    return found[1].strip("_") if found else "The training step"


def _graph(functions: list[str]) -> Any:
    """The graph of the first of these functions that still exists, else an empty one. TensorFlow 2.21 keeps no list of
    them (AtomicFunction.graph in python/eager/polymorphic_function/atomic_function.py), so all objects are searched; an
    error happens only once."""
    try:
        from tensorflow.python.eager.polymorphic_function.atomic_function import AtomicFunction

        made = {one.name.decode(): one.graph for one in instances(AtomicFunction)}
    except (ImportError, AttributeError):
        made = {}
    return next((made[name] for name in functions if name in made), tf.Graph())


# -- a TPU that TensorFlow cannot use ---------------------------------------------------------------------------------

_NO_TPU = re.compile(r"ConfigureDistributedTPU|TPUs not found in the cluster|already in use by process|libtpu_lockfile")


def _no_tpu(error: LocatedError) -> TpuMagicsError | None:
    if not _NO_TPU.search(error.text) or not isinstance(error.error, Exception):
        return None
    found = no_tpu(error.error)
    return TpuMagicsError(found.what, found.why, found.todo, error.details())


# -- variables on another device --------------------------------------------------------------------------------------

_RESOURCE = re.compile(r"Trying to access resource (\S+).*? located in device (\S+) from device (\S+)")
_REPLICA = re.compile(r"/replica_\d+")
_DEVICE = re.compile(r"device:(\w+:\d+)")


def _other_device(error: LocatedError) -> TpuMagicsError | None:
    found = _RESOURCE.search(error.text)
    if not found:
        return None
    name, there, here = found.groups()
    made = f", created at {error.made}," if error.made else ""
    what = f"A step compiled for {_short(here)} uses {name}{made} on {_short(there)}"
    rule = "XLA compiles a program for one device, and all its variables must be on that device."
    if _REPLICA.search(name):
        return error.explain(
            what,
            f"{rule} Each replica has its own copy, and jit_compile=True cannot compile a step of several replicas.",
            "Remove jit_compile: on a TPU the strategy compiles what it runs. On this machine, use XLA with "
            "one replica.",
        )
    return error.explain(
        what,
        rule,
        "Create the variable without tf.device, inside the strategy's scope, or use it outside the compiled step.",
    )


def _short(device: str) -> str:
    found = _DEVICE.search(device)
    return found[1] if found else device


# -- memory -----------------------------------------------------------------------------------------------------------

_SIZE = r"([\d.]+ ?[KMGT]?i?B?)"
_HBM = (  # libtpu's messages, see facts.md
    re.compile(rf"Ran out of memory in memory space hbm\.\s*Used {_SIZE} of {_SIZE} hbm"),
    re.compile(rf"memory required for [^()]*\({_SIZE}\) exceeds available HBM \({_SIZE}\)"),
)
_TENSOR = re.compile(r"OOM when allocating tensor with shape(\[[\d,]*\]) and type (\w+) on (\S+)")
_EXHAUSTED = re.compile(r"(?=.*(?:out of memory|allocat|OOM|\bhbm\b)).*", re.IGNORECASE)
_SMALLER = (
    "Use a smaller batch per replica, --precision bf16 (activations need half the memory), or tf.recompute_grad "
    "around large blocks. %tpu_preflight shows what a program needs before a run."
)


def _memory(error: LocatedError) -> TpuMagicsError | None:
    hbm = next((found for found in (sign.search(error.text) for sign in _HBM) if found), None)
    if hbm:
        why = f"The compiled program needs {hbm[1]}, and {hbm[2]} are available."
        return error.explain("The step does not fit into the TPU's memory (HBM)", why, _SMALLER, [error.quote(hbm)])
    tensor = _TENSOR.search(error.text)
    if tensor:
        return _tensor(error, *tensor.groups())
    exhausted = "ResourceExhausted" in type(error.error).__name__ or "RESOURCE_EXHAUSTED" in error.text
    found = _EXHAUSTED.search(error.text) if exhausted else None
    if found:
        why = "TensorFlow could not allocate memory. Its message does not say how much."
        return error.explain("Out of memory", why, _SMALLER, [error.quote(found)])
    return None


def _tensor(error: LocatedError, shape: str, dtype: str, device: str) -> TpuMagicsError:
    on_host = "CPU:" in device
    return error.explain(
        f"A tensor of shape {shape} ({dtype}) does not fit into the memory of {_short(device)}",
        f"TensorFlow allocates it in one piece, and {'this host' if on_host else 'the device'} does not have that "
        "much free.",
        "Use a smaller batch or tensor, or a pipeline that reads the data in pieces." if on_host else _SMALLER,
    )


# -- the strategy's scope ---------------------------------------------------------------------------------------------

_SCOPE = re.compile(
    r"Mixing different tf\.distribute\.Strategy objects"
    r'|Need to be inside "with strategy\.scope\(\)"'
    r"|which is different from the scope used for the original variable"
)


# Keras 3.15 asserts there, without a message, that the variables belong to a strategy.
_UPDATE = "keras/src/backend/tensorflow/optimizer.py"


def _scope(error: LocatedError) -> TpuMagicsError | None:
    found = _SCOPE.search(error.text)
    if not found and not _is_assertion_of_keras(error):
        return None
    used = f", and are used at {error.place}" if error.place else ""
    return TpuMagicsError(
        f"The model, its optimizer or its metrics were created outside the strategy's scope{used}.",
        "Variables belong to the strategy in whose scope they were created, and a step can use the variables "
        "of only one strategy.",
        "Create the model, the optimizer and the metrics, and call model.compile, under `with "
        "strategy.scope():`, or all in the cell under %%tpu_train, which runs inside the scope.",
        [*error.details(error.made), *([error.quote(found)] if found else ())],
    )


def _is_assertion_of_keras(error: LocatedError) -> bool:
    silent = isinstance(error.error, AssertionError) and not error.text
    return silent and bool(error.raised) and Path(error.raised[-1][0]).as_posix().endswith(_UPDATE)


_ABOUT_DEVICES: tuple[Callable[[LocatedError], TpuMagicsError | None], ...] = (
    _no_tpu,
    _other_device,
    _memory,
    _scope,
)


# -- XLA's rules: conditions, loops, values read in the step, shapes that depend on values ----------------------------

# The patterns were seen in TensorFlow 2.21, where no comment says otherwise. The first and the fifth rule are those of
# the guide for transformers on TPUs.

_KERAS = "Keras does not apply AutoGraph to a layer's call, so `if`, `while`, `for` and `and` stay plain Python there. "
# Seen in 2.21: a condition that AutoGraph rewrites, tf.unique, tf.boolean_mask, and tf.zeros of a computed length all
# pass under jit_compile=True.
_LITTLE = (
    "XLA:CPU accepts more of this than a TPU (a condition that AutoGraph rewrites, tf.unique and tf.boolean_mask "
    "pass on CPU), so success there proves little: use %tpu_check and %tpu_preflight."
)


@dataclass(frozen=True)
class _Rule:
    """`signs`: regular expressions, any of which matches the error's text; `little`: XLA:CPU accepts some of what a TPU
    refuses."""

    signs: tuple[str, ...]
    what: str
    why: str
    todo: str
    little: bool = True


_RULES = (
    _Rule(
        (r"using an? (?:symbolic )?`?tf\.Tensor`? as a Python `?bool`?",),
        "A Python condition needs the value of a tensor",
        "XLA compiles one program for all values, before any value exists; a Python condition cannot be part of it. "
        + _KERAS,
        "Compute an indicator and use it in the arithmetic: big = tf.cast(tf.reduce_sum(x) > 10, x.dtype); "
        "x = x / (1.0 + big). Or choose with tf.where (per element) or tf.cond (between two branches).",
    ),
    _Rule(
        (
            r"Iterating over a symbolic `?(?:tf\.)?Tensor",
            r"'SymbolicTensor' object cannot be interpreted as an integer",
        ),
        "A Python loop runs over a tensor",
        "XLA compiles one program for all values: how often a Python loop runs cannot depend on a tensor. " + _KERAS,
        "Write it without a loop (tf.reduce_sum, tf.scan, tf.vectorized_map), loop over Python numbers "
        "(range(x.shape[0])), or use tf.while_loop with maximum_iterations.",
    ),
    _Rule(
        (
            r"is out of scope and cannot be used here",
            r"has shape \S+.* before the loop, but shape \S+.* after one iteration",
            r"XLA compilation requires a fixed tensor list size",  # tf2xla/kernels/tensor_list_ops.cc
        ),
        "A loop over tensors collects results of no fixed size",
        "XLA compiles a loop once for all iterations: loop variables keep one shape, and collected results need "
        "a size that is known in advance.",
        "Give the loop a bound (maximum_iterations of tf.while_loop, tf.range of a Python number), collect in a "
        "tf.TensorArray of that size instead of a Python list or tf.concat, and zero the iterations that do not "
        "count.",
    ),
    _Rule(
        (
            r"'SymbolicTensor' object has no attribute 'numpy'",
            r"not 'SymbolicTensor'",
            r"Cannot convert a symbolic (?:`?tf\.)?Tensor",  # python/framework/tensor.py
            r"numpy\(\) is only available when eager execution is enabled",
        ),
        "The value of a tensor is read inside the step",
        "The step is compiled before any value exists, so .numpy(), int() and float() have nothing to read.",
        "Return the tensor and read it after the step. Inside the step, use TensorFlow ops (tf.cast, tf.reduce_mean).",
        little=False,
    ),
    _Rule(
        (
            r"must be a compile-time constant",  # tf2xla/xla_op_kernel.cc, tf2xla/kernels/strided_slice_op.cc
            r"can't deduce compile time constant output shape",
            r"(?:expected|requires?|must have) (?:an? )?(?:fully )?static shape",
            r"dynamic (?:dimension|shape)s? .{0,80}(?:not supported|unsupported|not implemented)",
            r"(?:propagate|propagating) a dynamic dimension",  # xla/service/dynamic_dimension_inference.cc
        ),
        "A shape depends on values",
        "XLA compiles a program for fixed shapes: no length, slice, reshape or number of kept rows may depend on a "
        "value.",
        "Compute all rows, zero the masked ones and divide by the number of the others: keep = tf.cast(labels >= "
        "0, tf.float32); tf.reduce_sum(loss * keep) / tf.reduce_sum(keep), instead of tf.boolean_mask, "
        "tf.where(mask) or tf.unique. (Pass tf.nn.relu(labels) to the loss: for labels below 0, TensorFlow "
        "raises an error or returns NaN.) Sizes must be Python numbers; for a window at a computed position use "
        "tf.slice(x, [start], [SIZE]).",
    ),
    _Rule(
        (
            r"tf\.function only supports singleton tf\.Variables",
            r"tried to create variables on non-first call",  # TensorFlow before 2.10
        ),
        "The step creates a variable",
        "A compiled step is reused for each batch with its variables, so they must be created once, before it.",
        "Create the variable once, outside the step and inside the strategy's scope: a layer's in build "
        "(self.add_weight), an optimizer's with optimizer.build(model.trainable_variables).",
        little=False,
    ),
)


def _against_a_rule(error: LocatedError) -> TpuMagicsError | None:
    rule, found = next(_matches(error), (None, None))
    if rule is None or found is None:
        return None
    why = f"{rule.why.strip()} {_LITTLE}" if rule.little else rule.why
    return error.explain(rule.what, why, rule.todo, [error.quote(found)])


def _matches(error: LocatedError) -> Iterator[tuple[_Rule, re.Match[str]]]:
    for rule in _RULES:
        for sign in rule.signs:
            if found := re.search(sign, error.text, re.IGNORECASE):
                yield rule, found
