"""Errors about XLA's rules explained: conditions, loops, values read in the step, shapes that depend on values."""

# The patterns were seen in TensorFlow 2.21, where no comment says otherwise. The first and the fifth rule are those of
# the guide for transformers on TPUs.

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tpu_magics.backends.tensorflow.located_error import LocatedError
from tpu_magics.errors import TpuMagicsError

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


def explain(error: LocatedError) -> TpuMagicsError | None:
    """The error explained, if it is about one of the rules."""
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
