"""TensorFlow's and XLA's errors explained: the user's line, the rule and the fix. Clear errors are left as they are."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tpu_magics.backends.lowered import UnsupportedOp
from tpu_magics.backends.tensorflow import device_errors, lowering_errors, xla_errors, xla_ops
from tpu_magics.backends.tensorflow.checkpoint_names import name_refused
from tpu_magics.backends.tensorflow.located_error import LocatedError
from tpu_magics.backends.tensorflow.source_locations import SourceLocations
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
    xla_ops.EVERYWHERE: "TensorFlow (checked: 2.21) has no XLA kernel for it on any device.",
    xla_ops.ONLY_CPU: "TensorFlow has an XLA kernel for it only on a TPU.",
    xla_ops.UNKNOWN: "TensorFlow's XLA kernels are nearly the same on all devices, so it will probably fail there too.",
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
        for explain in (_named, device_errors.explain, xla_errors.explain, _refused):
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


# -- ops that XLA lacks ----------------------------------------------------------------------------------------------


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
    where = xla_ops.where([one.op for one in refused])
    place = f" at {first.place}" if first.place else located.at()  # the message has the line of only one op
    rest = f" and {len(refused) - 1} more" if refused[1:] else ""
    if on_tpu:
        ways = [_instead(first), _TPU_HOST]
        return TpuMagicsError(
            f"XLA cannot compile {first.op}{place}{rest}.",
            lowering_errors.describe(refused),
            *_todo_and_code(located, refused, ways),
        )
    ways = [_KEEP if jit_enabled else _OWN, "" if where == xla_ops.ONLY_CPU else f"For a TPU: {_instead(first)}"]
    ways.append(f"To have it compiled here as well: {_instead(first)}" if where == xla_ops.ONLY_CPU else _TPU_HOST)
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
    known = xla_ops.of(refused.op)
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
        "Read TensorFlow's message below.",
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

        made = {one.name.decode(): one.graph for one in gc.get_objects() if type(one) is AtomicFunction}
    except (ImportError, AttributeError):
        made = {}
    return next((made[name] for name in functions if name in made), tf.Graph())
