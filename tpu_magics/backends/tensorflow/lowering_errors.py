"""TensorFlow's errors while a step is traced and lowered, explained with the user's line."""

# The forms of TensorFlow's errors were read in TensorFlow 2.21.

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tpu_magics.backends.lowered import SourceLine, UnsupportedOp
from tpu_magics.backends.tensorflow import xla_ops
from tpu_magics.backends.tensorflow.source_locations import SourceLocations, ops
from tpu_magics.backends.tensorflow.step import GIVE_MODEL, Step, runs_many_steps
from tpu_magics.errors import TpuMagicsError

_NO_KERNEL = re.compile(r"(\w+) \(No registered '\w+' OpKernel for XLA_\w+_JIT devices.*?\{\{node ([^}]+)\}\}")
_NODE = re.compile(r"node [`]?([^`}]+)[`}]")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_SAID = 300  # characters of TensorFlow's message
_AROUND = (
    *("File ", "in user code", "The op is created", "Stack trace", "[["),
    *("tf2xla conversion", "Exception encountered"),
)
_FAILED = "Failed getting HLO text: '"
_TAKE_OUT = (
    "Do it before the step in the tf.data pipeline, or after the step on its result. (With soft device "
    "placement, TensorFlow on a TPU can run it on the host in the middle of each step; preflight cannot compile "
    "that.)"
)
_REPLACE = "Use another op that XLA supports, or several with the same result."
_FIX = "Fix the line. Call the function with these arguments to see the whole traceback."
_SAME_ERROR = "Fix what the message names; tf.function(..., jit_compile=True) gives the same error on a CPU."
_ONE_REPLICA = "For preflight, create the model outside a strategy with several replicas."
# (pattern in the error's type or text, what to do)
_ADVICE = (
    (
        "Using a symbolic `tf.Tensor` as a Python `bool`",
        "Use tf.cond or tf.where instead of the Python `if`, `while`, `for` or `and` on a tensor. (Keras does "
        "not apply AutoGraph to layers.)",
    ),
    (
        "no attribute 'numpy'",
        "Move the read out of the step: return the tensor and read it after the step.",
    ),
    ("created on the first call", "Create variables once, outside the step."),
    (
        "compile-time constant",
        "Pass the value as a Python number, or as an array instead of a tf.TensorSpec: the program's shapes "
        "depend on it.",
    ),
    ("Trying to access resource", _ONE_REPLICA),
    ('Need to be inside "with strategy.scope()"', _ONE_REPLICA),
)


def tracing_error(step: Step, error: Exception, places: SourceLocations) -> TpuMagicsError:
    """The error for an exception in the step's Python body during tracing."""
    if isinstance(error, TpuMagicsError):
        return error
    place = places.of_error(error)
    kind = type(error).__name__
    return TpuMagicsError(
        f"{step.name} cannot be traced{_at(place)}.",
        f"{kind}: {_words(str(error)).removeprefix(f'{kind}: ')}",
        GIVE_MODEL if runs_many_steps(step.source) else _advice(error, _FIX),
        _code_lines([place]),
    )


def lowering_error(name: str, error: Exception, graph: Any, places: SourceLocations) -> TpuMagicsError:
    """The error for an op that TensorFlow cannot lower to XLA. TensorFlow names only the first op; all ops of the host
    are listed."""
    refused = unsupported_ops(str(error), graph, places)
    if not refused:
        lines = places.of_graph(graph)
        return TpuMagicsError(
            f"TensorFlow cannot lower {name} to XLA.",
            _words(str(error)),
            _advice(error, _SAME_ERROR),
            _code_lines([_line(node, lines) for node in _NODE.findall(str(error))]),
        )
    first = refused[0]
    rest = f" and {len(refused) - 1} more" if refused[1:] else ""
    return TpuMagicsError(
        f"{name} contains an op that XLA cannot compile: {first.op}{_at(first.place)}{rest}.",
        describe(refused),
        _TAKE_OUT if first.kind == "host" else _replaced(first.op),
        code_lines(refused),
    )


def unsupported_ops(text: str, graph: Any, places: SourceLocations) -> tuple[UnsupportedOp, ...]:
    """The ops that an error names and, if there are any, the host ops of this graph, each with its line."""
    lines = places.of_graph(graph)
    refused = named_ops(text, lines)
    return tuple(dict.fromkeys((*refused, *host_ops(graph, lines)))) if refused else ()


def describe(refused: Sequence[UnsupportedOp]) -> str:
    """A short description of each op."""
    return "; ".join(f"{one.op}{_at(one.place)}: {one.text}" for one in refused) + "."


def code_lines(refused: Sequence[UnsupportedOp]) -> list[str]:
    """The code of their lines."""
    return _code_lines([one.place for one in refused])


def _replaced(op: str) -> str:
    known = xla_ops.of(op)
    return f"Instead of {known.called}: {known.instead}." if known and known.instead else _REPLACE


def named_ops(text: str, lines: Mapping[str, SourceLine]) -> tuple[UnsupportedOp, ...]:
    """The ops that an error names, each with its line."""
    found = dict.fromkeys((op, _line(node, lines)) for op, node in _NO_KERNEL.findall(text))
    return tuple(_refused(op, place) for op, place in found)


def _line(node: str, lines: Mapping[str, SourceLine]) -> SourceLine | None:
    """The line of an op that the error names without the calls around it."""
    inner = (place for name, place in lines.items() if name.endswith(f"/{node}"))
    return lines.get(node) or next(inner, None)


def host_ops(graph: Any, lines: Mapping[str, SourceLine]) -> Iterator[UnsupportedOp]:
    """Ops of the graph that run on the host."""
    return (_refused(op.type, lines.get(name)) for name, op in ops(graph) if op.type in xla_ops.HOST)


def _refused(op: str, place: SourceLine | None) -> UnsupportedOp:
    known = xla_ops.of(op)
    if op in xla_ops.HOST and known is not None:
        return UnsupportedOp(op, f"{known.called} runs on the host, outside the XLA program", "host", place)
    return UnsupportedOp(op, f"XLA has no op for {known.called}" if known else "XLA has no such op", "compiler", place)


def _advice(error: Exception, otherwise: str) -> str:
    text = f"{type(error).__name__} {error}"
    return next((todo for sign, todo in _ADVICE if sign in text), otherwise)


def _at(place: SourceLine | None) -> str:
    return f" at {place}" if place else ""


def _code_lines(places: list[SourceLine | None]) -> list[str]:
    return [f"{place}: {place.code}" for place in dict.fromkeys(places) if place and place.code]


def _words(text: str) -> str:
    """The message itself, from a text with stack lines around it."""
    lines = [_COLOUR.sub("", line).strip() for line in text.splitlines()]
    kept = [line for line in lines if line and not line.startswith(_AROUND)]
    signed = [line for line in kept if any(sign in line for sign, _ in _ADVICE)]
    chosen = (signed or kept or ["no text"])[-1 if text.startswith("in user code") else 0].removeprefix(_FAILED)
    return chosen if len(chosen) <= _SAID else f"{chosen[:_SAID].rpartition('. ')[0] or chosen[:_SAID]}."
